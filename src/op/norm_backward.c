/* layer_norm_backward and rms_norm_backward: from the gradient dy of a norm's result those of what was normalised and of its weight and bias. With n = (x - mean) * rstd (rms_norm: mean 0) and
 * g = dy * weight over a row of k elements:
 *     dx = rstd * (g - mean(g) - n * mean(g n))      rms_norm: without mean(g)
 *     dweight = sum over rows of dy * n,  dbias = sum over rows of dy
 * Statistics are made of x again, in double, in two passes. plus is added to dx before it is rounded: what else x's gradient consists of, as behind a residual. */
#include "op/family.h"

#include <math.h>

enum { X, DY, WEIGHT, PLUS };

/* ---- inference ---- */

static dw_status check_like_x(op_infer *infer, const char *name, const op_type *type) {
    const op_type *x = infer->in[X];
    TRY(op_check_number(infer, name, type));
    TRY(op_check_float(infer, name, type));
    TRY(op_check_rank(infer, name, type, x->rank, x->rank));
    for (int i = 0; i < x->rank; i++) TRY(op_check_same_axis(infer, i, "x", x, name, type));
    return DW_OK;
}

static const op_type *type_of(const op_infer *infer, int operand) { return operand < infer->n_in ? infer->in[operand] : NULL; }

dw_status norm_backward_infer(op_infer *infer) {
    const op_type *x = infer->in[X], *weight = type_of(infer, WEIGHT), *plus = type_of(infer, PLUS);
    TRY(op_check_number(infer, "x", x));
    TRY(op_check_float(infer, "x", x));
    TRY(op_check_rank(infer, "x", x, 1, DW_MAX_RANK));
    TRY(check_like_x(infer, "dy", infer->in[DY]));
    if (plus != NULL) TRY(check_like_x(infer, "plus", plus));
    if (weight != NULL) {
        TRY(op_check_number(infer, "weight", weight));
        TRY(op_check_float(infer, "weight", weight));
        TRY(op_check_rank(infer, "weight", weight, 1, 1));
        TRY(op_check_same(infer, "the size of the normalised axis", x->dims[x->rank - 1], "weight", weight->dims[0]));
    }
    infer->out[0] = *x;
    for (int i = 1; i < infer->n_out; i++) {
        infer->out[i] = (op_type){.format = weight != NULL ? weight->format : x->format};
        TRY(op_add_axis(infer, &infer->out[i], x->dims[x->rank - 1]));
    }
    return DW_OK;
}

/* ---- reference ---- */

/* Rows along the last axis: where one begins in x, dy, plus and dx, and its statistics. */
typedef struct rows {
    const op_call *call;
    const dw_tensor *x, *dy, *weight, *plus;
    walk walk;
    int at_x, at_dy, at_plus, at_dx, last;
    int64_t cols;
    bool centred;
    double mean, rstd;
} rows;

static double x_at(const rows *r, int64_t i) { return op_load_at(r->x, r->walk.offset[r->at_x] + i * r->x->strides[r->last]); }
static double dy_at(const rows *r, int64_t i) { return op_load_at(r->dy, r->walk.offset[r->at_dy] + i * r->dy->strides[r->last]); }
static double n_at(const rows *r, int64_t i) { return (x_at(r, i) - r->mean) * r->rstd; }
static double g_at(const rows *r, int64_t i) { return r->weight != NULL ? dy_at(r, i) * op_load_at(r->weight, i * r->weight->strides[0]) : dy_at(r, i); }

static void measure(rows *r) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; r->centred && i < r->cols; i++) sum += x_at(r, i);
    r->mean = r->centred ? sum / (double)r->cols : 0;
    for (int64_t i = 0; i < r->cols; i++) squares += (x_at(r, i) - r->mean) * (x_at(r, i) - r->mean);
    r->rstd = 1 / sqrt(squares / (double)r->cols + op_attr_real(r->call->attrs, OP_ATTR_eps));
}

static rows start(const op_call *call) {
    rows r = {
        .call = call, .x = call->in[X], .dy = call->in[DY], .weight = op_operand(call, WEIGHT), .plus = op_operand(call, PLUS),
        .last = call->in[X]->rank - 1, .centred = call->op->id == OP_layer_norm_backward,
    };
    r.cols = r.x->dims[r.last];
    walk_start(&r.walk, r.x->rank, r.x->dims);
    if (r.walk.left == 0) return r;
    walk_skip(&r.walk, r.last);
    r.at_x = walk_add(&r.walk, r.x);
    r.at_dy = walk_add(&r.walk, r.dy);
    r.at_dx = walk_add(&r.walk, call->out[0]);
    if (r.plus != NULL) r.at_plus = walk_add(&r.walk, r.plus);
    return r;
}

static void make_dx(const op_call *call) {
    const dw_tensor *dx = call->out[0];
    rows r = start(call);
    for (; r.walk.left > 0; walk_next(&r.walk)) {
        double sum = 0, along = 0;
        measure(&r);
        for (int64_t i = 0; i < r.cols; i++) {
            sum += g_at(&r, i);
            along += g_at(&r, i) * n_at(&r, i);
        }
        sum = r.centred ? sum / (double)r.cols : 0;
        along /= (double)r.cols;
        for (int64_t i = 0; i < r.cols; i++) {
            const double value = r.rstd * (g_at(&r, i) - sum - n_at(&r, i) * along);
            const double more = r.plus != NULL ? op_load_at(r.plus, r.walk.offset[r.at_plus] + i * r.plus->strides[r.last]) : 0;
            op_store_at(dx, r.walk.offset[r.at_dx] + i * dx->strides[r.last], value + more);
        }
    }
}

enum { CHUNK = 256 };   /* columns of dweight and dbias that are summed together */

static void make_columns(const op_call *call, int64_t begin, int64_t count) {
    const dw_tensor *dweight = call->out[1], *dbias = call->n_out > 2 ? call->out[2] : NULL;
    double weights[CHUNK] = {0}, biases[CHUNK] = {0};
    for (rows r = start(call); r.walk.left > 0; walk_next(&r.walk)) {
        measure(&r);
        for (int64_t i = 0; i < count; i++) {
            weights[i] += dy_at(&r, begin + i) * n_at(&r, begin + i);
            biases[i] += dy_at(&r, begin + i);
        }
    }
    for (int64_t i = 0; i < count; i++) {
        op_store_at(dweight, (begin + i) * dweight->strides[0], weights[i]);
        if (dbias != NULL) op_store_at(dbias, (begin + i) * dbias->strides[0], biases[i]);
    }
}

dw_status norm_backward_reference(const op_call *call) {
    const int64_t cols = call->out[1]->dims[0];
    make_dx(call);
    for (int64_t begin = 0; begin < cols; begin += CHUNK) make_columns(call, begin, cols - begin < CHUNK ? cols - begin : CHUNK);
    return DW_OK;
}

/* About twelve operations an element. */
void norm_backward_work(const op_call *call, op_work *work) { op_work_each(call, 12, work); }
