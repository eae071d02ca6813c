/* rotary: position embedding by rotation of pairs in the last axis. Does not make cos and sin.
 *     halves:       y[i] = x[i] cos[i] - x[i + w/2] sin[i],          y[i + w/2] = x[i + w/2] cos[i + w/2] + x[i] sin[i + w/2]
 *     interleaved:  y[2i] = x[2i] cos[2i] - x[2i + 1] sin[2i],       y[2i + 1] = x[2i + 1] cos[2i + 1] + x[2i] sin[2i + 1]
 * for i < w/2, w the width; elements from w on stay as they are. */
#include "op/family.h"

dw_status rotary_infer(op_infer *infer) {
    const op_type *x = infer->in[0];
    int64_t width = op_attr_int(infer->attrs, OP_ATTR_width), size;
    TRY(op_check_number(infer, "x", x));
    TRY(op_check_float(infer, "x", x));
    TRY(op_check_rank(infer, "x", x, 2, DW_MAX_RANK));
    if (width < 2 || width % 2 != 0)
        return base_fail(infer->context, DW_INVALID, "rotary: width is %lld, it must be even and 2 or more", (long long)width);
    if (dim_is_constant(x->dims[x->rank - 1], &size) && width > size)
        return base_fail(infer->context, DW_MISMATCH, "rotary: width is %lld, the last axis of x is %lld", (long long)width, (long long)size);
    *infer->out = *x;
    op_type turned = *x;
    TRY_DIM(infer->context, turned.dims[x->rank - 1], dim_constant(infer->dims, width));
    for (int i = 1; i <= 2; i++) {
        TRY(op_check_number(infer, i == 1 ? "cos" : "sin", infer->in[i]));
        TRY(op_check_float(infer, i == 1 ? "cos" : "sin", infer->in[i]));
        TRY(op_check_broadcasts_to(infer, i == 1 ? "cos " : "sin ", infer->in[i], x->rank, turned.dims));
    }
    return DW_OK;
}

/* Element i of a row, turned with its partner. */
static double turned_at(const op_turn *turn, const int64_t at[4], int64_t i) {
    const int64_t half = turn->width / 2;
    const bool second = turn->interleaved ? i % 2 != 0 : i >= half;
    const int64_t partner = turn->interleaved ? i ^ 1 : second ? i - half : i + half;
    const double value = op_load_at(turn->x, at[1] + i * turn->x_step), other = op_load_at(turn->x, at[1] + partner * turn->x_step);
    const double c = op_load_at(turn->cosine, at[2] + i * turn->cosine_step), s = op_load_at(turn->sine, at[3] + i * turn->sine_step);
    return second ? value * c + other * s : value * c - other * s;
}

double op_turned_at(const op_turn *turn, const int64_t at[4], int64_t i) {
    const dw_format format = turn->x->format;
    if (i >= turn->width) return op_load_at(turn->x, at[1] + i * turn->x_step);
    return num_decode(format, num_encode(format, turned_at(turn, at, i), false));
}

void op_turn_row(const op_turn *turn, const int64_t at[4]) {
    for (int64_t i = 0; i < turn->cols; i++) {
        const double value = i < turn->width ? turned_at(turn, at, i) : op_load_at(turn->x, at[1] + i * turn->x_step);
        op_store_at(turn->out, at[0] + i * turn->out_step, value);
    }
}

dw_status rotary_reference(const op_call *call) {
    const dw_tensor *x = call->in[0], *cosine = call->in[1], *sine = call->in[2], *out = call->out[0];
    const int last = x->rank - 1;
    const int64_t width = op_attr_int(call->attrs, OP_ATTR_width);
    if (width > x->dims[last])
        return base_fail(call->context, DW_MISMATCH, "rotary: width is %lld, the last axis of x is %lld", (long long)width, (long long)x->dims[last]);
    walk w;
    walk_start(&w, x->rank, x->dims);
    walk_skip(&w, last);
    const int at_out = walk_add(&w, out), at_x = walk_add(&w, x), at_cos = walk_add(&w, cosine), at_sin = walk_add(&w, sine);
    const op_turn turn = {
        .x = x, .cosine = cosine, .sine = sine, .out = out,
        .x_step = x->strides[last], .cosine_step = w.stride[at_cos][last], .sine_step = w.stride[at_sin][last], .out_step = out->strides[last],
        .cols = x->dims[last], .width = width, .interleaved = op_attr_bool(call->attrs, OP_ATTR_interleaved),
    };
    for (; w.left > 0; walk_next(&w)) op_turn_row(&turn, (int64_t[4]){w.offset[at_out], w.offset[at_x], w.offset[at_cos], w.offset[at_sin]});
    return DW_OK;
}

void rotary_work(const op_call *call, op_work *work) { op_work_each(call, 3, work); }
