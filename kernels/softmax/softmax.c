/* softmax and log_softmax over the last axis. Problem: y = e^(x - max) / sum, or x - max - log(sum), row by row; a row whose largest is -inf gives
 * zeros (softmax), one that holds a NaN gives NaN. Two passes over x and one over y, block by block of 1024, in fp32 with sums in 64 lanes; a row stays in
 * a cache between passes. Rows are shared over threads. Measured speed: README.md. */
#include <math.h>

#include "kernels/cpu/nest.h"
#include "kernels/cpu/rows.h"
#include "kernels/kernels.h"

enum { GRAIN = 16384 };       /* elements of a task */

const char *softmax_reject(const kernel_problem *problem, text *why) {
    int64_t axis = op_attr_int(problem->attrs, OP_ATTR_axis);
    if (problem->in[0]->format == DW_FORMAT_f64) return "x is f64, which is computed in double";
    if (axis == problem->in[0]->rank - 1) return NULL;
    text_printf(why, "axis is %lld; only rows along the last axis, %d, are computed", (long long)axis, problem->in[0]->rank - 1);
    return text_string(why);
}

double softmax_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 0.1, 0.5); }

size_t softmax_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

typedef struct softmax_job {
    const cpu_rows *rows;
    const dw_tensor *x, *out;
    bool is_log;
    int64_t cols, x_step, out_step;
    cpu_nest nest;                /* over rows: out, x */
} softmax_job;

static int64_t block_at(const softmax_job *job, int64_t at) { return job->cols - at < CPU_BLOCK ? job->cols - at : CPU_BLOCK; }

static const float *load(const softmax_job *job, int64_t row, int64_t at, float *buffer) {
    return cpu_load(job->rows, job->x, row + at * job->x_step, job->x_step, block_at(job, at), buffer);
}

static float row_max(const softmax_job *job, int64_t row) {
    float buffer[CPU_BLOCK], max = -INFINITY;
    for (int64_t at = 0; at < job->cols; at += CPU_BLOCK) {
        float block = job->rows->max(load(job, row, at, buffer), block_at(job, at));
        if (block > max || isnan(block)) max = block;
        if (isnan(max)) break;
    }
    return max;
}

/* y = x * scale + shift, or e^(x - max) * scale. */
static void write_row(const softmax_job *job, int64_t row, int64_t out, float max, float scale, float shift) {
    float buffer[CPU_BLOCK], y[CPU_BLOCK];
    for (int64_t at = 0; at < job->cols; at += CPU_BLOCK) {
        int64_t count = block_at(job, at), to = out + at * job->out_step;
        const float *x = load(job, row, at, buffer);
        float *target = cpu_target(job->out, to, job->out_step, y);
        if (job->is_log) {
            for (int64_t i = 0; i < count; i++) y[i] = (x[i] - max) + shift;
            target = y;
        } else {
            job->rows->exp_sum(x, max, target, count);
            job->rows->scale_shift(target, scale, 0, target, count);
        }
        cpu_store(job->rows, target, job->out, to, job->out_step, count);
    }
}

/* Rows of one block, which is most of them: the exponentials are kept. */
static void short_row(const softmax_job *job, int64_t row, int64_t out, float max) {
    float buffer[CPU_BLOCK], y[CPU_BLOCK];
    const float *x = load(job, row, 0, buffer);
    float *target = cpu_target(job->out, out, job->out_step, y);
    double sum = job->rows->exp_sum(x, max, target, job->cols);
    job->rows->scale_shift(target, (float)(1 / sum), 0, target, job->cols);
    cpu_store(job->rows, target, job->out, out, job->out_step, job->cols);
}

static void zero_row(const softmax_job *job, int64_t out) {
    const float zeros[CPU_BLOCK] = {0};
    for (int64_t at = 0; at < job->cols; at += CPU_BLOCK)
        cpu_store(job->rows, zeros, job->out, out + at * job->out_step, job->out_step, block_at(job, at));
}

static void run_row(const softmax_job *job, int64_t row, int64_t out) {
    float buffer[CPU_BLOCK], y[CPU_BLOCK], max = row_max(job, row);
    double sum = 0;
    if (max == -INFINITY && !job->is_log) {
        zero_row(job, out);
        return;
    }
    if (job->cols <= CPU_BLOCK && !job->is_log) {
        short_row(job, row, out, max);
        return;
    }
    for (int64_t at = 0; at < job->cols; at += CPU_BLOCK) sum += job->rows->exp_sum(load(job, row, at, buffer), max, y, block_at(job, at));
    write_row(job, row, out, max, (float)(1 / sum), (float)-log(sum));
}

static void run_rows(void *argument, const int64_t *offset, int64_t count) {
    const softmax_job *job = argument;
    for (int64_t i = 0; i < count; i++) run_row(job, offset[1] + i * cpu_nest_step(&job->nest, 1), offset[0] + i * cpu_nest_step(&job->nest, 0));
}

dw_status softmax_run(const kernel_run *run) {
    const dw_tensor *x = run->call.in[0], *out = run->call.out[0];
    int last = x->rank - 1;
    softmax_job job = {
        .rows = cpu_rows_of(run->chip),
        .x = x,
        .out = out,
        .is_log = run->call.op->id == OP_log_softmax,
        .cols = x->dims[last],
        .x_step = x->strides[last],
        .out_step = out->strides[last],
    };
    if (job.cols == 0) return DW_OK;
    cpu_nest_start(&job.nest, last, x->dims);
    cpu_nest_add_strides(&job.nest, out->strides);
    cpu_nest_add_strides(&job.nest, x->strides);
    cpu_nest_merge(&job.nest);
    cpu_nest_run(&job.nest, run->pool, GRAIN / job.cols, run_rows, &job);
    return DW_OK;
}
