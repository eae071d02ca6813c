/* The arguments of backward_rows.cu. */
#ifndef KERNELS_NORM_BACKWARD_ROWS_H
#define KERNELS_NORM_BACKWARD_ROWS_H

#include "kernels/gpu/rows/row_parts.h"

/* Pieces of a row that a thread has at most, of f32 and of 16 bits; threads of a block that has a multiprocessor to itself, as registers for their columns' sums allow (any: of rows in no words). */
enum { BACKWARD_F32_PIECES = 3, BACKWARD_PIECES = 4, BACKWARD_ANY_THREADS = 512, BACKWARD_COLS_MOST = 512 * 2 * PIECE, BACKWARD_WARPS_MOST = 24 };
#define BACKWARD_THREADS(pieces, centred) ((pieces) + (centred) <= 2 ? 768 : (pieces) <= BACKWARD_F32_PIECES ? 512 : 384)
/* Bytes of what a block's teams hold of one operand. Columns and warps of a block that adds the sums of blocks. */
#define BACKWARD_ROW_BYTES(pieces, format, threads) ((uint32_t)((pieces) * ((format) == CUDA_f32 ? 32 : 16) * (int)(threads)))
enum { BACKWARD_SUM_COLS = 32, BACKWARD_SUM_WARPS = 16 };
enum { BACKWARD_ROWS = 4, BACKWARD_ROOM_BYTES = 2048 };   /* rows of x and dy, two each, beside one of plus; what a block has of shared memory besides */

/* n / d of a number of 31 bits: the upper 32 bits of n * by, shifted; by is 2^(32 + shift) / d, rounded up. */
typedef struct row_divisor { uint32_t by, shift; } row_divisor;

typedef struct norm_backward_rows_arguments {
    cuda_nest nest;                   /* rows: dx, x, dy, plus */
    cuda_array dx, x, dy, plus, weight, dweight, dbias;
    float *sums;                      /* [blocks][1 or 2][padded] in the workspace: of each block's rows what is added to dweight, and to dbias */
    int64_t steps[4], weight_step, dweight_step, dbias_step;   /* steps: along a row, as the nest's */
    int32_t rows, cols, padded, group, teams, blocks;   /* padded: cols up to a multiple of 4; group: threads of a team, a power of 2 up to 32 or whole warps; teams: of a block, a row each */
    int32_t centred, has_weight, has_plus;
    int32_t is_whole;                 /* a team's threads hold as many elements as a row has */
    uint32_t rows_bytes;              /* of shared memory: rows of all teams, in front of the weight */
    int32_t pitches[4][CUDA_RANK];    /* of rows in words: the nest's strides in bytes */
    row_divisor sizes[CUDA_RANK];     /* of rows in words: the nest's sizes, by which a row's number is divided */
    float by_count, by_first, eps;    /* one over the elements of a row, and of its first piece */
} norm_backward_rows_arguments;

#endif
