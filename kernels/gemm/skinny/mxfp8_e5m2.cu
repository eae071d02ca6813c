/* MXFP8 weights of e5m2 past few rows: the entries of skinny.cuh. */
#include "kernels/gemm/skinny/skinny.cuh"

MATMUL_STREAMS(mxfp8_e5m2, STREAM_MXFP8_E5M2)
MATMUL_STREAMS_NARROW(mxfp8_e5m2, STREAM_MXFP8_E5M2)
MATMUL_STREAMS_GROUPS(mxfp8_e5m2, STREAM_MXFP8_E5M2)
