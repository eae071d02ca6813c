/* Reductions of f32, bf16 and f16. Sums of up to 4096 elements in 64 lanes of fp32, those in double, in row-major order; or, where neighbouring results have
 * their elements side by side, column by column in double. */
#include <math.h>

#include "kernels/reduce/reduce.h"

typedef struct real_state {
    const reduce_job *job;
    double total;
    float best;
    int64_t seen, index;          /* elements so far; where the best is */
} real_state;

static bool is_better(const real_state *s, float value) {
    if (s->seen > 0 && isnan(s->best)) return false;
    if (s->seen == 0 || isnan(value)) return true;
    return s->job->op == OP_argmax || s->job->op == OP_amax ? value > s->best : value < s->best;
}

static int64_t first_equal(const float *x, float value, int64_t count) {
    int64_t i = 0;
    if (isnan(value)) {
        while (i < count && !isnan(x[i])) i++;
    } else {
        while (i < count && x[i] != value) i++;
    }
    return i;
}

static bool block(real_state *s, const float *x, int64_t count) {
    const cpu_rows *rows = s->job->rows;
    op_id op = s->job->op;
    if (op == OP_sum || op == OP_mean) {
        s->total += rows->sum(x, count);
    } else if (op == OP_prod) {
        for (int64_t i = 0; i < count; i++) s->total *= (double)x[i];
    } else if (op == OP_any || op == OP_all) {
        bool any = s->total != 0, all = any;
        for (int64_t i = 0; i < count; i++) {
            any |= x[i] != 0;
            all &= x[i] != 0;
        }
        s->total = op == OP_any ? any : all;
    } else {
        float value = op == OP_amax || op == OP_argmax ? rows->max(x, count) : rows->min(x, count);
        if (is_better(s, value)) {
            s->best = value;
            s->index = s->seen + (reduce_finds_index(op) ? first_equal(x, value, count) : 0);
        }
    }
    s->seen += count;
    return true;
}

static bool piece(void *state, int64_t offset, int64_t step, int64_t count) {
    real_state *s = state;
    float buffer[CPU_BLOCK];
    for (int64_t at = 0; at < count; at += CPU_BLOCK) {
        int64_t part = count - at < CPU_BLOCK ? count - at : CPU_BLOCK;
        block(s, cpu_load(s->job->rows, s->job->x, offset + at * step, step, part, buffer), part);
    }
    return true;
}

static void store_real(const reduce_job *job, int64_t offset, double value) {
    float rounded = (float)value;
    if (job->out->format == DW_FORMAT_bool) *(uint8_t *)cpu_at(job->out, offset) = value != 0;
    else cpu_store(job->rows, &rounded, job->out, offset, 1, 1);
}

static double start_of(op_id op) { return op == OP_prod || op == OP_all ? 1 : 0; }

void reduce_reals(void *argument, const int64_t *offset, int64_t count) {
    const reduce_job *job = argument;
    for (int64_t i = 0; i < count; i++) {
        int64_t at_out = offset[0] + i * cpu_nest_step(&job->outer, 0);
        real_state s = {.job = job, .total = start_of(job->op)};
        reduce_elements(job, offset[1] + i * cpu_nest_step(&job->outer, 1), piece, &s);
        if (job->finite && !isfinite(s.best)) s.index = s.best < 0 ? -2 : -1;
        if (reduce_finds_index(job->op)) *(int64_t *)cpu_at(job->out, at_out) = s.index;
        else if (job->op == OP_amax || job->op == OP_amin) store_real(job, at_out, (double)s.best);
        else store_real(job, at_out, job->op == OP_mean ? s.total / (double)job->count : s.total);
    }
}

/* ---- columns ---- */

typedef struct column_state {
    const reduce_job *job;
    double total[CPU_BLOCK];
    int64_t columns;
} column_state;

/* count rows of elements, step apart: one for every column. */
static bool column_piece(void *state, int64_t offset, int64_t step, int64_t count) {
    column_state *s = state;
    op_id op = s->job->op;
    double *restrict total = s->total;
    float buffer[CPU_BLOCK];
    for (int64_t row = 0; row < count; row++) {
        const float *x = cpu_load(s->job->rows, s->job->x, offset + row * step, 1, s->columns, buffer);
        int64_t n = s->columns;
        if (op == OP_sum || op == OP_mean) {
            for (int64_t j = 0; j < n; j++) total[j] += (double)x[j];
        } else if (op == OP_prod) {
            for (int64_t j = 0; j < n; j++) total[j] *= (double)x[j];
        } else if (op == OP_amax) {
            for (int64_t j = 0; j < n; j++) total[j] = total[j] > (double)x[j] || total[j] != total[j] ? total[j] : (double)x[j];
        } else if (op == OP_amin) {
            for (int64_t j = 0; j < n; j++) total[j] = total[j] < (double)x[j] || total[j] != total[j] ? total[j] : (double)x[j];
        } else if (op == OP_any) {
            for (int64_t j = 0; j < n; j++) total[j] = x[j] != 0 ? 1 : total[j];
        } else {
            for (int64_t j = 0; j < n; j++) total[j] = x[j] != 0 ? total[j] : 0;
        }
    }
    return true;
}

void reduce_columns(void *argument, const int64_t *offset, int64_t count) {
    const reduce_job *job = argument;
    int64_t out_step = cpu_nest_step(&job->outer, 0);
    double start = job->op == OP_amax ? -INFINITY : job->op == OP_amin ? INFINITY : start_of(job->op);
    for (int64_t at = 0; at < count; at += CPU_BLOCK) {
        column_state s = {.job = job, .columns = count - at < CPU_BLOCK ? count - at : CPU_BLOCK};
        for (int64_t j = 0; j < s.columns; j++) s.total[j] = start;
        reduce_elements(job, offset[1] + at, column_piece, &s);
        for (int64_t j = 0; j < s.columns; j++)
            store_real(job, offset[0] + (at + j) * out_step, job->op == OP_mean ? s.total[j] / (double)job->count : s.total[j]);
    }
}
