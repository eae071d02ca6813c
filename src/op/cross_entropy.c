/* cross_entropy and its gradient. With lse = log(sum e^x) of a row x of v logits, s the smoothing and l the label:
 *     loss = lse - (1 - s) x[l] - s mean(x)
 *     dx[j] = d * (e^(x[j] - lse) - (1 - s) [j = l] - s / v)
 * Where v is said to be fewer than a row is long, what lies behind is looked at by nobody, and its gradient is 0.
 * A row whose label is the one to ignore has loss 0 and gradient 0, whatever it holds. Log-probabilities are not stored; lse is. A row of -inf alone has lse -inf and loss NaN; one with a NaN or +inf
 * has both NaN, or as PyTorch: +inf - +inf. Any other label outside [0,v) is an error. */
#include "op/family.h"

#include <math.h>

enum { LOGITS, LABELS, LSE, D };

/* ---- inference ---- */

static dw_status check_logits(op_infer *infer) {
    const op_type *logits = infer->in[LOGITS], *labels = infer->in[LABELS];
    const double smoothing = op_attr_real(infer->attrs, OP_ATTR_smoothing);
    TRY(op_check_number(infer, "logits", logits));
    TRY(op_check_float(infer, "logits", logits));
    TRY(op_check_rank(infer, "logits", logits, 1, DW_MAX_RANK));
    TRY(op_check_integer(infer, "labels", labels));
    TRY(op_check_rank(infer, "labels", labels, logits->rank - 1, logits->rank - 1));
    for (int i = 0; i < labels->rank; i++) TRY(op_check_same_axis(infer, i, "logits", logits, "labels", labels));
    const op_attr *classes = op_attrs_get(infer->attrs, OP_ATTR_classes);
    int64_t columns;
    if (classes != NULL && (!dim_is_constant(logits->dims[logits->rank - 1], &columns) || classes->integer < 1 || classes->integer > columns))
        return base_fail(infer->context, DW_INVALID, "%s: classes is %lld, it must be from 1 to the length of a row, which must be known", infer->op->name, (long long)classes->integer);
    if (!(smoothing >= 0 && smoothing <= 1)) return base_fail(infer->context, DW_INVALID, "%s: smoothing is %g, it must be from 0 to 1", infer->op->name, smoothing);
    return DW_OK;
}

/* A number for each row: as wide as sums are. */
static op_type of_rows(const op_type *logits) {
    op_type type = *logits;
    type.rank--;
    type.format = logits->format == DW_FORMAT_f64 ? DW_FORMAT_f64 : DW_FORMAT_f32;
    return type;
}

static dw_status check_row_number(op_infer *infer, const char *name, const op_type *type, const op_type *like) {
    TRY(op_check_number(infer, name, type));
    TRY(op_check_float(infer, name, type));
    TRY(op_check_rank(infer, name, type, like->rank, like->rank));
    for (int i = 0; i < like->rank; i++) TRY(op_check_same_axis(infer, i, "labels", like, name, type));
    return DW_OK;
}

dw_status cross_entropy_infer(op_infer *infer) {
    TRY(check_logits(infer));
    if (infer->op->id == OP_cross_entropy) {
        for (int i = 0; i < 2; i++) infer->out[i] = of_rows(infer->in[LOGITS]);
        return DW_OK;
    }
    TRY(check_row_number(infer, "lse", infer->in[LSE], infer->in[LABELS]));
    TRY(check_row_number(infer, "d", infer->in[D], infer->in[LABELS]));
    infer->out[0] = *infer->in[LOGITS];
    return DW_OK;
}

/* ---- reference ---- */

/* One row of logits and its target. */
typedef struct row {
    const dw_tensor *logits;
    int64_t offset, stride, count, label;
    double smoothing;
    bool counts;
} row;

static double at(const row *r, int64_t i) { return op_load_at(r->logits, r->offset + i * r->stride); }

