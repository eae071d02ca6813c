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

#if !defined(__CUDACC__)
#include "kernel/kernel.h"
/* Can a thread's pieces be of this format? */
bool row_parts_reads(dw_format format);
/* NULL, or why a result of this type is not made so: elements that are neither f32, bf16 nor f16, scales over several rows. */
const char *row_parts_reject_result(const op_type *result, text *why);
/* The same for a row that has to be held as a whole: its size is not known, or is more than ROW_COLS_MOST. */
const char *row_parts_reject_width(dim width, text *why);
/* An image has an entry for each format of elements and number of pieces. */
enum { ROW_FORMATS = 3, ROW_SIZES = 2 };
#define ROW_ENTRIES(stem, tail) {{stem "_f32_1" tail, stem "_f32_4" tail}, {stem "_bf16_1" tail, stem "_bf16_4" tail}, {stem "_f16_1" tail, stem "_f16_4" tail}}
typedef const char *const row_entries[ROW_FORMATS][ROW_SIZES];
/* Of the launch's grid, block and entry, for x of this format and a result like out. whole: what is done to a part depends on all of its row. */
void row_parts_divide(kernel_launch *launch, const chip_caps *chip, dw_format x, const dw_tensor *out, bool whole, row_entries entries, row_division *division);
/* The first result of the run. */
void row_parts_take_target(kernel_launch *launch, const kernel_run *run, row_target *target);
#endif

#endif
