/* How rows are divided among threads that keep them in registers, and the fields of their results: the host half of row_parts.cuh. Pure: knows no driver. */
#include "kernels/gpu/rows/host.h"

#include "kernels/gpu/host/host.h"

enum { THREADS_OF_SMALL_PARTS = 128 };   /* of a block that holds several */

bool row_parts_reads(dw_format format) { return format == DW_FORMAT_f32 || format == DW_FORMAT_bf16 || format == DW_FORMAT_f16; }

const char *row_parts_reject_result(const op_type *result, text *why) {
    const num_format *info = num_info(result->format);
    if (info->class != NUM_BLOCK && !row_parts_reads(result->format)) {
        text_printf(why, "the result is %s", info->name);
        return text_string(why);
    }
    if (info->class != NUM_BLOCK) return NULL;
    if (info->rows == 1) return NULL;
    text_printf(why, "scales of %s are for several rows", info->name);
    return text_string(why);
}

const char *row_parts_reject_width(dim width, text *why) {
    int64_t cols;
    if (!dim_is_constant(width, &cols)) return "the size of a row is not known at plan time";
    if (cols > 0 && cols <= ROW_COLS_MOST) return NULL;
    text_printf(why, "rows have %lld elements; its threads hold from 1 to %d", (long long)cols, ROW_COLS_MOST);
    return text_string(why);
}

_Static_assert(ROUND_UP == (int)NUM_ROUND_UP && ROUND_FLOOR == (int)NUM_ROUND_FLOOR && ROUND_SEARCH == (int)NUM_ROUND_SEARCH, "one meaning in both halves");

row_threads row_parts_threads(const kernel_run *run, int64_t parts, int64_t cols) {
    enum { FULL = 2048 };         /* threads with one piece each that keep a multiprocessor busy */
    const int64_t pieces = base_ceil_div(cols, PIECE);
    const bool many = pieces > ROW_THREADS_MOST || kernel_rows_beside(run, parts) * pieces > (int64_t)run->chip->units * FULL;
    const int64_t needed = base_ceil_div(pieces, many ? PIECES_MOST : 1);
    return (row_threads){needed, base_ceil_div(needed, 32) * 32, many};
}

void row_parts_divide(kernel_launch *launch, const kernel_run *run, dw_format x, const dw_tensor *out, bool whole, row_entries entries, row_division *division) {
    enum { PART_COLS = 8192 };
    const num_format *info = num_info(out->format);
    int64_t cols = out->dims[out->rank - 1], rows = division->nest.count;
    division->rows = (int32_t)rows;
    division->cols = (int32_t)cols;
    division->part_cols = (int32_t)(whole || cols < PART_COLS ? cols : PART_COLS);
    division->parts = (int32_t)base_ceil_div(cols, division->part_cols);
    const row_threads threads = row_parts_threads(run, rows * division->parts, division->part_cols);
    int64_t group = info->class == NUM_BLOCK && info->cols > 0 ? info->cols / PIECE : 1;   /* threads that share a scale */
    while (group < threads.needed && group < 32) group *= 2;
    for (int64_t size = group; size > 1; size /= 2) division->group_log2++;
    if (threads.needed > 32) group = threads.group;
    division->group = (int32_t)group;
    launch->block[0] = (uint32_t)(group <= 32 ? THREADS_OF_SMALL_PARTS : group);
    division->parts_of_block = (int32_t)(launch->block[0] / group);
    int64_t blocks = base_ceil_div(rows * division->parts, division->parts_of_block);
    cuda_grid(launch, blocks < INT32_MAX ? blocks : INT32_MAX, 1, 1);
    launch->entry = entries[x == DW_FORMAT_f32 ? 0 : x == DW_FORMAT_bf16 ? 1 : 2][threads.many];
}

void row_parts_take_target(kernel_launch *launch, const kernel_run *run, row_target *target) { row_parts_take_result(launch, run, 0, target); }

void row_parts_take_result(kernel_launch *launch, const kernel_run *run, int result, row_target *target) {
    const dw_tensor *out = kernel_operand(run, KERNEL_RESULT + result);
    cuda_take_rows(launch, run, KERNEL_RESULT + result, true, &target->rows);
    target->format = out->format;
    target->round = op_quantize_round(run->call.attrs);
    target->step = out->strides[out->rank - 1];
}
