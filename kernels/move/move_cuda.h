/* The arguments of the GPU kernels that move elements. */
#ifndef KERNELS_MOVE_CUDA_H
#define KERNELS_MOVE_CUDA_H

#include "kernels/gpu/arguments.h"

typedef struct copy_arguments {
    cuda_nest nest;               /* to, from */
    cuda_array to, from;
} copy_arguments;

/* Matrices of which one side has rows side by side, the other one columns: from[r * from_row + c] goes to[c * to_col + r]. */
typedef struct tile_arguments {
    cuda_nest nest;               /* to, from: all other axes */
    cuda_array to, from;
    int64_t rows, cols, from_row, to_col;
    int32_t row_tiles, col_tiles;
} tile_arguments;
enum { TILE_ROWS = 64, TILE_COLS = 32 };   /* elements; pairs of 2 bytes: 64 columns */

typedef struct fill_arguments {
    cuda_nest nest;               /* to */
    cuda_array to;
    uint64_t element;             /* its bits */
} fill_arguments;

typedef struct iota_arguments {
    cuda_array to;
    int64_t count, stride, start, step;
} iota_arguments;

typedef struct triangle_arguments {
    cuda_nest nest;               /* to, from: all axes but the last two */
    cuda_array to, from;
    int64_t rows, cols, to_row, to_col, from_row, from_col, offset;
    int32_t lower;
} triangle_arguments;

#endif
