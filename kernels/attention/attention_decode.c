/* Attention of few queries on tensor cores: the host half of attention_decode.cu. How long it takes, how a call is divided, and the launch. Which calls come
 * here is decided in attention_sm90.c. Pure: knows no driver. */
#include "kernels/attention/attention_decode.h"

#include "kernels/attention/attention_host.h"
#include "kernels/common/cuda/host.h"

typedef struct decode_entry {
    dw_format format;
    const char *entry;
    int width, value_width, stages, blocks;
    bool general;
} decode_entry;

/* Of a format narrower ones first. */
static const decode_entry entries[] = {
#define ATTENTION_DECODE(name, ...) {DW_FORMAT_bf16, "attention_decode_bf16_" #name, __VA_ARGS__},
#include "kernels/attention/decode.def"
#undef ATTENTION_DECODE
#define ATTENTION_DECODE(name, ...) {DW_FORMAT_f16, "attention_decode_f16_" #name, __VA_ARGS__},
#include "kernels/attention/decode.def"
#undef ATTENTION_DECODE
};

static const decode_entry *find_entry(const op_call *call) {
    const dw_tensor *q = call->in[0], *v = call->in[2];
    bool general = attention_is_general(call);
    for (size_t i = 0; i < COUNT_OF(entries); i++) {
        const decode_entry *e = &entries[i];
        if (e->format == q->format && e->general == general && q->dims[3] <= e->width && v->dims[3] <= e->value_width) return e;
    }
    return NULL;
}

static int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

/* How the rows of a call become tiles. together: queries of a tile; parts: tiles of the heads of one group; tiles: of all. */
typedef struct decode_division { int64_t together, parts, tiles; } decode_division;

static decode_division divide(const op_call *call) {
    const dw_tensor *q = call->in[0], *k = call->in[1];
    const int64_t shared = k->dims[1] > 0 && q->dims[1] > k->dims[1] ? q->dims[1] / k->dims[1] : 1;
    bool alone = shared > DECODE_ROWS;
    for (int i = 6; i < 8; i++) alone = alone || (i < call->n_in && call->in[i] != NULL);
    decode_division d = {.together = alone ? 1 : DECODE_ROWS / shared, .parts = ceil_div(shared, DECODE_ROWS)};
    d.tiles = q->dims[0] * ceil_div(q->dims[2], d.together) * k->dims[1] * d.parts;
    return d;
}

/* Every tile reads its keys and values again. */
double attention_decode_seconds(const chip_caps *chip, const op_call *call) {
    const dw_tensor *k = call->in[1], *v = call->in[2];
    return 3e-6 + (double)divide(call).tiles * (double)(k->dims[3] + v->dims[3]) * 2 * (double)k->dims[2] / (0.85 * chip->bytes_per_s);
}

/* Hundredths of the multiprocessors' places that clusters of so many blocks fill: an H200 has places for 132, 132, 120, 120 and 112 blocks in clusters of 1, 2,
 * 4, 8 and 16, one to a multiprocessor, and for 264, 264, 248, 240 and 224, two to each. Sizes that are no powers of two only where two find room. */
static int filled(const decode_entry *e, int splits) {
    if (splits > 8) return splits == DECODE_SPLITS ? 84 : 0;
    if ((splits & (splits - 1)) != 0 && e->blocks < 2) return 0;
    return splits > 2 ? 90 : 100;
}

/* Blocks that share a tile's keys, each with 64 keys at least: as many as find room at a time. A second round would cost as much as the first. */
static int splits_of(const decode_entry *e, int units, int64_t tiles, int64_t keys) {
    int splits = 1;
    for (int more = 2; more <= DECODE_SPLITS && keys >= (int64_t)DECODE_WARPS * DECODE_KEYS * more; more++)
        if (tiles * more <= (int64_t)e->blocks * units * filled(e, more) / 100) splits = more;
    return splits;
}

dw_status attention_decode_launch(const kernel_run *run, kernel_launcher *launcher) {
    const dw_tensor *k = run->call.in[1];
    const decode_entry *e = find_entry(&run->call);
    const decode_division d = divide(&run->call);
    kernel_launch launch;
    attention_decode_arguments *g = cuda_launch(&launch, "attention_decode", e->entry, sizeof *g);
    TRY(attention_take(&launch, run, &g->call));
    g->splits = splits_of(e, run->chip->units, d.tiles, k->dims[2]);
    g->parts = (int32_t)d.parts;
    g->queries = (int32_t)d.together;
    if (k->dims[2] > INT32_MAX / 2 || d.tiles > INT32_MAX / g->splits)
        return base_fail(run->call.context, DW_LIMIT, "attention: %lld keys, or %lld tiles of queries, are more than this kernel counts to", (long long)k->dims[2], (long long)d.tiles);
    attention_take_map(&launch, run, 1, DECODE_KEYS, g->map_k);
    attention_take_map(&launch, run, 2, DECODE_KEYS, g->map_v);
    cuda_grid(&launch, d.tiles * g->splits, 1, 1);
    launch.block[0] = DECODE_WARPS * 32;
    launch.overlaps = true;
    if (g->splits > 1) launch.cluster[0] = (uint32_t)g->splits, launch.cluster[1] = launch.cluster[2] = 1;
    launch.shared_bytes = (uint32_t)(DECODE_WARPS * e->stages * DECODE_KEYS * (e->width + e->value_width) * 2 + e->width / 16 * 512 + DECODE_BARRIER_BYTES + DECODE_STATE_BYTES);
    return launcher->add(launcher, &launch);
}
