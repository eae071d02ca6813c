/* The arguments of backward_rows.cu. */
#ifndef KERNELS_NORM_BACKWARD_ROWS_H
#define KERNELS_NORM_BACKWARD_ROWS_H

#include "kernels/gpu/rows/row_parts.h"

/* Threads of a block, of rows up to 4096 elements and of wider ones; pieces of a row that a thread has at most; columns and warps of a block that adds the parts. */
enum { BACKWARD_THREADS = 256, BACKWARD_WIDE_THREADS = 512, BACKWARD_PIECES = 3, BACKWARD_COLS_MOST = BACKWARD_WIDE_THREADS * 2 * PIECE, BACKWARD_SUM_COLS = 32, BACKWARD_SUM_WARPS = 16 };
/* Blocks that a multiprocessor has registers for, and bytes of what a block's teams hold of one operand. */
#define BACKWARD_RESIDENT(pieces, threads, centred) ((threads) > BACKWARD_THREADS ? 1 : (pieces) + (centred) <= 2 ? 3 : 2)
#define BACKWARD_ROW_BYTES(pieces, format, threads) ((uint32_t)((pieces) * ((format) == CUDA_f32 ? 32 : 16) * (int)(threads)))
enum { BACKWARD_ROWS = 4, BACKWARD_ROOM_BYTES = 2048 };   /* rows of x and dy, two each, beside one of plus; what a block has of shared memory besides */

typedef struct norm_backward_rows_arguments {
    cuda_nest nest;                   /* rows: dx, x, dy, plus */
    cuda_array dx, x, dy, plus, weight, dweight, dbias;
    float *sums;                      /* [blocks][2][cols] in the workspace: of each block's rows what is added to dweight, and to dbias */
    int64_t steps[4], weight_step, dweight_step, dbias_step;   /* steps: along a row, as the nest's */
    int32_t rows, cols, group, teams, blocks;   /* group: threads of a team, a power of 2 up to 32 or whole warps; teams: of a block, a row each */
    int32_t centred, has_weight, has_plus;
    int32_t is_whole;                 /* a team's threads hold as many elements as a row has */
    uint32_t row_bytes, rows_bytes;   /* of shared memory: of a row of all teams, and of all of them, in front of the weight */
    float by_count, eps;
} norm_backward_rows_arguments;

#endif
