/* The plain gradients of attention on a GPU: the host half of backward.cu. */
#include "kernels/attention/plain/backward.h"

#include "kernels/attention/backward_host.h"
#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"

const char *attention_backward_plain_refuses(const kernel_problem *problem, text *why) {
    for (int i = 0; i < problem->n_in; i++)
        if (problem->in[i] != NULL && problem->in[i]->format == DW_FORMAT_f64) return "an operand is f64, and this kernel computes in fp32";
    return cuda_reject_packed(problem, why);
}

const char *attention_backward_plain_takes(const kernel_run *run, text *why) {
    (void)run, (void)why;
    return NULL;
}

/* The products of a pair are made twice, for queries and for keys, by loads of single elements. Not measured. */
double attention_backward_plain_seconds(const kernel_run *run) { return 3 * run->chip->launch_s + kernel_run_roofline(run, DW_FORMAT_f32, 0.1, 0.267); }

size_t attention_backward_plain_workspace(const kernel_run *run) { return attention_backward_row_bytes(run); }

/* Blocks for the tiles of count rows, so many at a time, and the parts of width. */
static int64_t blocks_of(int64_t heads, int64_t count, int64_t width) { return heads * base_ceil_div(count, ATTENTION_BACKWARD_TILE) * base_ceil_div(width, ATTENTION_BACKWARD_COLUMNS); }

static dw_status add(const kernel_run *run, kernel_launcher *launcher, const char *entry, int64_t threads) {
    kernel_launch launch;
    if (threads == 0) return DW_OK;
    TRY(attention_backward_take(&launch, run, cuda_launch(&launch, "attention_backward", entry, sizeof(attention_backward_arguments))));
    cuda_grid_items(&launch, threads);
    return launcher->add(launcher, &launch);
}

static dw_status add_rows(const kernel_run *run, kernel_launcher *launcher) {
    const dw_tensor *q = run->call.in[ATTENTION_BACKWARD_Q];
    return add(run, launcher, "attention_backward_rows", q->dims[0] * q->dims[1] * q->dims[2]);
}

static dw_status add_bias(const kernel_run *run, kernel_launcher *launcher) {
    if (run->call.n_out < 4) return DW_OK;
    const dw_tensor *dbias = run->call.out[3];
    int64_t tiles = 1;
    for (int axis = 0; axis < dbias->rank; axis++) tiles *= axis < dbias->rank - 2 ? dbias->dims[axis] : base_ceil_div(dbias->dims[axis], ATTENTION_BACKWARD_TILE);
    return add(run, launcher, "attention_backward_bias", tiles * CUDA_THREADS);
}

dw_status attention_backward_bias_shape(const kernel_run *run, kernel_launcher *launcher) {
    if (run->call.n_out < 4) return DW_OK;
    TRY(add_rows(run, launcher));
    return add_bias(run, launcher);
}

dw_status attention_backward_plain_shape(const kernel_run *run, kernel_launcher *launcher) {
    const dw_tensor *q = run->call.in[ATTENTION_BACKWARD_Q], *k = run->call.in[ATTENTION_BACKWARD_K], *v = run->call.in[ATTENTION_BACKWARD_V];
    const int64_t heads = q->dims[0] * q->dims[1], wide = q->dims[3] > v->dims[3] ? q->dims[3] : v->dims[3];
    TRY(add_rows(run, launcher));
    TRY(add(run, launcher, "attention_backward_queries", blocks_of(heads, q->dims[2], q->dims[3]) * CUDA_THREADS));
    TRY(add(run, launcher, "attention_backward_keys", blocks_of(k->dims[0] * k->dims[1], k->dims[2], wide) * CUDA_THREADS));
    return add_bias(run, launcher);
}
