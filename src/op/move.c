/* Ops that place elements anew without computing: concat, pad, slice_scatter, tril, triu. Index tensors are index.c's. */
#include "op/family.h"

#include <string.h>

/* ---- inference ---- */

dw_format op_concat_format(dw_format parts) { return parts == DW_FORMAT_nvfp4 ? DW_FORMAT_nvfp4_row : parts == DW_FORMAT_fp8_tensor ? DW_FORMAT_fp8_row : parts; }

/* Operands in blocks are matrices, one below the other, each with a factor that becomes that of its rows. */
static dw_status check_concat_blocks(op_infer *infer, int64_t axis, const char *name, const op_type *x) {
    if (op_concat_format(x->format) == x->format || x->scale_layout != DW_SCALE_plain) return op_check_element(infer, name, x);
    if (axis == 0 && x->rank == 2) return DW_OK;
    return base_fail(infer->context, DW_UNSUPPORTED, "concat: %s is %s with rank %d; such are put together along axis 0, as matrices", name, dw_format_name(x->format), x->rank);
}

static dw_status infer_concat(op_infer *infer) {
    const op_type *first = infer->in[0];
    int64_t axis = op_attr_int(infer->attrs, OP_ATTR_axis);
    TRY(op_check_axis(infer, axis, first->rank));
    *infer->out = *first;
    infer->out->format = op_concat_format(first->format);
    for (int i = 0; i < infer->n_in; i++) {
        const op_type *x = infer->in[i];
        if (x == NULL) return base_fail(infer->context, DW_INVALID, "concat: operand %d is absent", i);
        char name[32];
        snprintf(name, sizeof name, "operand %d", i);
        TRY(check_concat_blocks(infer, axis, name, x));
        TRY(op_check_same_format(infer, "operand 0", first, name, x));
        TRY(op_check_rank(infer, name, x, first->rank, first->rank));
        for (int a = 0; a < x->rank; a++)
            if (a != axis) TRY(op_check_same_axis(infer, a, "operand 0", first, name, x));
        if (i > 0) TRY_DIM(infer->context, infer->out->dims[axis], dim_add(infer->dims, infer->out->dims[axis], x->dims[axis]));
    }
    return DW_OK;
}

static dw_status infer_pad(op_infer *infer) {
    const op_type *x = infer->in[0];
    const dim *before, *after;
    int n_before = op_attr_dims(infer->attrs, OP_ATTR_before, &before), n_after = op_attr_dims(infer->attrs, OP_ATTR_after, &after);
    TRY(op_check_element(infer, "x", x));
    if (n_before != x->rank || n_after != x->rank)
        return base_fail(infer->context, DW_MISMATCH, "pad: x has rank %d, before has %d numbers and after %d", x->rank, n_before, n_after);
    *infer->out = *x;
    dim zero;
    TRY_DIM(infer->context, zero, dim_constant(infer->dims, 0));
    for (int i = 0; i < x->rank; i++) {
        if (dim_always_lt(infer->dims, before[i], zero) || dim_always_lt(infer->dims, after[i], zero))
            return base_fail(infer->context, DW_INVALID, "pad: before or after is negative on axis %d; use slice to remove elements", i);
        dim *size = &infer->out->dims[i];
        TRY_DIM(infer->context, *size, dim_add(infer->dims, *size, before[i]));
        TRY_DIM(infer->context, *size, dim_add(infer->dims, *size, after[i]));
    }
    return DW_OK;
}

static dw_status infer_slice_scatter(op_infer *infer) {
    const op_type *x = infer->in[0], *y = infer->in[1];
    int64_t axis = op_attr_int(infer->attrs, OP_ATTR_axis), step = op_attr_int(infer->attrs, OP_ATTR_step);
    dim start = op_attr_dim(infer->attrs, OP_ATTR_start), zero;
    TRY(op_check_axis(infer, axis, x->rank));
    TRY(op_check_element(infer, "x", x));
    TRY(op_check_same_format(infer, "x", x, "y", y));
    TRY(op_check_rank(infer, "y", y, x->rank, x->rank));
    if (step <= 0) return base_fail(infer->context, DW_INVALID, "slice_scatter: step is %lld, it must be 1 or more", (long long)step);
    TRY_DIM(infer->context, zero, dim_constant(infer->dims, 0));
    if (dim_always_lt(infer->dims, start, zero))
        return base_fail(infer->context, DW_INVALID, "slice_scatter: start is negative; count from the front");
    for (int i = 0; i < x->rank; i++)
        if (i != axis) TRY(op_check_same_axis(infer, i, "x", x, "y", y));
    TRY(op_check_le_axis(infer, (int)axis, "y", y, "x", x));
    *infer->out = *x;
    return DW_OK;
}

static dw_status infer_triangle(op_infer *infer) {
    TRY(op_check_rank(infer, "x", infer->in[0], 2, DW_MAX_RANK));
    TRY(op_check_element(infer, "x", infer->in[0]));
    *infer->out = *infer->in[0];
    return DW_OK;
}

dw_status move_infer(op_infer *infer) {
    switch (infer->op->id) {
    case OP_concat: return infer_concat(infer);
    case OP_pad: return infer_pad(infer);
    case OP_slice_scatter: return infer_slice_scatter(infer);
    default: return infer_triangle(infer);
    }
}

/* ---- reference ---- */

