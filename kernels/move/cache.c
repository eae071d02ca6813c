/* cache_write: new keys or values into the rows of a cache, token by token; where the result takes over the cache's memory nothing else moves.
 * A task is a head, so tokens that go to one place do so in order. */
#include <string.h>

#include "kernels/cpu/rows.h"
#include "kernels/kernels.h"
#include "kernels/move/move.h"

typedef struct cache_job {
    const dw_tensor *y, *rows, *positions, *out;
    size_t bytes;
} cache_job;

static bool fits(const op_call *call) {
    const dw_tensor *x = call->in[CACHE_X];
    for (int64_t i = 0; i < call->in[CACHE_Y]->dims[2]; i++) {
        const int64_t row = op_tensor_load_int(call->in[CACHE_ROW], &i);
        if (row < 0 || row >= x->dims[0] || op_tensor_load_int(call->in[CACHE_POSITION], &i) < 0 || x->dims[2] < 1) return false;
    }
    return true;
}

static void head_task(void *argument, int64_t head, int worker) {
    (void)worker;
    const cache_job *job = argument;
    const dw_tensor *y = job->y, *out = job->out;
    for (int64_t i = 0; i < y->dims[2]; i++) {
        const int64_t row = op_tensor_load_int(job->rows, &i), slot = op_tensor_load_int(job->positions, &i) % out->dims[2];
        const uint8_t *from = cpu_at(y, head * y->strides[1] + i * y->strides[2]);
        uint8_t *to = cpu_at(out, row * out->strides[0] + head * out->strides[1] + slot * out->strides[2]);
        if (y->strides[3] == 1 && out->strides[3] == 1) {
            memcpy(to, from, (size_t)y->dims[3] * job->bytes);
            continue;
        }
        for (int64_t c = 0; c < y->dims[3]; c++)
            memcpy(to + c * out->strides[3] * (int64_t)job->bytes, from + c * y->strides[3] * (int64_t)job->bytes, job->bytes);
    }
}

dw_status move_cache_write_run(const kernel_run *run) {
    const op_call *call = &run->call;
    const dw_tensor *x = call->in[CACHE_X], *out = call->out[0];
    cache_job job = {.y = call->in[CACHE_Y], .rows = call->in[CACHE_ROW], .positions = call->in[CACHE_POSITION], .out = out, .bytes = cpu_element_bytes(out->format)};
    if (!fits(call)) return call->op->reference(call);   /* says which token, before it writes */
    if (out->data != x->data) move_copy(run->pool, out, x);
    if (op_tensor_count(job.y) > 0) pool_run(run->pool, out->dims[1], head_task, &job);
    return DW_OK;
}
