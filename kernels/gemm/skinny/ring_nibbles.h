/* The arguments of the products of ring_nibbles.cuh: read by the host half, which fills them in, and by the device half. */
#ifndef KERNELS_GEMM_SKINNY_RING_NIBBLES_H
#define KERNELS_GEMM_SKINNY_RING_NIBBLES_H

#include "kernels/gemm/skinny/ring.h"

/* k of a unit, 16 bytes of codes; rows of b of a stage at most; elements of a that a thread quantises, and units of eight that it has of them at most. */
enum { NIBBLES_DEPTH = 32, NIBBLES_ROWS = 4, NIBBLES_PIECE = 8, NIBBLES_PIECES = 4 };

/* Bytes of a in shared memory: its elements, a byte each, the scales of blocks of 16 or 32, in fp32, and what belongs to each scale where it is searched for. */
#define NIBBLES_BYTES(k) ((k) + (k) / 4 + 512)

typedef struct nibbles_arguments {
    ring_arguments ring;          /* chunks 1; chunk_bytes: of a stage; product.norm.at: where a lies in shared memory */
    int32_t rows;                 /* of b in a stage, 1, 2 or 4: their codes, and behind those of all their scales */
} nibbles_arguments;

#endif
