/* What kernels that keep rows in registers are given (row_parts.cuh): how rows are divided among threads, and where a result in any format goes. Filled in by
 * row_parts.c. */
#ifndef KERNELS_CUDA_ROW_PARTS_H
#define KERNELS_CUDA_ROW_PARTS_H

#include "kernels/common/cuda/arguments.h"

/* A thread holds up to so many pieces of a row, each of PIECE elements side by side; entries are made for few (their name ends in _1) and for many (_4). */
/* Entries are named by the bits of an element that they read, the pieces of a thread, and whether they search for scales. */
#define ROW_ENTRIES(name)                                                                                                              \
    {{{#name "_32_1", #name "_32_1_search"}, {#name "_32_4", #name "_32_4_search"}},                                                   \
     {{#name "_16_1", #name "_16_1_search"}, {#name "_16_4", #name "_16_4_search"}}}

enum { PIECE = 8, PIECES_MOST = 4, ROW_THREADS_MOST = 512, ROW_COLS_MOST = PIECE * PIECES_MOST * ROW_THREADS_MOST };

typedef struct row_division {
    cuda_nest nest;               /* rows, and where each operand's begin */
    int32_t rows, cols;
    int32_t parts, part_cols;     /* of a row, which are worked on apart */
    int32_t group;                /* threads of a part: a power of 2 up to 32, or all of a block */
} row_division;

enum { ROUND_UP, ROUND_FLOOR, ROUND_SEARCH };   /* num_round */

typedef struct row_target {
    cuda_rows rows;
    int32_t format;               /* of the result: a block format, or f32, bf16, f16 */
    int32_t round;                /* of scales */
    int64_t step;                 /* of a plain result */
} row_target;

#if !defined(__CUDACC__)
#include "kernel/kernel.h"
/* Can a thread's pieces be of this format? */
bool row_parts_reads(dw_format format);
/* NULL, or why a result of this type is not made so: elements that are neither f32, bf16 nor f16, scales over several rows. */
const char *row_parts_reject_result(const op_type *result, text *why);
/* The same for a row that has to be held as a whole: its size is not known, or is more than ROW_COLS_MOST. */
const char *row_parts_reject_width(dim width, text *why);
/* Of the launch's grid and block, for a result like out. whole: what is done to a part depends on all of its row. Returns the pieces of a thread, 1 or PIECES_MOST. */
int row_parts_divide(kernel_launch *launch, const chip_caps *chip, const dw_tensor *out, bool whole, row_division *division);
/* The first result of the run. */
void row_parts_take_target(kernel_launch *launch, const kernel_run *run, row_target *target);
/* Zeroes the padding of tiled scales, where there is any: a launch before the one that writes the others. */
dw_status row_parts_clear(const kernel_run *run, kernel_launcher *launcher);
#endif

#endif
