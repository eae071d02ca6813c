/* The gradients of attention by five products: the host half of joined.cuh. Which calls it takes, and three launches: statistics of queries; dk, dv and the sums of queries; dq of these. Pure: knows no driver. */
#include "kernels/attention/wgmma/backward.h"

#include "kernels/attention/backward_host.h"
#include "kernels/attention/host.h"
#include "kernels/attention/wgmma/backward_host.h"
#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"

/* ---- entries ---- */

typedef struct joined_entry {
    dw_format format;
    const char *image, *entry, *dq;
    int width, others, stages;
} joined_entry;

/* Narrower ones first. */
static const joined_entry entries[] = {
#define JOINED_TILE(name, ...) {DW_FORMAT_bf16, "attention_backward_joined_bf16_sm90", "attention_backward_joined_bf16_" #name, "attention_backward_joined_bf16_" #name "_dq", __VA_ARGS__},
#include "kernels/attention/wgmma/joined.def"
#undef JOINED_TILE
#define JOINED_TILE(name, ...) {DW_FORMAT_f16, "attention_backward_joined_f16_sm90", "attention_backward_joined_f16_" #name, "attention_backward_joined_f16_" #name "_dq", __VA_ARGS__},
#include "kernels/attention/wgmma/joined.def"
#undef JOINED_TILE
};

static const joined_entry *find_entry(const op_call *call) {
    const dw_tensor *q = call->in[ATTENTION_BACKWARD_Q], *v = call->in[ATTENTION_BACKWARD_V];
    for (size_t i = 0; i < COUNT_OF(entries); i++)
        if (entries[i].format == q->format && q->dims[3] <= entries[i].width && v->dims[3] <= entries[i].width) return &entries[i];
    return NULL;
}

/* ---- what is taken ---- */

const char *attention_backward_joined_refuses(const kernel_problem *problem, text *why) {
    const bool has_mask = problem->n_in > ATTENTION_BACKWARD_MASK && problem->in[ATTENTION_BACKWARD_MASK] != NULL, has_bias = problem->n_in > ATTENTION_BACKWARD_BIAS && problem->in[ATTENTION_BACKWARD_BIAS] != NULL;
    if (has_mask || has_bias) return has_mask ? "there is a mask" : "there is a bias";
    return attention_backward_wgmma_rejects(problem, why);
}

static int64_t heads_of(const dw_tensor *x) { return x->dims[0] * x->dims[1]; }

/* Blocks of queries, of all heads. */
static int64_t query_blocks(const op_call *call) { return heads_of(call->in[ATTENTION_BACKWARD_Q]) * base_ceil_div(call->in[ATTENTION_BACKWARD_Q]->dims[2], find_entry(call)->others); }
static int64_t tiles_of_keys(const op_call *call) { return base_ceil_div(call->in[ATTENTION_BACKWARD_K]->dims[2], BACKWARD_OWN); }

const char *attention_backward_joined_takes(const kernel_run *run, text *why) {
    const char *refused = attention_backward_wgmma_takes(run, why);
    if (refused != NULL) return refused;
    return query_blocks(&run->call) < INT32_MAX / 2 ? NULL : kernel_because(why, "%lld blocks of queries are more than it counts to", (long long)query_blocks(&run->call));
}

/* Where the workspace's parts begin, in bytes. */
typedef struct joined_places { int64_t share, sums, turns, bytes; } joined_places;

static joined_places places_of(const op_call *call) {
    const dw_tensor *q = call->in[ATTENTION_BACKWARD_Q];
    const joined_entry *e = find_entry(call);
    joined_places p;
    p.share = heads_of(q) * base_ceil_div(q->dims[2], BACKWARD_OWN) * BACKWARD_OWN * (int64_t)sizeof(float);
    p.sums = 2 * p.share;
    p.turns = p.sums + query_blocks(call) * e->others * e->width * (int64_t)sizeof(float);
    p.bytes = p.turns + (1 + query_blocks(call)) * (int64_t)sizeof(uint32_t);
    return p;
}

size_t attention_backward_joined_workspace(const kernel_run *run) { return (size_t)places_of(&run->call).bytes; }

/* Queries that see a key of a tile, at most. */
static int64_t most_queries(const op_call *call) {
    const int64_t queries = call->in[ATTENTION_BACKWARD_Q]->dims[2], window = op_attr_int(call->attrs, OP_ATTR_window), ahead = op_attr_int(call->attrs, OP_ATTR_ahead);
    const bool is_bounded = window > 0 && window < queries && ahead < queries && (op_attr_bool(call->attrs, OP_ATTR_causal) || ahead > 0);
    return is_bounded && window + ahead + BACKWARD_OWN < queries ? window + ahead + BACKWARD_OWN : queries;
}

/* Products at a share of the chip's rate, unless thread blocks are so few that the longest takes longer; what each tile waits for at its ends; out and dout for the statistics, and dq in fp32 and in its format. Fitted to
 * an H200 (bench/results/h200/attention.md). */
