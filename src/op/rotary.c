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

dw_status rotary_reference(const op_call *call) {
    const dw_tensor *x = call->in[0], *cosine = call->in[1], *sine = call->in[2], *out = call->out[0];
    int last = x->rank - 1;
    int64_t width = op_attr_int(call->attrs, OP_ATTR_width), half = width / 2;
    bool interleaved = op_attr_bool(call->attrs, OP_ATTR_interleaved);
    if (width > x->dims[last])
        return base_fail(call->context, DW_MISMATCH, "rotary: width is %lld, the last axis of x is %lld", (long long)width, (long long)x->dims[last]);
    walk w;
    walk_start(&w, x->rank, x->dims);
    walk_skip(&w, last);
    int at_x = walk_add(&w, x), at_out = walk_add(&w, out), at_cos = walk_add(&w, cosine), at_sin = walk_add(&w, sine);
    for (; w.left > 0; walk_next(&w)) {
        for (int64_t i = 0; i < x->dims[last]; i++) {
            double value = op_load_at(x, w.offset[at_x] + i * x->strides[last]);
            if (i < width) {
                bool second = interleaved ? i % 2 != 0 : i >= half;
                int64_t partner = interleaved ? i ^ 1 : second ? i - half : i + half;
                double other = op_load_at(x, w.offset[at_x] + partner * x->strides[last]);
                double c = op_load_at(cosine, w.offset[at_cos] + i * w.stride[at_cos][last]);
                double s = op_load_at(sine, w.offset[at_sin] + i * w.stride[at_sin][last]);
                value = second ? value * c + other * s : value * c - other * s;
            }
            op_store_at(out, w.offset[at_out] + i * out->strides[last], value);
        }
    }
    return DW_OK;
}

void rotary_work(const op_call *call, op_work *work) { op_work_each(call, 3, work); }