/* from goes into to with its element 0 at first, neighbours along axis step apart. The caller has checked that it fits. */
static void copy_into(const dw_tensor *to, const dw_tensor *from, int64_t first, int axis, int64_t step) {
    int64_t strides[DW_MAX_RANK] = {0};
    for (int i = 0; i < to->rank; i++) strides[i] = to->strides[i] * (i == axis ? step : 1);
    walk w;
    walk_start(&w, from->rank, from->dims);
    int at_to = walk_add_strides(&w, strides), at_from = walk_add(&w, from);
    for (; w.left > 0; walk_next(&w)) op_copy_at(to, first + w.offset[at_to], from, w.offset[at_from]);
}

/* Codes and block scales one after the other, and each operand's factor for each of its rows. */
static void concat_blocks(const op_call *call) {
    const dw_tensor *out = call->out[0];
    num_parts part;
    uint8_t *data = out->data, *scales = out->scales;
    float *factors = out->format == DW_FORMAT_nvfp4_row ? out->second : out->scales;
    for (int i = 0; i < call->n_in; i++) {
        const dw_tensor *x = call->in[i];
        num_layout(x->format, x->scale_layout, x->rank, x->dims, &part);
        memcpy(data, x->data, part.data_bytes);
        data += part.data_bytes;
        if (x->format == DW_FORMAT_nvfp4) {
            memcpy(scales, x->scales, part.scale_bytes);
            scales += part.scale_bytes;
        }
        for (int64_t row = 0; row < x->dims[0]; row++) *factors++ = x->format == DW_FORMAT_nvfp4 ? x->second[0] : *(const float *)x->scales;
    }
}

static void concat_reference(const op_call *call) {
    if (op_is_block(call->out[0]->format)) {
        concat_blocks(call);
        return;
    }
    int axis = (int)op_attr_int(call->attrs, OP_ATTR_axis);
    int64_t begin = 0;
    for (int i = 0; i < call->n_in; i++) {
        copy_into(call->out[0], call->in[i], begin * call->out[0]->strides[axis], axis, 1);
        begin += call->in[i]->dims[axis];
    }
}

static dw_status pad_reference(const op_call *call) {
    const dw_tensor *x = call->in[0], *out = call->out[0];
    const dim *before;
    op_attr_dims(call->attrs, OP_ATTR_before, &before);
    int64_t first = 0;
    for (int i = 0; i < x->rank; i++) {
        int64_t added;
        TRY(dim_eval(call->context, before[i], call->symbols, &added));
        if (added < 0 || added > out->dims[i] - x->dims[i])
            return base_fail(call->context, DW_INVALID, "pad: axis %d of size %lld with %lld elements before does not lie within the result's %lld", i,
                             (long long)x->dims[i], (long long)added, (long long)out->dims[i]);
        first += added * out->strides[i];
    }
    double value = op_attr_real(call->attrs, OP_ATTR_value);
    walk w;
    walk_start(&w, out->rank, out->dims);
    walk_add(&w, out);
    for (; w.left > 0; walk_next(&w)) op_store_at(out, w.offset[0], value);
    copy_into(out, x, first, -1, 1);
    return DW_OK;
}

static dw_status slice_scatter_reference(const op_call *call) {
    const dw_tensor *x = call->in[0], *y = call->in[1], *out = call->out[0];
    int axis = (int)op_attr_int(call->attrs, OP_ATTR_axis);
    int64_t start, step = op_attr_int(call->attrs, OP_ATTR_step), count = y->dims[axis];
    TRY(dim_eval(call->context, op_attr_dim(call->attrs, OP_ATTR_start), call->symbols, &start));
    if (start < 0 || (count > 0 && (start >= x->dims[axis] || count - 1 > (x->dims[axis] - 1 - start) / step)))
        return base_fail(call->context, DW_INVALID, "slice_scatter: %lld elements from %lld in steps of %lld do not lie within axis %d of size %lld",
                         (long long)count, (long long)start, (long long)step, axis, (long long)x->dims[axis]);
    copy_into(out, x, 0, -1, 1);
    copy_into(out, y, start * out->strides[axis], axis, step);
    return DW_OK;
}

static dw_status triangle_reference(const op_call *call) {
    const dw_tensor *x = call->in[0], *out = call->out[0];
    int64_t offset;
    TRY(dim_eval(call->context, op_attr_dim(call->attrs, OP_ATTR_offset), call->symbols, &offset));
    bool lower = call->op->id == OP_tril;
    walk w;
    walk_start(&w, out->rank, out->dims);
    int at_out = walk_add(&w, out), at_x = walk_add(&w, x);
    for (; w.left > 0; walk_next(&w)) {
        int64_t diagonal = w.index[out->rank - 1] - w.index[out->rank - 2];
        if (lower ? diagonal <= offset : diagonal >= offset) op_copy_at(out, w.offset[at_out], x, w.offset[at_x]);
        else op_store_at(out, w.offset[at_out], 0);
    }
    return DW_OK;
}

dw_status move_reference(const op_call *call) {
    switch (call->op->id) {
    case OP_concat: concat_reference(call); return DW_OK;
    case OP_pad: return pad_reference(call);
    case OP_slice_scatter: return slice_scatter_reference(call);
    default: return triangle_reference(call);
    }
}

void move_work(const op_call *call, op_work *work) { op_work_each(call, 0, work); }
