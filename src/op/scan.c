/* Ops along an axis whose results have an order: cumsum, sort, topk and choose; and bincount. Sorting needs no memory but its results: a heap of indices
 * grows in the index result. NaN is larger than every number, as in PyTorch; equal values keep their order. */
#include "op/family.h"

#include <math.h>

/* ---- inference ---- */

/* The first result of choose, which has the type of the second so far, but for the format: what the steps make of the values. */
static dw_status infer_steps(op_infer *infer) {
    const op_type *x = infer->in[CHOOSE_X], *y = infer->n_in > CHOOSE_Y ? infer->in[CHOOSE_Y] : NULL;
    const int axis = (int)op_attr_int(infer->attrs, OP_ATTR_axis);
    int64_t length;
    bool one;
    TRY(op_check_float(infer, "x", x));
    if (y != NULL) TRY(op_check_rank(infer, "y", y, x->rank, x->rank));
    for (int i = 0; y != NULL && i < x->rank; i++) TRY(op_check_same_axis(infer, i, "x", x, "y", y));
    if (!dim_is_constant(infer->out[0].dims[axis], &length) || length < 1 || length > OP_LINE)
        return base_fail(infer->context, DW_UNSUPPORTED, "choose: length must be a number of 1 to %d", OP_LINE);
    if (op_attr_bool(infer->attrs, OP_ATTR_softmax) && (!dim_is_constant(x->dims[axis], &length) || length > OP_SOFTMAX_LINE))
        return base_fail(infer->context, DW_UNSUPPORTED, "choose: with softmax the axis must have a size that is a number of at most %d", OP_SOFTMAX_LINE);
    TRY(op_line_infer(infer, (y != NULL ? y : x)->format, &infer->out[0].format, &one));
    if (one) TRY_DIM(infer->context, infer->out[0].dims[axis], dim_constant(infer->dims, 1));
    return DW_OK;
}

static dw_status infer_order(op_infer *infer) {
    const op_type *x = infer->in[0];
    int64_t axis = op_attr_int(infer->attrs, OP_ATTR_axis);
    infer->out[0] = *x;
    if (infer->op->id == OP_topk || infer->op->id == OP_choose) {
        dim length = op_attr_dim(infer->attrs, OP_ATTR_length);
        TRY(op_check_le(infer, "length", length, "the size of the axis", x->dims[axis]));
        infer->out[0].dims[axis] = length;
    }
    infer->out[1] = infer->out[0];
    infer->out[1].format = DW_FORMAT_i64;
    return infer->op->id == OP_choose ? infer_steps(infer) : DW_OK;
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

/* ---- sort, topk, choose ---- */

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

/* The line that is chosen from, as elements in x's format, where it is the softmax of x's. */
static void softmax_row(const dw_tensor *x, int64_t at, int axis, uint64_t *elements, dw_tensor *row) {
    double values[OP_SOFTMAX_LINE];
    *row = (dw_tensor){.format = x->format, .rank = 1, .dims = {x->dims[axis]}, .strides = {1}, .data = elements};
    op_load_row(x, at, x->strides[axis], x->dims[axis], values);
    op_line_softmax(values, x->dims[axis]);
    for (int64_t i = 0; i < x->dims[axis]; i++) op_store_at(row, i, values[i]);
}

/* The values of choose: of y where it is there, and what steps make of them. at_y, at_values: where the line begins. */
static void choose_row(const op_call *call, const op_chain *steps, const order *o, const dw_tensor *y, int64_t at_y, int64_t y_step, int64_t at_values, int64_t length) {
    const dw_tensor *values = call->out[0];
    const int axis = (int)op_attr_int(call->attrs, OP_ATTR_axis);
    op_line_values line;
    for (int64_t i = 0; i < length; i++) op_copy_at(&(dw_tensor){.format = y->format, .data = &line[0][i]}, 0, y, at_y + heap_get(o, i) * y_step);
    op_line_run(steps, y->format, (int)length, line);
    for (int64_t i = 0; i < values->dims[axis]; i++)
        op_copy_at(values, at_values + i * values->strides[axis], &(dw_tensor){.format = values->format, .data = &line[steps->count][i]}, 0);
}

static dw_status order_reference(const op_call *call) {
    const bool chooses = call->op->id == OP_choose, by_softmax = chooses && op_attr_bool(call->attrs, OP_ATTR_softmax), has_y = chooses && op_operand(call, CHOOSE_Y) != NULL;
    const dw_tensor *x = call->in[0], *values = call->out[0], *indices = call->out[1], *y = has_y ? call->in[CHOOSE_Y] : x;
    int axis = (int)op_attr_int(call->attrs, OP_ATTR_axis);
    int64_t length = indices->dims[axis];
    op_chain steps;
    if (chooses) TRY(op_line_of(call, &steps));
    if (length > x->dims[axis])
        return base_fail(call->context, DW_INVALID, "%s: length is %lld, the axis has size %lld", call->op->name, (long long)length, (long long)x->dims[axis]);
    walk w;
    walk_start(&w, indices->rank, indices->dims);
    bool empty = w.left == 0;
    walk_skip(&w, axis);
    int at_x = walk_add(&w, x), at_values = walk_add(&w, values), at_indices = walk_add(&w, indices), at_y = walk_add(&w, y);
    for (; !empty && w.left > 0; walk_next(&w)) {
        uint64_t elements[OP_SOFTMAX_LINE];
        dw_tensor row;
        order o = {
            .x = x,
            .indices = indices,
            .x_offset = w.offset[at_x],
            .x_stride = x->strides[axis],
            .heap_offset = w.offset[at_indices],
            .heap_stride = indices->strides[axis],
            .descending = op_attr_bool(call->attrs, call->op->id == OP_sort ? OP_ATTR_descending : OP_ATTR_largest),
        };
        if (by_softmax) {
            softmax_row(x, w.offset[at_x], axis, elements, &row);
            o.x = &row;
            o.x_offset = 0;
            o.x_stride = 1;
        }
        const bool of_row = by_softmax && !has_y;   /* y may be x's own tensor, whose values are no softmax */
        order_row(&o, x->dims[axis], length);
        if (chooses) choose_row(call, &steps, &o, of_row ? &row : y, of_row ? 0 : w.offset[at_y], of_row ? 1 : y->strides[axis], w.offset[at_values], length);
        for (int64_t i = 0; !chooses && i < length; i++)
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
