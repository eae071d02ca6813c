/* The arguments and sizes of the tiled attention: read by its host half, which fills them in, and by the device half. Plain C that nvcc takes, too. */
#ifndef KERNELS_ATTENTION_TILE_TILE_H
#define KERNELS_ATTENTION_TILE_TILE_H

#include "kernels/attention/arguments.h"
#include "kernels/attention/in_blocks.h"

enum { TILE_QUERIES = 64, TILE_KEYS = 64, TILE_PITCH = TILE_QUERIES + 4, TILE_THREADS = 256 };   /* PITCH: floats of a row of smem */
enum { TILE_VIEW_BYTES = TILE_QUERIES * 16 + TILE_KEYS * 8 };   /* of smem: what each query sees, where each key of a block lies */

typedef struct attention_tile_arguments {
    attention_arguments call;
    attention_blocks blocks;
    int32_t tiles;                /* of the queries of one head */
} attention_tile_arguments;

#endif
