/* attention_backward: the gradients of attention's operands from that of its result. Nothing of the size [s,t] is stored: the weight of a key is e^(score - lse) again.
 *     p_ij = e^(score_ij - lse_i)          weight of key j for query i; where lse_i is -1e30 or less, which is finite masks alone, its part of the sum of all of them
 *     D_i  = dout_i . out_i
 *     ds_ij = p_ij (dout_i . v_j - D_i)    gradient of the score, and of the bias
 *     dv_j = sum_i p_ij dout_i,  dq_i = sum_j ds_ij slope_ij k_j,  dk_j = sum_i ds_ij slope_ij q_i
 * slope is that of the score over q . k: scale, and under a cap scale (1 - tanh^2). A key shared by heads gets the sum of theirs. What is not seen has no part, so a query that
 * sees no key has gradient 0. A sink is in lse; its own gradient is no result. The bias is added as a number would be: where it hides what q and k hold, they have the
 * gradient of the sum all the same, as in PyTorch. */
#include "op/family.h"

#include <math.h>

enum { CHUNK = 256 };   /* of a width: what is on the stack */

/* Attention's own operands stand first in the call that the gradient is taken of. */
enum { FORWARD_OPERANDS = ATTENTION_BIAS + 1 };

/* ---- inference ---- */

static dw_status check_like(op_infer *infer, const char *name, const op_type *type, const char *of, const op_type *like) {
    TRY(op_check_rank(infer, name, type, like->rank, like->rank));
    TRY(op_check_element(infer, name, type));
    TRY(op_check_float(infer, name, type));
    for (int i = 0; i < like->rank; i++) TRY(op_check_same_axis(infer, i, of, like, name, type));
    return DW_OK;
}

dw_status attention_backward_infer(op_infer *infer) {
    const op_type *const *in = infer->in, *forward[FORWARD_OPERANDS] = {in[ATTENTION_BACKWARD_Q], in[ATTENTION_BACKWARD_K], in[ATTENTION_BACKWARD_V]};
    op_type out = {0};
    if (infer->n_in > ATTENTION_BACKWARD_MASK) forward[ATTENTION_MASK] = in[ATTENTION_BACKWARD_MASK];
    if (infer->n_in > ATTENTION_BACKWARD_BIAS) forward[ATTENTION_BIAS] = in[ATTENTION_BACKWARD_BIAS];
    op_infer attention = *infer;
    attention.in = forward;
    attention.n_in = FORWARD_OPERANDS;
    attention.out = &out;
    attention.n_out = 1;
    for (int i = 1; i < 3; i++) TRY(op_check_float(infer, i == 1 ? "k" : "v", forward[i]));
    TRY(attention_infer(&attention));
    TRY(check_like(infer, "out", in[ATTENTION_BACKWARD_OUT], "the result", &out));
    TRY(check_like(infer, "dout", in[ATTENTION_BACKWARD_DOUT], "the result", &out));
    TRY(op_check_same_format(infer, "out", in[ATTENTION_BACKWARD_OUT], "dout", in[ATTENTION_BACKWARD_DOUT]));
    out.rank = 3;
    TRY(check_like(infer, "lse", in[ATTENTION_BACKWARD_LSE], "the result", &out));
    if (in[ATTENTION_BACKWARD_LSE]->format != DW_FORMAT_f32)
        return base_fail(infer->context, DW_MISMATCH, "attention_backward: lse is %s, it must be f32", dw_format_name(in[ATTENTION_BACKWARD_LSE]->format));
    for (int i = 0; i < 3; i++) infer->out[i] = *forward[i];
    if (infer->n_out < 4) return DW_OK;
    if (forward[ATTENTION_BIAS] == NULL) return base_fail(infer->context, DW_INVALID, "attention_backward: dbias is asked for, and there is no bias");
    infer->out[3] = *forward[ATTENTION_BIAS];
    return DW_OK;
}

/* ---- reference ---- */

op_call op_attention_forward(const op_call *call, const dw_tensor *in[ATTENTION_OPERANDS]) {
    for (int i = 0; i < ATTENTION_OPERANDS; i++) in[i] = NULL;
    for (int i = 0; i < 3; i++) in[i] = call->in[i];
    in[ATTENTION_MASK] = op_operand(call, ATTENTION_BACKWARD_MASK);
    in[ATTENTION_BIAS] = op_operand(call, ATTENTION_BACKWARD_BIAS);
    op_call forward = *call;
    const unsigned known = call->known_in;
    forward.in = in;
    forward.n_in = FORWARD_OPERANDS;
    forward.out = &call->in[ATTENTION_BACKWARD_OUT];
    forward.n_out = 1;
    forward.known_in = (known & 7) | (known >> ATTENTION_BACKWARD_MASK & 1) << ATTENTION_MASK | (known >> ATTENTION_BACKWARD_BIAS & 1) << ATTENTION_BIAS;
    return forward;
}

