/* Attention of few queries on tensor cores (mma.sync): the host half of decode.cu. What it takes, how long, how a call is divided, and the launch. Pure: knows no driver. */
#include "kernels/attention/decode/decode.h"

#include "kernels/attention/host.h"
#include "kernels/attention/results.h"
#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"

typedef struct decode_entry {
    dw_format format;
    const char *entry;
    int width, value_width, rows, stages, blocks;
    bool general;
    int codes;
} decode_entry;

/* Of a format narrower ones first, and of those that are as wide ones of fewer rows. */
static const decode_entry entries[] = {
#define ATTENTION_DECODE(name, ...) {DW_FORMAT_bf16, "attention_decode_bf16_" #name, __VA_ARGS__},
#include "kernels/attention/decode/decode.def"
#undef ATTENTION_DECODE
#define ATTENTION_DECODE(name, ...) {DW_FORMAT_f16, "attention_decode_f16_" #name, __VA_ARGS__},
#include "kernels/attention/decode/decode.def"
#undef ATTENTION_DECODE
};

static int codes_of(dw_format format) { return format == DW_FORMAT_fp8_1x128 ? DECODE_E4M3 : format == DW_FORMAT_mxfp8 ? DECODE_MXFP8 : format == DW_FORMAT_nvfp4 ? DECODE_NVFP4 : DECODE_PLAIN; }

static uint32_t shared_bytes(const decode_entry *e) {
    const int stage = e->codes ? 2 * DECODE_KEYS * DECODE_ROW_BYTES(e->codes) + DECODE_SCALE_BYTES : DECODE_KEYS * (e->width + e->value_width) * 2;
    return (uint32_t)(DECODE_WARPS * e->stages * stage + e->width * e->rows * 2 + DECODE_BARRIER_BYTES + DECODE_STATE_BYTES);
}

/* How the rows of a call become tiles. together: queries of a tile; parts: tiles of the heads of one group; rows: of a tile; tiles: of all. */
typedef struct decode_division { int64_t together, parts, rows, tiles; } decode_division;

static decode_division divide(const op_call *call) {
    const dw_tensor *q = call->in[ATTENTION_Q], *k = call->in[ATTENTION_K];
    const int64_t shared = k->dims[1] > 0 && q->dims[1] > k->dims[1] ? q->dims[1] / k->dims[1] : 1;
    bool alone = shared > DECODE_ROWS;
    for (int i = ATTENTION_ROW; i <= ATTENTION_POSITION; i++) alone = alone || (i < call->n_in && call->in[i] != NULL);
    decode_division d = {.together = alone ? 1 : DECODE_ROWS / shared, .parts = base_ceil_div(shared, DECODE_ROWS)};
    d.rows = (shared < DECODE_ROWS ? shared : DECODE_ROWS) * (d.together < q->dims[2] ? d.together : q->dims[2]);
    d.tiles = q->dims[0] * base_ceil_div(q->dims[2], d.together) * k->dims[1] * d.parts;
    return d;
}

/* The first whose ring finds room on the chip; else, so that what it lacks is said, the first. */
static const decode_entry *find_entry(const op_call *call, const chip_caps *chip) {
    const dw_tensor *q = call->in[ATTENTION_Q], *v = call->in[ATTENTION_V];
    const bool general = attention_is_general(call);
    const int codes = codes_of(call->in[ATTENTION_K]->format);
    const int64_t rows = divide(call).rows;
    const decode_entry *first = NULL;
    for (size_t i = 0; i < COUNT_OF(entries); i++) {
        const decode_entry *e = &entries[i];
        if (e->format != q->format || e->general != general || e->codes != codes || q->dims[3] > e->width || v->dims[3] > e->value_width || rows > e->rows) continue;
        if (shared_bytes(e) <= chip->shared_bytes) return e;
        if (first == NULL) first = e;
    }
    return first;
}

/* ---- what is taken ---- */

