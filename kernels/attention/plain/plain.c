/* attention on a GPU: the host half of plain.cu. */
#include "kernels/attention/plain/plain.h"

#include "kernels/attention/host.h"
#include "kernels/attention/results.h"
#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"

const char *attention_plain_refuses(const kernel_problem *problem, text *why) {
    op_type types[2];
    const op_type *in[ATTENTION_OPERANDS];
    const kernel_problem plain = attention_without_blocks(problem, types, in);
    op_type q = *problem->in[ATTENTION_Q];
    if (dw_format_is_block(q.format)) q.format = DW_FORMAT_f32, in[ATTENTION_Q] = &q;
    for (int i = 0; i < problem->n_in; i++)
        if (problem->in[i] != NULL && problem->in[i]->format == DW_FORMAT_f64) return "an operand is f64, and this kernel computes in fp32";
    return cuda_reject_packed(&plain, why);
}

const char *attention_plain_takes(const kernel_run *run, text *why) {
    const dw_tensor *k = run->call.in[ATTENTION_K];
    if (op_operand(&run->call, ATTENTION_TABLE) == NULL || (k->dims[0] <= INT32_MAX && k->dims[2] <= INT32_MAX)) return NULL;
    return kernel_because(why, "%lld pages of %lld keys are more than it counts to", (long long)k->dims[0], (long long)k->dims[2]);
}

/* A block of threads for each query of each head, 8 of them at a time on a multiprocessor, walks along its keys in chunks: products one element after
 * another (0.2 us on an H200, for one key of 128), sums one key after another. */
double attention_plain_seconds(const kernel_run *run) {
    const dw_tensor *q = run->call.in[ATTENTION_Q];
    const chip_caps *chip = run->chip;
    double rows = (double)q->dims[0] * (double)q->dims[1] * (double)q->dims[2], keys = (double)attention_slots(&run->call), waves = rows / (8.0 * chip->units);
    double chunk_s = 0.2e-6 * (double)q->dims[3] + 0.05e-6 * (keys < CUDA_THREADS ? keys : CUDA_THREADS);
    double walk_s = (waves > 1 ? waves : 1) * (keys > CUDA_THREADS ? keys / CUDA_THREADS : 1) * chunk_s, bound = kernel_run_roofline(run, DW_FORMAT_f32, 0.1, 0.267);
    return chip->launch_s + walk_s > bound ? chip->launch_s + walk_s : bound;
}

dw_status attention_plain_shape(const kernel_run *run, kernel_launcher *launcher) {
    attention_heads heads;
    run = attention_by_heads(run, &heads);
    kernel_launch launch;
    attention_plain_arguments *arguments = cuda_launch(&launch, "attention_plain", "attention_plain", sizeof *arguments);
    const dw_tensor *q = run->call.in[ATTENTION_Q], *v = run->call.in[ATTENTION_V];
    TRY(attention_take(&launch, run, &arguments->call));
    attention_take_blocks(&launch, run, &arguments->call, &arguments->blocks);
    if (dw_format_is_block(q->format)) {
        cuda_take_rows(&launch, run, ATTENTION_Q, true, &arguments->q);
        attention_lie_as_a_whole(q, arguments->call.q_strides);
        arguments->q_in_blocks = true;
    }
    if (run->call.n_out > 1) {
        cuda_take_array(&launch, run, KERNEL_RESULT + 1, &arguments->lse);
        for (int axis = 0; axis < 3; axis++) arguments->lse_strides[axis] = run->call.out[1]->strides[axis];
        arguments->has_lse = true;
    }
    const int64_t parts = v->dims[3] > 0 ? base_ceil_div(v->dims[3], ATTENTION_WIDTH) : 1;
    cuda_grid_items(&launch, q->dims[0] * q->dims[1] * q->dims[2] * parts * CUDA_THREADS);
    return launcher->add(launcher, &launch);
}
