/* What host halves of kernels on rows call: how rows are divided among threads (row_parts.c) and, where they are long, among blocks (row_chunks.c). */
#ifndef KERNELS_GPU_ROWS_HOST_H
#define KERNELS_GPU_ROWS_HOST_H

#include "kernel/kernel.h"
#include "kernels/gpu/rows/row_chunks.h"

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
/* Threads that hold so many elements side by side, of so many parts in all: as many as have some, and as many as they are where several warps share them; many: they have up to PIECES_MOST pieces each. */
typedef struct row_threads { int64_t needed, group; bool many; } row_threads;
row_threads row_parts_threads(const kernel_run *run, int64_t parts, int64_t cols);
/* Of the launch's grid, block and entry, for x of this format and a result like out. whole: what is done to a part depends on all of its row. */
void row_parts_divide(kernel_launch *launch, const kernel_run *run, dw_format x, const dw_tensor *out, bool whole, row_entries entries, row_division *division);
/* The first result of the run. */
void row_parts_take_target(kernel_launch *launch, const kernel_run *run, row_target *target);
/* The same of another result. */
void row_parts_take_result(kernel_launch *launch, const kernel_run *run, int result, row_target *target);

/* From so many elements on. */
static inline bool row_is_long(int64_t cols) { return cols > ROW_COLS_MOST; }
/* Of the launch's grid, cluster, block and shared memory, for rows of elements of this format; the nest is there. */
dw_status row_chunks_divide(kernel_launch *launch, const kernel_run *run, const dw_tensor *x, row_chunks *chunks);

#endif
