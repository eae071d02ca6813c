/* The arguments of the products of ring_codes.cuh: read by the host half, which fills them in, and by the device half. */
#ifndef KERNELS_GEMM_SKINNY_RING_CODES_H
#define KERNELS_GEMM_SKINNY_RING_CODES_H

#include "kernels/gemm/skinny/ring.h"

/* Codes of a row that are multiplied at a time, a strip; and of a row at most. Bytes of a stage at most; bytes of a strip of a in shared memory, where its codes are halves. */
enum { CODES_STRIP = 2048, CODES_MOST = 8192, CODES_STAGE_BYTES = 4096, CODES_A_BYTES = CODES_STRIP * 2 };

/* ring.chunks, ring.chunk_bytes: pieces of a row of b, and what a stage holds, a multiple of 128. */
typedef struct ring_codes_arguments {
    ring_arguments ring;
    int64_t further, advance;     /* bytes of b from one of two stages that follow each other to the other one, of the same piece; and from the rows of both to the next ones */
    int32_t strips;               /* of a row */
    int32_t at;                   /* where a's strips lie in shared memory */
} ring_codes_arguments;

#endif
