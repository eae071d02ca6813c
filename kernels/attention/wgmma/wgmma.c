/* Attention by wgmma: the host half of wgmma.cuh, two ways: entries that store plain results, and those that write results in blocks from registers. Which calls they take,
 * which entry a call gets, and the launch. Pure: knows no driver. */
#include "kernels/attention/wgmma/wgmma.h"

#include "kernels/attention/host.h"
#include "kernels/attention/results.h"
#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"
#include "kernels/quantize/quantised.h"

#include <assert.h>
#include <math.h>

/* ---- entries ---- */

typedef struct wgmma_entry {
    dw_format format, keys_format;   /* of q; of k, and where these are in blocks beside a q that is not, of v */
    const char *image, *entry;
    int groups, width, value_width, keys, stages, q_stages, blocks;
    int scores;                   /* ATTENTION_PLAIN, .. */
    bool paged, stays, quantised;
    int cached;                   /* CACHED_NOT, .. */
} wgmma_entry;

#define CACHED_FORMAT(cached) ((cached) == CACHED_E4M3 ? DW_FORMAT_fp8_1x128 : (cached) == CACHED_MXFP8 ? DW_FORMAT_mxfp8 : DW_FORMAT_nvfp4)

/* Products narrower than the boxes that rows are filled up to: what loads pages, masks and rows of a cache counts bytes of rows as wide as products. */
#define ATTENTION_TILE(name, groups, width, value_width, keys, stages, q_stages, blocks, scores, paged, stays, ...) \
    static_assert(((width) % 64 == 0 && (value_width) % 64 == 0) || ((stays) && !(paged) && (scores) == ATTENTION_PLAIN), #name ": its loads count whole boxes");
#include "kernels/attention/wgmma/tiles.def"
#include "kernels/attention/wgmma/codes.def"
#include "kernels/attention/wgmma/cached.def"
#undef ATTENTION_TILE

/* Narrower ones first. */
static const wgmma_entry entries[] = {
#define ATTENTION_TILE(name, ...) {DW_FORMAT_bf16, DW_FORMAT_bf16, "attention_bf16_sm90", "attention_bf16_" #name, __VA_ARGS__, CACHED_NOT},
#include "kernels/attention/wgmma/tiles.def"
#undef ATTENTION_TILE
#define ATTENTION_TILE(name, ...) {DW_FORMAT_f16, DW_FORMAT_f16, "attention_f16_sm90", "attention_f16_" #name, __VA_ARGS__, CACHED_NOT},
#include "kernels/attention/wgmma/tiles.def"
#undef ATTENTION_TILE
#define ATTENTION_TILE(name, ...) {DW_FORMAT_fp8_1x128, DW_FORMAT_fp8_128x128, "attention_e4m3_sm90", "attention_e4m3_" #name, __VA_ARGS__, CACHED_NOT},
#include "kernels/attention/wgmma/codes.def"
#undef ATTENTION_TILE
#define ATTENTION_TILE(name, groups, width, value_width, keys, stages, q_stages, blocks, scores, paged, stays, quantised, cached) \
    {DW_FORMAT_bf16, CACHED_FORMAT(cached), "attention_cached_sm90", "attention_cached_" #name, groups, width, value_width, keys, stages, q_stages, blocks, scores, paged, stays, quantised, cached},
#include "kernels/attention/wgmma/cached.def"
#undef ATTENTION_TILE
};

/* Are q and k of the entry codes? */
static bool has_codes(const wgmma_entry *e) { return e->format == DW_FORMAT_fp8_1x128; }

typedef struct entry_kind {
    int scores;
    bool stays, quantised, walks;   /* walks: by rows, positions and pages, although thread blocks stay */
} entry_kind;

/* The first behind `before` (NULL: of all) that takes the widths; those that read pages read rows of a cache, too, and come behind the others. */
static const wgmma_entry *next_entry(const op_call *call, entry_kind kind, const wgmma_entry *before) {
    const dw_tensor *q = call->in[ATTENTION_Q], *k = call->in[ATTENTION_K], *v = call->in[ATTENTION_V];
    const bool has_pages = op_operand(call, ATTENTION_TABLE) != NULL;
    for (const wgmma_entry *e = before == NULL ? entries : before + 1; e < entries + COUNT_OF(entries); e++) {
        const bool is_kind = e->scores == kind.scores && e->stays == kind.stays && e->quantised == kind.quantised && (e->paged || !(has_pages || kind.walks));
        if (e->format == q->format && e->keys_format == k->format && is_kind && q->dims[3] <= e->width && v->dims[3] <= e->value_width) return e;
    }
    return NULL;
}
static const wgmma_entry *find_entry(const op_call *call, entry_kind kind) { return next_entry(call, kind, NULL); }

/* ---- what is taken ---- */

enum { MOST_CACHED_WIDTH = 128 };

/* Of keys and values in blocks beside a q in bf16: those whose rows are pieces of 16 bytes, with the scales of each in one word, hidden by position alone. */
static const char *refuses_cached(const kernel_problem *problem, text *why) {
    const op_type *q = problem->in[ATTENTION_Q], *k = problem->in[ATTENTION_K], *v = problem->in[ATTENTION_V];
    op_type types[2];
    const op_type *in[ATTENTION_OPERANDS];
    int64_t width, value_width;
    if (q->format != DW_FORMAT_bf16 || k->format != v->format || (k->format != DW_FORMAT_fp8_1x128 && k->format != DW_FORMAT_mxfp8 && k->format != DW_FORMAT_nvfp4)) {
        text_printf(why, "q is %s, k %s and v %s; of keys and values in blocks it takes fp8_1x128, mxfp8 and nvfp4, both of one format, beside bf16", dw_format_name(q->format), dw_format_name(k->format), dw_format_name(v->format));
        return text_string(why);
    }
    if (k->scale_layout != DW_SCALE_plain || v->scale_layout != DW_SCALE_plain) return "scales of k and v lie in tiles, and it reads plain ones";
    kernel_problem plain = attention_without_blocks(problem, types, in);
    types[0].format = types[1].format = q->format;
    const char *reason = attention_reject_half_operands(&plain, why);
    if (reason == NULL) reason = attention_refuses_scores_of_codes(problem);
    if (reason != NULL || !dim_is_constant(k->dims[3], &width) || !dim_is_constant(v->dims[3], &value_width)) return reason;
    const int of = k->format == DW_FORMAT_fp8_1x128 ? 16 : 32;
    if (width % of == 0 && value_width % of == 0 && width <= MOST_CACHED_WIDTH && value_width <= MOST_CACHED_WIDTH) return NULL;
    text_printf(why, "heads are %lld and %lld wide; of keys in %s it takes multiples of %d up to %d", (long long)width, (long long)value_width, dw_format_name(k->format), of, MOST_CACHED_WIDTH);
    return text_string(why);
}

const char *attention_wgmma_refuses(const kernel_problem *problem, text *why) {
    const char *reason = attention_refuses_cached(problem);
    if (reason != NULL) return reason;
    if (!dw_format_is_block(problem->in[ATTENTION_Q]->format)) return dw_format_is_block(problem->in[ATTENTION_K]->format) ? refuses_cached(problem, why) : attention_reject_half_operands(problem, why);
    reason = attention_refuses_codes(problem, DW_FORMAT_fp8_1x128, DW_FORMAT_fp8_128x128, why);
    for (int i = ATTENTION_ROW; i < problem->n_in && reason == NULL; i++)
        if (problem->in[i] != NULL) reason = "q and k are in blocks, and there are rows, positions or pages of a cache";
    return reason != NULL ? reason : attention_refuses_scores_of_codes(problem);
}

/* ---- which entry, how long ---- */

/* What a tile of 64 x groups queries takes on an H200, fitted to calls by themselves (bench/results/h200/attention.md): the share of the chip's rate of products at which it goes through
 * its blocks of keys, microseconds of a tile besides, and of a call besides. Narrow heads take as many exponentials for fewer products, and other tiles run beside theirs.
 * Those of general entries are of biases by query, of capped ones of one causal call each on an H100. Not measured: 256 wide but plain and capped. width: of heads at most. */
typedef struct tile_rate { int scores, stays, width; double share, tile_us, start_us; } tile_rate;
/* Of its column stays: one thread block to a multiprocessor stays, or several. */
enum { ONE_STAYS = 1, SEVERAL_STAY = 2 };
/* Where keys and values are in blocks, so much of the share of plain ones: measured on an H200 (bench/results/h200/attention.md), of heads of 64 in fp8_1x128 alone. */
static const double cached_shares[] = {[CACHED_NOT] = 1, [CACHED_E4M3] = 0.54, [CACHED_MXFP8] = 0.51, [CACHED_NVFP4] = 0.51};
#define NARROW_CACHED_SHARE 0.63     /* 204 us where bf16 took 132 */
static const tile_rate tile_rates[] = {
    {ATTENTION_PLAIN, 0, 64, 0.598, 0.95, 2.8},
    {ATTENTION_PLAIN, 0, 192, 0.89, 4.1, 4.5},
    {ATTENTION_PLAIN, 0, 256, 0.75, 3.1, 0},
    {ATTENTION_PLAIN, ONE_STAYS, 64, 0.702, 1.1, 2.8},
    {ATTENTION_PLAIN, ONE_STAYS, 80, 0.82, 2.8, 4.5},
    {ATTENTION_PLAIN, ONE_STAYS, 128, 0.896, 1.85, 4.5},
    {ATTENTION_PLAIN, SEVERAL_STAY, 64, 0.633, 0.61, 2.8},
    {ATTENTION_MASKED, ONE_STAYS, 64, 0.67, 1.6, 2.8},
    {ATTENTION_MASKED, ONE_STAYS, 128, 0.88, 5, 0},
    {ATTENTION_KEYS, 0, 64, 0.48, 1.1, 2.8},
    {ATTENTION_KEYS, 0, 192, 0.7, 5, 0},
    {ATTENTION_KEYS, 0, 256, 0.75, 5, 0},
    {ATTENTION_TILED, 0, 64, 0.36, 1.1, 2.8},
    {ATTENTION_TILED, 0, 128, 0.436, 5, 0},
    {ATTENTION_CAPPED, 0, 64, 0.275, 5, 0},
    {ATTENTION_CAPPED, 0, 192, 0.495, 5, 0},
    {ATTENTION_CAPPED, 0, 256, 0.71, 5, 0},
    {ATTENTION_GENERAL, 0, 64, 0.09, 5, 0},
    {ATTENTION_GENERAL, 0, 192, 0.155, 5, 0},
    {ATTENTION_GENERAL, 0, 256, 0.75, 5, 0},
};
/* Thread blocks that stay ask for causal tiles before they need them, and end so much of the longest one apart. */
#define UNEVEN_SHARE 0.2
/* A tile by itself waits for each block in turn: so long at least, where no other runs beside it. */
#define LONE_BLOCK_S 0.85e-6

static const tile_rate *rate_of(const wgmma_entry *e) {
    const tile_rate *rate = tile_rates;
    const int stays = !e->stays ? 0 : e->blocks == 1 ? ONE_STAYS : SEVERAL_STAY;
    while (rate->scores != e->scores || rate->stays != stays || rate->width < e->width) {
        rate++;
        assert(rate < tile_rates + COUNT_OF(tile_rates));   /* each entry has its row */
    }
    return rate;
}

/* Rows of keys and values, or of the table; heads, and slots of a row. */
typedef struct wgmma_cache { int64_t rows, heads, slots; } wgmma_cache;

/* Queries of several texts go through a tile's blocks of keys once for each text. */
static double tile_seconds(const chip_caps *chip, const wgmma_entry *e, const dw_tensor *q, const wgmma_cache *cache, bool has_row, bool causal) {
    double rows = e->groups * 64, tiles = (double)base_ceil_div(q->dims[2], e->groups * 64), all = tiles * (double)(q->dims[0] * q->dims[1]);
    double texts = !has_row ? 1 : (double)(cache->rows < q->dims[2] ? cache->rows : q->dims[2]) / tiles;
    double blocks = (double)base_ceil_div(cache->slots, e->keys), flops = 2 * rows * e->keys * (e->width + e->value_width);
    const tile_rate *rate = rate_of(e);
    const double share = rate->share * (e->cached != CACHED_NOT && e->width <= 64 ? NARROW_CACHED_SHARE : cached_shares[e->cached]), steady_s = flops / (share * chip_flops(chip, has_codes(e) ? DW_FORMAT_bf16 : e->format) / chip->units), block_s = all <= chip->units && steady_s < LONE_BLOCK_S ? LONE_BLOCK_S : steady_s;
    double waves = all > chip->units ? all / chip->units : 1;
    const double uneven_s = e->stays && causal && all > chip->units ? UNEVEN_SHARE * blocks * block_s : 0;
    if (e->blocks == 1 && !causal) waves = ceil(waves);
    if (causal && tiles > 1 && !has_row) blocks = blocks * (tiles + 1) / (2 * tiles) + (e->groups * 64 % e->keys != 0 ? 0.5 : 0);   /* tiles of a block and a half end in the middle of one */
    const double bytes = e->cached != CACHED_NOT ? CACHED_BITS(e->cached) / 8.0 * (e->width + e->value_width) : 2.0 * ((has_codes(e) ? e->width / 2 : e->width) + e->value_width);   /* of a key and a value */
    const double read_s = bytes * (double)(cache->rows * cache->heads * cache->slots) / (0.906 * chip_bytes_per_s(chip));   /* keys and values, once */
    const double tiles_s = 1e-6 * rate->start_us + uneven_s + waves * (1e-6 * rate->tile_us + (texts > 1 ? texts : 1) * blocks * block_s);
    return tiles_s > read_s ? tiles_s : read_s;
}

static bool varies_by_query(const dw_tensor *x) { return x != NULL && x->rank > 1 && x->dims[x->rank - 2] != 1; }

enum { TILED_WIDTH = 128 };       /* of heads: wider ones have no entry of tiles of biases */

/* Can TMA bring a bias in tiles: of the operands' format, all keys of all queries, in pieces of 16 bytes, those of other heads and batches behind it or the same? */
static bool is_tiled(const op_call *call, const dw_tensor *bias) {
    const dw_tensor *q = call->in[ATTENTION_Q], *k = call->in[ATTENTION_K], *v = call->in[ATTENTION_V];
    const int last = bias->rank - 1;
    if (bias->format != q->format || q->dims[3] > TILED_WIDTH || v->dims[3] > TILED_WIDTH) return false;
    if (bias->dims[last] != k->dims[2] || bias->dims[last - 1] != q->dims[2] || bias->strides[last] != 1) return false;
    for (int axis = 0; axis < last; axis++)
        if (bias->dims[axis] > 1 && (bias->strides[axis] < 0 || bias->strides[axis] % 8 != 0)) return false;
    return bias->strides[last - 1] > 0 && (uintptr_t)bias->data % 16 == 0;
}

/* Which entries take the call. Do all queries share what hides or moves scores, and stand where they are? */
static int scores_of(const op_call *call) {
    const dw_tensor *bias = op_operand(call, ATTENTION_BIAS);
    if (!attention_is_general(call)) return ATTENTION_PLAIN;
    const bool is_capped = op_attr_real(call->attrs, OP_ATTR_softcap) > 0;
    if (is_capped && op_operand(call, ATTENTION_MASK) == NULL && bias == NULL) return ATTENTION_CAPPED;
    if (is_capped || !(op_attr_real(call->attrs, OP_ATTR_scale) > 0)) return ATTENTION_GENERAL;
    for (int i = ATTENTION_ROW; i < call->n_in; i++)
        if (call->in[i] != NULL) return ATTENTION_GENERAL;
    if (varies_by_query(op_operand(call, ATTENTION_MASK))) return ATTENTION_GENERAL;
    if (!varies_by_query(bias)) return ATTENTION_KEYS;
    return is_tiled(call, bias) ? ATTENTION_TILED : ATTENTION_GENERAL;
}

enum { LEAST_WRITTEN = 64 };      /* columns of v: narrower heads have entries of their own, which write no blocks */

static bool is_written(dw_format out, dw_scale_layout layout, bool joined) {
    return joined && (out == DW_FORMAT_fp8_1x128 || out == DW_FORMAT_mxfp8) && layout == DW_SCALE_plain;
}

/* The entry that writes a result in blocks from registers: blocks within a head, of heads that are not much narrower than it. */
static const wgmma_entry *find_writer(const op_call *call) {
    const dw_tensor *v = call->in[ATTENTION_V], *out = call->out[0];
    if (!is_written(out->format, out->scale_layout, op_attr_bool(call->attrs, OP_ATTR_joined))) return NULL;
    if (v->dims[3] <= LEAST_WRITTEN || v->dims[3] % num_info(out->format)->cols != 0) return NULL;
    return find_entry(call, (entry_kind){scores_of(call), false, true, false});
}

static int64_t tiles_of(const op_call *call, const wgmma_entry *e) { return base_ceil_div(call->in[ATTENTION_Q]->dims[2], e->groups * 64); }

/* A box of TMA is a block of keys, or a page that is a part of one: rows that begin where the turns of a swizzle do, every 8. */
enum { SWIZZLED_ROWS = 8 };

static double entry_seconds(const kernel_run *run, const wgmma_entry *e) {
    const op_call *call = &run->call;
    const wgmma_cache cache = {attention_rows(call), call->in[ATTENTION_K]->dims[1], attention_slots(call)};
    return tile_seconds(run->chip, e, call->in[ATTENTION_Q], &cache, op_operand(call, ATTENTION_ROW) != NULL, op_attr_bool(call->attrs, OP_ATTR_causal));
}

/* Several to a multiprocessor: short tiles, each of which reads all keys from L2 for its 64 queries. Past more keys than so many that bounds them: 2,048 keys of 8 x 32 heads took 591 us where three warpgroups took 532. */
enum { SHORT_KEYS = 1024 };

/* Does the entry, whose thread blocks stay, pay? Tiles of three warpgroups are for more of them than multiprocessors; not with windows, where they were not measured, nor of a causal head that is one tile. Several thread blocks to a
 * multiprocessor stay for more tiles than they are: fewer took up to a tenth longer than where each thread block makes one. */
static bool may_stay(const kernel_run *run, const wgmma_entry *e, const op_attention_view *view) {
    const dw_tensor *q = run->call.in[ATTENTION_Q];
    const bool slides = view->ahead > 0 || view->window > 0, moves = view->causal || slides;
    const bool is_band = view->window > 0 && (view->causal || view->ahead > 0) && view->window < view->slots - view->ahead;
    const int64_t tiles = tiles_of(&run->call, e), all = tiles * q->dims[0] * q->dims[1], seen = is_band ? view->window + view->ahead : view->slots;
    if (e->blocks > 1) return seen <= SHORT_KEYS && all > run->chip->units * e->blocks;
    const bool large = e->groups * 64 > e->keys;
    return !large || (all > run->chip->units && !slides && !(moves && tiles == 1));
}

/* Rows in shared memory are filled up to boxes of TMA. */
static int filled(int cols) { return (cols + 63) / 64 * 64; }

/* The entry whose thread blocks stay, where a tile's place says what its queries see: without rows, positions and pages, and with no more than a bool mask of keys. Of those that fill rows no further than the
 * narrowest does, that of the least estimate; NULL: none. */
static const wgmma_entry *find_staying(const kernel_run *run, int scores) {
    const op_call *call = &run->call;
    const bool masked = scores == ATTENTION_KEYS && op_operand(call, ATTENTION_BIAS) == NULL;
    const entry_kind kind = {masked ? ATTENTION_MASKED : ATTENTION_PLAIN, true, false, false};
    const wgmma_entry *best = NULL, *narrowest = find_entry(call, kind);
    op_attention_view view;
    if (run->invariant || (scores != ATTENTION_PLAIN && !masked) || op_attention_view_of(call, &view) != DW_OK || view.row != NULL || view.position != NULL || view.table != NULL) return NULL;
    if (masked && (view.causal || view.ahead > 0 || view.window > 0)) return NULL;
    for (const wgmma_entry *e = narrowest; e != NULL; e = next_entry(call, kind, e))
        if (!e->paged && filled(e->width) <= filled(narrowest->width) && may_stay(run, e, &view) && (best == NULL || entry_seconds(run, e) < entry_seconds(run, best))) best = e;
    return best;
}

/* Can pages be loaded a block of keys, or a part of one, at a time? */
static bool has_fit_pages(const op_call *call, const wgmma_entry *e) {
    const int64_t page = call->in[ATTENTION_K]->dims[2];
    return op_operand(call, ATTENTION_TABLE) == NULL || page % e->keys == 0 || (e->keys % page == 0 && page % SWIZZLED_ROWS == 0);
}

/* The entry whose thread blocks stay and look up rows, positions and pages: of keys in pages and more tiles than multiprocessors; of heads up to 64 wide, whose tiles are three times as long as without
 * it, than twice as many (192 tiles took 28.9 us for 21.4, 352 58.3 for 59.3 and 271 for 308). Without pages one tile to a thread block is as fast or, of short caches, faster. NULL: none. */
static const wgmma_entry *find_walking(const kernel_run *run, int scores) {
    const op_call *call = &run->call;
    const dw_tensor *q = call->in[ATTENTION_Q];
    if (run->invariant || scores != ATTENTION_PLAIN) return NULL;
    const wgmma_entry *e = find_entry(call, (entry_kind){ATTENTION_PLAIN, true, false, true});
    if (e == NULL || op_operand(call, ATTENTION_TABLE) == NULL || !has_fit_pages(call, e)) return NULL;
    return tiles_of(call, e) * q->dims[0] * q->dims[1] > (e->groups * 64 > e->keys ? 2 : 1) * run->chip->units ? e : NULL;
}

/* The entry of plain results: of those that take the call the one of the least estimate, but where there are pages. */
static const wgmma_entry *find_plain(const kernel_run *run) {
    const int scores = scores_of(&run->call);
    const wgmma_entry *once = find_entry(&run->call, (entry_kind){scores, false, false, false}), *stays = find_staying(run, scores);
    const wgmma_entry *walks = find_walking(run, scores);
    if (walks != NULL) return walks;
    return stays != NULL && entry_seconds(run, stays) < entry_seconds(run, once) ? stays : once;
}

/* Both by the entry of plain results: there is no other estimate. */
double attention_wgmma_seconds(const kernel_run *run) { return entry_seconds(run, find_plain(run)); }
double attention_wgmma_blocks_seconds(const kernel_run *run) { return entry_seconds(run, find_plain(run)); }

/* None where an entry writes the result in blocks. */
int64_t attention_wgmma_rows(const kernel_run *run) { return find_writer(&run->call) != NULL ? 0 : INT64_MAX; }

const char *attention_wgmma_blocks_refuses(const kernel_problem *problem, text *why) {
    const op_type *out = problem->out[0];
    op_type type;
    const op_type *result;
    if (!is_written(out->format, out->scale_layout, op_attr_bool(problem->attrs, OP_ATTR_joined))) return "it writes results of heads side by side in blocks of fp8_1x128 or mxfp8";
    if (dw_format_is_block(problem->in[1]->format) && !dw_format_is_block(problem->in[0]->format)) return "keys are in blocks and queries are not: no entry of those writes results in blocks";
    const kernel_problem plain = quantised_plain(problem, &type, &result);
    return attention_wgmma_refuses(&plain, why);
}

/* ---- the launch ---- */

static uint32_t shared_bytes(const wgmma_entry *e) {
    const bool has_notes = e->scores != ATTENTION_PLAIN && e->scores != ATTENTION_CAPPED && e->scores != ATTENTION_GENERAL;
    const int rows = e->groups * 64, width = has_codes(e) ? ATTENTION_CODES_WIDTH / 2 : filled(e->width), value_width = filled(e->value_width), results = rows * value_width, queries = e->q_stages * rows * width;
    const int over = e->stays ? queries + results : queries > results ? queries : results, operands = over + e->stages * e->keys * (width + value_width);
    const int codes = e->cached == CACHED_NOT ? 0 : CACHED_BUFFERS * (CACHED_CODE_BYTES(e->cached, e->keys, e->width) + CACHED_SCALE_BYTES(e->cached, e->keys, e->width)) + e->stages * CACHED_FACTOR_BYTES(e->cached, e->keys);
    const int tiles = e->scores == ATTENTION_TILED ? e->stages * rows * e->keys : 0, biases = has_notes ? ATTENTION_BIAS_STAGES * e->keys : 0;
    const int views = (e->stays && e->paged ? ATTENTION_VIEW_STAGES : e->stays ? 0 : 1) * (rows * ATTENTION_ROW_BYTES + (rows + 1) * ATTENTION_SEGMENT_BYTES);
    const int places = e->stays && e->paged ? ATTENTION_PLACES * ATTENTION_PLACE_BYTES(e->keys) : 0;
    return (uint32_t)((operands + tiles) * 2 + codes + biases * 4 + views + places + ATTENTION_BARRIER_BYTES);
}

/* Heads whose tiles fill half of the chip: the more of them read the same keys and values at a time, the less the L2 has to give. In bunches that are about alike. */
static int64_t heads_together(const kernel_run *run, const wgmma_entry *e, int64_t heads, int64_t tiles) {
    const int64_t shared = run->call.in[ATTENTION_Q]->dims[1] / run->call.in[ATTENTION_K]->dims[1], few = (int64_t)run->chip->units * e->blocks / (2 * tiles);
    const int64_t together = base_ceil_div(few > 0 ? few : 1, shared) * shared;
    return base_ceil_div(heads, base_ceil_div(heads, together));
}

/* Which tiles there are, what they see, and in which order they are made. */
static void take_tiles(const kernel_run *run, const wgmma_entry *e, int64_t heads, int64_t tiles, attention_wgmma_arguments *g) {
    const attention_arguments *p = &g->call;
    attention_shifts(p, &g->begin_shift, &g->end_shift);
    g->tiles = (int32_t)tiles;
    g->heads_together = (int32_t)heads_together(run, e, heads, tiles);
    g->last_tiles = p->causal || p->ahead > 0 ? (int32_t)(tiles / 4) : 0;
    g->last_first = !p->causal && p->ahead <= 0 && p->window <= 0;
}

static const char *takes_pages(const op_call *call, const wgmma_entry *e, text *why) {
    const int64_t page = call->in[ATTENTION_K]->dims[2];
    return has_fit_pages(call, e) ? NULL : kernel_because(why, "pages hold %lld keys; it takes multiples of %d, and of %d those that divide it", (long long)page, e->keys, SWIZZLED_ROWS);
}

/* Keys and values in blocks lie as a whole; the scales of a head's rows, or of a page's, fill words. */
static const char *takes_cached(const op_call *call, const wgmma_entry *e, text *why) {
    const dw_tensor *k = call->in[ATTENTION_K], *v = call->in[ATTENTION_V];
    dw_tensor out;
    op_attention_by_heads(call, &out);
    const int64_t rows = k->dims[0] * k->dims[1] * k->dims[2], scales = k->dims[2] * (k->dims[3] / num_info(k->format)->cols), value_scales = v->dims[2] * (v->dims[3] / num_info(v->format)->cols);
    if (attention_slots(call) == 0 || k->dims[0] == 0) return kernel_because(why, "there are no keys");
    if (!attention_has_map(call->in[ATTENTION_Q])) return kernel_because(why, "q does not lie in pieces of 16 bytes");
    if (!dw_format_is_block(out.format) && !attention_has_map(&out)) return kernel_because(why, "the result does not lie in pieces of 16 bytes");
    if (e->cached != CACHED_E4M3 && (scales % 4 != 0 || value_scales % 4 != 0)) return kernel_because(why, "rows or pages hold %lld keys; their scales lie in pieces of 4 bytes where that is a multiple of 4", (long long)k->dims[2]);
    return rows <= INT32_MAX ? NULL : kernel_because(why, "%lld rows of keys are more than it counts to", (long long)rows);
}

static const char *takes(const kernel_run *run, const wgmma_entry *e, text *why) {
    const dw_tensor *q = run->call.in[ATTENTION_Q];
    const int64_t heads = q->dims[0] * q->dims[1], keys = attention_slots(&run->call);
    const char *reason = e->cached != CACHED_NOT ? takes_cached(&run->call, e, why) : has_codes(e) ? attention_lacks_code_maps(&run->call, why) : attention_lacks_maps(&run->call, why);
    if (reason == NULL) reason = takes_pages(&run->call, e, why);
    if (reason != NULL) return reason;
    if (has_codes(e) && keys / ATTENTION_CODES_WIDTH > INT32_MAX / 8 / heads) return kernel_because(why, "%lld keys of %lld heads have more scales than it counts to", (long long)keys, (long long)heads);
    if (keys <= INT32_MAX / 2 && q->dims[2] <= INT32_MAX / 2 && heads <= INT32_MAX / tiles_of(&run->call, e)) return NULL;
    return kernel_because(why, "%lld keys, or %lld queries of %lld heads, are more than it counts to", (long long)keys, (long long)q->dims[2], (long long)heads);
}

const char *attention_wgmma_takes(const kernel_run *run, text *why) { return takes(run, find_plain(run), why); }

const char *attention_wgmma_blocks_takes(const kernel_run *run, text *why) {
    const wgmma_entry *e = find_writer(&run->call);
    const int64_t rows = kernel_result_rows(&run->call);
    if (e == NULL) return kernel_because(why, "no entry writes blocks of heads of this width, or of scores that a mask or bias changes");
    return rows > INT32_MAX / 2 ? kernel_because(why, "%lld queries are more than it counts to", (long long)rows) : takes(run, e, why);
}

static void take_blocks(kernel_launch *launch, const kernel_run *run, attention_wgmma_arguments *g) {
    const dw_tensor *out = run->call.out[0];
    g->call.out.format = quantised_from(run->call.attrs, out->format);
    g->block = (int32_t)num_info(out->format)->cols;
    g->out_row_stride = out->dims[2];
    g->scale_row_stride = out->dims[2] / g->block;
    cuda_slot(launch, KERNEL_SLOT_SCALES, KERNEL_RESULT, &g->scales, 0);
}

static bool moves(const dw_tensor *x, int axis) { return axis >= 0 && x->dims[axis] > 1 && x->strides[axis] != 0; }

static void take_tiles_of_biases(kernel_launch *launch, const kernel_run *run, const wgmma_entry *e, attention_wgmma_arguments *g) {
    if (e->scores != ATTENTION_TILED) return;
    const dw_tensor *bias = run->call.in[ATTENTION_BIAS];
    attention_take_map(launch, run, ATTENTION_BIAS, e->groups * 64, g->map_bias);
    g->bias_head = moves(bias, bias->rank - 3);
    g->bias_batch = moves(bias, bias->rank - 4);
}

static void take_lse(kernel_launch *launch, const kernel_run *run, attention_wgmma_arguments *g) {
    if (run->call.n_out < 2) return;
    cuda_take_array(launch, run, KERNEL_RESULT + 1, &g->lse);
    for (int axis = 0; axis < 3; axis++) g->lse_strides[axis] = run->call.out[1]->strides[axis];
    g->has_lse = true;
}

/* Codes of q and k, and their scales. */
static void take_codes(kernel_launch *launch, const kernel_run *run, const wgmma_entry *e, attention_codes_arguments *codes) {
    attention_wgmma_arguments *g = &codes->call;
    attention_take_codes(launch, run, ATTENTION_Q, e->groups * 64, g->map_q, &codes->q_scales);
    attention_take_codes(launch, run, ATTENTION_K, e->keys, g->map_k, &codes->k_scales);
    attention_lie_as_a_whole(run->call.in[ATTENTION_Q], g->call.q_strides);
    attention_lie_as_a_whole(run->call.in[ATTENTION_K], g->call.k_strides);
}

/* given: the run as it is; run: with its result by heads. */
static dw_status launch_entry(const kernel_run *given, const wgmma_entry *e, kernel_launcher *launcher) {
    attention_heads by_heads;
    const kernel_run *run = attention_by_heads(given, &by_heads);
    const dw_tensor *q = run->call.in[ATTENTION_Q];
    const int64_t heads = q->dims[0] * q->dims[1], tiles = tiles_of(&run->call, e);
    kernel_launch launch;
    const size_t bytes = e->cached != CACHED_NOT ? sizeof(attention_cached_arguments) : has_codes(e) ? sizeof(attention_codes_arguments) : sizeof(attention_wgmma_arguments);
    attention_wgmma_arguments *g = cuda_launch(&launch, e->image, e->entry, bytes);
    TRY(attention_take(&launch, run, &g->call));
    const int rows = g->call.page > 0 && g->call.page < e->keys ? g->call.page : e->keys;
    if (has_codes(e)) take_codes(&launch, run, e, (attention_codes_arguments *)(void *)g);
    else attention_take_map(&launch, run, ATTENTION_Q, e->groups * 64, g->map_q);
    if (e->cached != CACHED_NOT) attention_take_blocks(&launch, run, &g->call, &((attention_cached_arguments *)(void *)g)->blocks);
    if (!has_codes(e) && e->cached == CACHED_NOT) attention_take_map(&launch, run, ATTENTION_K, rows, g->map_k);
    if (e->cached == CACHED_NOT) attention_take_map(&launch, run, ATTENTION_V, rows, g->map_v);
    if (e->quantised) take_blocks(&launch, given, g);
    else attention_take_map(&launch, run, KERNEL_RESULT, e->stays ? 16 : 64, g->map_out);
    take_tiles_of_biases(&launch, run, e, g);
    take_lse(&launch, run, g);
    if (e->stays) cuda_slot(&launch, KERNEL_SLOT_COUNTERS, 0, &g->counter, 0);
    take_tiles(run, e, heads, tiles, g);
    cuda_grid(&launch, e->stays && heads * tiles > run->chip->units * e->blocks ? run->chip->units * e->blocks : heads * tiles, 1, 1);
    launch.block[0] = (uint32_t)(e->cached != CACHED_NOT ? ATTENTION_CACHED_THREADS(e->groups) : ATTENTION_THREADS(e->groups, e->blocks));
    launch.overlaps = true;
    launch.shared_bytes = shared_bytes(e);
    return launcher->add(launcher, &launch);
}

dw_status attention_wgmma_shape(const kernel_run *run, kernel_launcher *launcher) { return launch_entry(run, find_plain(run), launcher); }
dw_status attention_wgmma_blocks_shape(const kernel_run *run, kernel_launcher *launcher) { return launch_entry(run, find_writer(&run->call), launcher); }
