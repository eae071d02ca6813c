/* e4m3 weights with one scale, or one a row past few rows: the entries of skinny.cuh. */
#include "kernels/gemm/skinny/skinny.cuh"

MATMUL_STREAMS(e4m3, STREAM_E4M3)
MATMUL_STREAMS_NARROW(e4m3, STREAM_E4M3)
MATMUL_STREAMS_GROUPS(e4m3, STREAM_E4M3)
