/* Ops that move elements, as copies between parts of tensors (copy.c): views that have to be made real, concat, pad, slice_scatter; and the triangles
 * tril and triu, row by row. slice_scatter whose result takes over its operand's memory writes the slice alone: a cache is updated in place.
 * Measured speed: README.md. */
#include "kernels/move/move.h"

#include <string.h>

#include "kernels/cpu/rows.h"
#include "kernels/kernels.h"

const char *move_reject(const kernel_problem *problem, text *why) {
    for (int i = 0; i < problem->n_out; i++) {
        if (cpu_is_plain(problem->out[i]->format) || problem->op->id == OP_reshape || problem->op->id == OP_concat) continue;
        text_printf(why, "the result is %s, whose elements have less than a byte", dw_format_name(problem->out[i]->format));
        return text_string(why);
    }
    return NULL;
}

double move_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 1, 0.6); }

size_t move_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

/* The part of a tensor from first on, with these sizes. */
static dw_tensor part_of(const dw_tensor *tensor, int64_t first, const int64_t *dims) {
    dw_tensor part = *tensor;
    for (int i = 0; i < part.rank; i++) part.dims[i] = dims[i];
    if (part.data != NULL && op_tensor_count(&part) > 0) part.data = cpu_at(tensor, first);   /* an empty part may begin at the tensor's end */
    return part;
}

/* ---- views ---- */

dw_status move_view_run(const kernel_run *run) {
    dw_tensor view;
    if (!op_tensor_view(&run->call, &view)) return run->call.op->reference(&run->call);   /* says which bound lies outside */
    move_copy(run->pool, run->call.out[0], &view);
    return DW_OK;
}

/* The result is contiguous: seen in the operand's shape, elements have the same places. Blocks keep their shape, and are copied whole. */
dw_status move_reshape_run(const kernel_run *run) {
    const dw_tensor *x = run->call.in[0], *out = run->call.out[0];
    dw_tensor to;
    if (!cpu_is_plain(x->format)) return run->call.op->reference(&run->call);
    if (!op_tensor_init(&to, out->format, out->scale_layout, x->rank, x->dims, out->data))
        return base_fail(run->call.context, DW_LIMIT, "reshape: the operand is too large to address");
    move_copy(run->pool, &to, x);
    return DW_OK;
}

/* ---- parts ---- */

dw_status move_concat_run(const kernel_run *run) {
    const dw_tensor *out = run->call.out[0];
    int axis = (int)op_attr_int(run->call.attrs, OP_ATTR_axis);
    int64_t begin = 0;
    if (!cpu_is_plain(out->format)) return run->call.op->reference(&run->call);   /* whole rows, as they lie */
    for (int i = 0; i < run->call.n_in; i++) {
        const dw_tensor *x = run->call.in[i];
        dw_tensor to = part_of(out, begin * out->strides[axis], x->dims);
        move_copy(run->pool, &to, x);
        begin += x->dims[axis];
    }
    return DW_OK;
}

/* What lies before and after x along each axis, within the range of x on the axes before it. */
static void fill_border(const kernel_run *run, const int64_t *before, double value) {
    const dw_tensor *x = run->call.in[0], *out = run->call.out[0];
    int64_t dims[DW_MAX_RANK], first = 0;
    for (int i = 0; i < out->rank; i++) dims[i] = out->dims[i];
    for (int axis = 0; axis < out->rank; axis++) {
        int64_t end = before[axis] + x->dims[axis];
        dims[axis] = before[axis];
        dw_tensor low = part_of(out, first, dims);
        move_fill(run->pool, &low, value);
        dims[axis] = out->dims[axis] - end;
        dw_tensor high = part_of(out, first + end * out->strides[axis], dims);
        move_fill(run->pool, &high, value);
        dims[axis] = x->dims[axis];
        first += before[axis] * out->strides[axis];
    }
}

dw_status move_pad_run(const kernel_run *run) {
    const op_call *call = &run->call;
    const dw_tensor *x = call->in[0], *out = call->out[0];
    const dim *given;
    int64_t before[DW_MAX_RANK], first = 0;
    op_attr_dims(call->attrs, OP_ATTR_before, &given);
    for (int i = 0; i < x->rank; i++) {
        TRY(dim_eval(call->context, given[i], call->symbols, &before[i]));
        if (before[i] < 0 || before[i] > out->dims[i] - x->dims[i]) return call->op->reference(call);   /* says which */
        first += before[i] * out->strides[i];
    }
    fill_border(run, before, op_attr_real(call->attrs, OP_ATTR_value));
    dw_tensor to = part_of(out, first, x->dims);
    move_copy(run->pool, &to, x);
    return DW_OK;
}

