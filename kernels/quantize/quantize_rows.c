/* quantize on a GPU in one pass: the host half of quantize_rows.cu, quantize_long.cu and quantize_squares.cu. */
#include "kernels/quantize/quantize_rows.h"

#include "kernels/gpu/host/host.h"
#include "kernels/gpu/rows/host.h"
#include "kernels/kernels.h"
#include "kernels/quantize/quantize_host.h"

/* Does a scale depend on all of a row? */
static bool is_whole(const num_format *info) { return info->rows == 1 && (info->cols == 0 || info->second == 2); }

/* Does one depend on the whole tensor? */
static bool is_over_tensor(const kernel_run *run) {
    const num_format *info = num_info(run->call.out[0]->format);
    return info->rows == 0 || (info->second == 1 && kernel_operand(run, 1) == NULL);
}

static bool may_be_empty(const kernel_problem *problem, const op_type *x) {
    for (int i = 0; i < x->rank; i++) {
        int64_t least, most;
        dim_range(problem->dims, x->dims[i], &least, &most);
        if (least < 1) return true;
    }
    return false;
}

const char *quantize_rows_reject(const kernel_problem *problem, text *why) {
    const op_type *x = problem->in[0], *out = problem->out[0];
    const num_format *info = num_info(out->format);
    if (!row_parts_reads(x->format)) {
        text_printf(why, "x is %s", dw_format_name(x->format));
        return text_string(why);
    }
    if (op_has_level(problem->attrs)) return "the second level is a number, not an operand";
    if ((info->rows == 0 || info->cols == 0 || info->second != 0) && may_be_empty(problem, x)) return "x may have no elements, and there is still a scale to write";
    const bool searches = op_quantize_round(problem->attrs) == NUM_ROUND_SEARCH;
    return is_whole(info) && searches ? row_parts_reject_width(x->dims[x->rank - 1], why) : NULL;
}

double quantize_search_seconds(const kernel_problem *problem) {
    const op_type *x = problem->in[0];
    int64_t cols;
    if (op_quantize_round(problem->attrs) != NUM_ROUND_SEARCH || !dim_is_constant(x->dims[x->rank - 1], &cols)) return 0;
    return 1e-6 * (1 + 1.05e-3 * (double)cols);
}

double quantize_rows_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 0.5, 0.853) + quantize_search_seconds(problem); }

size_t quantize_rows_workspace(const kernel_run *run) { return is_over_tensor(run) ? quantize_scratch_bytes(run->call.out[0]) : 0; }

/* Finds the largest magnitude of x, at the beginning of the workspace: launch is what quantises behind it. */
static dw_status add_amax(kernel_launcher *launcher, kernel_launch *launch, quantize_rows_arguments *arguments, const char *entry) {
    kernel_launch clear;
    clear_arguments *cleared = cuda_launch(&clear, "quantize", "quantize_clear", sizeof *cleared);
    cleared->count = sizeof(int32_t);
    cuda_slot(&clear, KERNEL_SLOT_WORKSPACE, 0, &cleared->bytes, 0);
    TRY(launcher->add(launcher, &clear));
    cuda_slot(launch, KERNEL_SLOT_WORKSPACE, 0, &arguments->amax, 0);
    kernel_launch before = *launch;
    before.entry = entry;
    return launcher->add(launcher, &before);
}

/* Rows that have to be held as a whole and are too long for registers. */
static dw_status shape_long(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    quantize_long_arguments *arguments = cuda_launch(&launch, "quantize_long", NULL, sizeof *arguments);
    launch.overlaps = true;
    const dw_tensor *x = run->call.in[0];
    cuda_nest_lines(&arguments->chunks.nest, x->rank - 1, 1, &x, &arguments->x_step);
    TRY(quantize_clear_padding(run, launcher));
    TRY(row_chunks_divide(&launch, run, x, &arguments->chunks));
    launch.entry = x->format == DW_FORMAT_f32 ? "quantize_long_f32" : x->format == DW_FORMAT_bf16 ? "quantize_long_bf16" : "quantize_long_f16";
    row_parts_take_target(&launch, run, &arguments->out);
    cuda_take_array(&launch, run, 0, &arguments->x);
    return launcher->add(launcher, &launch);
}

