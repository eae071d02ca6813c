/* What kernels that keep rows in registers are given (row_parts.cuh): how rows are divided among threads, and where a result in any format goes. Filled in by
 * row_parts.c. */
#ifndef KERNELS_GPU_ROWS_ROW_PARTS_H
#define KERNELS_GPU_ROWS_ROW_PARTS_H

#include "kernels/gpu/arguments.h"

/* A thread holds one piece of a row, or up to PIECES_MOST; a piece is PIECE elements side by side. */
enum { PIECE = 8, PIECES_MOST = 4, ROW_THREADS_MOST = 512, ROW_COLS_MOST = PIECE * PIECES_MOST * ROW_THREADS_MOST };

typedef struct row_division {
    cuda_nest nest;               /* rows, and where each operand's begin */
    int32_t rows, cols;
    int32_t parts, part_cols;     /* of a row, which are worked on apart */
    int32_t group, group_log2;    /* threads of a part: a power of 2 up to 32, or all of a block */
    int32_t parts_of_block;
} row_division;

enum { ROUND_UP, ROUND_FLOOR, ROUND_SEARCH };   /* num_round */

typedef struct row_target {
    cuda_rows rows;
    int32_t format;               /* of the result: a block format, or f32, bf16, f16 */
    int32_t round;                /* of scales */
    int64_t step;                 /* of a plain result */
} row_target;

#endif
