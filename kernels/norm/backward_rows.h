/* The arguments of backward_rows.cu. */
#ifndef KERNELS_NORM_BACKWARD_ROWS_H
#define KERNELS_NORM_BACKWARD_ROWS_H

#include "kernels/gpu/rows/row_parts.h"

/* Threads of a block, pieces of a row that a thread has at most, and columns of a block that adds the parts. Kernels of one piece of 16-bit elements are narrow: they take so few registers that
 * BACKWARD_NARROW_RESIDENT threads are resident on a multiprocessor, of others BACKWARD_THREADS. */
#define BACKWARD_IS_NARROW(pieces, format) ((pieces) == 1 && (format) != CUDA_f32)
enum { BACKWARD_THREADS = 512, BACKWARD_NARROW_THREADS = 384, BACKWARD_NARROW_RESIDENT = 768, BACKWARD_PIECES = 2, BACKWARD_COLS_MOST = BACKWARD_THREADS * BACKWARD_PIECES * PIECE, BACKWARD_SUM_COLS = 32, BACKWARD_SUM_WARPS = 16 };

typedef struct norm_backward_rows_arguments {
    cuda_nest nest;                   /* rows: dx, x, dy, plus */
    cuda_array dx, x, dy, plus, weight, dweight, dbias;
    float *sums;                      /* [blocks][2][cols] in the workspace: of each block's rows what is added to dweight, and to dbias */
    int64_t steps[4], weight_step, dweight_step, dbias_step;   /* steps: along a row, as the nest's */
    int32_t rows, cols, group, teams, blocks;   /* group: threads of a team, a power of 2 up to 32 or whole warps; teams: of a block, a row each */
    int32_t centred, has_weight, has_plus;
    float by_count, eps;
} norm_backward_rows_arguments;

#endif
