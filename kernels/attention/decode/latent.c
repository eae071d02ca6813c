/* Attention of wide keys that many heads share (mma.sync): the host half of latent.cu. What it takes, how long, how a call is divided, and the launch. Pure: knows no driver. */
#include "kernels/attention/decode/latent.h"

#include "kernels/attention/decode/divide.h"
#include "kernels/attention/host.h"
#include "kernels/attention/results.h"
#include "kernels/gpu/host/host.h"

#include <math.h>

typedef struct latent_entry {
    dw_format format;
    const char *entry;
    int rows, stages;
    bool general;
    double cycles;
} latent_entry;

static const latent_entry entries[] = {
#define ATTENTION_LATENT(name, ...) {DW_FORMAT_bf16, "attention_latent_bf16_" #name, __VA_ARGS__},
#include "kernels/attention/decode/latent.def"
#undef ATTENTION_LATENT
#define ATTENTION_LATENT(name, ...) {DW_FORMAT_f16, "attention_latent_f16_" #name, __VA_ARGS__},
#include "kernels/attention/decode/latent.def"
#undef ATTENTION_LATENT
};

static uint32_t shared_bytes(const latent_entry *e) { return (uint32_t)(e->stages * LATENT_STAGE_BYTES + LATENT_STATE_BYTES(e->rows)); }

/* ---- how a call is divided ---- */

/* By which entry, into how many tiles, whose keys so many blocks share; and how long its blocks of keys take. */
typedef struct latent_plan {
    const latent_entry *e;
    decode_division of;
    int splits;
    double seconds;
} latent_plan;

/* Hundredths of the multiprocessors that clusters of so many blocks fill, one to each, of sizes that are used: of powers of 2 as of the decoding attention (decode.c), of 3 and 6 by count. */
static const int filled[DECODE_SPLITS + 1] = {[1] = 100, [2] = 100, [3] = 90, [4] = 90, [6] = 85, [8] = 90, [16] = 84};

/* The part of the chip's rate of products in bf16 that mma.sync has: on Hopper and Blackwell a part of it, on other chips all. By what is known of them, not measured here. */
#define HOPPER_SHARE 0.62
#define BLACKWELL_SHARE 0.3
#define OTHER_SHARE 1.0

/* Of a block of keys: products, and whatever else takes longer. */
static double seconds_of_keys(const latent_entry *e, const chip_caps *chip) {
    const double share = chip_has(chip, CHIP_wgmma) ? HOPPER_SHARE : chip_has(chip, CHIP_tcgen05) ? BLACKWELL_SHARE : OTHER_SHARE;
    const double products_s = 2.0 * e->rows * LATENT_KEYS * (LATENT_WIDTH + LATENT_VALUE_WIDTH) * chip->units / (share * chip_flops(chip, DW_FORMAT_bf16)), others_s = chip->clock_hz > 0 ? e->cycles / chip->clock_hz : 0;
    return products_s > others_s ? products_s : others_s;
}

/* Of one entry: as many blocks to a tile as make an end soonest, each of which has a block of keys at least. */
static latent_plan plan_of(const kernel_run *run, const latent_entry *e) {
    const chip_caps *chip = run->chip;
    const int64_t keys = attention_slots(&run->call), blocks = keys > 0 ? base_ceil_div(keys, LATENT_KEYS) : 1;
    const int most = run->invariant ? 1 : chip_cluster_blocks(chip) < DECODE_SPLITS ? chip_cluster_blocks(chip) : DECODE_SPLITS;
    const double of_block = seconds_of_keys(e, chip);
    latent_plan best = {e, decode_divide(&run->call, e->rows), 1, HUGE_VAL};
    for (int splits = 1; splits <= most && splits <= blocks; splits++) {
        const int64_t places = (int64_t)chip->units * filled[splits] / 100;
        if (filled[splits] == 0 || places < splits) continue;
        const double seconds = of_block * (double)base_ceil_div(best.of.tiles * splits, places) * (double)base_ceil_div(blocks, splits);
        if (seconds >= best.seconds) continue;
        best.splits = splits;
        best.seconds = seconds;
    }
    return best;
}

/* Of the entries that take it and whose shared memory finds room, the one that comes to an end soonest; of an invariant plan the first one, whose sums have one order. e NULL: none finds room. */
static latent_plan find_plan(const kernel_run *run) {
    const bool general = attention_is_general(&run->call);
    latent_plan best = {.seconds = HUGE_VAL};
    for (const latent_entry *e = entries; e < entries + COUNT_OF(entries); e++) {
        if (e->format != run->call.in[ATTENTION_Q]->format || e->general != general || shared_bytes(e) > run->chip->shared_bytes || (run->invariant && best.e != NULL)) continue;
        const latent_plan plan = plan_of(run, e);
        if (best.e == NULL || plan.seconds < best.seconds) best = plan;
    }
    return best;
}

/* ---- what is taken, how long ---- */