/* Of keys and values in blocks: fp8_1x128 whose row of a head has one scale, and lies in pieces of 16 bytes; mxfp8 and nvfp4 of heads as wide as entries, which position alone hides. */
static const char *refuses_blocks(const kernel_problem *problem, text *why) {
    const op_type *k = problem->in[ATTENTION_K], *v = problem->in[ATTENTION_V];
    op_type types[2];
    const op_type *in[ATTENTION_OPERANDS];
    int64_t width, value_width;
    if (codes_of(k->format) == DECODE_PLAIN || k->format != v->format) {
        text_printf(why, "k is %s and v %s; of blocks it reads fp8_1x128, mxfp8 and nvfp4, both of one format", dw_format_name(k->format), dw_format_name(v->format));
        return text_string(why);
    }
    if (k->scale_layout != DW_SCALE_plain || v->scale_layout != DW_SCALE_plain) return "scales of k and v lie in tiles, and it reads plain ones";
    kernel_problem plain = attention_without_blocks(problem, types, in);
    types[0].format = types[1].format = problem->in[ATTENTION_Q]->format;
    const char *reason = attention_reject_halves(&plain, why);
    if (reason == NULL && k->format != DW_FORMAT_fp8_1x128) reason = attention_refuses_scores_of_codes(problem);
    if (reason != NULL || !dim_is_constant(k->dims[3], &width) || !dim_is_constant(v->dims[3], &value_width)) return reason;
    if (k->format == DW_FORMAT_fp8_1x128) {
        if (width % 16 == 0 && value_width % 16 == 0 && width <= DECODE_CODES && value_width <= DECODE_CODES) return NULL;
        text_printf(why, "heads are %lld and %lld wide; of fp8_1x128 it takes multiples of 16 up to %d", (long long)width, (long long)value_width, DECODE_CODES);
    } else {
        if (width == value_width && (width == DECODE_CODES / 2 || width == DECODE_CODES)) return NULL;
        text_printf(why, "heads are %lld and %lld wide; of %s it takes both %d or both %d", (long long)width, (long long)value_width, dw_format_name(k->format), DECODE_CODES / 2, DECODE_CODES);
    }
    return text_string(why);
}

const char *attention_decode_refuses(const kernel_problem *problem, text *why) {
    const char *reason = attention_refuses_uncached(problem);
    if (reason != NULL) return reason;
    return dw_format_is_block(problem->in[ATTENTION_K]->format) ? refuses_blocks(problem, why) : attention_reject_halves(problem, why);
}

/* ---- how long ---- */

/* Every tile reads its keys and values again, codes at a smaller part of the rate (measured on an H100 and an H200: bench/results/h200/attention.md). The start is that of a model's step on an H200 (bench/results/h200/models.md). */
double attention_decode_seconds(const kernel_run *run) {
    static const double parts[] = {[DECODE_PLAIN] = 0.97, [DECODE_E4M3] = 0.9, [DECODE_MXFP8] = 0.8, [DECODE_NVFP4] = 0.48};
    const dw_tensor *k = run->call.in[ATTENTION_K], *v = run->call.in[ATTENTION_V];
    const int codes = codes_of(k->format);
    const double width = (double)(k->dims[3] + v->dims[3]), scales = 2 * DECODE_SCALE_ROW_BYTES(codes, (double)k->dims[3]);
    const double bytes = codes == DECODE_PLAIN ? width * 2 : codes == DECODE_NVFP4 ? width / 2 + scales : width + scales;
    return 7.8e-6 + (double)divide(&run->call).tiles * bytes * (double)attention_slots(&run->call) / (parts[codes] * chip_bytes_per_s(run->chip));
}

/* Keys of which a row or page must hold a multiple, so that its scales lie in pieces of 16 bytes. */
static int64_t keys_of_piece(const op_call *call) {
    const dw_tensor *k = call->in[ATTENTION_K];
    const int64_t bytes = DECODE_SCALE_ROW_BYTES(codes_of(k->format), k->dims[3]);
    return bytes >= 16 ? 1 : 16 / bytes;
}

