/* MXFP8 weights past few rows: the entries of skinny.cuh. */
#include "kernels/gemm/skinny/skinny.cuh"

MATMUL_STREAMS(mxfp8, STREAM_MXFP8)
MATMUL_STREAMS_NARROW(mxfp8, STREAM_MXFP8)
MATMUL_STREAMS_GROUPS(mxfp8, STREAM_MXFP8)
