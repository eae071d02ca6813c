/* Attention in fp32 on GPUs: the host half of attention_stream.cuh, for few queries, and of attention_tile.cu, for many and for operands that do not lie in
 * pieces of 16 bytes. Pure: knows no driver. */
#include "kernels/attention/attention_host.h"
#include "kernels/attention/attention_stream.h"
#include "kernels/attention/attention_tile.h"
#include "kernels/attention/results.h"
#include "kernels/common/cuda/host.h"
#include "kernels/kernels.h"
#include "kernels/quantize/quantised.h"

typedef struct stream_entry {
    dw_format format;
    const char *entry;
    int lanes, chunks, heads;
} stream_entry;

/* Of a format narrower ones first, of a width fewer heads. */
static const stream_entry entries[] = {
#define F32 DW_FORMAT_f32
#define BF16 DW_FORMAT_bf16
#define F16 DW_FORMAT_f16
#define ATTENTION_STREAM(name, element, lanes, chunks, heads, blocks) {element, "attention_stream_" #name, lanes, chunks, heads},
#include "kernels/attention/stream.def"
#undef ATTENTION_STREAM
#undef F32
#undef BF16
#undef F16
};

static int64_t larger(int64_t x, int64_t y) { return x > y ? x : y; }

/* The narrowest entry for these heads; of those the first that takes all that share k and v, else the one of most. */
static const stream_entry *find_entry(dw_format format, int64_t width, int64_t value_width, int64_t shared) {
    const stream_entry *found = NULL;
    int64_t bytes = larger(width, value_width) * (format == DW_FORMAT_f32 ? 4 : 2);
    for (size_t i = 0; i < COUNT_OF(entries); i++) {
        const stream_entry *e = &entries[i];
        int holds = e->lanes * e->chunks * 16;
        if (e->format != format || bytes > holds) continue;
        if (found != NULL && (holds > found->lanes * found->chunks * 16 || found->heads >= shared)) break;
        found = e;
    }
    return found;
}

/* ---- what is taken ---- */

static bool is_taken(dw_format format) { return format == DW_FORMAT_f32 || format == DW_FORMAT_bf16 || format == DW_FORMAT_f16; }

const char *attention_fp32_reject(const kernel_problem *problem, text *why) {
    if (dw_format_is_block(problem->out[0]->format)) return quantised_reject(problem, why, attention_fp32_reject);
    const op_type *operands[] = {problem->in[0], problem->in[1], problem->n_in > 4 ? problem->in[4] : NULL, problem->out[0]};
    int64_t width, value_width;
    for (size_t i = 0; i < COUNT_OF(operands); i++)
        if (operands[i] != NULL && !is_taken(operands[i]->format)) {
            text_printf(why, "it takes f32, bf16 and f16, and there is %s", dw_format_name(operands[i]->format));
            return text_string(why);
        }
    if (!dim_is_constant(problem->in[1]->dims[3], &width) || !dim_is_constant(problem->in[2]->dims[3], &value_width)) return "the heads' widths are not known at plan time";
    if (width == 0 || value_width == 0 || width > 256 || value_width > 256) {
        text_printf(why, "heads are %lld and %lld wide; it takes up to 256", (long long)width, (long long)value_width);
        return text_string(why);
    }
    return NULL;
}

/* ---- how long ---- */

/* Every query reads its keys and values again; the products of several heads go at a twelfth of the chip's rate. */
static double stream_seconds(const chip_caps *chip, const dw_tensor *q, const dw_tensor *k, const dw_tensor *v) {
    double elements = (double)(k->dims[3] + v->dims[3]) * (double)k->dims[2] * (double)q->dims[0] * (double)q->dims[2];
    double read_s = elements * (double)k->dims[1] * (dw_format_bits(k->format) / 8) / (0.853 * chip_bytes_per_s(chip));
    double compute_s = 2 * elements * (double)q->dims[1] / (0.083 * chip_flops(chip, DW_FORMAT_f32));
    return 3e-6 + (q->dims[1] > k->dims[1] && compute_s > read_s ? compute_s : read_s);
}

