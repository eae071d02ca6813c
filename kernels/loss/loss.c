/* cross_entropy and its gradient on the CPU, in fp32, the sum of a row in 64 parts: two passes over a row of logits for the loss, one for the gradient, block by block of 1024. Rows are shared over
 * threads; each is one thread's. Measured speed: README.md. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/rows.h"
#include "kernels/kernels.h"

enum { LOGITS, LABELS, LSE, D };

const char *loss_reject(const kernel_problem *problem, text *why) {
    for (int i = 0; i < problem->n_in; i++) {
        if (problem->in[i]->format != DW_FORMAT_f64) continue;
        text_printf(why, "operand %d is f64, which is computed in double", i);
        return text_string(why);
    }
    return NULL;
}

double loss_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 0.2, 0.5); }

size_t loss_workspace(const kernel_run *run) { return kernel_no_workspace(run); }

typedef struct job {
    const op_call *call;
    const cpu_rows *rows;
    const dw_tensor *logits, *labels;
    int64_t cols, step;      /* those of classes */
    bool has_ignore, is_backward;
    int64_t ignore;
    float smoothing;
} job;

/* Where row number index of x begins, whose last axis is the row's: 1, or not there: 0. */
static int64_t begin_of(const dw_tensor *x, int64_t index, int within) {
    int64_t offset = 0;
    for (int axis = x->rank - 1 - within; axis >= 0; axis--) {
        offset += index % x->dims[axis] * x->strides[axis];
        index /= x->dims[axis];
    }
    return offset;
}

static int64_t label_of(const job *j, int64_t index) {
    const int64_t at = begin_of(j->labels, index, 0);
    if (j->labels->format == DW_FORMAT_i64) return ((const int64_t *)j->labels->data)[at];
    int64_t indices[DW_MAX_RANK] = {0};
    for (int axis = j->labels->rank - 1; axis >= 0; axis--) {
        indices[axis] = index % j->labels->dims[axis];
        index /= j->labels->dims[axis];
    }
    return op_tensor_load_int(j->labels, indices);
}

static int64_t block_of(int64_t left) { return left < CPU_BLOCK ? left : CPU_BLOCK; }

static int64_t block_at(const job *j, int64_t at) { return block_of(j->cols - at); }

static const float *load(const job *j, int64_t row, int64_t at, float *buffer) { return cpu_load(j->rows, j->logits, row + at * j->step, j->step, block_at(j, at), buffer); }

static float value_at(const job *j, const dw_tensor *x, int64_t offset) {
    float buffer[1];
    return *cpu_load(j->rows, x, offset, 1, 1, buffer);
}

static double log_sum(const job *j, int64_t row) {
    float buffer[CPU_BLOCK], y[CPU_BLOCK], max = -INFINITY;
    double sum = 0;
    for (int64_t at = 0; at < j->cols && !isnan(max); at += CPU_BLOCK) {
        const float block = j->rows->max(load(j, row, at, buffer), block_at(j, at));
        if (block > max || isnan(block)) max = block;
    }
    if (!isfinite(max)) return (double)max;
    for (int64_t at = 0; at < j->cols; at += CPU_BLOCK) sum += j->rows->exp_sum(load(j, row, at, buffer), max, y, block_at(j, at));
    return (double)max + log(sum);
}

static double mean_of(const job *j, int64_t row) {
    float buffer[CPU_BLOCK];
    double sum = 0;
    for (int64_t at = 0; at < j->cols; at += CPU_BLOCK) sum += j->rows->sum(load(j, row, at, buffer), block_at(j, at));
    return sum / (double)j->cols;
}

static void make_loss(const job *j, int64_t index) {
    const dw_tensor *loss = j->call->out[0], *lse = j->call->out[1];
    const int64_t row = begin_of(j->logits, index, 1), label = label_of(j, index);
    const double total = log_sum(j, row);
    double made = 0;
    if (!j->has_ignore || label != j->ignore) {
        made = total - (1 - (double)j->smoothing) * (double)value_at(j, j->logits, row + label * j->step);
        if (j->smoothing > 0) made -= (double)j->smoothing * mean_of(j, row);
    }
    ((float *)loss->data)[begin_of(loss, index, 0)] = (float)made;
    ((float *)lse->data)[begin_of(lse, index, 0)] = (float)total;
}

static void make_gradient(const job *j, int64_t index) {
    const dw_tensor *out = j->call->out[0], *of_lse = j->call->in[LSE], *of_d = j->call->in[D];
    const int64_t row = begin_of(j->logits, index, 1), to = begin_of(out, index, 1), label = label_of(j, index), step = out->strides[out->rank - 1];
    const float lse = value_at(j, of_lse, begin_of(of_lse, index, 0)), d = value_at(j, of_d, begin_of(of_d, index, 0)), shared = j->smoothing / (float)j->cols;
    const bool counts = !j->has_ignore || label != j->ignore;
    float buffer[CPU_BLOCK], y[CPU_BLOCK];
    for (int64_t at = 0; at < j->cols; at += CPU_BLOCK) {
        const int64_t count = block_at(j, at);
        if (counts) {
            j->rows->exp_sum(load(j, row, at, buffer), lse, y, count);
            if (label >= at && label < at + count) y[label - at] -= 1 - j->smoothing;
            j->rows->scale_shift(y, d, -shared * d, y, count);
        } else {
            memset(y, 0, (size_t)count * sizeof *y);
        }
        cpu_store(j->rows, y, out, to + at * step, step, count);
    }
    const int64_t all = out->dims[out->rank - 1];
    memset(y, 0, sizeof y);
    for (int64_t at = j->cols; at < all; at += CPU_BLOCK) cpu_store(j->rows, y, out, to + at * step, step, block_of(all - at));
}

static void run_row(void *argument, int64_t index, int worker) {
    (void)worker;
    const job *j = argument;
    if (j->is_backward) make_gradient(j, index);
    else make_loss(j, index);
}

dw_status loss_run(const kernel_run *run) {
    const op_call *call = &run->call;
    const op_attr *ignore = op_attrs_get(call->attrs, OP_ATTR_ignore), *classes = op_attrs_get(call->attrs, OP_ATTR_classes);
    const dw_tensor *logits = call->in[LOGITS];
    const job j = {.call = call, .rows = cpu_rows_of(run->chip), .logits = logits, .labels = call->in[LABELS], .cols = classes != NULL ? classes->integer : logits->dims[logits->rank - 1], .step = logits->strides[logits->rank - 1],
                   .has_ignore = ignore != NULL, .is_backward = call->op->id == OP_cross_entropy_backward, .ignore = ignore != NULL ? ignore->integer : 0,
                   .smoothing = (float)op_attr_real(call->attrs, OP_ATTR_smoothing)};
    const int64_t rows = op_tensor_count(j.labels);
    for (int64_t i = 0; i < rows; i++) {
        const int64_t label = label_of(&j, i);
        if ((!j.has_ignore || label != j.ignore) && (label < 0 || label >= j.cols)) return call->op->reference(call);      /* which says what is wrong with it */
    }
    pool_run(run->pool, rows, run_row, (void *)&j);
    return DW_OK;
}