/* What all parts read. */
typedef struct backward { const op_call *call, *forward; const op_attention_view *view; } backward;

static double dot(const dw_tensor *x, int64_t x_begin, const dw_tensor *y, int64_t y_begin, int64_t count) {
    double sum = 0, of_x[CHUNK], of_y[CHUNK];
    for (int64_t begin = 0; begin < count; begin += CHUNK) {
        const int64_t length = count - begin < CHUNK ? count - begin : CHUNK;
        op_load_row(x, x_begin + begin * x->strides[3], x->strides[3], length, of_x);
        op_load_row(y, y_begin + begin * y->strides[3], y->strides[3], length, of_y);
        for (int64_t i = 0; i < length; i++) sum += of_x[i] * of_y[i];
    }
    return sum;
}

static int64_t begin_of(const dw_tensor *x, int64_t batch, int64_t head, int64_t row) { return batch * x->strides[0] + head * x->strides[1] + row * x->strides[2]; }

/* A query, the logarithm of its sum, and D. */
typedef struct row { op_attention_query at; int64_t batch, head, query; double lse, part, share; } row;

/* What e^(score - lse) are together, where all keys are hidden by finite numbers: those are so large that lse has lost how many there are of them. */
static double sum_of_hidden(const row *r) {
    double slope, sum = 0;
    for (int64_t key = r->at.seen.begin; key < r->at.seen.end; key++) sum += exp(op_attention_score(&r->at, key, &slope) - r->lse);
    return sum;
}

static dw_status start_row(const backward *b, int64_t batch, int64_t head, int64_t query, row *r) {
    const dw_tensor *out = b->call->in[ATTENTION_BACKWARD_OUT], *dout = b->call->in[ATTENTION_BACKWARD_DOUT], *lse = b->call->in[ATTENTION_BACKWARD_LSE];
    *r = (row){.batch = batch, .head = head, .query = query};
    TRY(op_attention_query_of(b->forward, b->view, batch, head, query, &r->at));
    r->lse = op_load_at(lse, batch * lse->strides[0] + head * lse->strides[1] + query * lse->strides[2]);
    r->part = isfinite(r->lse) && r->lse <= OP_ATTENTION_HIDES ? 1 / sum_of_hidden(r) : 1;
    r->share = dot(out, begin_of(out, batch, head, query), dout, begin_of(dout, batch, head, query), out->dims[3]);
    return DW_OK;
}

/* Of a key: its weight, and the gradients of its score and of q . k; false: the query does not see it. */
typedef struct pull { double weight, score, product; } pull;

static bool pull_of(const backward *b, const row *r, int64_t key, pull *p) {
    const dw_tensor *v = b->call->in[ATTENTION_BACKWARD_V], *dout = b->call->in[ATTENTION_BACKWARD_DOUT];
    double slope;
    if (key < r->at.seen.begin || key >= r->at.seen.end) return false;
    const double score = op_attention_score(&r->at, key, &slope);
    if (score == -INFINITY) return false;
    p->weight = exp(score - r->lse) * r->part;
    p->score = p->weight * (dot(dout, begin_of(dout, r->batch, r->head, r->query), v, begin_of(v, r->batch, r->at.group, key), v->dims[3]) - r->share);
    p->product = p->score * slope;
    return true;
}

/* Columns from begin on of a row of dq. */
static dw_status make_dq(const backward *b, int64_t batch, int64_t head, int64_t query, int64_t begin, int64_t count) {
    const dw_tensor *k = b->call->in[ATTENTION_BACKWARD_K], *dq = b->call->out[0];
    double sums[CHUNK] = {0}, values[CHUNK];
    row r;
    pull p;
    TRY(start_row(b, batch, head, query, &r));
    for (int64_t key = r.at.seen.begin; key < r.at.seen.end; key++) {
        if (!pull_of(b, &r, key, &p)) continue;
        op_load_row(k, begin_of(k, batch, r.at.group, key) + begin * k->strides[3], k->strides[3], count, values);
        for (int64_t i = 0; i < count; i++) sums[i] += p.product * values[i];
    }
    for (int64_t i = 0; i < count; i++) op_store_at(dq, begin_of(dq, batch, head, query) + (begin + i) * dq->strides[3], sums[i]);
    return DW_OK;
}

