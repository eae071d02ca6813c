/* conv tap by tap, for groups of few outputs (depthwise). Problem: out[b,o,line,:] = bias + sum over channels and taps of w * x[.., shifted line], a line of up
 * to 1024 results at a time in fp32, in the order of the taps. Lines are shared over threads. Measured speed: README.md. */
#include <string.h>

#include "kernels/cpu/rows.h"
#include "kernels/conv/conv.h"
#include "kernels/kernels.h"

const char *conv_direct_reject(const kernel_problem *problem, text *why) {
    (void)why;
    return problem->in[0]->format == DW_FORMAT_f64 ? "x is f64, which is computed in double" : NULL;
}

double conv_direct_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 0.02, 0.3); }

size_t conv_direct_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

typedef struct direct_job {
    conv_shape shape;
    const cpu_rows *rows;
    int64_t blocks;               /* of a line */
} direct_job;

static float element(const direct_job *job, const dw_tensor *tensor, int64_t offset) {
    float value;
    return *cpu_load(job->rows, tensor, offset, 1, 1, &value);
}

/* sums[i] += weight * x(first + i), where neighbours lie the convolution's stride apart and what is outside counts as 0. */
static void add_tap(const direct_job *job, float weight, int64_t row_offset, int64_t first, int64_t count, float *restrict sums) {
    const conv_shape *s = &job->shape;
    int64_t begin = 0, end = count, step = s->stride[1];
    float buffer[CPU_BLOCK];
    if (first < 0) begin = base_ceil_div(-first, step);
    if (first + (count - 1) * step >= s->size[1]) end = s->size[1] > first ? base_ceil_div(s->size[1] - first, step) : 0;
    if (begin >= end) return;
    const float *x = cpu_load(job->rows, s->x, row_offset + (first + begin * step) * s->x_strides[3], step * s->x_strides[3], end - begin, buffer);
    for (int64_t i = begin; i < end; i++) sums[i] += weight * x[i - begin];
}

static void direct_task(void *argument, int64_t task, int worker) {
    (void)worker;
    const direct_job *job = argument;
    const conv_shape *s = &job->shape;
    int64_t block = task % job->blocks, rest = task / job->blocks;
    int64_t line = rest % s->places[0], output = rest / s->places[0] % (s->outputs * s->groups), batch = rest / s->places[0] / (s->outputs * s->groups);
    int64_t first = block * CPU_BLOCK, count = s->places[1] - first < CPU_BLOCK ? s->places[1] - first : CPU_BLOCK;
    int64_t channel = output / s->outputs * s->channels, depth = conv_depth(s);
    float sums[CPU_BLOCK], start = s->bias != NULL ? element(job, s->bias, output * s->bias->strides[0]) : 0;
    for (int64_t i = 0; i < count; i++) sums[i] = start;
    for (int64_t k = 0; k < depth; k++) {
        int64_t tap = k % s->taps[1], tap_line = k / s->taps[1] % s->taps[0], c = channel + k / s->taps[1] / s->taps[0];
        int64_t y = line * s->stride[0] - s->padding[0] + tap_line * s->dilation[0];
        if (y < 0 || y >= s->size[0]) continue;
        int64_t row = batch * s->x_strides[0] + c * s->x_strides[1] + y * s->x_strides[2];
        add_tap(job, element(job, s->weight, output * depth + k), row, first * s->stride[1] - s->padding[1] + tap * s->dilation[1], count, sums);
    }
    int64_t out = batch * s->out_strides[0] + output * s->out_strides[1] + line * s->out_strides[2] + first * s->out_strides[3];
    cpu_store(job->rows, sums, s->out, out, s->out_strides[3], count);
}

dw_status conv_direct_run(const kernel_run *run) {
    direct_job job = {.rows = cpu_rows_of(run->chip)};
    if (run->call.in[1]->dims[0] % op_attr_int(run->call.attrs, OP_ATTR_groups) != 0) return run->call.op->reference(&run->call);   /* says so */
    conv_shape_of(&run->call, &job.shape);
    job.blocks = base_ceil_div(job.shape.places[1], CPU_BLOCK);
    pool_run(run->pool, job.shape.batches * job.shape.outputs * job.shape.groups * job.shape.places[0] * job.blocks, direct_task, &job);
    return DW_OK;
}
