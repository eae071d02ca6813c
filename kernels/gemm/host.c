/* The epilogue of the fast GPU matmul kernels from a call's tensors and post list. Pure: knows no driver. */
#include "kernels/gemm/host.h"

#include "kernels/gpu/host/host.h"
#include "kernels/quantize/quantised.h"

bool matmul_halves_columns(const op_post_list *post) {
    for (int i = 0; i < post->count; i++)
        if (op_post_halves(post->steps[i])) return true;
    return false;
}

/* ---- what is taken ---- */

static bool is_result_format(dw_format format) { return format == DW_FORMAT_f32 || format == DW_FORMAT_bf16 || format == DW_FORMAT_f16; }

static bool is_constant_one(dim d) {
    int64_t value;
    return dim_is_constant(d, &value) && value == 1;
}

/* Is an operand of the post list the same for all rows, or one row for each of the result's? */
static bool has_flat_rows(const op_type *x, const op_type *out) {
    bool one = true, all = x->rank == out->rank;
    for (int i = 0; i < x->rank - 1; i++) {
        one = one && is_constant_one(x->dims[i]);
        all = all && x->dims[i] == out->dims[i];
    }
    return one || all;
}

const char *matmul_reject_post(const kernel_problem *problem, int first, text *why) {
    const op_type *out = problem->out[0];
    if (!is_result_format(out->format)) return "the result is not f32, bf16 or f16";
    if (problem->post.count > MATMUL_STEPS) return "the post list is too long";
    for (int i = 0, next = first; i < problem->post.count; i++) {
        op_post_operand operand = op_post_operand_of(problem->post.steps[i]);
        if (operand == OP_POST_NONE) continue;
        const op_type *x = problem->in[next++];
        bool by_group = operand == OP_POST_COLUMN && x->rank == 2 && !is_constant_one(x->dims[0]);
        if (by_group && i > 0) return "a bias with a row for each group is not the first step";
        if (is_result_format(x->format) && (by_group || has_flat_rows(x, out))) continue;
        text_printf(why, "operand %d of the post list is %s, or broadcasts along some of several axes of rows", next - 1, dw_format_name(x->format));
        return text_string(why);
    }
    return NULL;
}

const char *matmul_reject_result(const kernel_problem *problem, text *why) {
    const op_type *a = problem->in[0], *b = problem->in[1], *out = problem->out[0];
    if (!is_result_format(out->format)) return "the result is not f32, bf16 or f16";
    for (int i = 0; i < b->rank - 2; i++)
        if (!is_constant_one(b->dims[i])) return "b has batches";
    if (a->rank != out->rank) return "b has more axes than a";
    return matmul_reject_post(problem, 2, why);
}

/* ---- filling it in ---- */

int matmul_format(dw_format format) {
    switch (format) {
#define DW_ELEMENT(name, ...) case DW_FORMAT_##name: return MATMUL_##name;
#define DW_BLOCK(name, ...)
#include "deepwell/format.def"
#undef DW_ELEMENT
#undef DW_BLOCK
    default: return MATMUL_FORMAT_COUNT;
    }
}

/* Strides of an operand whose rows run on with the result's, or with the groups. */
static void take_step(kernel_launch *launch, const kernel_run *run, int index, matmul_step *step) {
    const dw_tensor *x = run->call.in[index];
    int last = x->rank - 1;
    step->format = matmul_format(x->format);
    step->col_stride = last >= 0 && x->dims[last] != 1 ? x->strides[last] : 0;
    for (int i = last - 1; i >= 0 && step->row_stride == 0; i--)
        if (x->dims[i] != 1) step->row_stride = x->strides[i];
    cuda_slot(launch, KERNEL_SLOT_DATA, index, &step->data, 0);
}

static void take_factors(kernel_launch *launch, const kernel_run *run, matmul_epilogue *e) {
    for (int i = 0; i < 2; i++) {
        const dw_format format = (run->came[i] != NULL ? run->came[i] : run->call.in[i])->format;
        uint64_t *each = i == 0 ? &e->row_factors : &e->col_factors;
        if (format == DW_FORMAT_fp8_tensor) cuda_slot(launch, KERNEL_SLOT_SCALES, i, &e->alpha_at[i], 0);
        if (format == DW_FORMAT_fp8_row) cuda_slot(launch, KERNEL_SLOT_SCALES, i, each, 0);
        if (format == DW_FORMAT_nvfp4) cuda_slot(launch, KERNEL_SLOT_SECOND, i, &e->alpha_at[i], 0);
        if (format == DW_FORMAT_nvfp4_row) cuda_slot(launch, KERNEL_SLOT_SECOND, i, each, 0);
    }
}

