/* Values out of nothing: fill, iota, size. Reads no tensor. */
#include "op/family.h"

dw_status create_infer(op_infer *infer) {
    op_type *out = infer->out;
    if (infer->op->id == OP_size) {
        out->format = DW_FORMAT_i64;
        return DW_OK;
    }
    out->format = op_attr_format(infer->attrs, OP_ATTR_to);
    TRY(op_check_element(infer, "the result", out));
    if (infer->op->id == OP_iota) {
        TRY(op_check_to(infer, out->format));
        return op_add_axis(infer, out, op_attr_dim(infer->attrs, OP_ATTR_length));
    }
    const dim *shape;
    int rank = op_attr_dims(infer->attrs, OP_ATTR_shape, &shape);
    for (int i = 0; i < rank; i++) TRY(op_add_axis(infer, out, shape[i]));
    return DW_OK;
}

dw_status create_reference(const op_call *call) {
    const dw_tensor *out = call->out[0];
    walk w;
    walk_start(&w, out->rank, out->dims);
    walk_add(&w, out);
    if (call->op->id == OP_fill) {
        double value = op_attr_real(call->attrs, OP_ATTR_value);
        for (; w.left > 0; walk_next(&w)) op_store_at(out, w.offset[0], value);
        return DW_OK;
    }
    int64_t first, step = op_attr_int(call->attrs, OP_ATTR_step);
    dim start = op_attr_dim(call->attrs, call->op->id == OP_size ? OP_ATTR_size : OP_ATTR_start);
    TRY(dim_eval(call->context, start, call->symbols, &first));
    for (uint64_t i = 0; w.left > 0; walk_next(&w), i++) op_store_int_at(out, w.offset[0], (int64_t)((uint64_t)first + i * (uint64_t)step));
    return DW_OK;
}

void create_work(const op_call *call, op_work *work) { op_work_each(call, 0, work); }
