/* The arguments of the products of ring.cuh: read by the host half, which fills them in, and by the device half. */
#ifndef KERNELS_GEMM_SKINNY_RING_H
#define KERNELS_GEMM_SKINNY_RING_H

#include "kernels/gemm/skinny/skinny.h"

/* Of a warp's ring: stages at most, and bytes of a stage at most, of which a lane has up to RING_UNITS units of 16. Rows of b that a warp has at most: a lane for each at the end. */
enum { RING_STAGES = 8, RING_UNITS = 8, RING_CHUNK_BYTES = RING_UNITS * 32 * 16, RING_ROWS = 32 };

typedef struct ring_arguments {
    skinny_arguments product;     /* norm.at: where the row of a lies in shared memory, behind the rings */
    int32_t each, rest;           /* columns of the result that a warp has; the first `rest` of all warps have one more */
    int32_t chunks, chunk_bytes;  /* pieces of a row of b, and what a stage holds of them: a multiple of 512 */
    int32_t stages;
} ring_arguments;

#endif