/* Tiles of 64 queries go through their blocks of keys at about 0.4 of the chip's rate. */
static double tile_seconds(const chip_caps *chip, const dw_tensor *q, const dw_tensor *k, const dw_tensor *v, bool causal) {
    double tiles = (double)((q->dims[2] + TILE_QUERIES - 1) / TILE_QUERIES), all = tiles * (double)(q->dims[0] * q->dims[1]), waves = all > chip->units ? all / chip->units : 1;
    double blocks = (double)((k->dims[2] + TILE_KEYS - 1) / TILE_KEYS), flops = 2.0 * TILE_QUERIES * TILE_KEYS * (double)(k->dims[3] + v->dims[3]);
    if (causal && tiles > 1) blocks = blocks * (tiles + 1) / (2 * tiles);
    return 4e-6 + waves * blocks * flops / (0.4 * chip_flops(chip, DW_FORMAT_f32) / chip->units);
}

/* Does each row of the tensor lie at a multiple of 16 bytes? A view may begin anywhere. */
static bool is_aligned(const dw_tensor *x) {
    int64_t step = x->format == DW_FORMAT_f32 ? 4 : 8;
    if ((uintptr_t)x->data % 16 != 0) return false;
    if ((x->dims[3] > 1 && x->strides[3] != 1) || x->dims[3] % step != 0) return false;
    for (int i = 0; i < 3; i++)
        if (x->dims[i] > 1 && x->strides[i] % step != 0) return false;
    return true;
}

/* Columns of v that a tile's threads make. */
static int tile_columns(const dw_tensor *v) { return v->dims[3] <= 64 ? 64 : v->dims[3] <= 128 ? 128 : 256; }
static uint32_t tile_bytes(const dw_tensor *q, const dw_tensor *v) { return (uint32_t)(4 * (2 * q->dims[3] * TILE_PITCH + TILE_KEYS * tile_columns(v) + TILE_KEYS * TILE_PITCH)); }

/* Has a block room for a tile, and for what its queries see? Heads of more than about 90 columns want more than chips with 99 KB have. */
static bool has_tile(const chip_caps *chip, const dw_tensor *q, const dw_tensor *v) { return tile_bytes(q, v) + TILE_VIEW_BYTES <= chip->shared_bytes; }

/* The kernel that takes a call, and its seconds. Without room for a tile queries are streamed, however many there are. */
typedef enum fp32_way { WAY_STREAM, WAY_TILE, WAY_NONE } fp32_way;

static fp32_way find_way(const chip_caps *chip, const op_call *call, double *seconds) {
    const dw_tensor *q = call->in[0], *k = call->in[1], *v = call->in[2];
    const double stream_s = stream_seconds(chip, q, k, v), tile_s = tile_seconds(chip, q, k, v, op_attr_bool(call->attrs, OP_ATTR_causal));
    const bool tile = has_tile(chip, q, v), stream = is_aligned(k) && is_aligned(v) && (stream_s < tile_s || !tile);
    *seconds = stream ? stream_s : tile_s;
    return stream ? WAY_STREAM : tile ? WAY_TILE : WAY_NONE;
}

double attention_fp32_cost(const kernel_problem *problem) {
    if (dw_format_is_block(problem->out[0]->format)) return quantised_cost(problem, attention_fp32_cost);
    dw_tensor in[KERNEL_MAX_OPERANDS], out[KERNEL_MAX_RESULTS];
    const dw_tensor *in_pointers[KERNEL_MAX_OPERANDS], *out_pointers[KERNEL_MAX_RESULTS];
    op_call call;
    double seconds;
    if (problem->symbols == NULL || kernel_problem_call(problem, in, out, in_pointers, out_pointers, &call) != DW_OK) return problem->chip->launch_s;
    return find_way(problem->chip, &call, &seconds) == WAY_NONE ? attention_cuda_cost(problem) : seconds;
}

size_t attention_fp32_workspace(const kernel_run *run) { return dw_format_is_block(run->call.out[0]->format) ? quantised_workspace(run, attention_fp32_workspace) : 0; }

/* ---- the launch ---- */

/* Blocks that share a query's keys: until the chip is twice full, each with 64 keys at least. A cluster has a power of two. */
static int splits_of(const chip_caps *chip, int64_t items, int64_t keys) {
    const int most = chip_cluster_blocks(chip) < STREAM_SPLITS ? chip_cluster_blocks(chip) : STREAM_SPLITS;
    int splits = 1;
    while (splits < most && items * splits < 2 * chip->units && keys >= 128 * splits) splits *= 2;
    return splits;
}

