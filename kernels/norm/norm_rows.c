/* layer_norm and rms_norm on a GPU in one pass: the host half of norm_rows.cu and norm_dense.cu, and of norm_long.cu. */
#include "kernels/norm/norm_rows.h"

#include "kernels/gpu/host/host.h"
#include "kernels/gpu/rows/host.h"
#include "kernels/kernels.h"
#include "kernels/quantize/quantize_host.h"

const char *norm_rows_cuda_reject(const kernel_problem *problem, text *why) {
    const op_type *x = problem->in[0];
    for (int i = 0; i < problem->n_in; i++) {
        if (problem->in[i] == NULL || row_parts_reads(problem->in[i]->format)) continue;
        text_printf(why, "operand %d is %s", i, dw_format_name(problem->in[i]->format));
        return text_string(why);
    }
    int64_t least, most;
    dim_range(problem->dims, x->dims[x->rank - 1], &least, &most);
    if (least < 1) return "rows may have no elements, and there may still be scales to write";
    const char *reason = row_parts_reject_result(problem->out[0], why);
    return reason == NULL && op_quantize_round(problem->attrs) == NUM_ROUND_SEARCH ? row_parts_reject_width(x->dims[x->rank - 1], why) : reason;
}

/* The shares of the bandwidth are an H200's in models' runs (bench/results/h200/models.md). */
double norm_rows_cuda_cost(const kernel_problem *problem) {
    const op_type *x = problem->in[0];
    int64_t cols;
    const bool is_long = dim_is_constant(x->dims[x->rank - 1], &cols) && row_is_long(cols);
    return NORM_MOMENTS_S + kernel_roofline(problem, DW_FORMAT_f32, 0.5, is_long ? 0.341 : 0.92) + quantize_search_seconds(problem);
}

size_t norm_rows_cuda_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

/* weight and bias: vectors. */
static bool take_column(kernel_launch *launch, const kernel_run *run, int operand, cuda_array *array, int64_t *step) {
    const dw_tensor *column = kernel_operand(run, operand);
    if (column == NULL) return false;
    *step = column->strides[0];
    cuda_take_array(launch, run, operand, array);
    return true;
}

/* ---- dense rows ---- */

/* Does operand k of the nest lie in words of 16 bytes, row after row? */
static bool is_dense_operand(const norm_rows_arguments *a, int k, const dw_tensor *tensor, int64_t step) {
    return cuda_lies_at_16(tensor->data) && step == 1 && a->division.nest.strides[k][0] % PIECE == 0;
}

static bool is_dense_column(const dw_tensor *column) { return column == NULL || (cuda_lies_at_16(column->data) && column->strides[0] == 1); }

/* Block formats that the dense kernels have code for. */
static bool is_common(dw_format format) {
    return format == DW_FORMAT_mxfp8 || format == DW_FORMAT_mxfp4 || format == DW_FORMAT_nvfp4_row || format == DW_FORMAT_fp8_1x128 || format == DW_FORMAT_fp8_row;
}

/* Rows of 16-bit elements that lie evenly and in words of 16 bytes, with all that belongs to them; steps: of the nest's operands. */
static bool is_dense(const kernel_run *run, const norm_rows_arguments *a, const dw_tensor *const *tensors, const int64_t *steps) {
    const dw_tensor *x = tensors[1], *out = tensors[0];
    bool is_block = num_info(out->format)->class == NUM_BLOCK;
    if (x->format == DW_FORMAT_f32 || a->division.nest.rank > 1 || a->division.cols % PIECE != 0) return false;
    if (is_block ? !is_common(out->format) || !cuda_lies_at_16(out->data) : out->format != x->format || !is_dense_operand(a, 0, out, steps[0])) return false;
    for (int k = 1; k < 4; k++)
        if (!is_dense_operand(a, k, tensors[k], steps[k])) return false;
    return is_dense_column(kernel_operand(run, 1)) && (!a->centred || is_dense_column(kernel_operand(run, 2)));
}

/* Pieces of a thread: 3 where the fourth would lie behind a row's end, as of 768, 1280, 1536 and 2304 elements. */
static int dense_pieces(const kernel_run *run, const norm_rows_arguments *a) {
    const dw_format out = run->call.out[0]->format;
    const int pieces = a->division.cols / PIECE, group = a->division.group;
    if (run->call.in[0]->format != DW_FORMAT_bf16 || (out != DW_FORMAT_bf16 && out != DW_FORMAT_mxfp8 && out != DW_FORMAT_fp8_1x128)) return PIECES_MOST;
    return group >= 32 && pieces <= 3 * group ? 3 : PIECES_MOST;
}

/* So many blocks as are resident at once make one row after the other, with weight and bias in shared memory. */
static void launch_dense(kernel_launch *launch, const kernel_run *run, const norm_rows_arguments *a) {
    static const char *const entries[3][2][2] = {{{"norm_dense_bf16_rms", "norm_dense_bf16_rms_sum"}, {"norm_dense_bf16_layer", "norm_dense_bf16_layer_sum"}},
                                                 {{"norm_dense_f16_rms", "norm_dense_f16_rms_sum"}, {"norm_dense_f16_layer", "norm_dense_f16_layer_sum"}},
                                                 {{"norm_dense_bf16_rms_3", "norm_dense_bf16_rms_sum_3"}, {"norm_dense_bf16_layer_3", "norm_dense_bf16_layer_sum_3"}}};
    const int pieces = dense_pieces(run, a);
    const int64_t most = NORM_DENSE_THREADS(pieces, a->has_residual);
    launch->image = "norm_dense";
    launch->entry = entries[pieces == 3 ? 2 : run->call.in[0]->format == DW_FORMAT_f16][a->centred][a->has_residual];
    const int64_t threads = launch->block[0], resident = threads < most ? most / threads * run->chip->units : run->chip->units;
    launch->shared_bytes = (uint32_t)(threads * (a->has_weight + a->has_bias) * pieces * PIECE * (int64_t)sizeof(float));
    if (launch->grid[0] > resident) launch->grid[0] = (uint32_t)resident;
}

