/* bf16 weights past few rows: the entries of skinny.cuh. */
#include "kernels/gemm/skinny/skinny.cuh"

MATMUL_STREAMS(bf16, STREAM_BF16)
