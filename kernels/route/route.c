/* dispatch and combine on the CPU: the way of tokens to experts and back. dispatch counts and then places, one thread: there are few ids.
 * combine sums the rows of a token in fp32, in the order of its choices; tokens are shared over threads. Speed: README.md. */
#include <stdatomic.h>

#include "kernels/cpu/integers.h"
#include "kernels/cpu/rows.h"
#include "kernels/kernels.h"

/* ---- dispatch ---- */

const char *route_dispatch_reject(const kernel_problem *problem, text *why) {
    (void)problem;
    (void)why;
    return NULL;
}

double route_dispatch_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 0.05, 0.1); }

/* Where the next row of each expert goes, and of what belongs to none. */
size_t route_dispatch_workspace(const kernel_run *run) { return ((size_t)run->call.out[2]->dims[0] + 1) * sizeof(int64_t); }

dw_status route_dispatch_run(const kernel_run *run) {
    const dw_tensor *ids = run->call.in[0], *rows = run->call.out[0], *place = run->call.out[1], *offsets = run->call.out[2];
    const int64_t experts = offsets->dims[0];
    int64_t *next = run->workspace, sum = 0;
    for (int64_t expert = 0; expert <= experts; expert++) next[expert] = 0;
    for (int64_t token = 0; token < ids->dims[0]; token++) {
        for (int64_t choice = 0; choice < ids->dims[1]; choice++) {
            int64_t id = cpu_load_integer(ids, token * ids->strides[0] + choice * ids->strides[1]);
            next[id < 0 || id >= experts ? experts : id]++;
        }
    }
    for (int64_t expert = 0; expert <= experts; expert++) {
        const int64_t count = next[expert];
        next[expert] = sum;
        sum += count;
        if (expert < experts) ((int32_t *)offsets->data)[expert * offsets->strides[0]] = (int32_t)sum;
    }
    for (int64_t token = 0; token < ids->dims[0]; token++) {
        for (int64_t choice = 0; choice < ids->dims[1]; choice++) {
            int64_t id = cpu_load_integer(ids, token * ids->strides[0] + choice * ids->strides[1]);
            int64_t at = next[id < 0 || id >= experts ? experts : id]++;
            ((int64_t *)rows->data)[at * rows->strides[0]] = token;
            ((int64_t *)place->data)[token * place->strides[0] + choice * place->strides[1]] = at;
        }
    }
    return DW_OK;
}

/* ---- combine ---- */

const char *route_combine_reject(const kernel_problem *problem, text *why) {
    (void)why;
    return problem->in[0]->format == DW_FORMAT_f64 ? "y is f64, which is computed in double" : NULL;
}

double route_combine_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 0.3, 0.6); }

size_t route_combine_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

typedef struct combine_job {
    const cpu_rows *rows;
    const dw_tensor *y, *place, *weights, *out;
    atomic_bool outside;           /* some place is no row of y */
} combine_job;

static void combine_task(void *argument, int64_t token, int worker) {
    combine_job *job = argument;
    const dw_tensor *y = job->y, *place = job->place, *weights = job->weights, *out = job->out;
    (void)worker;
    for (int64_t begin = 0; begin < out->dims[1]; begin += CPU_BLOCK) {
        const int64_t count = out->dims[1] - begin < CPU_BLOCK ? out->dims[1] - begin : CPU_BLOCK;
        float sums[CPU_BLOCK] = {0}, buffer[CPU_BLOCK], scaled[CPU_BLOCK], weight_buffer[1];
        for (int64_t choice = 0; choice < place->dims[1]; choice++) {
            const int64_t row = cpu_load_integer(place, token * place->strides[0] + choice * place->strides[1]);
            if (row < 0 || row >= y->dims[0]) {
                atomic_store(&job->outside, true);
                return;
            }
            const float *weight = cpu_load(job->rows, weights, token * weights->strides[0] + choice * weights->strides[1], 1, 1, weight_buffer);
            const float *values = cpu_load(job->rows, y, row * y->strides[0] + begin * y->strides[1], y->strides[1], count, buffer);
            job->rows->scale_shift(values, *weight, 0, scaled, count);
            job->rows->add(sums, scaled, sums, count);
        }
        cpu_store(job->rows, sums, out, token * out->strides[0] + begin * out->strides[1], out->strides[1], count);
    }
}

dw_status route_combine_run(const kernel_run *run) {
    const op_call *call = &run->call;
    combine_job job = {.rows = cpu_rows_of(run->chip), .y = call->in[0], .place = call->in[1], .weights = call->in[2], .out = call->out[0]};
    pool_run(run->pool, call->out[0]->dims[0], combine_task, &job);
    return atomic_load(&job.outside) ? call->op->reference(call) : DW_OK;     /* says where */
}
