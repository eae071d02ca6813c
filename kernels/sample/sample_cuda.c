/* sample on a GPU: the host half of sample.cu and sample_cluster.cu. */
#include "kernels/sample/sample_cuda.h"

#include <math.h>

#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"

const char *sample_cuda_reject(const kernel_problem *problem, text *why) {
    int64_t count;
    (void)why;
    return dim_is_constant(problem->in[SAMPLE_LOGITS]->dims[1], &count) && count <= INT32_MAX - CUDA_THREADS ? NULL : "the number of words is not known, or it does not fit in 32 bits";
}

/* Between what 64 rows of 151,936 words took by clusters: 27 us for the likeliest on an H100, 80 to 92 with top_p on an H200, in forms before this one, which
 * was not measured (bench/results/h200/sample.md). Which of them is asked for is not known yet. */
double sample_cuda_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 0.04, 0.2); }

size_t sample_cuda_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

/* Logits are kept as they come where nothing changes them. */
static int64_t kept_bytes(const op_call *call) {
    for (int i = SAMPLE_COUNTS; i < call->n_in; i++)
        if (call->in[i] != NULL) return sizeof(float);
    return call->in[SAMPLE_LOGITS]->format == DW_FORMAT_f32 ? sizeof(float) : sizeof(uint16_t);
}

/* Fitted to one H200 of 2026-11-29 (README.md): what a cluster takes to begin and to end, and to meet; ids that one block reads in a nanosecond, and that all of a multiprocessor do. */
#define BEGIN_S 5e-6
#define MEET_S 1e-6
#define BLOCK_IDS_PER_S 5e9
#define IDS_PER_S 9e9
/* Of a chip's multiprocessors, those that clusters of more than two blocks find, a block on each: a cluster lies within a group of some 14 to 18 of them. 64 rows of 4 blocks, two to a multiprocessor,
 * take another round than 64 of 3, 32 rows of 8 another than 32 of 7. */
#define FOUND 0.88

/* Rows come in rounds of as many as find room, the last of which has what is left. */
static double cluster_seconds(const kernel_run *run, int64_t rows, int64_t blocks, int64_t of_block, int64_t bytes) {
    const int64_t fit = (int64_t)run->chip->shared_bytes / bytes, room = fit < SAMPLE_CLUSTER_TOGETHER ? fit : SAMPLE_CLUSTER_TOGETHER;
    const double units = (double)run->chip->units, beside = fmax(1, floor(units * (blocks > 2 ? FOUND : 1) / (double)blocks)), once = beside * (double)room;
    const double begin_s = BEGIN_S + (blocks > 1 ? MEET_S : 0), alone_s = (double)of_block / BLOCK_IDS_PER_S, shared_s = (double)(room * of_block) / IDS_PER_S, full_s = fmax(alone_s, shared_s);
    const double rounds = floor((double)rows / once), left = (double)rows - rounds * once;
    return rounds * (begin_s + full_s) + (left == 0 ? 0 : begin_s + (left > beside ? full_s : alone_s));
}

/* How a row is divided among the blocks of a cluster, of equals the most; 0: it is too long for their shared memory, or there are no clusters. */
static int64_t cluster_of(const kernel_run *run, int32_t *chunk) {
    const int64_t count = run->call.in[SAMPLE_LOGITS]->dims[1], rows = kernel_rows_beside(run, run->call.in[SAMPLE_LOGITS]->dims[0]), kept = kept_bytes(&run->call);
    double least = INFINITY;
    int64_t best = 0;
    if (!chip_has(run->chip, CHIP_tma) || count == 0) return 0;
    for (int64_t blocks = SAMPLE_CLUSTER_BLOCKS; blocks >= 1; blocks--) {
        const int64_t of_block = base_ceil_div(base_ceil_div(count, blocks), 8) * 8, bytes = of_block * kept + SAMPLE_CLUSTER_ROOM;
        if (bytes > (int64_t)run->chip->shared_bytes || of_block > SAMPLE_CLUSTER_MOST) continue;
        const double seconds = cluster_seconds(run, rows, blocks, of_block, bytes);
        if (seconds >= least) continue;
        least = seconds;
        best = blocks;
        *chunk = (int32_t)of_block;
    }
    return best;
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
    launch.shared_bytes = (uint32_t)(arguments->chunk * kept_bytes(call));
    cuda_grid(&launch, arguments->rows * blocks, 1, 1);
    return launcher->add(launcher, &launch);
}