const char *attention_latent_refuses(const kernel_problem *problem, text *why) {
    enum { DECODES = 256 };
    int64_t width, value_width;
    const char *reason = problem->n_out > 1 ? "there is a second result (lse), and it makes one" : attention_reject_halves_beyond(problem, LATENT_WIDTH, LATENT_VALUE_WIDTH, why);
    if (reason != NULL || !dim_is_constant(problem->in[ATTENTION_Q]->dims[3], &width) || !dim_is_constant(problem->in[ATTENTION_V]->dims[3], &value_width)) return reason;
    if (problem->in[ATTENTION_V]->format != problem->in[ATTENTION_K]->format) return "k and v have two formats";
    if (width > DECODES || value_width > DECODES) return NULL;
    text_printf(why, "heads are %lld and %lld wide; it is for those that others do not take, of more than %d", (long long)width, (long long)value_width, DECODES);
    return text_string(why);
}

/* Have values the shape and the steps of keys, but for the width? */
static bool is_alike(const op_call *call) {
    const dw_tensor *k = call->in[ATTENTION_K], *v = call->in[ATTENTION_V];
    for (int i = 0; i < 3; i++)
        if (k->dims[i] != v->dims[i] || (k->dims[i] > 1 && k->strides[i] != v->strides[i])) return false;
    return v->dims[3] <= k->dims[3];
}

/* The keys of a text go by once, as tiles that share them are under way together; values that may lie in them are taken to. The start is that of the decoding attention. Not measured. */
double attention_latent_seconds(const kernel_run *run) {
    const dw_tensor *q = run->call.in[ATTENTION_Q], *k = run->call.in[ATTENTION_K], *v = run->call.in[ATTENTION_V];
    const latent_plan plan = find_plan(run);
    const double texts = (double)(q->dims[0] * k->dims[1]) * (op_operand(&run->call, ATTENTION_ROW) != NULL ? (double)q->dims[2] : 1);
    const double bytes = texts * 2 * (double)(k->dims[3] + (is_alike(&run->call) ? 0 : v->dims[3])) * (double)attention_slots(&run->call), read_s = bytes / (0.9 * chip_bytes_per_s(run->chip));
    return 7.8e-6 + (plan.e != NULL && plan.seconds > read_s ? plan.seconds : read_s);
}

/* Tiles of the heads of a query lie along y of the grid. */
enum { MOST_OF_HEADS = 65535 };

const char *attention_latent_takes(const kernel_run *run, text *why) {
    const op_call *call = &run->call;
    const int64_t page = call->in[ATTENTION_K]->dims[2];
    const char *reason = attention_lacks_maps(call, why);
    if (reason != NULL) return reason;
    if (op_operand(call, ATTENTION_TABLE) != NULL && page % (LATENT_KEYS / 2) != 0) return kernel_because(why, "pages hold %lld keys; it reads %d at a time", (long long)page, LATENT_KEYS / 2);
    const latent_plan plan = find_plan(run);
    if (plan.e == NULL) return kernel_because(why, "%s has %zu bytes of shared memory for a block, and no tile finds room", run->chip->name, run->chip->shared_bytes);
    if (call->in[ATTENTION_K]->dims[1] * plan.of.parts > MOST_OF_HEADS) return kernel_because(why, "%lld tiles of heads are more than a grid has along an axis", (long long)(call->in[ATTENTION_K]->dims[1] * plan.of.parts));
    return attention_counts_refusal(run, plan.of.tiles * DECODE_SPLITS, why);
}

/* ---- the launch ---- */

dw_status attention_latent_shape(const kernel_run *run, kernel_launcher *launcher) {
    attention_heads by_heads;
    run = attention_by_heads(run, &by_heads);
    const dw_tensor *q = run->call.in[ATTENTION_Q], *k = run->call.in[ATTENTION_K];
    const latent_plan plan = find_plan(run);
    kernel_launch launch;
    attention_latent_arguments *a = cuda_launch(&launch, "attention_latent", plan.e->entry, sizeof *a);
    attention_decode_arguments *g = &a->decode;
    TRY(attention_take(&launch, run, &g->call));
    g->splits = plan.splits;
    g->parts = (int32_t)plan.of.parts;
    g->bunches = (int32_t)plan.of.bunches;
    g->queries = (int32_t)plan.of.together;
    a->boxes = g->call.page % LATENT_KEYS == 0 ? 1 : 2;
    a->alike = is_alike(&run->call);
    attention_take_map(&launch, run, ATTENTION_K, LATENT_KEYS / a->boxes, g->map_k);
    attention_take_map(&launch, run, ATTENTION_V, LATENT_KEYS / a->boxes, g->map_v);
    cuda_grid(&launch, g->splits * q->dims[0] * plan.of.bunches, k->dims[1] * plan.of.parts, 1);
    launch.block[0] = LATENT_WARPS * 32;
    launch.overlaps = true;
    if (g->splits > 1) launch.cluster[0] = (uint32_t)g->splits, launch.cluster[1] = launch.cluster[2] = 1;
    launch.shared_bytes = shared_bytes(plan.e);
    return launcher->add(launcher, &launch);
}
