/* f16 weights (and f16 rows) past few rows: the entries of stream_sm90.cuh. */
#include "kernels/matmul/stream_sm90.cuh"

MATMUL_STREAMS(f16, STREAM_F16)