const char *attention_decode_takes(const kernel_run *run, text *why) {
    const dw_tensor *k = run->call.in[ATTENTION_K];
    const int64_t keys = attention_slots(&run->call), page = k->dims[2];
    const char *reason = attention_lacks_maps(&run->call, why);
    if (reason != NULL) return reason;
    if (dw_format_is_block(k->format) && page % keys_of_piece(&run->call) != 0)
        return kernel_because(why, "rows or pages hold %lld keys; their scales lie in pieces of 16 bytes where that is a multiple of %lld", (long long)page, (long long)keys_of_piece(&run->call));
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

/* The maps of codes in boxes of rows, and of their scales, some to a row. L2 is asked for 128 bytes, a row of the box of the widest heads: with 256 each row of it asks for a neighbour that comes by a request of its own. */
static void take_code_maps(kernel_launch *launch, const kernel_run *run, int index, int codes, const void *of_codes, const void *of_scales) {
    const dw_tensor *x = run->call.in[index];
    const uint64_t row = (uint64_t)x->dims[3] / (codes == DECODE_NVFP4 ? 2 : 1), slots = (uint64_t)x->dims[2], heads = (uint64_t)x->dims[1], rows = (uint64_t)x->dims[0];
    const uint64_t scales = (uint64_t)DECODE_SCALE_ROW_BYTES(codes, x->dims[3]);
    launch->maps[launch->map_count] = (kernel_map){
        .operand = (uint16_t)index, .type = KERNEL_MAP_BYTE, .rank = 4, .swizzle = codes == DECODE_NVFP4 ? KERNEL_SWIZZLE_64 : KERNEL_SWIZZLE_128, .promotion = KERNEL_PROMOTION_128,
        .dims = {row, slots, heads, rows}, .strides = {row, row * slots, row * slots * heads}, .box = {DECODE_ROW_BYTES(codes), DECODE_KEYS, 1, 1},
    };
    cuda_slot(launch, KERNEL_SLOT_MAP, launch->map_count++, of_codes, 0);
    launch->maps[launch->map_count] = (kernel_map){
        .operand = (uint16_t)index, .of_scales = true, .type = KERNEL_MAP_BYTE, .rank = 4, .swizzle = KERNEL_SWIZZLE_NONE, .promotion = KERNEL_PROMOTION_NONE,
        .dims = {slots * scales, heads, rows, 1}, .strides = {slots * scales, slots * heads * scales, slots * heads * rows * scales}, .box = {(uint32_t)(DECODE_KEYS * scales), 1, 1, 1},
    };
    cuda_slot(launch, KERNEL_SLOT_MAP, launch->map_count++, of_scales, 0);
}

/* Blocks that a multiprocessor of the chip holds: no more than its shared memory has room for, which is what one block may have, and the driver's part of it. Each block has such a part. */
static int held_of(const decode_entry *e, const chip_caps *chip) {
    enum { DRIVER_BYTES = 1024 };
    const int room = (int)((chip->shared_bytes + DRIVER_BYTES) / (shared_bytes(e) + DRIVER_BYTES));
    return room < e->blocks ? room : e->blocks;
}

/* Hundredths of the multiprocessors' places that clusters of so many blocks fill: an H200 has places for 132, 132, 120, 120 and 112 blocks in clusters of 1, 2,
 * 4, 8 and 16, one to a multiprocessor, and for 264, 264, 248, 240 and 224, two to each. Sizes that are no powers of two only where two find room. */
static int filled(int held, int splits) {
    if (splits > 8) return splits == DECODE_SPLITS ? 84 : 0;
    if ((splits & (splits - 1)) != 0 && held < 2) return 0;
    return splits > 2 ? 90 : 100;
}

/* The part of the memory's rate that so many blocks come to where a multiprocessor has places for two, in hundredths: one on each comes to more than two on some of them. Measured on an H200
 * (bench/results/h200/attention.md). */
static int64_t reached(int64_t blocks, int64_t units) {
    enum { MOST_OF_ONE_EACH = 94 };
    const int64_t of_one_each = 145 * blocks / units;
    if (blocks > units) return 60 + 41 * blocks / (2 * units);
    return of_one_each < MOST_OF_ONE_EACH ? of_one_each : MOST_OF_ONE_EACH;
}

/* Blocks that share a tile's keys, each with 64 keys at least: as many as find room at a time, a second round would cost as much as the first; of long rows as many as come to most of the memory's rate. */
static int splits_of(const decode_entry *e, const chip_caps *chip, int64_t tiles, int64_t keys) {
    enum { LONG_PART = 512 };
    const int most = chip_cluster_blocks(chip) < DECODE_SPLITS ? chip_cluster_blocks(chip) : DECODE_SPLITS;
    const int held = held_of(e, chip);
    int splits = 1;
    for (int more = 2; more <= most && keys >= (int64_t)DECODE_WARPS * DECODE_KEYS * more; more++) {
        const bool is_long = e->codes == DECODE_PLAIN && held == 2 && keys >= (int64_t)LONG_PART * more;
        if (tiles * more > (int64_t)held * chip->units * filled(held, more) / 100) continue;
        if (!is_long || reached(tiles * more, chip->units) >= reached(tiles * splits, chip->units)) splits = more;
    }
    return splits;
}

/* A token alone, which sees nothing behind itself: what it sees but its own slot was written by runs before this one. */
static bool is_early(const kernel_run *run) {
    const op_call *call = &run->call;
    const unsigned places = 1u << ATTENTION_ROW | 1u << ATTENTION_POSITION | (op_operand(call, ATTENTION_TABLE) != NULL ? 1u << ATTENTION_TABLE : 0);
    return run->adds_tokens && (run->given_in & places) == places && call->in[ATTENTION_Q]->dims[0] == 1 && call->in[ATTENTION_Q]->dims[2] == 1 && op_attr_int(call->attrs, OP_ATTR_ahead) == 0;
}

dw_status attention_decode_shape(const kernel_run *run, kernel_launcher *launcher) {
    attention_heads by_heads;
    run = attention_by_heads(run, &by_heads);
    const decode_entry *e = find_entry(&run->call, run->chip);
    const decode_division d = divide(&run->call);
    kernel_launch launch;
    attention_decode_arguments *g = cuda_launch(&launch, "attention_decode", e->entry, sizeof *g);
    TRY(attention_take(&launch, run, &g->call));
    g->splits = run->invariant ? 1 : splits_of(e, run->chip, d.tiles, attention_slots(&run->call));
    g->parts = (int32_t)d.parts;
    g->queries = (int32_t)d.together;
    g->early = is_early(run);
    attention_take_blocks(&launch, run, &g->call, &g->blocks);
    if (e->codes) {
        take_code_maps(&launch, run, ATTENTION_K, e->codes, g->map_k, g->map_k_scales);
        take_code_maps(&launch, run, ATTENTION_V, e->codes, g->map_v, g->map_v_scales);
    } else {
        attention_take_map(&launch, run, ATTENTION_K, DECODE_KEYS, g->map_k);
        attention_take_map(&launch, run, ATTENTION_V, DECODE_KEYS, g->map_v);
    }
    cuda_grid(&launch, d.tiles * g->splits, 1, 1);
    launch.block[0] = DECODE_WARPS * 32;
    launch.overlaps = true;
    if (g->splits > 1) launch.cluster[0] = (uint32_t)g->splits, launch.cluster[1] = launch.cluster[2] = 1;
    launch.shared_bytes = shared_bytes(e);
    return launcher->add(launcher, &launch);
}
