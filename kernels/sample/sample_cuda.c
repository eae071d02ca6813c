/* sample on a GPU: the host half of sample.cu and sample_cluster.cu. */
#include "kernels/sample/sample_cuda.h"

#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"

const char *sample_cuda_reject(const kernel_problem *problem, text *why) {
    int64_t count;
    (void)why;
    return dim_is_constant(problem->in[SAMPLE_LOGITS]->dims[1], &count) && count <= INT32_MAX - CUDA_THREADS ? NULL : "the number of words is not known, or it does not fit in 32 bits";
}

/* The likeliest of 64 rows of 151,936 words took an H200 43 us, by clusters (bench/results/h200/sample.md); what else is asked for is not known yet. */
double sample_cuda_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 0.04, 0.2); }

size_t sample_cuda_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

/* How a row is divided among the blocks of a cluster; 0: it is too long for their shared memory, or there are no clusters. */
static int64_t cluster_of(const kernel_run *run, int32_t *chunk) {
    const int64_t rows = run->call.in[SAMPLE_LOGITS]->dims[0], count = run->call.in[SAMPLE_LOGITS]->dims[1];
    int64_t blocks = 1;
    if (!chip_has(run->chip, CHIP_tma) || count == 0) return 0;
    while (blocks < SAMPLE_CLUSTER_BLOCKS && (count / blocks > SAMPLE_CLUSTER_MANY || (kernel_rows_beside(run, rows) * blocks < run->chip->units && count / blocks > SAMPLE_CLUSTER_FEW))) blocks *= 2;
    const int64_t of_block = base_ceil_div(base_ceil_div(count, blocks), 8) * 8;
    if (of_block * (int64_t)sizeof(float) + SAMPLE_CLUSTER_ROOM > (int64_t)run->chip->shared_bytes) return 0;
    *chunk = (int32_t)of_block;
    return blocks;
}

dw_status sample_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    sample_arguments *arguments = cuda_launch(&launch, "sample", "sample_rows", sizeof *arguments);
    const op_call *call = &run->call;
    cuda_array *const operands[] = {&arguments->logits, &arguments->settings, &arguments->draw, &arguments->row, &arguments->counts, &arguments->bias, &arguments->mask};
    cuda_array *const results[] = {&arguments->ids, &arguments->logs, &arguments->best_ids, &arguments->best_logs};
    arguments->rows = arguments->picked_rows = call->in[SAMPLE_LOGITS]->dims[0];
    arguments->count = call->in[SAMPLE_LOGITS]->dims[1];
    arguments->length = call->n_out > 2 ? call->out[2]->dims[1] : 0;
    arguments->mask_words = base_ceil_div(arguments->count, 32);
    if (arguments->rows == 0) return DW_OK;
    for (int i = 0; i < call->n_in; i++) {
        if (call->in[i] == NULL) continue;
        cuda_take_array(&launch, run, i, operands[i]);
        if (i >= SAMPLE_COUNTS) arguments->picked_rows = call->in[i]->dims[0];
    }
    for (int i = 0; i < call->n_out; i++) cuda_take_array(&launch, run, KERNEL_RESULT + i, results[i]);
    const int64_t blocks = cluster_of(run, &arguments->chunk);
    if (blocks == 0) {
        cuda_grid_items(&launch, arguments->rows * CUDA_THREADS);
        return launcher->add(launcher, &launch);
    }
    const dw_format format = call->in[SAMPLE_LOGITS]->format;
    launch.image = "sample_cluster";
    launch.entry = format == DW_FORMAT_f32 ? "sample_cluster_f32" : format == DW_FORMAT_bf16 ? "sample_cluster_bf16" : "sample_cluster_f16";
    launch.overlaps = true;
    launch.block[0] = SAMPLE_CLUSTER_THREADS;
    launch.cluster[0] = (uint32_t)blocks;
    launch.cluster[1] = launch.cluster[2] = 1;
    launch.shared_bytes = (uint32_t)arguments->chunk * sizeof(float);
    cuda_grid(&launch, arguments->rows * blocks, 1, 1);
    return launcher->add(launcher, &launch);
}
