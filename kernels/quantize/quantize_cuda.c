/* quantize and dequantize on a GPU: the host half of quantize.cu. */
#include "kernels/quantize/quantize_host.h"

#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"

const char *quantize_cuda_reject(const kernel_problem *problem, text *why) {
    const op_type *plain = problem->op->id == OP_quantize ? problem->in[0] : problem->out[0];
    if (plain->format == DW_FORMAT_f64) return "f64: rules are stated for fp32, so cast first";
    if (cuda_is_plain(plain->format)) return NULL;
    text_printf(why, "%s has elements of less than a byte", dw_format_name(plain->format));
    return text_string(why);
}

/* A row's search for scales, as measured on an H200 with 768 to 4096 elements. */
double quantize_plain_search_seconds(const kernel_problem *problem) {
    const double each_s = 0.141e-6;
    const op_type *x = problem->in[0];
    int64_t cols;
    if (op_quantize_round(problem->attrs) != NUM_ROUND_SEARCH || !dim_is_constant(x->dims[x->rank - 1], &cols)) return 0;
    return each_s * (double)cols;
}

double quantize_cuda_cost(const kernel_problem *problem) { return cuda_cost(problem) + (problem->op->id == OP_quantize ? quantize_plain_search_seconds(problem) : 0); }

/* Formats that need the largest magnitude of the whole tensor first. */
static bool is_over_tensor(const num_format *info) { return info->rows == 0 || info->second == 1; }

size_t quantize_scratch_bytes(const dw_tensor *out) { return is_over_tensor(num_info(out->format)) ? QUANTIZE_PARTS * sizeof(int32_t) : 0; }

size_t quantize_cuda_workspace(const kernel_run *run) { return run->call.op->id == OP_quantize ? quantize_scratch_bytes(run->call.out[0]) : 0; }

/* x: dims and strides of the operand; the arguments' array is set by the caller. scratch_at: of the parts in the workspace. */
static void fill_in(kernel_launch *launch, quantize_arguments *arguments, const kernel_run *run, const dw_tensor *x, int64_t scratch_at) {
    const dw_tensor *out = run->call.out[0];
    const num_format *info = num_info(out->format);
    int64_t step;
    int last = x->rank - 1;
    cuda_nest_lines(&arguments->nest, last, 1, &x, &step);
    arguments->x_step = x->strides[last];
    arguments->rows = arguments->nest.count;
    arguments->cols = x->dims[last];
    cuda_take_rows(launch, run, KERNEL_RESULT, true, &arguments->out);
    int64_t matrix_rows = x->rank > 1 ? x->dims[last - 1] : 1;
    arguments->row_blocks = info->rows > 0 ? base_ceil_div(matrix_rows, info->rows) : 1;
    arguments->col_blocks = info->cols > 0 ? base_ceil_div(arguments->cols, info->cols) : 1;
    arguments->element_bits = info->bits;
    arguments->floors = op_quantize_round(run->call.attrs) == NUM_ROUND_FLOOR;
    arguments->searches = op_quantize_round(run->call.attrs) == NUM_ROUND_SEARCH;
    arguments->over_tensor = info->rows == 0;
    cuda_slot(launch, KERNEL_SLOT_WORKSPACE, 0, &arguments->partial, scratch_at);
}

/* A launch is one of these with another entry. */
static dw_status add(kernel_launcher *launcher, kernel_launch *launch, const char *entry, int64_t threads) {
    launch->entry = entry;
    cuda_grid_items(launch, threads);
    return launcher->add(launcher, launch);
}

/* The scales of tile128x4 are zero where there are no blocks: all are cleared before. */
static dw_status clear_scales(const kernel_run *run, kernel_launcher *launcher) {
    const dw_tensor *out = run->call.out[0];
    kernel_launch launch;
    clear_arguments *arguments = cuda_launch(&launch, "quantize", "quantize_clear", sizeof *arguments);
    num_parts parts;
    if (!num_layout(out->format, out->scale_layout, out->rank, out->dims, &parts) || parts.scale_bytes == 0) return DW_OK;
    arguments->count = (int64_t)parts.scale_bytes;
    cuda_slot(&launch, KERNEL_SLOT_SCALES, KERNEL_RESULT, &arguments->bytes, 0);
    cuda_grid_items(&launch, arguments->count);
    return launcher->add(launcher, &launch);
}

dw_status quantize_clear_padding(const kernel_run *run, kernel_launcher *launcher) {
    const dw_tensor *out = run->call.out[0];
    const num_format *info = num_info(out->format);
    num_parts parts;
    if (out->scale_layout == DW_SCALE_plain || !num_layout(out->format, out->scale_layout, out->rank, out->dims, &parts)) return DW_OK;
    int64_t rows = out->rank > 1 ? out->dims[out->rank - 2] : 1, cols = base_ceil_div(out->dims[out->rank - 1], info->cols);
    return parts.scale_rows == rows && parts.scale_cols == cols ? DW_OK : clear_scales(run, launcher);
}