dw_status move_slice_scatter_run(const kernel_run *run) {
    const op_call *call = &run->call;
    const dw_tensor *x = call->in[0], *y = call->in[1], *out = call->out[0];
    int axis = (int)op_attr_int(call->attrs, OP_ATTR_axis);
    int64_t start, step = op_attr_int(call->attrs, OP_ATTR_step), count = y->dims[axis];
    TRY(dim_eval(call->context, op_attr_dim(call->attrs, OP_ATTR_start), call->symbols, &start));
    bool fits = start >= 0 && (count == 0 || (start < x->dims[axis] && count - 1 <= (x->dims[axis] - 1 - start) / step));
    if (!fits) return call->op->reference(call);   /* says why, before it writes */
    if (out->data != x->data) move_copy(run->pool, out, x);
    dw_tensor to = part_of(out, start * out->strides[axis], y->dims);
    to.strides[axis] *= step;
    move_copy(run->pool, &to, y);
    return DW_OK;
}

/* ---- triangles ---- */

typedef struct triangle_job {
    const dw_tensor *x, *out;
    int64_t offset, rows, cols;
    size_t bytes;
    bool lower;
} triangle_job;

static void move_elements(const triangle_job *job, int64_t from, int64_t to, int64_t begin, int64_t end, bool keeps) {
    int last = job->out->rank - 1;
    int64_t from_step = job->x->strides[last], to_step = job->out->strides[last];
    uint64_t block[CPU_BLOCK];
    if (!keeps) memset(block, 0, sizeof block);
    for (int64_t at = begin; at < end; at += CPU_BLOCK) {
        int64_t count = end - at < CPU_BLOCK ? end - at : CPU_BLOCK;
        if (keeps) cpu_gather(job->bytes, cpu_at(job->x, from + at * from_step), from_step, count, block);
        cpu_scatter(job->bytes, block, cpu_at(job->out, to + at * to_step), to_step, count);
    }
}

/* One row: columns up to the diagonal, and those behind it. */
static void triangle_task(void *argument, int64_t task, int worker) {
    (void)worker;
    const triangle_job *job = argument;
    int64_t from = 0, to = 0, rest = task, row = task % job->rows;
    for (int axis = job->out->rank - 2; axis >= 0; axis--) {
        int64_t index = rest % job->out->dims[axis];
        rest /= job->out->dims[axis];
        from += index * job->x->strides[axis];
        to += index * job->out->strides[axis];
    }
    int64_t edge = job->lower ? row + job->offset + 1 : row + job->offset;   /* the first column of the upper part */
    if (edge < 0) edge = 0;
    if (edge > job->cols) edge = job->cols;
    move_elements(job, from, to, 0, edge, job->lower);
    move_elements(job, from, to, edge, job->cols, !job->lower);
}

dw_status move_triangle_run(const kernel_run *run) {
    const op_call *call = &run->call;
    const dw_tensor *x = call->in[0], *out = call->out[0];
    triangle_job job = {
        .x = x,
        .out = out,
        .rows = out->dims[out->rank - 2],
        .cols = out->dims[out->rank - 1],
        .bytes = cpu_element_bytes(out->format),
        .lower = call->op->id == OP_tril,
    };
    TRY(dim_eval(call->context, op_attr_dim(call->attrs, OP_ATTR_offset), call->symbols, &job.offset));
    int64_t count = op_tensor_count(out);
    if (job.offset > job.rows + job.cols) job.offset = job.rows + job.cols;   /* all or nothing from here on; keeps sums in range */
    if (job.offset < -job.rows - job.cols) job.offset = -job.rows - job.cols;
    if (count > 0) pool_run(run->pool, count / job.cols, triangle_task, &job);
    return DW_OK;
}

/* ---- values out of nothing ---- */

/* start + step * i; of size, its one number. */
dw_status move_iota_run(const kernel_run *run) {
    const op_call *call = &run->call;
    const dw_tensor *out = call->out[0];
    int64_t value;
    TRY(dim_eval(call->context, op_attr_dim(call->attrs, call->op->id == OP_size ? OP_ATTR_size : OP_ATTR_start), call->symbols, &value));
    uint64_t step = (uint64_t)op_attr_int(call->attrs, OP_ATTR_step), next = (uint64_t)value;
    int64_t count = op_tensor_count(out);
    for (int64_t i = 0; i < count; i++, next += step) op_tensor_store_int(out, &i, (int64_t)next);
    return DW_OK;
}

dw_status move_fill_run(const kernel_run *run) {
    move_fill(run->pool, run->call.out[0], op_attr_real(run->call.attrs, OP_ATTR_value));
    return DW_OK;
}