/* Scales of squares: a thread block each. */
static dw_status shape_squares(const kernel_run *run, kernel_launcher *launcher) {
    const dw_tensor *x = run->call.in[0];
    const num_format *info = num_info(run->call.out[0]->format);
    const int last = x->rank - 1;
    const int64_t rows = last > 0 ? x->dims[last - 1] : 1, cols = x->dims[last];
    dw_tensor matrices = *x;
    int64_t step;
    kernel_launch launch;
    quantize_squares_arguments *arguments = cuda_launch(&launch, "quantize_squares", x->format == DW_FORMAT_f32 ? "quantize_squares_f32" : x->format == DW_FORMAT_bf16 ? "quantize_squares_bf16" : "quantize_squares_f16", sizeof *arguments);
    if (op_tensor_count(x) == 0) return DW_OK;
    matrices.rank = last > 0 ? last : 1;
    if (last == 0) matrices.dims[0] = 1;
    const dw_tensor *of_nest = &matrices;
    cuda_nest_lines(&arguments->matrices, matrices.rank - 1, 1, &of_nest, &step);
    arguments->row_stride = last > 0 ? x->strides[last - 1] : 0;
    arguments->x_step = x->strides[last];
    arguments->rows = (int32_t)rows;
    arguments->cols = (int32_t)cols;
    cuda_take_array(&launch, run, 0, &arguments->x);
    cuda_take_rows(&launch, run, KERNEL_RESULT, true, &arguments->out);
    cuda_grid(&launch, op_tensor_count(x) / (rows * cols) * base_ceil_div(rows, info->rows) * base_ceil_div(cols, info->cols), 1, 1);
    launch.block[0] = ROW_THREADS_MOST;
    launch.overlaps = true;
    return launcher->add(launcher, &launch);
}

dw_status quantize_rows_shape(const kernel_run *run, kernel_launcher *launcher) {
    static row_entries entries = ROW_ENTRIES("quantize_rows", ""), search_entries = ROW_ENTRIES("quantize_rows", "_search"), amax_entries = ROW_ENTRIES("quantize_rows", "_amax");
    if (num_info(run->call.out[0]->format)->rows > 1) return shape_squares(run, launcher);
    kernel_launch launch;
    quantize_rows_arguments *arguments = cuda_launch(&launch, "quantize_rows", NULL, sizeof *arguments);
    const dw_tensor *x = run->call.in[0], *out = run->call.out[0];
    const num_format *info = num_info(out->format);
    cuda_nest_lines(&arguments->division.nest, x->rank - 1, 1, &x, &arguments->x_step);
    if (op_tensor_count(x) == 0) return quantize_clear_padding(run, launcher);
    if (is_whole(info) && row_is_long(x->dims[x->rank - 1])) return shape_long(run, launcher);
    TRY(quantize_clear_padding(run, launcher));
    bool searches = op_quantize_round(run->call.attrs) == NUM_ROUND_SEARCH;
    row_parts_divide(&launch, run, x->format, out, is_whole(info), searches ? search_entries : entries, &arguments->division);
    row_parts_take_target(&launch, run, &arguments->out);
    cuda_take_array(&launch, run, 0, &arguments->x);
    launch.overlaps = true;
    if (kernel_operand(run, 1) != NULL) cuda_slot(&launch, KERNEL_SLOT_DATA, 1, &arguments->given, 0);
    if (is_over_tensor(run)) {
        const int format = x->format == DW_FORMAT_f32 ? 0 : x->format == DW_FORMAT_bf16 ? 1 : 2;
        bool is_many = launch.entry == (searches ? search_entries : entries)[format][1];
        TRY(add_amax(launcher, &launch, arguments, amax_entries[format][is_many]));
    }
    return launcher->add(launcher, &launch);
}