static dw_status start_row(const op_call *call, int64_t logits_at, int64_t labels_at, row *r) {
    const dw_tensor *logits = call->in[LOGITS];
    const op_attr *ignore = op_attrs_get(call->attrs, OP_ATTR_ignore), *classes = op_attrs_get(call->attrs, OP_ATTR_classes);
    *r = (row){logits, logits_at, logits->strides[logits->rank - 1], logits->dims[logits->rank - 1], op_load_int_at(call->in[LABELS], labels_at), op_attr_real(call->attrs, OP_ATTR_smoothing), true};
    if (classes != NULL) r->count = classes->integer;
    if (ignore != NULL && r->label == ignore->integer) r->counts = false;
    else if (r->label < 0 || r->label >= r->count)
        return base_fail(call->context, DW_INVALID, "%s: a label is %lld, it must be from 0 to %lld%s", call->op->name, (long long)r->label, (long long)(r->count - 1),
                         ignore != NULL ? ", or the one to ignore" : "");
    return DW_OK;
}

static double log_sum(const row *r) {
    double largest = -INFINITY, sum = 0;
    for (int64_t i = 0; i < r->count; i++) {
        const double x = at(r, i);
        if (isnan(x)) return x;
        if (x > largest) largest = x;
    }
    if (isinf(largest)) return largest;
    for (int64_t i = 0; i < r->count; i++) sum += exp(at(r, i) - largest);
    return largest + log(sum);
}

static double mean(const row *r) {
    double sum = 0;
    for (int64_t i = 0; i < r->count; i++) sum += at(r, i);
    return sum / (double)r->count;
}

static dw_status make_loss(const op_call *call) {
    const dw_tensor *labels = call->in[LABELS];
    walk w;
    walk_start(&w, labels->rank, labels->dims);
    const int at_labels = walk_add(&w, labels), at_logits = walk_add_strides(&w, call->in[LOGITS]->strides), at_loss = walk_add(&w, call->out[0]), at_lse = walk_add(&w, call->out[1]);
    for (; w.left > 0; walk_next(&w)) {
        row r;
        TRY(start_row(call, w.offset[at_logits], w.offset[at_labels], &r));
        const double lse = log_sum(&r);
        double loss = r.counts ? lse - (1 - r.smoothing) * at(&r, r.label) : 0;
        if (r.counts && r.smoothing > 0) loss -= r.smoothing * mean(&r);
        op_store_at(call->out[0], w.offset[at_loss], loss);
        op_store_at(call->out[1], w.offset[at_lse], lse);
    }
    return DW_OK;
}

static dw_status make_gradient(const op_call *call) {
    const dw_tensor *labels = call->in[LABELS], *out = call->out[0];
    const int last = out->rank - 1;
    walk w;
    walk_start(&w, labels->rank, labels->dims);
    const int at_labels = walk_add(&w, labels), at_logits = walk_add_strides(&w, call->in[LOGITS]->strides), at_out = walk_add_strides(&w, out->strides);
    const int at_lse = walk_add(&w, call->in[LSE]), at_d = walk_add(&w, call->in[D]);
    for (; w.left > 0; walk_next(&w)) {
        row r;
        TRY(start_row(call, w.offset[at_logits], w.offset[at_labels], &r));
        const double lse = op_load_at(call->in[LSE], w.offset[at_lse]), d = op_load_at(call->in[D], w.offset[at_d]);
        for (int64_t i = 0; i < r.count; i++) {
            const double away = exp(at(&r, i) - lse) - (i == r.label ? 1 - r.smoothing : 0) - r.smoothing / (double)r.count;
            op_store_at(out, w.offset[at_out] + i * out->strides[last], r.counts ? d * away : 0);
        }
        for (int64_t i = r.count; i < out->dims[last]; i++) op_store_at(out, w.offset[at_out] + i * out->strides[last], 0);
    }
    return DW_OK;
}

dw_status cross_entropy_reference(const op_call *call) { return call->op->id == OP_cross_entropy ? make_loss(call) : make_gradient(call); }

/* An exponential, a subtraction and a sum or product for each logit. */
void cross_entropy_work(const op_call *call, op_work *work) {
    op_work_each(call, 0, work);
    work->flops = 4 * (double)op_tensor_count(call->in[LOGITS]);
}
