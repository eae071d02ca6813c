/* The arguments of backward_rows.cu. */
#ifndef KERNELS_NORM_BACKWARD_ROWS_H
#define KERNELS_NORM_BACKWARD_ROWS_H

#include "kernels/gpu/rows/row_parts.h"

/* Threads of a block, of rows up to 4096 elements, of those of four pieces a thread and of wider ones; pieces of a row that a thread has at most, of f32 and of 16 bits; the blocks of a cluster at most. */
enum { BACKWARD_THREADS = 256, BACKWARD_MORE_THREADS = 384, BACKWARD_WIDE_THREADS = 512, BACKWARD_F32_PIECES = 3, BACKWARD_PIECES = 4, BACKWARD_COLS_MOST = BACKWARD_WIDE_THREADS * 2 * PIECE, BACKWARD_CLUSTER = 8 };
/* Blocks that a multiprocessor has registers for, and bytes of what a block's teams hold of one operand. */
#define BACKWARD_RESIDENT(pieces, threads, centred) ((threads) > BACKWARD_THREADS ? 1 : (pieces) + (centred) <= 2 ? 3 : 2)
#define BACKWARD_ROW_BYTES(pieces, format, threads) ((uint32_t)((pieces) * ((format) == CUDA_f32 ? 32 : 16) * (int)(threads)))
enum { BACKWARD_ROWS = 4, BACKWARD_ROOM_BYTES = 2048 };   /* rows of x and dy, two each, beside one of plus; what a block has of shared memory besides */

typedef struct norm_backward_rows_arguments {
    cuda_nest nest;                   /* rows: dx, x, dy, plus */
    cuda_array dx, x, dy, plus, weight, dweight, dbias;
    float *sums;                      /* [clusters][cols or 2 cols] in the workspace: of each cluster's rows what is added to dweight, and behind it to dbias */
    uint32_t *counters;               /* of each part of the columns, one of a cluster's block: the clusters whose sums of it are in gmem */
    int64_t steps[4], weight_step, dweight_step, dbias_step;   /* steps: along a row, as the nest's */
    int32_t rows, cols, group, teams;   /* group: threads of a team, a power of 2 up to 32 or whole warps; teams: of a block, a row each */
    int32_t part, clusters;           /* columns' sums that a block adds over its cluster; clusters of the grid */
    int32_t centred, has_weight, has_plus;
    int32_t is_whole;                 /* a team's threads hold as many elements as a row has */
    uint32_t row_bytes, rows_bytes;   /* of shared memory: of a row of all teams, and of all of them, in front of the weight */
    float by_count, eps;
} norm_backward_rows_arguments;

#endif
