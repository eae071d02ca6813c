/* f16 weights (and f16 rows) past few rows: the entries of skinny.cuh. */
#include "kernels/gemm/skinny/skinny.cuh"

MATMUL_STREAMS(f16, STREAM_F16)
