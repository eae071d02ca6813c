/* MXFP4 weights past few rows: the entries of stream_sm90.cuh. */
#include "kernels/matmul/stream_sm90.cuh"

MATMUL_STREAMS(mxfp4, STREAM_MXFP4)
MATMUL_STREAMS_NARROW(mxfp4, STREAM_MXFP4)
MATMUL_STREAMS_GROUPS(mxfp4, STREAM_MXFP4)
