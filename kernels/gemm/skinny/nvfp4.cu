/* NVFP4 weights past few rows: the entries of skinny.cuh. */
#include "kernels/gemm/skinny/skinny.cuh"

MATMUL_STREAMS(nvfp4, STREAM_NVFP4)
MATMUL_STREAMS_NARROW(nvfp4, STREAM_NVFP4)
MATMUL_STREAMS_GROUPS(nvfp4, STREAM_NVFP4)
