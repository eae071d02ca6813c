/* Products of one row with weights of codes of e4m3 whose rows come through rings in shared memory (ring_codes.cuh), by the constants of the image's row: ENTRIES: their names are matmul_ring_<ENTRIES>, and .._whole for
 * rows of 2048; MX: 1: weights are mxfp8, 0: fp8_128x128. */
#include "kernels/gemm/skinny/ring_codes.cuh"

#define ENTRY(entries, size, whole) RING_CODES_ENTRY(matmul_ring_##entries##size, whole)
#define ENTRIES_OF(entries) ENTRY(entries, , 0) ENTRY(entries, _whole, 1)
ENTRIES_OF(ENTRIES)