/* ---- long rows ---- */

static dw_status shape_long(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    norm_long_arguments *arguments = cuda_launch(&launch, "norm_long", NULL, sizeof *arguments);
    launch.overlaps = true;
    bool is_layer = run->call.op->id == OP_layer_norm;
    int residual = is_layer ? 3 : 2;
    const dw_tensor *x = run->call.in[0], *out = run->call.out[0], *r = kernel_operand(run, residual), *sum = r != NULL ? run->call.out[1] : x;
    const dw_tensor *tensors[] = {out, x, sum, r != NULL ? r : x};
    int64_t steps[4], cols = x->dims[x->rank - 1];
    cuda_nest_lines(&arguments->chunks.nest, x->rank - 1, 4, tensors, steps);
    if (arguments->chunks.nest.count == 0) return DW_OK;
    TRY(quantize_clear_padding(run, launcher));
    TRY(row_chunks_divide(&launch, run, x, &arguments->chunks));
    launch.entry = x->format == DW_FORMAT_f32 ? "norm_long_f32" : x->format == DW_FORMAT_bf16 ? "norm_long_bf16" : "norm_long_f16";
    row_parts_take_target(&launch, run, &arguments->out);
    cuda_take_array(&launch, run, 0, &arguments->x);
    arguments->x_step = steps[1];
    if (r != NULL) {
        cuda_take_array(&launch, run, KERNEL_RESULT + 1, &arguments->sum);
        cuda_take_array(&launch, run, residual, &arguments->residual);
        arguments->sum_step = steps[2];
        arguments->residual_step = steps[3];
        arguments->has_residual = true;
    }
    arguments->has_weight = take_column(&launch, run, 1, &arguments->weight, &arguments->weight_step);
    arguments->has_bias = is_layer && take_column(&launch, run, 2, &arguments->bias, &arguments->bias_step);
    arguments->centred = is_layer;
    arguments->by_count = (float)(1.0 / (double)cols);
    arguments->eps = (float)op_attr_real(run->call.attrs, OP_ATTR_eps);
    return launcher->add(launcher, &launch);
}

/* Rows in registers alone are written twice. */
bool norm_rows_writes_both(const kernel_run *run) {
    const dw_tensor *x = run->call.in[0];
    return run->call.n_out == 1 && !row_is_long(x->dims[x->rank - 1]);
}

dw_status norm_rows_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    static row_entries entries = ROW_ENTRIES("norm_rows", ""), search_entries = ROW_ENTRIES("norm_rows", "_search");
    kernel_launch launch;
    norm_rows_arguments *arguments = cuda_launch(&launch, "norm_rows", NULL, sizeof *arguments);
    bool is_layer = run->call.op->id == OP_layer_norm;
    int residual = is_layer ? 3 : 2;
    const dw_tensor *x = run->call.in[0], *out = run->call.out[0], *r = kernel_operand(run, residual), *sum = r != NULL ? run->call.out[1] : x;
    const dw_tensor *tensors[] = {run->quantises_beside ? run->call.out[1] : out, x, sum, r != NULL ? r : x};
    int64_t steps[4];
    if (row_is_long(x->dims[x->rank - 1])) return shape_long(run, launcher);
    cuda_nest_lines(&arguments->division.nest, x->rank - 1, 4, tensors, steps);
    if (arguments->division.nest.count == 0) return DW_OK;
    TRY(quantize_clear_padding(run, launcher));
    bool searches = op_quantize_round(run->call.attrs) == NUM_ROUND_SEARCH;
    row_parts_divide(&launch, run, x->format, out, true, searches ? search_entries : entries, &arguments->division);
    row_parts_take_target(&launch, run, &arguments->out);
    arguments->has_plain = run->quantises_beside;
    if (run->quantises_beside) row_parts_take_result(&launch, run, 1, &arguments->plain);
    cuda_take_array(&launch, run, 0, &arguments->x);
    arguments->x_step = steps[1];
    if (r != NULL) {
        cuda_take_array(&launch, run, KERNEL_RESULT + 1, &arguments->sum);
        cuda_take_array(&launch, run, residual, &arguments->residual);
        arguments->sum_step = steps[2];
        arguments->residual_step = steps[3];
        arguments->has_residual = true;
    }
    arguments->has_weight = take_column(&launch, run, 1, &arguments->weight, &arguments->weight_step);
    arguments->has_bias = is_layer && take_column(&launch, run, 2, &arguments->bias, &arguments->bias_step);
    arguments->centred = is_layer;
    arguments->columns_are_constant = (run->constant_in >> 1 & 1) >= (unsigned)arguments->has_weight && (run->constant_in >> 2 & 1) >= (unsigned)arguments->has_bias;
    if (!run->quantises_beside && launch.entry == entries[x->format == DW_FORMAT_bf16 ? 1 : 2][1] && is_dense(run, arguments, tensors, steps)) launch_dense(&launch, run, arguments);
    launch.overlaps = true;
    arguments->by_count = (float)(1.0 / arguments->division.cols);
    arguments->eps = (float)op_attr_real(run->call.attrs, OP_ATTR_eps);
    return launcher->add(launcher, &launch);
}