static dw_status check_counts(const kernel_run *run, int64_t blocks) {
    const dw_tensor *k = run->call.in[1];
    if (k->dims[2] <= INT32_MAX / 2 && blocks <= INT32_MAX) return DW_OK;
    return base_fail(run->call.context, DW_LIMIT, "attention: %lld keys, or %lld blocks of threads, are more than this kernel counts to", (long long)k->dims[2], (long long)blocks);
}

static dw_status attention_stream_launch(const kernel_run *run, kernel_launcher *launcher) {
    const dw_tensor *q = run->call.in[0], *k = run->call.in[1], *v = run->call.in[2];
    int64_t shared = q->dims[1] / k->dims[1];
    const stream_entry *e = find_entry(k->format, k->dims[3], v->dims[3], shared);
    kernel_launch launch;
    attention_stream_arguments *g = cuda_launch(&launch, "attention_stream", e->entry, sizeof *g);
    TRY(attention_take(&launch, run, &g->call));
    g->parts = (int32_t)((shared + e->heads - 1) / e->heads);
    int64_t items = q->dims[0] * q->dims[2] * k->dims[1] * g->parts;
    g->splits = splits_of(run->chip, items, k->dims[2]);
    TRY(check_counts(run, items * g->splits));
    cuda_grid(&launch, items * g->splits, 1, 1);
    launch.block[0] = STREAM_WARPS * 32;
    launch.overlaps = true;
    if (g->splits > 1) launch.cluster[0] = (uint32_t)g->splits, launch.cluster[1] = launch.cluster[2] = 1;
    int columns = e->lanes * e->chunks * (k->format == DW_FORMAT_f32 ? 4 : 8);
    launch.shared_bytes = (uint32_t)(4 * e->heads * (STREAM_WARPS * columns + 2 * (STREAM_WARPS + 1)));
    return launcher->add(launcher, &launch);
}

static dw_status attention_tile_launch(const kernel_run *run, kernel_launcher *launcher) {
    const dw_tensor *q = run->call.in[0], *v = run->call.in[2];
    const int columns = tile_columns(v);
    kernel_launch launch;
    attention_tile_arguments *g = cuda_launch(&launch, "attention_tile", columns == 64 ? "attention_tile_64" : columns == 128 ? "attention_tile_128" : "attention_tile_256", sizeof *g);
    TRY(attention_take(&launch, run, &g->call));
    int64_t tiles = (q->dims[2] + TILE_QUERIES - 1) / TILE_QUERIES, blocks = q->dims[0] * q->dims[1] * tiles;
    TRY(check_counts(run, blocks));
    g->tiles = (int32_t)tiles;
    cuda_grid(&launch, blocks, 1, 1);
    launch.block[0] = TILE_THREADS;
    launch.shared_bytes = tile_bytes(q, v);
    return launcher->add(launcher, &launch);
}

dw_status attention_fp32_shape(const kernel_run *run, kernel_launcher *launcher) {
    if (dw_format_is_block(run->call.out[0]->format)) return quantised_shape(run, launcher, attention_fp32_workspace, attention_fp32_shape);
    attention_heads heads;
    run = attention_by_heads(run, &heads);
    const dw_tensor *k = run->call.in[1];
    double seconds;
    if (op_tensor_count(run->call.out[0]) == 0) return DW_OK;
    if (k->dims[2] == 0 || k->dims[1] < 1) return kernel_hand_over(run, launcher, "cuda_attention_fp32", "cuda_attention_plain", "there are no keys", attention_cuda_shape);
    switch (find_way(run->chip, &run->call, &seconds)) {
    case WAY_STREAM: return attention_stream_launch(run, launcher);
    case WAY_TILE: return attention_tile_launch(run, launcher);
    case WAY_NONE: break;
    }
    return kernel_hand_over(run, launcher, "cuda_attention_fp32", "cuda_attention_plain",
                            "its tiles need more shared memory than the chip has, and k or v does not lie in pieces of 16 bytes to be streamed", attention_cuda_shape);
}
