/* Attention of few queries on tensor cores (mma.sync): the host half of decode.cu. What it takes, how long, how a call is divided, and the launch. Pure: knows no driver. */
#include "kernels/attention/decode/decode.h"

#include "kernels/attention/host.h"
#include "kernels/attention/results.h"
#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"

typedef struct decode_entry {
    dw_format format;
    const char *entry;
    int width, value_width, stages, blocks;
    bool general;
} decode_entry;

/* Of a format narrower ones first. */
static const decode_entry entries[] = {
#define ATTENTION_DECODE(name, ...) {DW_FORMAT_bf16, "attention_decode_bf16_" #name, __VA_ARGS__},
#include "kernels/attention/decode/decode.def"
#undef ATTENTION_DECODE
#define ATTENTION_DECODE(name, ...) {DW_FORMAT_f16, "attention_decode_f16_" #name, __VA_ARGS__},
#include "kernels/attention/decode/decode.def"
#undef ATTENTION_DECODE
};

static uint32_t shared_bytes(const decode_entry *e) {
    return (uint32_t)(DECODE_WARPS * e->stages * DECODE_KEYS * (e->width + e->value_width) * 2 + e->width / 16 * 512 + DECODE_BARRIER_BYTES + DECODE_STATE_BYTES);
}

/* The first whose ring finds room on the chip; else, so that what it lacks is said, the first. */
static const decode_entry *find_entry(const op_call *call, const chip_caps *chip) {
    const dw_tensor *q = call->in[ATTENTION_Q], *v = call->in[ATTENTION_V];
    const bool general = attention_is_general(call);
    const decode_entry *first = NULL;
    for (size_t i = 0; i < COUNT_OF(entries); i++) {
        const decode_entry *e = &entries[i];
        if (e->format != q->format || e->general != general || q->dims[3] > e->width || v->dims[3] > e->value_width) continue;
        if (shared_bytes(e) <= chip->shared_bytes) return e;
        if (first == NULL) first = e;
    }
    return first;
}

/* ---- what is taken ---- */

const char *attention_decode_refuses(const kernel_problem *problem, text *why) { return attention_reject_halves(problem, why); }

/* ---- how long ---- */

/* How the rows of a call become tiles. together: queries of a tile; parts: tiles of the heads of one group; tiles: of all. */
typedef struct decode_division { int64_t together, parts, tiles; } decode_division;

static decode_division divide(const op_call *call) {
    const dw_tensor *q = call->in[ATTENTION_Q], *k = call->in[ATTENTION_K];
    const int64_t shared = k->dims[1] > 0 && q->dims[1] > k->dims[1] ? q->dims[1] / k->dims[1] : 1;
    bool alone = shared > DECODE_ROWS;
    for (int i = ATTENTION_ROW; i <= ATTENTION_POSITION; i++) alone = alone || (i < call->n_in && call->in[i] != NULL);
    decode_division d = {.together = alone ? 1 : DECODE_ROWS / shared, .parts = base_ceil_div(shared, DECODE_ROWS)};
    d.tiles = q->dims[0] * base_ceil_div(q->dims[2], d.together) * k->dims[1] * d.parts;
    return d;
}

/* Every tile reads its keys and values again. The start is that of a model's step on an H200 (bench/results/h200/models.md). */
double attention_decode_seconds(const kernel_run *run) {
    const dw_tensor *k = run->call.in[ATTENTION_K], *v = run->call.in[ATTENTION_V];
    return 7.8e-6 + (double)divide(&run->call).tiles * (double)(k->dims[3] + v->dims[3]) * 2 * (double)attention_slots(&run->call) / (0.83 * chip_bytes_per_s(run->chip));
}

const char *attention_decode_takes(const kernel_run *run, text *why) {
    const int64_t keys = attention_slots(&run->call), page = run->call.in[ATTENTION_K]->dims[2];
    const char *reason = attention_lacks_maps(&run->call, why);
    if (reason != NULL) return reason;
    if (op_operand(&run->call, ATTENTION_TABLE) != NULL && page % DECODE_KEYS != 0) return kernel_because(why, "pages hold %lld keys; it reads %d at a time", (long long)page, DECODE_KEYS);
    if (keys <= INT32_MAX / 2 && divide(&run->call).tiles <= INT32_MAX / DECODE_SPLITS) return NULL;
    return kernel_because(why, "%lld keys, or %lld tiles of queries, are more than it counts to", (long long)keys, (long long)divide(&run->call).tiles);
}

/* So many queries of a row of the cache are not worth a tile where decoding is faster. */
int64_t attention_decode_rows(const kernel_run *run) {
    enum { FEW_QUERIES = 16 };
    const op_call *call = &run->call;
    const bool has_row = call->n_in > ATTENTION_ROW && call->in[ATTENTION_ROW] != NULL;
    return kernel_result_rows(call) / call->in[ATTENTION_Q]->dims[2] * FEW_QUERIES * (has_row ? attention_rows(call) : 1);
}

/* ---- the launch ---- */

/* Hundredths of the multiprocessors' places that clusters of so many blocks fill: an H200 has places for 132, 132, 120, 120 and 112 blocks in clusters of 1, 2,
 * 4, 8 and 16, one to a multiprocessor, and for 264, 264, 248, 240 and 224, two to each. Sizes that are no powers of two only where two find room. */
static int filled(const decode_entry *e, int splits) {
    if (splits > 8) return splits == DECODE_SPLITS ? 84 : 0;
    if ((splits & (splits - 1)) != 0 && e->blocks < 2) return 0;
    return splits > 2 ? 90 : 100;
}

/* Blocks that share a tile's keys, each with 64 keys at least: as many as find room at a time. A second round would cost as much as the first. */
static int splits_of(const decode_entry *e, const chip_caps *chip, int64_t tiles, int64_t keys) {
    const int most = chip_cluster_blocks(chip) < DECODE_SPLITS ? chip_cluster_blocks(chip) : DECODE_SPLITS;
    int splits = 1;
    for (int more = 2; more <= most && keys >= (int64_t)DECODE_WARPS * DECODE_KEYS * more; more++)
        if (tiles * more <= (int64_t)e->blocks * chip->units * filled(e, more) / 100) splits = more;
    return splits;
}

dw_status attention_decode_shape(const kernel_run *run, kernel_launcher *launcher) {
    attention_heads by_heads;
    run = attention_by_heads(run, &by_heads);
    const decode_entry *e = find_entry(&run->call, run->chip);
    const decode_division d = divide(&run->call);
    kernel_launch launch;
    attention_decode_arguments *g = cuda_launch(&launch, "attention_decode", e->entry, sizeof *g);
    TRY(attention_take(&launch, run, &g->call));
    g->splits = splits_of(e, run->chip, d.tiles, attention_slots(&run->call));
    g->parts = (int32_t)d.parts;
    g->queries = (int32_t)d.together;
    attention_take_map(&launch, run, ATTENTION_K, DECODE_KEYS, g->map_k);
    attention_take_map(&launch, run, ATTENTION_V, DECODE_KEYS, g->map_v);
    cuda_grid(&launch, d.tiles * g->splits, 1, 1);
    launch.block[0] = DECODE_WARPS * 32;
    launch.overlaps = true;
    if (g->splits > 1) launch.cluster[0] = (uint32_t)g->splits, launch.cluster[1] = launch.cluster[2] = 1;
    launch.shared_bytes = shared_bytes(e);
    return launcher->add(launcher, &launch);
}
