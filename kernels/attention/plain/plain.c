/* attention on a GPU: the host half of plain.cu, and what those of the other kernels share with it. */
#include "kernels/attention/host.h"

#include "kernels/attention/results.h"
#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"

const char *attention_plain_refuses(const kernel_problem *problem, text *why) {
    for (int i = 0; i < problem->n_in; i++)
        if (problem->in[i] != NULL && problem->in[i]->format == DW_FORMAT_f64) return "an operand is f64, and this kernel computes in fp32";
    return cuda_reject_packed(problem, why);
}

const char *attention_plain_takes(const kernel_run *run, text *why) {
    (void)run, (void)why;
    return NULL;
}

/* A block of threads for each query of each head, 8 of them at a time on a multiprocessor, walks along its keys in chunks: products one element after
 * another (0.2 us on an H200, for one key of 128), sums one key after another. */
double attention_plain_seconds(const kernel_run *run) {
    const dw_tensor *q = run->call.in[ATTENTION_Q], *k = run->call.in[ATTENTION_K];
    const chip_caps *chip = run->chip;
    double rows = (double)q->dims[0] * (double)q->dims[1] * (double)q->dims[2], keys = (double)k->dims[2], waves = rows / (8.0 * chip->units);
    double chunk_s = 0.2e-6 * (double)q->dims[3] + 0.05e-6 * (keys < CUDA_THREADS ? keys : CUDA_THREADS);
    double walk_s = (waves > 1 ? waves : 1) * (keys > CUDA_THREADS ? keys / CUDA_THREADS : 1) * chunk_s, bound = kernel_run_roofline(run, DW_FORMAT_f32, 0.1, 0.267);
    return chip->launch_s + walk_s > bound ? chip->launch_s + walk_s : bound;
}

/* Beyond any number of keys the position is all the same, and sums stay in range. */
static dw_status eval_offset(const op_call *call, int64_t *offset) {
    const int64_t far = INT64_C(1) << 60;
    dim given = op_attr_dim(call->attrs, OP_ATTR_offset);
    *offset = 0;
    if (given != NULL) TRY(dim_eval(call->context, given, call->symbols, offset));
    if (*offset > far) *offset = far;
    if (*offset < -far) *offset = -far;
    return DW_OK;
}

static void take(kernel_launch *launch, const kernel_run *run, int index, const int64_t *dims, cuda_array *array, int64_t *strides) {
    cuda_take_array(launch, run, index, array);
    cuda_broadcast(cuda_operand(run, index), 4, dims, strides);
}

static int64_t positions_of(const dw_tensor *x) { return x == NULL || x->rank == 0 || x->dims[x->rank - 1] == 1 ? 0 : x->dims[x->rank - 1]; }

static void take_operands(kernel_launch *launch, const kernel_run *run, attention_arguments *arguments) {
    const dw_tensor *q = run->call.in[ATTENTION_Q], *k = run->call.in[ATTENTION_K], *v = run->call.in[ATTENTION_V], *sink = cuda_operand(run, ATTENTION_SINK);
    const int64_t any[] = {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX};   /* an axis of size 1 repeats, whatever it meets */
    take(launch, run, 0, q->dims, &arguments->q, arguments->q_strides);
    take(launch, run, 1, k->dims, &arguments->k, arguments->k_strides);
    take(launch, run, 2, v->dims, &arguments->v, arguments->v_strides);
    take(launch, run, KERNEL_RESULT, run->call.out[0]->dims, &arguments->out, arguments->out_strides);
    arguments->has_mask = cuda_operand(run, ATTENTION_MASK) != NULL;
    arguments->has_bias = cuda_operand(run, ATTENTION_BIAS) != NULL;
    arguments->has_sink = sink != NULL;
    if (arguments->has_mask) take(launch, run, 3, any, &arguments->mask, arguments->mask_strides);
    if (arguments->has_bias) take(launch, run, 4, any, &arguments->bias, arguments->bias_strides);
    if (sink != NULL) cuda_take_array(launch, run, 5, &arguments->sink);
    arguments->sink_stride = sink ? sink->strides[0] : 0;
}

static void take_places(kernel_launch *launch, const kernel_run *run, attention_arguments *arguments) {
    arguments->cache_rows = run->call.in[ATTENTION_K]->dims[0];
    arguments->has_row = cuda_operand(run, ATTENTION_ROW) != NULL;
    arguments->has_position = cuda_operand(run, ATTENTION_POSITION) != NULL;
    if (arguments->has_row) {
        arguments->row_step = run->call.in[ATTENTION_ROW]->strides[0];
        cuda_take_array(launch, run, 6, &arguments->row);
    }
    if (arguments->has_position) {
        arguments->position_step = run->call.in[ATTENTION_POSITION]->strides[0];
        arguments->mask_keys = positions_of(cuda_operand(run, ATTENTION_MASK));
        arguments->bias_keys = positions_of(cuda_operand(run, ATTENTION_BIAS));
        cuda_take_array(launch, run, 7, &arguments->position);
    }
    cuda_take_fault(launch, &arguments->fault);
}

dw_status attention_take(kernel_launch *launch, const kernel_run *run, attention_arguments *arguments) {
    const dw_tensor *q = run->call.in[ATTENTION_Q], *k = run->call.in[ATTENTION_K], *v = run->call.in[ATTENTION_V];
    if (k->dims[1] < 1 || q->dims[1] % k->dims[1] != 0)
        return base_fail(run->call.context, DW_MISMATCH, "attention: q has %lld heads, k has %lld, which does not divide them", (long long)q->dims[1], (long long)k->dims[1]);
    TRY(eval_offset(&run->call, &arguments->offset));
    arguments->batches = q->dims[0];
    arguments->heads = q->dims[1];
    arguments->queries = q->dims[2];
    arguments->keys = k->dims[2];
    arguments->width = q->dims[3];
    arguments->value_width = v->dims[3];
    arguments->shared_heads = q->dims[1] / k->dims[1];
    arguments->scale = (float)op_attr_real(run->call.attrs, OP_ATTR_scale);
    arguments->softcap = (float)op_attr_real(run->call.attrs, OP_ATTR_softcap);
    arguments->causal = op_attr_bool(run->call.attrs, OP_ATTR_causal);
    arguments->window = op_attr_int(run->call.attrs, OP_ATTR_window);
    arguments->ahead = op_attr_int(run->call.attrs, OP_ATTR_ahead);
    take_operands(launch, run, arguments);
    take_places(launch, run, arguments);
    return DW_OK;
}

dw_status attention_plain_shape(const kernel_run *run, kernel_launcher *launcher) {
    attention_heads heads;
    run = attention_by_heads(run, &heads);
    kernel_launch launch;
    attention_arguments *arguments = cuda_launch(&launch, "attention_plain", "attention_plain", sizeof *arguments);
    const dw_tensor *q = run->call.in[ATTENTION_Q], *v = run->call.in[ATTENTION_V];
    TRY(attention_take(&launch, run, arguments));
    int64_t parts = (v->dims[3] + ATTENTION_WIDTH - 1) / ATTENTION_WIDTH;
    cuda_grid_items(&launch, q->dims[0] * q->dims[1] * q->dims[2] * parts * CUDA_THREADS);
    return launcher->add(launcher, &launch);
}
