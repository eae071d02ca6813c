/* rotary: pairs of elements of the last axis turned by angles whose cosines and sines are operands. Problem: x [..,s,d], cos and sin broadcast to
 * [..,s,width]; y[i] = x[i] cos[i] - x[partner] sin[i] for the first of a pair, + for the second; pairs are halves (i, i + width/2) or neighbours. fp32
 * inside. A row stays in registers and the first-level cache; rows are shared over threads. Any strides, so x may be a transposed view of [b,s,h,d].
 * Measured speed: README.md. */
#include <string.h>

#include "kernels/cpu/nest.h"
#include "kernels/kernels.h"
#include "kernels/rotary/rotary.h"

enum { GRAIN = 16384 };       /* elements of a task */

const char *rotary_reject(const kernel_problem *problem, text *why) {
    int64_t width = op_attr_int(problem->attrs, OP_ATTR_width);
    if (problem->in[0]->format == DW_FORMAT_f64) return "x is f64, which is computed in double";
    if (width <= CPU_BLOCK) return NULL;
    text_printf(why, "width is %lld, rows of up to %d are rotated", (long long)width, CPU_BLOCK);
    return text_string(why);
}

double rotary_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 0.3, 0.6); }

size_t rotary_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

/* Elements from width on stay as they are. */
static void copy_rest(const rotary_rows *job, int64_t x, int64_t out) {
    size_t bytes = cpu_element_bytes(job->x->format);
    uint64_t block[CPU_BLOCK];
    for (int64_t at = job->width; at < job->cols; at += CPU_BLOCK) {
        int64_t count = job->cols - at < CPU_BLOCK ? job->cols - at : CPU_BLOCK;
        cpu_gather(bytes, cpu_at(job->x, x + at * job->x_step), job->x_step, count, block);
        cpu_scatter(bytes, block, cpu_at(job->out, out + at * job->out_step), job->out_step, count);
    }
}

void rotary_turn_row(const rotary_rows *job, const int64_t at[4]) {
    float x_buffer[CPU_BLOCK], cos_buffer[CPU_BLOCK], sin_buffer[CPU_BLOCK], y[CPU_BLOCK];
    int64_t half = job->width / 2;
    const float *x = cpu_load(job->rows, job->x, at[1], job->x_step, job->width, x_buffer);
    const float *c = cpu_load(job->rows, job->cosine, at[2], job->cos_step, job->width, cos_buffer);
    const float *s = cpu_load(job->rows, job->sine, at[3], job->sin_step, job->width, sin_buffer);
    float *target = cpu_target(job->out, at[0], job->out_step, y);
    if (target == x) target = y;
    if (job->interleaved) job->rows->rotate_pairs(x, c, s, target, half);
    else job->rows->rotate(x, x + half, c, s, c + half, s + half, target, target + half, half);
    cpu_store(job->rows, target, job->out, at[0], job->out_step, job->width);
    if (job->width < job->cols) copy_rest(job, at[1], at[0]);
}

typedef struct rotary_job {
    rotary_rows rows;
    cpu_nest nest;                /* over rows: out, x, cos, sin */
} rotary_job;

static void run_rows(void *argument, const int64_t *offset, int64_t count) {
    const rotary_job *job = argument;
    for (int64_t i = 0; i < count; i++) {
        int64_t at[4];
        for (int k = 0; k < 4; k++) at[k] = offset[k] + i * cpu_nest_step(&job->nest, k);
        rotary_turn_row(&job->rows, at);
    }
}

/* The tensor's strides over the rows of x, axes matched from the last one; those of size 1 are repeated. */
static void add_rows(cpu_nest *nest, const dw_tensor *tensor) {
    int64_t strides[DW_MAX_RANK] = {0};
    int lead = nest->rank + 1 - tensor->rank;
    for (int i = 0; i < tensor->rank - 1; i++) strides[lead + i] = tensor->dims[i] == 1 ? 0 : tensor->strides[i];
    cpu_nest_add_strides(nest, strides);
}

dw_status rotary_run(const kernel_run *run) {
    const op_call *call = &run->call;
    const dw_tensor *x = call->in[0];
    rotary_job job = {.rows = {
        .rows = cpu_rows_of(run->chip),
        .x = x,
        .cosine = call->in[1],
        .sine = call->in[2],
        .out = call->out[0],
        .width = op_attr_int(call->attrs, OP_ATTR_width),
        .cols = x->dims[x->rank - 1],
        .x_step = x->strides[x->rank - 1],
        .cos_step = op_tensor_step(call->in[1], 0),
        .sin_step = op_tensor_step(call->in[2], 0),
        .out_step = call->out[0]->strides[x->rank - 1],
        .interleaved = op_attr_bool(call->attrs, OP_ATTR_interleaved),
    }};
    if (job.rows.width > job.rows.cols) return call->op->reference(call);   /* says so */
    cpu_nest_start(&job.nest, x->rank - 1, x->dims);
    add_rows(&job.nest, call->out[0]);
    add_rows(&job.nest, x);
    add_rows(&job.nest, call->in[1]);
    add_rows(&job.nest, call->in[2]);
    cpu_nest_merge(&job.nest);
    cpu_nest_run(&job.nest, run->pool, GRAIN / job.rows.cols, run_rows, &job);
    return DW_OK;
}