static dw_status add_all(const kernel_run *run, kernel_launcher *launcher, kernel_launch *launch, const quantize_arguments *arguments) {
    const dw_tensor *out = run->call.out[0];
    const num_format *info = num_info(out->format);
    int64_t rows = arguments->rows, cols = arguments->cols;
    if (out->scale_layout == DW_SCALE_tile128x4) TRY(clear_scales(run, launcher));
    if (is_over_tensor(info) && !arguments->has_given) {
        cuda_grid(launch, QUANTIZE_PARTS, 1, 1);
        launch->entry = "quantize_parts";
        TRY(launcher->add(launcher, launch));
    }
    int64_t matrices = 1;
    for (int i = 0; i < out->rank - 2; i++) matrices *= out->dims[i];
    if (info->cols > 0 && info->rows == 1) {
        if (rows > 0 && (cols > 0 || info->second == 2)) return add(launcher, launch, "quantize_short", rows * (arguments->col_blocks > 0 ? arguments->col_blocks : 1));
        return info->second == 1 && matrices > 0 ? add(launcher, launch, "quantize_second", 1) : DW_OK;
    }
    int64_t items = arguments->over_tensor ? (rows > 0 ? rows : 1) : matrices * arguments->row_blocks * arguments->col_blocks;
    if (items == 0 || matrices == 0) return DW_OK;
    return add(launcher, launch, "quantize_wide", items * CUDA_THREADS);
}

static dw_status shape_quantize(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    quantize_arguments *arguments = cuda_launch(&launch, "quantize", "quantize_short", sizeof *arguments);
    fill_in(&launch, arguments, run, run->call.in[0], 0);
    cuda_take_array(&launch, run, 0, &arguments->x);
    arguments->level = op_has_level(run->call.attrs) ? op_level(run->call.attrs) : 0;
    arguments->has_given = kernel_operand(run, 1) != NULL || arguments->level > 0;
    if (kernel_operand(run, 1) != NULL) cuda_take_array(&launch, run, 1, &arguments->given);
    return add_all(run, launcher, &launch, arguments);
}

dw_status quantize_scratch_shape(const kernel_run *run, kernel_launcher *launcher, dw_format x, int64_t x_at, int64_t scratch_at) {
    kernel_launch launch;
    quantize_arguments *arguments = cuda_launch(&launch, "quantize", "quantize_short", sizeof *arguments);
    const dw_tensor *out = run->call.out[0];
    dw_tensor plain;
    op_tensor_init(&plain, x, DW_SCALE_plain, out->rank, out->dims, NULL);
    fill_in(&launch, arguments, run, &plain, scratch_at);
    cuda_take_scratch(&launch, x, x_at, &arguments->x);
    return add_all(run, launcher, &launch, arguments);
}

/* Sixteen elements a thread: whole ones of 8 and 4 bits, and rows of the result in words of 16 bytes. */
static bool has_vectors(const kernel_run *run, const dequantize_arguments *a) {
    const dw_tensor *x = run->call.in[0], *out = run->call.out[0];
    const dw_format element = num_info(x->format)->element;
    if (!chip_has(run->chip, CHIP_tma) || (element != DW_FORMAT_e4m3 && element != DW_FORMAT_e5m2 && element != DW_FORMAT_e2m1)) return false;
    if (out->format != DW_FORMAT_f32 && out->format != DW_FORMAT_bf16 && out->format != DW_FORMAT_f16) return false;
    if (a->cols % DEQUANTIZE_WIDTH != 0 || a->cols > INT32_MAX || a->rows > INT32_MAX || a->out_step != 1 || !cuda_lies_at_16(x->data) || !cuda_lies_at_16(out->data)) return false;
    for (int axis = 0; axis < a->nest.rank; axis++)
        if (a->nest.strides[0][axis] % CUDA_VECTOR != 0) return false;
    return true;
}

static dw_status shape_dequantize(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    dequantize_arguments *arguments = cuda_launch(&launch, "quantize", "quantize_back", sizeof *arguments);
    const dw_tensor *out = run->call.out[0];
    int last = out->rank - 1;
    cuda_nest_lines(&arguments->nest, last, 1, &out, &arguments->out_step);
    arguments->out_step = out->strides[last];
    arguments->rows = arguments->nest.count;
    arguments->cols = out->dims[last];
    if (arguments->rows * arguments->cols == 0) return DW_OK;
    cuda_take_rows(&launch, run, 0, true, &arguments->x);
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->out);
    const bool in_vectors = has_vectors(run, arguments);
    if (in_vectors) {
        launch.image = "dequantize_vectors";
        launch.entry = "dequantize_vectors";
        launch.overlaps = true;
    }
    cuda_grid_items(&launch, arguments->rows * arguments->cols / (in_vectors ? DEQUANTIZE_WIDTH : 1));
    return launcher->add(launcher, &launch);
}

dw_status quantize_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    return run->call.op->id == OP_quantize ? shape_quantize(run, launcher) : shape_dequantize(run, launcher);
}
