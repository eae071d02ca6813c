/* Ops along an axis whose results have an order: cumsum, sort, topk; and bincount. Sorting needs no memory but its results: a heap of indices
 * grows in the index result. NaN is larger than every number, as in PyTorch; equal values keep their order. */
#include "op/family.h"

#include <math.h>

/* ---- inference ---- */

static dw_status infer_order(op_infer *infer) {
    const op_type *x = infer->in[0];
    int64_t axis = op_attr_int(infer->attrs, OP_ATTR_axis);
    infer->out[0] = *x;
    if (infer->op->id == OP_topk) {
        dim length = op_attr_dim(infer->attrs, OP_ATTR_length);
        TRY(op_check_le(infer, "length", length, "the size of the axis", x->dims[axis]));
        infer->out[0].dims[axis] = length;
    }
    infer->out[1] = infer->out[0];
    infer->out[1].format = DW_FORMAT_i64;
    return DW_OK;
}

dw_status scan_infer(op_infer *infer) {
    const op_type *x = infer->in[0];
    if (infer->op->id == OP_bincount) {
        TRY(op_check_integer(infer, "x", x));
        infer->out->format = DW_FORMAT_i64;
        return op_add_axis(infer, infer->out, op_attr_dim(infer->attrs, OP_ATTR_length));
    }
    TRY(op_check_number(infer, "x", x));
    TRY(op_check_axis(infer, op_attr_int(infer->attrs, OP_ATTR_axis), x->rank));
    if (infer->op->id != OP_cumsum) return infer_order(infer);
    *infer->out = *x;
    if (op_is_integer(x->format)) infer->out->format = DW_FORMAT_i64;
    return DW_OK;
}

/* ---- cumsum, bincount ---- */

static void cumsum_reference(const op_call *call) {
    const dw_tensor *x = call->in[0], *out = call->out[0];
    int axis = (int)op_attr_int(call->attrs, OP_ATTR_axis);
    bool exclusive = op_attr_bool(call->attrs, OP_ATTR_exclusive), integer = op_is_integer(x->format);
    walk w;
    walk_start(&w, x->rank, x->dims);
    bool empty = w.left == 0;
    walk_skip(&w, axis);
    int at_x = walk_add(&w, x), at_out = walk_add(&w, out);
    for (; !empty && w.left > 0; walk_next(&w)) {
        double sum = 0;
        uint64_t sum_int = 0;
        for (int64_t i = 0; i < x->dims[axis]; i++) {
            int64_t from = w.offset[at_x] + i * x->strides[axis], to = w.offset[at_out] + i * out->strides[axis];
            double value = integer ? 0 : op_load_at(x, from);
            uint64_t value_int = integer ? (uint64_t)op_load_int_at(x, from) : 0;
            if (integer) op_store_int_at(out, to, (int64_t)(exclusive ? sum_int : sum_int + value_int));
            else op_store_at(out, to, exclusive ? sum : sum + value);
            sum += value;
            sum_int += value_int;
        }
    }
}

static void bincount_reference(const op_call *call) {
    const dw_tensor *x = call->in[0], *out = call->out[0];
    for (int64_t i = 0; i < out->dims[0]; i++) op_store_int_at(out, i * out->strides[0], 0);
    walk w;
    walk_start(&w, x->rank, x->dims);
    walk_add(&w, x);
    for (; w.left > 0; walk_next(&w)) {
        int64_t value = op_load_int_at(x, w.offset[0]);
        if (value < 0 || value >= out->dims[0]) continue;
        int64_t at = value * out->strides[0];
        op_store_int_at(out, at, op_load_int_at(out, at) + 1);
    }
}

/* ---- sort, topk ---- */

/* One row: its values, and the heap of indices that lies in the index result. */
typedef struct order {
    const dw_tensor *x, *indices;
    int64_t x_offset, x_stride, heap_offset, heap_stride;
    bool descending;
} order;

static int64_t heap_get(const order *o, int64_t i) { return op_load_int_at(o->indices, o->heap_offset + i * o->heap_stride); }

