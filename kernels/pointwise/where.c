/* where: a choice between two operands, by bits; any unpacked format. */
#include <string.h>

#include "kernels/cpu/nest.h"
#include "kernels/kernels.h"
#include "kernels/pointwise/pointwise.h"

typedef struct where_job {
    const dw_tensor *condition, *x, *y, *out;
    size_t bytes;
    cpu_nest nest;
} where_job;

#define PICK(type)                                                                                                   \
    for (int64_t i = 0; i < count; i++) {                                                                            \
        type no = ((const type *)y)[i], yes = ((const type *)x)[i];                                                  \
        ((type *)out)[i] = (type)(no ^ ((no ^ yes) & (type)-(type)(condition[i] != 0)));                             \
    }                                                                                                                \
    return
void pointwise_pick(size_t bytes, const uint8_t *condition, const void *x, const void *y, void *out, int64_t count) {
    switch (bytes) {
    case 1: PICK(uint8_t);
    case 2: PICK(uint16_t);
    case 4: PICK(uint32_t);
    default: PICK(uint64_t);
    }
}
#undef PICK

static const void *side_by_side(const dw_tensor *tensor, int64_t offset, int64_t step, int64_t count, void *buffer) {
    const void *from = cpu_at(tensor, offset);
    if (step == 1) return from;
    cpu_gather(cpu_element_bytes(tensor->format), from, step, count, buffer);
    return buffer;
}

static void run_line(void *argument, const int64_t *offset, int64_t count) {
    const where_job *job = argument;
    int64_t out_step = cpu_nest_step(&job->nest, 0), steps[3];
    uint64_t x_buffer[CPU_BLOCK], y_buffer[CPU_BLOCK], out_buffer[CPU_BLOCK];
    uint8_t condition_buffer[CPU_BLOCK];
    const void *condition = NULL, *x = NULL, *y = NULL;
    for (int i = 0; i < 3; i++) steps[i] = cpu_nest_step(&job->nest, i + 1);
    for (int64_t at = 0; at < count; at += CPU_BLOCK) {
        int64_t part = count - at < CPU_BLOCK ? count - at : CPU_BLOCK;
        if (at == 0 || steps[0] != 0) condition = side_by_side(job->condition, offset[1] + at * steps[0], steps[0], part, condition_buffer);
        if (at == 0 || steps[1] != 0) x = side_by_side(job->x, offset[2] + at * steps[1], steps[1], part, x_buffer);
        if (at == 0 || steps[2] != 0) y = side_by_side(job->y, offset[3] + at * steps[2], steps[2], part, y_buffer);
        void *home = cpu_at(job->out, offset[0] + at * out_step);
        pointwise_pick(job->bytes, condition, x, y, out_buffer, part);
        cpu_scatter(job->bytes, out_buffer, home, out_step, part);
    }
}

dw_status pointwise_where(const kernel_run *run) {
    const op_call *call = &run->call;
    where_job job = {.condition = call->in[0], .x = call->in[1], .y = call->in[2], .out = call->out[0]};
    job.bytes = cpu_element_bytes(job.out->format);
    cpu_nest_start(&job.nest, job.out->rank, job.out->dims);
    cpu_nest_add(&job.nest, job.out);
    for (int i = 0; i < 3; i++) cpu_nest_add(&job.nest, call->in[i]);
    cpu_nest_merge(&job.nest);
    cpu_nest_run(&job.nest, run->pool, POINTWISE_GRAIN, run_line, &job);
    return DW_OK;
}
