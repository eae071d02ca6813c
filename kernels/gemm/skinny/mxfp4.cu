/* MXFP4 weights past few rows: the entries of skinny.cuh. */
#include "kernels/gemm/skinny/skinny.cuh"

MATMUL_STREAMS(mxfp4, STREAM_MXFP4)
MATMUL_STREAMS_NARROW(mxfp4, STREAM_MXFP4)
MATMUL_STREAMS_GROUPS(mxfp4, STREAM_MXFP4)
