/* Products of one row with weights in nvfp4 and mxfp4, whose rows come through rings in shared memory (ring_nibbles.cuh). */
#include "kernels/gemm/skinny/ring_nibbles.cuh"

NIBBLES_ENTRY(matmul_ring_nvfp4, MATMUL_nvfp4_row, false)
NIBBLES_ENTRY(matmul_ring_nvfp4_search, MATMUL_nvfp4_row, true)
NIBBLES_ENTRY(matmul_ring_mxfp4, MATMUL_mxfp4, false)
NIBBLES_ENTRY(matmul_ring_mxfp4_search, MATMUL_mxfp4, true)
