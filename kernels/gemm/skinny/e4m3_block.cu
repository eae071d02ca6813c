/* e4m3 weights with fp32 scales by 1 x 128 or 128 x 128 past few rows: the entries of skinny.cuh. */
#include "kernels/gemm/skinny/skinny.cuh"

MATMUL_STREAMS(e4m3_block, STREAM_E4M3_BLOCK)
MATMUL_STREAMS_NARROW(e4m3_block, STREAM_E4M3_BLOCK)