static void heap_set(const order *o, int64_t i, int64_t index) { op_store_int_at(o->indices, o->heap_offset + i * o->heap_stride, index); }

/* Does element i of the row come before element j? */
static bool comes_before(const order *o, int64_t i, int64_t j) {
    int64_t at_i = o->x_offset + i * o->x_stride, at_j = o->x_offset + j * o->x_stride;
    int sign;
    if (op_is_integer(o->x->format)) {
        int64_t x = op_load_int_at(o->x, at_i), y = op_load_int_at(o->x, at_j);
        sign = (x > y) - (x < y);
    } else {
        double x = op_load_at(o->x, at_i), y = op_load_at(o->x, at_j);
        sign = isnan(x) || isnan(y) ? (isnan(x) != 0) - (isnan(y) != 0) : (x > y) - (x < y);
    }
    if (sign == 0) return i < j;
    return o->descending ? sign > 0 : sign < 0;
}

/* index goes into the heap of size elements at hole or below; the last in order is on top. */
static void heap_sift(const order *o, int64_t hole, int64_t size, int64_t index) {
    for (int64_t child; (child = 2 * hole + 1) < size; hole = child) {
        if (child + 1 < size && comes_before(o, heap_get(o, child), heap_get(o, child + 1))) child++;
        if (!comes_before(o, index, heap_get(o, child))) break;
        heap_set(o, hole, heap_get(o, child));
    }
    heap_set(o, hole, index);
}

/* The first length of count elements, in order. */
static void order_row(const order *o, int64_t count, int64_t length) {
    if (length == 0) return;
    for (int64_t i = 0; i < length; i++) heap_set(o, i, i);
    for (int64_t i = length / 2 - 1; i >= 0; i--) heap_sift(o, i, length, heap_get(o, i));
    for (int64_t i = length; i < count; i++)
        if (comes_before(o, i, heap_get(o, 0))) heap_sift(o, 0, length, i);
    for (int64_t size = length - 1; size > 0; size--) {
        int64_t last = heap_get(o, 0), moved = heap_get(o, size);
        heap_sift(o, 0, size, moved);
        heap_set(o, size, last);
    }
}

static dw_status order_reference(const op_call *call) {
    const dw_tensor *x = call->in[0], *values = call->out[0], *indices = call->out[1];
    int axis = (int)op_attr_int(call->attrs, OP_ATTR_axis);
    int64_t length = values->dims[axis];
    if (length > x->dims[axis])
        return base_fail(call->context, DW_INVALID, "%s: length is %lld, the axis has size %lld", call->op->name, (long long)length, (long long)x->dims[axis]);
    walk w;
    walk_start(&w, values->rank, values->dims);
    bool empty = w.left == 0;
    walk_skip(&w, axis);
    int at_x = walk_add(&w, x), at_values = walk_add(&w, values), at_indices = walk_add(&w, indices);
    for (; !empty && w.left > 0; walk_next(&w)) {
        order o = {
            .x = x,
            .indices = indices,
            .x_offset = w.offset[at_x],
            .x_stride = x->strides[axis],
            .heap_offset = w.offset[at_indices],
            .heap_stride = indices->strides[axis],
            .descending = op_attr_bool(call->attrs, call->op->id == OP_topk ? OP_ATTR_largest : OP_ATTR_descending),
        };
        order_row(&o, x->dims[axis], length);
        for (int64_t i = 0; i < length; i++)
            op_copy_at(values, w.offset[at_values] + i * values->strides[axis], x, o.x_offset + heap_get(&o, i) * o.x_stride);
    }
    return DW_OK;
}

dw_status scan_reference(const op_call *call) {
    if (call->op->id == OP_cumsum) cumsum_reference(call);
    else if (call->op->id == OP_bincount) bincount_reference(call);
    else return order_reference(call);
    return DW_OK;
}

/* An operation for each element read; comparisons of a sort are not counted. */
void scan_work(const op_call *call, op_work *work) {
    op_work_each(call, 0, work);
    work->flops = (double)op_tensor_count(call->in[0]);
}
