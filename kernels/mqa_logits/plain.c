/* mqa_logits on any GPU: the host half of plain.cu. */
#include "kernels/mqa_logits/plain.h"

#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"
#include "kernels/mqa_logits/host.h"

const char *mqa_plain_refuses(const kernel_problem *problem, text *why) {
    if (problem->out[0]->format == DW_FORMAT_f64) return "the result is f64, and this kernel computes in fp32";
    for (int i = 0; i < problem->n_in; i++) {
        if (problem->in[i] == NULL || problem->in[i]->format != DW_FORMAT_f64) continue;
        return kernel_because(why, "operand %d is f64, and this kernel computes in fp32", i);
    }
    return NULL;
}

const char *mqa_plain_takes(const kernel_run *run, text *why) {
    (void)run, (void)why;
    return NULL;
}

/* A multiply-add for an element of k, which is decoded once for 8 heads. Not fitted to any chip. */
double mqa_plain_seconds(const kernel_run *run) { return kernel_run_roofline(run, DW_FORMAT_f32, 0.07, 0.1); }

dw_status mqa_plain_shape(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    mqa_plain_arguments *arguments = cuda_launch(&launch, "mqa_logits_plain", "mqa_logits_plain", sizeof *arguments);
    const dw_tensor *q = run->call.in[MQA_Q], *k = run->call.in[MQA_K];
    mqa_take(&launch, run, &arguments->call);
    cuda_take_rows(&launch, run, MQA_Q, true, &arguments->q);
    cuda_take_rows(&launch, run, MQA_K, true, &arguments->k);
    arguments->q_strides[0] = q->strides[0];
    arguments->q_strides[1] = q->strides[1];
    arguments->k_stride = k->strides[0];
    arguments->key_rows = k->dims[1];
    const int64_t items = q->dims[0] * q->dims[1] * base_ceil_div(arguments->call.keys, MQA_PLAIN_KEYS);
    if (items == 0) return DW_OK;
    cuda_grid_items(&launch, items * CUDA_THREADS);
    return launcher->add(launcher, &launch);
}
