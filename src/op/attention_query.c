/* One query of a call of attention: where it, its mask and its bias begin, and the scores of its keys, one at a time. For the references of attention and attention_backward. */
#include "op/family.h"

#include <math.h>

enum { CHUNK = 256 };   /* of the width of q: what is on the stack */

/* The sum of a product and a bias, in fp32 but for operands of f64. */
static double biased(const op_attention_query *at, double product, double bias) {
    const bool in_double = at->call->in[ATTENTION_Q]->format == DW_FORMAT_f64 || at->call->in[ATTENTION_BIAS]->format == DW_FORMAT_f64;
    if (bias <= OP_ATTENTION_HIDES) return bias;
    return in_double ? product + bias : (float)(product + bias);
}

int64_t op_attention_begin(const op_attention_query *at, const dw_tensor *x, op_cache_slot place) {
    int64_t steps[DW_MAX_RANK];
    op_strides(x, steps);
    return place.row * steps[0] + at->group * steps[1] + place.slot * steps[2];
}

int64_t op_attention_step(const dw_tensor *x) { return op_is_block(x->format) ? 1 : x->strides[3]; }

double op_attention_score(const op_attention_query *at, int64_t key, double *slope) {
    const dw_tensor *q = at->call->in[ATTENTION_Q], *k = at->call->in[ATTENTION_K], *mask = op_operand(at->call, ATTENTION_MASK), *bias = op_operand(at->call, ATTENTION_BIAS);
    if (slope != NULL) *slope = at->scale;
    if (mask != NULL && !op_load_int_at(mask, at->mask + key * at->mask_stride)) return -INFINITY;
    const op_cache_slot place = op_attention_key(at->view, at->row, key);
    if (place.row == OP_NOWHERE) return -INFINITY;
    double sum = 0, of_q[CHUNK], of_k[CHUNK];
    for (int64_t begin = 0; begin < q->dims[3]; begin += CHUNK) {
        int64_t count = q->dims[3] - begin < CHUNK ? q->dims[3] - begin : CHUNK;
        op_load_row(q, at->q + begin * op_attention_step(q), op_attention_step(q), count, of_q);
        op_load_row(k, op_attention_begin(at, k, place) + begin * op_attention_step(k), op_attention_step(k), count, of_k);
        for (int64_t i = 0; i < count; i++) sum += of_q[i] * of_k[i];
    }
    sum *= at->scale;
    if (at->softcap > 0) {
        const double bent = tanh(sum / at->softcap);
        sum = at->softcap * bent;
        if (slope != NULL) *slope *= 1 - bent * bent;
    }
    return bias != NULL ? biased(at, sum, op_load_at(bias, at->bias + key * at->bias_stride)) : sum;
}

/* Offset of a mask or bias at key 0 of a query. */
static int64_t offset_of(const int64_t strides[4], int64_t row, int64_t head, int64_t query) { return row * strides[0] + head * strides[1] + query * strides[2]; }

dw_status op_attention_query_of(const op_call *call, const op_attention_view *view, int64_t batch, int64_t head, int64_t index, op_attention_query *at) {
    const dw_tensor *q = call->in[ATTENTION_Q], *k = call->in[ATTENTION_K], *sink = op_operand(call, ATTENTION_SINK);
    const int64_t row = op_attention_row(view, batch, index), shared = q->dims[1] / k->dims[1];
    int64_t steps[DW_MAX_RANK];
    TRY(op_attention_check(call, view, batch, index));
    op_strides(q, steps);
    *at = (op_attention_query){
        .call = call,
        .scale = op_attr_real(call->attrs, OP_ATTR_scale),
        .softcap = op_attr_real(call->attrs, OP_ATTR_softcap),
        .q = batch * steps[0] + head * steps[1] + index * steps[2],
        .mask = offset_of(view->mask_strides, row, head, index),
        .bias = offset_of(view->bias_strides, row, head, index),
        .mask_stride = view->mask_strides[3],
        .bias_stride = view->bias_strides[3],
        .view = view,
        .row = row,
        .group = head / shared,
        .seen = op_attention_seen(view, index),
        .sink = sink != NULL ? op_load_at(sink, head * sink->strides[0]) : -INFINITY,
    };
    return DW_OK;
}
