/* Products of one row with weights in bf16 and f16 whose rows come through rings in shared memory (ring.cuh). */
#include "kernels/gemm/skinny/ring.cuh"

RING_ENTRY(matmul_ring_bf16, SKINNY_BF16)
RING_ENTRY(matmul_ring_f16, SKINNY_F16)
