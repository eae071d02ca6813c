/* Who sees what in a call of attention, from its operands and attributes. Reads rows and positions, no keys. */
#include "op/op.h"

#include <string.h>

void op_attention_by_heads(const op_call *call, dw_tensor *out) {
    const int64_t heads = call->in[ATTENTION_Q]->dims[1], width = call->in[ATTENTION_V]->dims[3];
    *out = *call->out[0];
    if (out->rank == 4) return;
    const int64_t strides[] = {out->strides[0], width * out->strides[2], out->strides[1], out->strides[2]}, dims[] = {out->dims[0], heads, out->dims[1], width};
    out->rank = 4;
    memcpy(out->dims, dims, sizeof dims);
    memcpy(out->strides, strides, sizeof strides);
}

/* Within bounds in which sums with it stay in range. */
static dw_status eval_offset(const op_call *call, int64_t *offset) {
    const int64_t far = INT64_C(1) << 60;
    dim given = op_attr_dim(call->attrs, OP_ATTR_offset);
    *offset = 0;
    if (given != NULL) TRY(dim_eval(call->context, given, call->symbols, offset));
    if (*offset > far) *offset = far;
    if (*offset < -far) *offset = -far;
    return DW_OK;
}

static void broadcast(const dw_tensor *x, int64_t strides[4], int64_t *keys) {
    for (int axis = 0; x != NULL && axis < 4; axis++) strides[axis] = op_tensor_step(x, 3 - axis);
    *keys = x == NULL || x->rank == 0 || x->dims[x->rank - 1] == 1 ? 0 : x->dims[x->rank - 1];
}

dw_status op_attention_view_of(const op_call *call, op_attention_view *view) {
    const int64_t heads = call->in[ATTENTION_Q]->dims[1], groups = call->in[ATTENTION_K]->dims[1];
    *view = (op_attention_view){
        .slots = call->in[ATTENTION_K]->dims[2],
        .rows = call->in[ATTENTION_K]->dims[0],
        .causal = op_attr_bool(call->attrs, OP_ATTR_causal),
        .window = op_attr_int(call->attrs, OP_ATTR_window),
        .ahead = op_attr_int(call->attrs, OP_ATTR_ahead),
        .row = op_operand(call, ATTENTION_ROW),
        .position = op_operand(call, ATTENTION_POSITION),
        .mask = op_operand(call, ATTENTION_MASK),
        .bias = op_operand(call, ATTENTION_BIAS),
    };
    broadcast(view->mask, view->mask_strides, &view->mask_keys);
    broadcast(view->bias, view->bias_strides, &view->bias_keys);
    if (groups < 1 || heads % groups != 0)
        return base_fail(call->context, DW_MISMATCH, "attention: q has %lld heads, k has %lld, which does not divide them", (long long)heads, (long long)groups);
    return eval_offset(call, &view->offset);
}

static int64_t number_at(const dw_tensor *x, int64_t index) {
    if (x->format == DW_FORMAT_i64) return ((const int64_t *)x->data)[index * x->strides[0]];
    return op_tensor_load_int(x, &index);
}

int64_t op_attention_row(const op_attention_view *view, int64_t batch, int64_t query) { return view->row != NULL ? number_at(view->row, query) : batch; }
int64_t op_attention_position(const op_attention_view *view, int64_t query) { return view->position != NULL ? number_at(view->position, query) : query + view->offset; }

op_attention_span op_attention_seen(const op_attention_view *view, int64_t query) {
    const int64_t position = op_attention_position(view, query);
    op_attention_span seen = {0, view->slots};
    if (view->position != NULL) seen.end = position < INT64_MAX ? position + 1 : position;
    if (view->causal && seen.end - 1 > position) seen.end = position + 1;
    if (view->ahead > 0 && seen.end - view->ahead > position) seen.end = position + view->ahead;
    if (view->window > 0 && position >= view->window) seen.begin = position - view->window + 1;
    if (view->position != NULL && seen.end - view->slots > seen.begin) seen.begin = seen.end - view->slots;
    if (seen.end < seen.begin) seen.end = seen.begin;
    return seen;
}