double attention_backward_joined_seconds(const kernel_run *run) {
    const op_call *call = &run->call;
    const dw_tensor *q = call->in[ATTENTION_BACKWARD_Q], *k = call->in[ATTENTION_BACKWARD_K];
    const joined_entry *e = find_entry(call);
    const bool is_wide = e->width > 64;
    const int64_t turns = base_ceil_div(heads_of(k) * tiles_of_keys(call), run->chip->units);
    const double filled = 2.0 * e->width / (double)(q->dims[3] + call->in[ATTENTION_BACKWARD_V]->dims[3]);
    op_work work;
    call->op->work(call, &work);
    const double products_s = work.flops * filled / (chip_flops(run->chip, DW_FORMAT_bf16) * (is_wide ? 0.815 : 0.714));
    const double longest_s = (double)(q->dims[1] / k->dims[1] * base_ceil_div(most_queries(call), e->others)) * (is_wide ? 2.05e-6 : 1.22e-6);
    return 8e-6 + (double)turns * (is_wide ? 6.7e-6 : 3.7e-6) + (products_s > longest_s ? products_s : longest_s) + (double)(heads_of(q) * q->dims[2] * e->width * 10) / (chip_bytes_per_s(run->chip) * 0.7);
}

/* ---- launches ---- */

static dw_status start(const kernel_run *run, const char *image, const char *entry, kernel_launch *launch, attention_backward_wgmma_arguments **arguments) {
    const joined_places places = places_of(&run->call);
    attention_backward_wgmma_arguments *g = *arguments = cuda_launch(launch, image, entry, sizeof *g);
    TRY(attention_backward_wgmma_take(launch, run, g));
    g->query_blocks = (int32_t)(query_blocks(&run->call) / heads_of(run->call.in[ATTENTION_BACKWARD_Q]));
    g->turn_count = (int32_t)(1 + query_blocks(&run->call));
    cuda_slot(launch, KERNEL_SLOT_WORKSPACE, 0, &g->lse, 0);
    cuda_slot(launch, KERNEL_SLOT_WORKSPACE, 0, &g->share, places.share);
    cuda_slot(launch, KERNEL_SLOT_WORKSPACE, 0, &g->sums, places.sums);
    cuda_slot(launch, KERNEL_SLOT_WORKSPACE, 0, &g->turns, places.turns);
    return DW_OK;
}

static dw_status add_statistics(const kernel_run *run, kernel_launcher *launcher) {
    const dw_tensor *q = run->call.in[ATTENTION_BACKWARD_Q];
    kernel_launch launch;
    attention_backward_wgmma_arguments *g;
    TRY(start(run, find_entry(&run->call)->image, q->format == DW_FORMAT_bf16 ? "attention_backward_joined_bf16_statistics" : "attention_backward_joined_f16_statistics", &launch, &g));
    cuda_grid_items(&launch, attention_backward_wgmma_rows_threads(&run->call));
    return launcher->add(launcher, &launch);
}

static uint32_t shared_bytes(const joined_entry *e) {
    const int blocks = 2 * e->stages * e->others * (e->width * 2 + 4), places = 2 * e->others * (BACKWARD_OWN * 2 + e->width * 4);
    return (uint32_t)((e->width <= 64 ? 2 : 1) * 2 * BACKWARD_OWN * e->width * 2 + blocks + places + JOINED_BARRIER_BYTES);
}

/* Heads in a band. One band goes through the queries upwards, which nobody waits in; of several the last one, downwards, begins with the longest tiles, and ends with short ones. Narrow heads are smaller, so L2 has room
 * for twice as many: the more heads, the rarer a thread block comes to a block of queries before its turn. */
static int64_t heads_together(const joined_entry *e, int64_t heads, int64_t tiles, int64_t units) {
    const int64_t half = base_ceil_div(heads, 2), most = (e->width <= 64 ? 2 : 1) * base_ceil_div(units, tiles);
    return heads * tiles <= units ? heads : half < most ? half : most;
}

static dw_status add_tiles(const kernel_run *run, kernel_launcher *launcher) {
    const joined_entry *e = find_entry(&run->call);
    const int64_t tiles = tiles_of_keys(&run->call), all = heads_of(run->call.in[ATTENTION_BACKWARD_K]) * tiles, units = run->chip->units;
    kernel_launch launch;
    attention_backward_wgmma_arguments *g;
    TRY(start(run, e->image, e->entry, &launch, &g));
    attention_take_map(&launch, run, ATTENTION_BACKWARD_Q, e->others, g->map_q);
    attention_take_map(&launch, run, ATTENTION_BACKWARD_K, BACKWARD_OWN, g->map_k);
    attention_take_map(&launch, run, ATTENTION_BACKWARD_V, BACKWARD_OWN, g->map_v);
    attention_take_map(&launch, run, ATTENTION_BACKWARD_DOUT, e->others, g->map_dout);
    g->tiles = (int32_t)tiles;
    g->heads_together = (int32_t)heads_together(e, all / tiles, tiles, units);
    cuda_grid(&launch, all < units ? all : units, 1, 1);
    launch.block[0] = BACKWARD_THREADS;
    launch.shared_bytes = shared_bytes(e);
    return launcher->add(launcher, &launch);
}

static dw_status add_queries(const kernel_run *run, kernel_launcher *launcher) {
    const joined_entry *e = find_entry(&run->call);
    kernel_launch launch;
    attention_backward_wgmma_arguments *g;
    TRY(start(run, e->image, e->dq, &launch, &g));
    cuda_grid(&launch, query_blocks(&run->call) * (e->width / 64), 1, 1);
    launch.block[0] = CUDA_THREADS;
    return launcher->add(launcher, &launch);
}

dw_status attention_backward_joined_shape(const kernel_run *run, kernel_launcher *launcher) {
    TRY(add_statistics(run, launcher));
    TRY(add_tiles(run, launcher));
    return add_queries(run, launcher);
}