/* Columns from begin on of a row of dk (of q, by the gradient of the product) or of dv (of dout, by the weight). */
static dw_status make_keys(const backward *b, bool values, int64_t batch, int64_t group, int64_t key, int64_t begin, int64_t count) {
    const dw_tensor *from = b->call->in[values ? ATTENTION_BACKWARD_DOUT : ATTENTION_BACKWARD_Q], *to = b->call->out[values ? 2 : 1];
    const int64_t shared = from->dims[1] / to->dims[1];
    double sums[CHUNK] = {0}, part[CHUNK];
    row r;
    pull p;
    for (int64_t head = group * shared; head < (group + 1) * shared; head++) {
        for (int64_t query = 0; query < from->dims[2]; query++) {
            TRY(start_row(b, batch, head, query, &r));
            if (!pull_of(b, &r, key, &p)) continue;
            op_load_row(from, begin_of(from, batch, head, query) + begin * from->strides[3], from->strides[3], count, part);
            for (int64_t i = 0; i < count; i++) sums[i] += (values ? p.weight : p.product) * part[i];
        }
    }
    for (int64_t i = 0; i < count; i++) op_store_at(to, begin_of(to, batch, group, key) + (begin + i) * to->strides[3], sums[i]);
    return DW_OK;
}

/* Of one element of the bias: the sum over all scores that it is added to. */
static dw_status make_dbias(const backward *b, const int64_t *index) {
    const dw_tensor *bias = b->call->out[3];
    const int64_t dims[] = {b->call->in[0]->dims[0], b->call->in[0]->dims[1], b->call->in[0]->dims[2], b->call->in[1]->dims[2]};
    int64_t first[4], last[4];
    double sum = 0;
    for (int i = 0; i < 4; i++) {
        const int axis = i - (4 - bias->rank);
        const bool repeats = axis < 0 || bias->dims[axis] == 1;
        first[i] = repeats ? 0 : index[axis];
        last[i] = repeats ? dims[i] : index[axis] + 1;
    }
    for (int64_t batch = first[0]; batch < last[0]; batch++) {
        for (int64_t head = first[1]; head < last[1]; head++) {
            for (int64_t query = first[2]; query < last[2]; query++) {
                row r;
                pull p;
                TRY(start_row(b, batch, head, query, &r));
                for (int64_t key = first[3]; key < last[3]; key++) sum += pull_of(b, &r, key, &p) ? p.score : 0;
            }
        }
    }
    op_tensor_store(bias, index, sum);
    return DW_OK;
}

dw_status attention_backward_reference(const op_call *call) {
    const dw_tensor *in[ATTENTION_OPERANDS];
    const op_call forward = op_attention_forward(call, in);
    op_attention_view view;
    TRY(op_attention_view_of(&forward, &view));
    const backward b = {call, &forward, &view};
    for (int result = 0; result < 3; result++) {
        const dw_tensor *out = call->out[result];
        walk w;
        walk_start(&w, 3, out->dims);
        for (; w.left > 0; walk_next(&w)) {
            for (int64_t begin = 0; begin < out->dims[3]; begin += CHUNK) {
                const int64_t count = out->dims[3] - begin < CHUNK ? out->dims[3] - begin : CHUNK;
                if (result == 0) TRY(make_dq(&b, w.index[0], w.index[1], w.index[2], begin, count));
                else TRY(make_keys(&b, result == 2, w.index[0], w.index[1], w.index[2], begin, count));
            }
        }
    }
    if (call->n_out < 4) return DW_OK;
    walk w;
    walk_start(&w, call->out[3]->rank, call->out[3]->dims);
    for (; w.left > 0; walk_next(&w)) TRY(make_dbias(&b, w.index));
    return DW_OK;
}

/* The scores and dq of d, dk of d, and the weights' gradient and dv of e, for each pair that attention counts. */
void attention_backward_work(const op_call *call, op_work *work) {
    const dw_tensor *in[ATTENTION_OPERANDS];
    const op_call forward = op_attention_forward(call, in);
    const double d = (double)call->in[ATTENTION_BACKWARD_Q]->dims[3], e = (double)call->in[ATTENTION_BACKWARD_V]->dims[3];
    op_work once;
    attention_work(&forward, &once);
    op_work_each(call, 0, work);
    work->flops = d + e > 0 ? once.flops / (d + e) * (3 * d + 2 * e) : 0;
}
