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

/* What a cluster takes to begin, to meet and to end; ids that one block reads in a nanosecond, and that all of a multiprocessor do. 64 rows of 151,936 words take 26 us in fp32 and 19 in
 * bf16 on an H100, where these say 23.5 and 16.5; that was a form before, and this one was not measured. */
#define BEGIN_S 6e-6
#define MEET_S 1e-6
#define BLOCK_IDS_PER_S 4e9
#define IDS_PER_S 8e9

static double cluster_seconds(const kernel_run *run, int64_t rows, int64_t blocks, int64_t of_block, int64_t bytes) {
    const int64_t all = rows * blocks, fit = (int64_t)run->chip->shared_bytes / bytes, room = fit < SAMPLE_CLUSTER_TOGETHER ? fit : SAMPLE_CLUSTER_TOGETHER;
    const int64_t wanted = base_ceil_div(all, run->chip->units), together = wanted < room ? wanted : room, rounds = base_ceil_div(all, run->chip->units * together);
    const double alone_s = (double)of_block / BLOCK_IDS_PER_S, shared_s = (double)(together * of_block) / IDS_PER_S;
    return (double)rounds * (BEGIN_S + (blocks > 1 ? MEET_S : 0) + (alone_s > shared_s ? alone_s : shared_s));
}

/* How a row is divided among the blocks of a cluster; 0: it is too long for their shared memory, or there are no clusters. */
static int64_t cluster_of(const kernel_run *run, int32_t *chunk) {
    const int64_t count = run->call.in[SAMPLE_LOGITS]->dims[1], rows = kernel_rows_beside(run, run->call.in[SAMPLE_LOGITS]->dims[0]), kept = kept_bytes(&run->call);
    double least = INFINITY;
    int64_t best = 0;
    if (!chip_has(run->chip, CHIP_tma) || count == 0) return 0;
    for (int64_t blocks = 1; blocks <= SAMPLE_CLUSTER_BLOCKS; blocks *= 2) {
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
