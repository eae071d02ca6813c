/* Attention in fp32 of few queries (split-KV): the host half of splitkv.cuh. Which calls it takes, how long, how a call is divided, and the launch. Pure: knows no driver. */
#include "kernels/attention/splitkv/splitkv.h"

#include "kernels/attention/host.h"
#include "kernels/attention/results.h"
#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"

typedef struct splitkv_entry {
    dw_format format;
    const char *entry;
    int lanes, chunks, heads;
} splitkv_entry;

/* Of a format narrower ones first, of a width fewer heads. */
static const splitkv_entry entries[] = {
#define F32 DW_FORMAT_f32
#define BF16 DW_FORMAT_bf16
#define F16 DW_FORMAT_f16
#define ATTENTION_SPLITKV(name, element, lanes, chunks, heads, blocks) {element, "attention_stream_" #name, lanes, chunks, heads},
#include "kernels/attention/splitkv/splitkv.def"
#undef ATTENTION_SPLITKV
#undef F32
#undef BF16
#undef F16
};

static int64_t larger(int64_t x, int64_t y) { return x > y ? x : y; }

/* The narrowest entry for these heads; of those the first that takes all that share k and v, else the one of most. */
static const splitkv_entry *find_entry(dw_format format, int64_t width, int64_t value_width, int64_t shared) {
    const splitkv_entry *found = NULL;
    int64_t bytes = larger(width, value_width) * (format == DW_FORMAT_f32 ? 4 : 2);
    for (size_t i = 0; i < COUNT_OF(entries); i++) {
        const splitkv_entry *e = &entries[i];
        int holds = e->lanes * e->chunks * 16;
        if (e->format != format || bytes > holds) continue;
        if (found != NULL && (holds > found->lanes * found->chunks * 16 || found->heads >= shared)) break;
        found = e;
    }
    return found;
}

/* ---- what is taken, how long ---- */

const char *attention_splitkv_refuses(const kernel_problem *problem, text *why) {
    const char *reason = attention_refuses_uncached(problem);
    return reason != NULL ? reason : attention_reject_fp32(problem, why);
}

/* Every query reads its keys and values again; the products of several heads go at a twelfth of the chip's rate. */
double attention_splitkv_seconds(const kernel_run *run) {
    const dw_tensor *q = run->call.in[ATTENTION_Q], *k = run->call.in[ATTENTION_K], *v = run->call.in[ATTENTION_V];
    const chip_caps *chip = run->chip;
    double elements = (double)(k->dims[3] + v->dims[3]) * (double)attention_slots(&run->call) * (double)q->dims[0] * (double)q->dims[2];
    double read_s = elements * (double)k->dims[1] * (dw_format_bits(k->format) / 8) / (0.853 * chip_bytes_per_s(chip));
    double compute_s = 2 * elements * (double)q->dims[1] / (0.083 * chip_flops(chip, DW_FORMAT_f32));
    return 3e-6 + (q->dims[1] > k->dims[1] && compute_s > read_s ? compute_s : read_s);
}

/* ---- the launch ---- */

/* Blocks that share a query's keys: until the chip is twice full, each with 64 keys at least. A cluster has a power of two. */
static int splits_of(const chip_caps *chip, int64_t items, int64_t keys) {
    const int most = chip_cluster_blocks(chip) < SPLITKV_SPLITS ? chip_cluster_blocks(chip) : SPLITKV_SPLITS;
    int splits = 1;
    while (splits < most && items * splits < 2 * chip->units && keys >= 128 * splits) splits *= 2;
    return splits;
}

/* Blocks of a call without splits, each of which takes up to so many heads that share keys. */
static int64_t splitkv_items(const kernel_run *run, const splitkv_entry *e) {
    const dw_tensor *q = run->call.in[ATTENTION_Q], *k = run->call.in[ATTENTION_K];
    return q->dims[0] * q->dims[2] * k->dims[1] * base_ceil_div(q->dims[1] / k->dims[1], e->heads);
}

static const splitkv_entry *entry_of(const kernel_run *run) {
    const dw_tensor *q = run->call.in[ATTENTION_Q], *k = run->call.in[ATTENTION_K], *v = run->call.in[ATTENTION_V];
    return find_entry(k->format, k->dims[3], v->dims[3], q->dims[1] / k->dims[1]);
}

const char *attention_splitkv_takes(const kernel_run *run, text *why) {
    const char *reason = attention_counts_refusal(run, 1, why);
    if (reason != NULL) return reason;
    if (!attention_lies_in_pieces(run->call.in[ATTENTION_K]) || !attention_lies_in_pieces(run->call.in[ATTENTION_V])) return kernel_because(why, "k or v does not lie in pieces of 16 bytes");
    return attention_counts_refusal(run, SPLITKV_SPLITS * splitkv_items(run, entry_of(run)), why);
}

dw_status attention_splitkv_shape(const kernel_run *run, kernel_launcher *launcher) {
    attention_heads by_heads;
    run = attention_by_heads(run, &by_heads);
    const dw_tensor *q = run->call.in[ATTENTION_Q], *k = run->call.in[ATTENTION_K];
    int64_t shared = q->dims[1] / k->dims[1];
    const splitkv_entry *e = entry_of(run);
    kernel_launch launch;
    attention_splitkv_arguments *g = cuda_launch(&launch, "attention_stream", e->entry, sizeof *g);
    TRY(attention_take(&launch, run, &g->call));
    g->parts = (int32_t)base_ceil_div(shared, e->heads);
    const int64_t items = splitkv_items(run, e);
    g->splits = run->invariant ? 1 : splits_of(run->chip, items, attention_slots(&run->call));
    cuda_grid(&launch, items * g->splits, 1, 1);
    launch.block[0] = SPLITKV_WARPS * 32;
    launch.overlaps = true;
    if (g->splits > 1) launch.cluster[0] = (uint32_t)g->splits, launch.cluster[1] = launch.cluster[2] = 1;
    int columns = e->lanes * e->chunks * (k->format == DW_FORMAT_f32 ? 4 : 8);
    launch.shared_bytes = (uint32_t)(4 * e->heads * (SPLITKV_WARPS * columns + 2 * (SPLITKV_WARPS + 1)));
    return launcher->add(launcher, &launch);
}