/* A result in blocks along its rows. */
static void take_blocks(kernel_launch *launch, const kernel_run *run, matmul_epilogue *e) {
    const dw_tensor *out = run->call.out[0];
    const int64_t block = num_info(out->format)->cols;
    e->out_format = matmul_format(quantised_from(run->call.attrs, out->format));
    e->block = (int32_t)block;
    e->scale_row_stride = base_ceil_div(out->dims[out->rank - 1], block);
    cuda_slot(launch, KERNEL_SLOT_SCALES, KERNEL_RESULT, &e->scales, 0);
}

void matmul_take_epilogue(kernel_launch *launch, const kernel_run *run, int first, matmul_epilogue *e) {
    const dw_tensor *out = run->call.out[0];
    int64_t n_out = out->dims[out->rank - 1];
    *e = (matmul_epilogue){.alpha = 1, .count = run->post.count, .halving = -1, .half = (int32_t)n_out, .out_format = matmul_format(out->format), .out_row_stride = n_out};
    for (int i = 0, next = first; i < run->post.count; i++) {
        e->steps[i].step = (int32_t)run->post.steps[i];
        if (op_post_halves(run->post.steps[i])) e->halving = i;
        if (op_post_operand_of(run->post.steps[i]) != OP_POST_NONE) take_step(launch, run, next++, &e->steps[i]);
    }
    if (dw_format_is_block(out->format)) take_blocks(launch, run, e);
    else e->by_tma = n_out * dw_format_bits(out->format) / 8 % 16 == 0;
    cuda_slot(launch, KERNEL_SLOT_DATA, KERNEL_RESULT, &e->out, 0);
    take_factors(launch, run, e);
}

void matmul_take_groups(kernel_launch *launch, const kernel_run *run, int64_t first, int64_t end, matmul_groups *groups) {
    groups->first = (int32_t)first;
    groups->end = (int32_t)end;
    groups->clears = end == run->call.in[2]->dims[0];
    groups->apart = (int32_t)op_rows_apart(&run->call);
    cuda_slot(launch, KERNEL_SLOT_DATA, 2, &groups->offsets, 0);
    cuda_take_fault(launch, &groups->fault);
}

/* ---- rows ---- */

static bool has_block_scales(dw_format format) { return dw_format_is_block(format) && num_info(format)->cols > 0; }

void matmul_take_scales(kernel_launch *launch, const kernel_run *run, int operand, matmul_scales *scales) {
    const dw_tensor *x = run->call.in[operand];
    const num_format *info = num_info(x->format);
    num_parts parts;
    num_layout(x->format, x->scale_layout, x->rank, x->dims, &parts);
    scales->tiled = x->scale_layout == DW_SCALE_tile128x4;
    scales->cols = (int32_t)base_ceil_div(x->dims[x->rank - 1], info->cols);
    scales->row_blocks = info->rows;
    scales->row_step = scales->tiled ? (int32_t)((parts.scale_cols + 3) / 4 * 512) : (int32_t)parts.scale_cols;
    scales->quad_step = scales->tiled ? 512 : 4;
    scales->matrix_rows = x->dims[x->rank - 2] < INT32_MAX ? (int32_t)x->dims[x->rank - 2] : INT32_MAX;
    scales->matrix_step = parts.scale_rows * parts.scale_cols;
    cuda_slot(launch, KERNEL_SLOT_SCALES, operand, &scales->data, 0);
}

void matmul_take_rows(kernel_launch *launch, const kernel_run *run, int operand, matmul_rows *rows) {
    const dw_tensor *x = run->call.in[operand];
    const num_format *info = num_info(x->format);
    const bool scaled = has_block_scales(x->format);
    *rows = (matmul_rows){.format = matmul_format(info->element), .scale = scaled ? matmul_format(info->scale) : MATMUL_FORMAT_COUNT, .block = scaled ? info->cols : 1,
                          .row_bytes = (int64_t)num_row_bytes(x->format, x->dims[x->rank - 1])};
    cuda_slot(launch, KERNEL_SLOT_DATA, operand, &rows->data, 0);
    if (scaled) matmul_take_scales(launch, run, operand, &rows->scales);
}
