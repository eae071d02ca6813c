/* Routing of tokens to experts: dispatch orders rows as grouped_matmul needs them; combine brings its rows back to the tokens. */
#include "op/family.h"

enum { CHUNK = 256 };   /* columns of combine that are summed at a time, on the stack */

static dw_status infer_dispatch(op_infer *infer) {
    const op_type *ids = infer->in[0];
    dim rows;
    TRY(op_check_rank(infer, "ids", ids, 2, 2));
    TRY(op_check_integer(infer, "ids", ids));
    TRY_DIM(infer->context, rows, dim_mul(infer->dims, ids->dims[0], ids->dims[1]));
    infer->out[0] = (op_type){.format = DW_FORMAT_i64};
    TRY(op_add_axis(infer, &infer->out[0], rows));
    infer->out[1] = *ids;
    infer->out[1].format = DW_FORMAT_i64;
    infer->out[2] = (op_type){.format = DW_FORMAT_i32};
    return op_add_axis(infer, &infer->out[2], op_attr_dim(infer->attrs, OP_ATTR_length));
}

static dw_status infer_combine(op_infer *infer) {
    const op_type *y = infer->in[0], *place = infer->in[1], *weights = infer->in[2];
    TRY(op_check_rank(infer, "y", y, 2, 2));
    TRY(op_check_rank(infer, "place", place, 2, 2));
    TRY(op_check_rank(infer, "weights", weights, 2, 2));
    TRY(op_check_number(infer, "y", y));
    TRY(op_check_float(infer, "y", y));
    TRY(op_check_integer(infer, "place", place));
    TRY(op_check_number(infer, "weights", weights));
    TRY(op_check_float(infer, "weights", weights));
    TRY(op_check_same_axis(infer, 0, "place", place, "weights", weights));
    TRY(op_check_same_axis(infer, 1, "place", place, "weights", weights));
    *infer->out = *y;
    infer->out->dims[0] = place->dims[0];
    return DW_OK;
}

dw_status route_infer(op_infer *infer) { return infer->op->id == OP_dispatch ? infer_dispatch(infer) : infer_combine(infer); }

/* One pass over the ids for each expert, and one for what belongs to none. */
static dw_status dispatch_reference(const op_call *call) {
    const dw_tensor *ids = call->in[0], *rows = call->out[0], *place = call->out[1], *offsets = call->out[2];
    int64_t experts = offsets->dims[0], next = 0;
    for (int64_t expert = 0; expert <= experts; expert++) {
        for (int64_t token = 0; token < ids->dims[0]; token++) {
            for (int64_t choice = 0; choice < ids->dims[1]; choice++) {
                int64_t id = op_load_int_at(ids, token * ids->strides[0] + choice * ids->strides[1]);
                if ((id < 0 || id >= experts ? experts : id) != expert) continue;
                op_store_int_at(rows, next * rows->strides[0], token);
                op_store_int_at(place, token * place->strides[0] + choice * place->strides[1], next++);
            }
        }
        if (expert < experts) op_store_int_at(offsets, expert * offsets->strides[0], next);
    }
    return DW_OK;
}

static dw_status combine_reference(const op_call *call) {
    const dw_tensor *y = call->in[0], *place = call->in[1], *weights = call->in[2], *out = call->out[0];
    for (int64_t token = 0; token < out->dims[0]; token++) {
        for (int64_t begin = 0; begin < out->dims[1]; begin += CHUNK) {
            int64_t count = out->dims[1] - begin < CHUNK ? out->dims[1] - begin : CHUNK;
            double sums[CHUNK] = {0}, values[CHUNK];
            for (int64_t choice = 0; choice < place->dims[1]; choice++) {
                int64_t row = op_load_int_at(place, token * place->strides[0] + choice * place->strides[1]);
                if (row < 0 || row >= y->dims[0]) {
                    return base_fail(call->context, DW_INVALID, "combine: place[%lld,%lld] is %lld, y has %lld rows", (long long)token, (long long)choice,
                                     (long long)row, (long long)y->dims[0]);
                }
                double weight = op_load_at(weights, token * weights->strides[0] + choice * weights->strides[1]);
                op_load_row(y, row * y->strides[0] + begin * y->strides[1], y->strides[1], count, values);
                for (int64_t i = 0; i < count; i++) sums[i] += weight * values[i];
            }
            for (int64_t i = 0; i < count; i++) op_store_at(out, token * out->strides[0] + (begin + i) * out->strides[1], sums[i]);
        }
    }
    return DW_OK;
}

dw_status route_reference(const op_call *call) { return call->op->id == OP_dispatch ? dispatch_reference(call) : combine_reference(call); }

/* One for each id; two for each element that combine reads of y. */
void route_work(const op_call *call, op_work *work) {
    op_work_each(call, 0, work);
    double ids = (double)op_tensor_count(call->in[call->op->id == OP_dispatch ? 0 : 1]);
    work->flops = call->op->id == OP_dispatch ? ids : 2 * ids * (double)call->in[0]->dims[1];
}
