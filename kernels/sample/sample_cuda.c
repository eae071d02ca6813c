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

/* Between what 64 rows of 151,936 words take an H200 for the likeliest and with top_p (bench/results/h200/sample.md). Which of them is asked for is not known yet. */
double sample_cuda_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 0.04, 0.28); }

size_t sample_cuda_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

static bool adjusts_logits(const op_call *call) {
    for (int i = SAMPLE_COUNTS; i < call->n_in; i++)
        if (call->in[i] != NULL) return true;
    return false;
}

/* Logits are kept as they come where nothing changes them. */
static int64_t kept_bytes(const op_call *call) { return adjusts_logits(call) || call->in[SAMPLE_LOGITS]->format == DW_FORMAT_f32 ? sizeof(float) : sizeof(uint16_t); }

/* Fitted to one H200 of 2026-11-29 (README.md): what a cluster takes to begin and to end, and to meet; ids that a block goes over in a second, and those that it does not keep, which it reads again. */
#define BEGIN_S 4.2e-6
#define MEET_S 1e-6
#define IDS_PER_S 6.5e9
#define FAR_IDS_PER_S 6e9
/* Of a chip's multiprocessors, those that clusters of more than two blocks find: a cluster lies within a group of some 14 to 18 of them. */
#define FOUND 0.88

/* A block of a cluster: ids, and those that it keeps. */
typedef struct division { int64_t blocks, chunk, kept; } division;

/* Rows come in rounds of as many as find room. */
static double cluster_seconds(const kernel_run *run, int64_t rows, const division *d) {
    const double beside = fmax(1, floor((double)run->chip->units * (d->blocks > 2 ? FOUND : 1) / (double)d->blocks)), rounds = ceil((double)rows / beside);
    return rounds * (BEGIN_S + (d->blocks > 1 ? MEET_S : 0) + (double)d->chunk / IDS_PER_S + (double)(d->chunk - d->kept) / FAR_IDS_PER_S);
}

/* How a row is divided among the blocks of a cluster, of equals the most; blocks 0: it is too long, or there are no clusters. What bias, masks and counts make of logits must be kept; of others half at least is. */
static division cluster_of(const kernel_run *run) {
    const int64_t count = run->call.in[SAMPLE_LOGITS]->dims[1], rows = kernel_rows_beside(run, run->call.in[SAMPLE_LOGITS]->dims[0]);
    const int64_t room = ((int64_t)run->chip->shared_bytes - SAMPLE_CLUSTER_ROOM) / kept_bytes(&run->call) / 8 * 8, most = room < SAMPLE_CLUSTER_MOST ? room : SAMPLE_CLUSTER_MOST;
    double least = INFINITY;
    division best = {0};
    if (!chip_has(run->chip, CHIP_tma) || count == 0) return best;
    for (int64_t blocks = SAMPLE_CLUSTER_BLOCKS; blocks >= 1; blocks--) {
        const int64_t chunk = base_ceil_div(base_ceil_div(count, blocks), 8) * 8;
        const division d = {blocks, chunk, chunk < most ? chunk : most};
        if (chunk > (adjusts_logits(&run->call) ? most : 2 * most)) continue;
        const double seconds = cluster_seconds(run, rows, &d);
        if (seconds >= least) continue;
        least = seconds;
        best = d;
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
    const division d = cluster_of(run);
    if (d.blocks == 0) {
        cuda_grid_items(&launch, arguments->rows * CUDA_THREADS);
        return launcher->add(launcher, &launch);
    }
    const dw_format format = call->in[SAMPLE_LOGITS]->format;
    launch.image = "sample_cluster";
    launch.entry = format == DW_FORMAT_f32 ? "sample_cluster_f32" : format == DW_FORMAT_bf16 ? "sample_cluster_bf16" : "sample_cluster_f16";
    launch.overlaps = true;
    launch.block[0] = SAMPLE_CLUSTER_THREADS;
    launch.cluster[0] = (uint32_t)d.blocks;
    launch.cluster[1] = launch.cluster[2] = 1;
    launch.shared_bytes = (uint32_t)(d.kept * kept_bytes(call));
    arguments->chunk = (int32_t)d.chunk;
    arguments->kept = (int32_t)d.kept;
    cuda_grid(&launch, arguments->rows * d.blocks, 1, 1);
    return launcher->add(launcher, &launch);
}
