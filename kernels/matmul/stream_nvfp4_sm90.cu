/* NVFP4 weights past few rows: the entries of stream_sm90.cuh. */
#include "kernels/matmul/stream_sm90.cuh"

MATMUL_STREAMS(nvfp4, STREAM_NVFP4)
MATMUL_STREAMS_NARROW(nvfp4, STREAM_NVFP4)
MATMUL_STREAMS_GROUPS(nvfp4, STREAM_NVFP4)
