/* matmul by tcgen05, many rows: the host half of tiles.cuh. Which products the tiles of tiles.def take, which tile a call gets, and the launch. Pure: knows no driver. */
#include "kernels/gemm/tcgen05/tiles.h"

#include <string.h>

#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"
#include "kernels/gemm/host.h"
#include "kernels/gemm/tcgen05/divide.h"
#include "kernels/gemm/tcgen05/kinds.h"
#include "kernels/quantize/quantised.h"

/* ---- entries ---- */

/* How operands lie: a is stored [k,m], b [k,n]. */
typedef struct tiles_layout { bool at, bn; } tiles_layout;

typedef struct tile_row {
    tcgen05_kind kind;
    const char *image, *entry;
    const char *variant;          /* the entry, or .._claims: where thread blocks claim their units */
    bool claims;
    bool blocks;                  /* its result is in blocks of mxfp8, mxfp4, nvfp4 or fp8_1x128 */
    bool parts;                   /* thread blocks have equal numbers of blocks of k, whatever tile these are of (parts.cuh) */
    tiles_sizes sizes;
    tiles_layout lies;
    bool swapped;                 /* its rows are those of b, its columns all those of a (swap.cuh) */
    bool shared;                  /* two pairs of a cluster have tiles side by side, and bring their rows of a once */
} tile_row;

#define ROWS(kind, image, entry, blocks, ...) {kind, image, entry, entry, false, blocks, false, {__VA_ARGS__}, {false, false}, false, false}, {kind, image, entry, entry "_claims", true, blocks, false, {__VA_ARGS__}, {false, false}, false, false},
#define ENTRY(kind, element, name, tiles, ...) ROWS(kind, "matmul_" #element "_sm100", "matmul_tcgen05_" #element "_" #name, false, __VA_ARGS__, tiles, kind == KIND_E4M3_BLOCK)
#define BLOCKS(kind, element, name, tiles, ...) ROWS(kind, "matmul_" #element "_sm100", "matmul_tcgen05_" #element "_" #name "_blocks", true, __VA_ARGS__, tiles, kind == KIND_E4M3_BLOCK)
#define SWAPPED_ROW(kind, image, entry, parts, ...) {kind, image, entry, entry, false, false, parts, {__VA_ARGS__}, {false, false}, true, false},
#define SWAPPED(kind, element, name, tiles, ...)                                                                                                             \
    SWAPPED_ROW(kind, "matmul_" #element "_sm100", "matmul_tcgen05_" #element "_" #name "_swapped", false, __VA_ARGS__, tiles, 0)                          \
    SWAPPED_ROW(kind, "matmul_" #element "_sm100", "matmul_tcgen05_" #element "_" #name "_swapped_parts", true, __VA_ARGS__, tiles, 0)
#define SHARED_ROW(kind, image, entry, parts, ...) {kind, image, entry, entry, false, false, parts, {__VA_ARGS__}, {false, false}, false, true},
#define SHARED(kind, element, name, tiles, ...) SHARED_ROW(kind, "matmul_" #element "_sm100", "matmul_tcgen05_" #element "_" #name "_shared", false, __VA_ARGS__, tiles, 0) SHARED_ROW(kind, "matmul_" #element "_sm100", "matmul_tcgen05_" #element "_" #name "_shared_parts", true, __VA_ARGS__, tiles, 0)
#define PARTS(kind, element, name, tiles, ...) {kind, "matmul_" #element "_sm100", "matmul_tcgen05_" #element "_" #name "_parts", "matmul_tcgen05_" #element "_" #name "_parts", false, false, true, {__VA_ARGS__, tiles, 0}, {false, false}, false, false},

static const tile_row tiles[] = {
#define TILES_DENSE(name, ...) ENTRY(KIND_HALF, half, name, 0, __VA_ARGS__)
#define TILES_DENSE_BLOCKS(name, ...) BLOCKS(KIND_HALF, half, name, 0, __VA_ARGS__)
#define TILES_DENSE_PARTS(name, ...) PARTS(KIND_HALF, half, name, 0, __VA_ARGS__)
#define TILES_DENSE_SWAPPED(name, ...) SWAPPED(KIND_HALF, half, name, 0, __VA_ARGS__)
#define TILES_DENSE_SHARED(name, ...) SHARED(KIND_HALF, half, name, 0, __VA_ARGS__)
#include "kernels/gemm/tcgen05/tiles.def"
#undef TILES_DENSE
#undef TILES_DENSE_BLOCKS
#undef TILES_DENSE_PARTS
#undef TILES_DENSE_SWAPPED
#undef TILES_DENSE_SHARED
#define TURNED_ROW(entry, parts, at, bn, ...) {KIND_HALF, "matmul_half_turned_sm100", entry, entry, false, false, parts, {__VA_ARGS__, 0, 0}, {at, bn}, false, false},
#define TILES_TURNED(name, at, bn, ...) TURNED_ROW("matmul_tcgen05_half_" #name, false, at, bn, __VA_ARGS__) TURNED_ROW("matmul_tcgen05_half_" #name "_parts", true, at, bn, __VA_ARGS__)
#include "kernels/gemm/tcgen05/tiles.def"
#undef TILES_TURNED
#define TILES_DENSE(name, ...) ENTRY(KIND_E4M3, e4m3, name, 0, __VA_ARGS__)
#define TILES_DENSE_BLOCKS(name, ...) BLOCKS(KIND_E4M3, e4m3, name, 0, __VA_ARGS__)
#define TILES_DENSE_PARTS(name, ...) PARTS(KIND_E4M3, e4m3, name, 0, __VA_ARGS__)
#define TILES_DENSE_SWAPPED(name, ...) SWAPPED(KIND_E4M3, e4m3, name, 0, __VA_ARGS__)
#define TILES_DENSE_SHARED(name, ...) SHARED(KIND_E4M3, e4m3, name, 0, __VA_ARGS__)
#include "kernels/gemm/tcgen05/tiles.def"
#undef TILES_DENSE
#undef TILES_DENSE_BLOCKS
#undef TILES_DENSE_PARTS
#undef TILES_DENSE_SWAPPED
#undef TILES_DENSE_SHARED
#define TILES_PROMOTED(name, ...) ENTRY(KIND_E4M3_BLOCK, e4m3_block, name, 0, __VA_ARGS__)
#define TILES_PROMOTED_BLOCKS(name, ...) BLOCKS(KIND_E4M3_BLOCK, e4m3_block, name, 0, __VA_ARGS__)
#include "kernels/gemm/tcgen05/tiles.def"
#undef TILES_PROMOTED
#undef TILES_PROMOTED_BLOCKS
#define TILES_SCALED(name, ...) ENTRY(KIND_MXFP8, mxfp8, name, 1, __VA_ARGS__)
#define TILES_SCALED_BLOCKS(name, ...) BLOCKS(KIND_MXFP8, mxfp8, name, 1, __VA_ARGS__)
#define TILES_SCALED_PARTS(name, ...) PARTS(KIND_MXFP8, mxfp8, name, 1, __VA_ARGS__)
#define TILES_SCALED_SWAPPED(name, ...) SWAPPED(KIND_MXFP8, mxfp8, name, 1, __VA_ARGS__)
#define TILES_SCALED_SHARED(name, ...) SHARED(KIND_MXFP8, mxfp8, name, 1, __VA_ARGS__)
#include "kernels/gemm/tcgen05/tiles.def"
#undef TILES_SCALED
#undef TILES_SCALED_BLOCKS
#undef TILES_SCALED_PARTS
#undef TILES_SCALED_SWAPPED
#undef TILES_SCALED_SHARED
#define TILES_SCALED(name, ...) ENTRY(KIND_MXFP4, mxfp4, name, 2, __VA_ARGS__)
#define TILES_SCALED_BLOCKS(name, ...) BLOCKS(KIND_MXFP4, mxfp4, name, 2, __VA_ARGS__)
#define TILES_SCALED_PARTS(name, ...) PARTS(KIND_MXFP4, mxfp4, name, 2, __VA_ARGS__)
#define TILES_SCALED_SWAPPED(name, ...) SWAPPED(KIND_MXFP4, mxfp4, name, 2, __VA_ARGS__)
#define TILES_SCALED_SHARED(name, ...) SHARED(KIND_MXFP4, mxfp4, name, 2, __VA_ARGS__)
#include "kernels/gemm/tcgen05/tiles.def"
#undef TILES_SCALED
#undef TILES_SCALED_BLOCKS
#undef TILES_SCALED_PARTS
#undef TILES_SCALED_SWAPPED
#undef TILES_SCALED_SHARED
#define TILES_SCALED(name, ...) ENTRY(KIND_NVFP4, nvfp4, name, 4, __VA_ARGS__)
#define TILES_SCALED_BLOCKS(name, ...) BLOCKS(KIND_NVFP4, nvfp4, name, 4, __VA_ARGS__)
#define TILES_SCALED_PARTS(name, ...) PARTS(KIND_NVFP4, nvfp4, name, 4, __VA_ARGS__)
#define TILES_SCALED_SWAPPED(name, ...) SWAPPED(KIND_NVFP4, nvfp4, name, 4, __VA_ARGS__)
#define TILES_SCALED_SHARED(name, ...) SHARED(KIND_NVFP4, nvfp4, name, 4, __VA_ARGS__)
#include "kernels/gemm/tcgen05/tiles.def"
#undef TILES_SCALED
#undef TILES_SCALED_BLOCKS
#undef TILES_SCALED_PARTS
#undef TILES_SCALED_SWAPPED
#undef TILES_SCALED_SHARED
};

/* A step that joins columns: one half of the tile's are n / 2 further on, and results come in parts of 16. Scales come by whole tiles of 128 columns, so each half is one of them; those by block are one
 * for 64 neighbours. */
bool tcgen05_tile_runs(const tiles_sizes *s, bool halves, int64_t half) {
    if (!halves) return true;
    if (s->promotes) return half % 64 == 0;
    return s->n >= 32 && (s->scale_tiles == 0 || (s->n == 256 && half % 128 == 0));
}
bool tcgen05_swapped_runs(const tiles_sizes *s, bool parts, bool halves, int64_t half) {
    return !halves || s->scale_tiles == 0 || (tiles_hands_over(*s) && !parts && half % 128 == 0);
}
static bool runs(const tile_row *t, tcgen05_kind kind, tiles_layout lies, bool halves, int64_t half) {
    return t->kind == kind && t->lies.at == lies.at && t->lies.bn == lies.bn && (t->swapped ? tcgen05_swapped_runs(&t->sizes, t->parts, halves, half) : tcgen05_tile_runs(&t->sizes, halves, half));
}

static tiles_layout layout_of(const op_attrs *attrs) { return (tiles_layout){op_attr_bool(attrs, OP_ATTR_at), !op_attr_bool(attrs, OP_ATTR_bt)}; }

/* ---- what is taken ---- */

static int64_t columns_of_b(const kernel_problem *problem) {
    int64_t n = 0;
    (void)dim_is_constant(problem->in[1]->dims[problem->in[1]->rank - (layout_of(problem->attrs).bn ? 1 : 2)], &n);
    return n;
}

/* A result in blocks has scales for 32 columns, in tiles of 4 of them: the result's columns of a tile are whole ones. */
static bool gives(const tile_row *t, bool blocks, bool halves) { return t->blocks == blocks && (!blocks || t->sizes.n / (halves ? 2 : 1) % 128 == 0); }

static bool has_tile(tcgen05_kind kind, tiles_layout lies, bool blocks, bool halves, int64_t n) {
    for (size_t i = 0; i < COUNT_OF(tiles); i++)
        if (runs(&tiles[i], kind, lies, halves, n / 2) && gives(&tiles[i], blocks, halves)) return true;
    return false;
}

const char *tcgen05_no_tile(const tcgen05_product *product, bool blocks) {
    if (product->kind == KIND_E4M3_BLOCK) return blocks ? "no tile with scales by block of k joins so many columns and writes results in blocks" : "half of n is not a multiple of 64, and scales are for blocks of 128 columns";
    return "half of n is not a multiple of 128, and scales come for 128 columns together";
}

/* Operands that lie turned are of 16 bits, and have rows of whole 16 bytes as they lie: those and n have to be known. */
static const char *refuses_turned(const kernel_problem *problem, tiles_layout lies, tcgen05_product *product, text *why) {
    const op_type *a = problem->in[0], *b = problem->in[1];
    int64_t row[2], n, batch;
    if (!tcgen05_product_of(a->format, b->format, product) || product->kind != KIND_HALF) return "operands that are stored with k first are read in bf16 and f16 alone";
    if (!dim_is_constant(a->dims[a->rank - 1], &row[0]) || !dim_is_constant(b->dims[b->rank - 1], &row[1]) || !dim_is_constant(b->dims[b->rank - (lies.bn ? 1 : 2)], &n))
        return "n, or how long the operands' rows are, is not known at plan time";
    if (row[0] == 0 || row[1] == 0 || n == 0) return "k, n or m is 0";
    for (int i = 0; lies.at && i < a->rank - 2; i++)
        if (!dim_is_constant(a->dims[i], &batch) || batch != 1) return "a has batches and is stored with k first";
    for (int i = 0; lies.bn && i < b->rank - 2; i++)
        if (!dim_is_constant(b->dims[i], &batch) || batch != 1) return "b has batches";
    for (int i = 0; i < 2; i++)
        if (row[i] % 8 != 0) {
            text_printf(why, "rows of operand %d, of %lld elements as it lies, are not multiples of 16 bytes", i, (long long)row[i]);
            return text_string(why);
        }
    return matmul_reject_result(problem, why);
}

static const char *refuses(const kernel_problem *problem, bool blocks, text *why) {
    const bool halves = matmul_halves_columns(&problem->post);
    tcgen05_product product;
    const tiles_layout lies = layout_of(problem->attrs);
    const bool turned = lies.at || lies.bn;
    const char *reason = turned ? refuses_turned(problem, lies, &product, why) : tcgen05_refuses(problem, &product, why);
    if (reason == NULL && !turned) reason = tcgen05_refuses_layout(problem, &product, why);
    if (reason == NULL && turned && blocks) reason = "no tile of operands that are stored with k first writes results in blocks";
    if (reason != NULL) return reason;
    return has_tile(product.kind, lies, blocks, halves, columns_of_b(problem)) ? NULL : tcgen05_no_tile(&product, blocks);
}

const char *matmul_tcgen05_tiles_refuses(const kernel_problem *problem, text *why) { return refuses(problem, false, why); }

/* nvfp4 comes with its second level, as op/matmul.c has it. */
static bool is_written(const op_type *out) {
    return out->format == DW_FORMAT_nvfp4 || out->format == DW_FORMAT_mxfp8 || out->format == DW_FORMAT_mxfp4 || (out->format == DW_FORMAT_fp8_1x128 && out->scale_layout == DW_SCALE_plain);
}

const char *matmul_tcgen05_tiles_blocks_refuses(const kernel_problem *problem, text *why) {
    op_type type;
    const op_type *result;
    if (!is_written(problem->out[0])) return "it writes results in blocks of mxfp8, mxfp4, nvfp4 or fp8_1x128";
    const kernel_problem plain = quantised_plain(problem, &type, &result);
    return refuses(&plain, true, why);
}

/* ---- which tile, how long ---- */

/* units_m, units_n: units of the result, which are tiles, or those of a pair; of swapped operands units_m counts those of a row. */
typedef struct tiles_call {
    int64_t m, n, n_out, k;
    bool halves, blocks;          /* blocks: the result is in such */
    tiles_layout lies;
    tcgen05_product product;
    const tile_row *tile;
    int64_t units_m, units_n;
    int64_t columns;              /* that a tile of swapped operands multiplies: whole instructions, of a pair each block's half */
    tiles_division parts;         /* of tiles in parts; else zeros */
} tiles_call;

static int64_t blocks_of(const tiles_call *c) { return base_ceil_div(tcgen05_row_bytes(&c->product, c->k), TILES_ROW_BYTES); }
/* Thread blocks of a unit: a pair, or two of them that share rows. */
static int blocks_of_unit(const tile_row *t) { return t->sizes.pair * (t->shared ? 2 : 1); }
static int64_t units_at_a_time(const tile_row *t, const chip_caps *chip) { return chip->units > blocks_of_unit(t) ? chip->units / blocks_of_unit(t) : 1; }

static void size_units(tiles_call *c, const tile_row *t, const chip_caps *chip) {
    c->tile = t;
    c->columns = t->swapped ? base_align_up((size_t)c->m, (size_t)(TILES_PART * t->sizes.pair)) : 0;
    c->units_m = base_ceil_div(!t->swapped ? c->m : c->halves ? 2 * c->n_out : c->n, TILES_ROWS * t->sizes.pair);
    c->units_n = t->swapped ? 1 : base_ceil_div(c->n_out, (c->halves ? t->sizes.n / 2 : t->sizes.n) * (t->shared ? 2 : 1));
    c->parts = (tiles_division){0};
    if (t->parts && blocks_of(c) > 0) c->parts = tiles_divide_evenly(c->units_m * c->units_n, units_at_a_time(t, chip), blocks_of(c));
}

int64_t tcgen05_band(const tiles_sizes *s, int64_t units_m, int64_t units_n, int64_t at_a_time) {
    int64_t best = 1, least = 0;
    for (int64_t band = 1; band <= units_m && band <= at_a_time; band++) {
        const int64_t across = base_ceil_div(at_a_time, band), rows = band * TILES_ROWS * s->pair + (across < units_n ? across : units_n) * s->n;
        if (band > 1 && rows >= least) continue;
        best = band;
        least = rows;
    }
    return best;
}
static int64_t band_of(const tiles_call *c, const chip_caps *chip) { return tcgen05_band(&c->tile->sizes, c->units_m, c->units_n, units_at_a_time(c->tile, chip)); }

/* As counted in machine code (README.md): instructions of a k-block of the warps that multiply and load, 2 for each copy of scales and 11 for the wait for them and what else they ask for, 19 for a wait and a commit for the sums of each k-block; issue cycles of a warp's part of 16 columns, and of a step of the post
 * list on it, and of swapped tiles, which store row by row without TMA (by the simulator's count of instructions); cycles from the last product of a tile to the next tile's first one, where their sums share columns, which are loaded in between: a guess by the latencies of chip.def. */
enum { MULTIPLY_INSTRUCTIONS = 32, COPY_INSTRUCTIONS = 2, SCALE_INSTRUCTIONS = 11, PROMOTE_INSTRUCTIONS = 19, LOAD_INSTRUCTIONS = 24, PART_CYCLES = 100, STEP_CYCLES = 100, SWAPPED_PART_CYCLES = 410, SWAPPED_STEP_CYCLES = 280, SUMS_CYCLES = 350 };

kernel_tiles tcgen05_tiles(const tiles_sizes *sizes, bool swapped, int steps) {
    const tiles_sizes s = *sizes;
    const int copies = (1 + tiles_b_scale_tiles(s)) * s.scale_tiles, part = swapped ? SWAPPED_PART_CYCLES + SWAPPED_STEP_CYCLES * steps : PART_CYCLES + STEP_CYCLES * steps;
    return (kernel_tiles){.m = TILES_ROWS * s.pair, .n = s.n, .blocks = s.pair, .stages = tiles_stages(s), .accumulators = s.promotes ? 1 : 2,
                          .multiply = MULTIPLY_INSTRUCTIONS + COPY_INSTRUCTIONS * copies + SCALE_INSTRUCTIONS * (copies > 0) + PROMOTE_INSTRUCTIONS * s.promotes, .load = LOAD_INSTRUCTIONS,
                          .epilogue_cycles = s.n / TILES_PART * (double)part, .sums_cycles = tiles_overlap(s) > 0 ? SUMS_CYCLES : 0};
}

/* As the tile has it, swapped where its operands are. */
static kernel_product product_of(const tiles_call *c, const kernel_run *run) {
    const kernel_product product = {.m = c->m, .n = c->n, .k = c->k, .bits = {c->product.element_bits, c->product.b_bits}, .scale_block = c->product.scale_block,
                                    .promotes = c->product.kind == KIND_E4M3_BLOCK, .result_bytes = dw_format_bits(run->call.out[0]->format) / 8.0};
    kernel_product swapped = product;
    swapped.m = product.n, swapped.n = product.m;
    swapped.bits[0] = product.bits[1], swapped.bits[1] = product.bits[0];
    return c->tile->swapped ? swapped : product;
}

static void bound_of(const tiles_call *c, const kernel_run *run, kernel_tiles_bound *bound) {
    const kernel_product product = product_of(c, run);
    kernel_tiles t = tcgen05_tiles(&c->tile->sizes, c->tile->swapped, run->post.count);
    t.raster = (int)band_of(c, run->chip);
    if (c->tile->parts) t.streams = true, t.share = c->parts.each, t.cuts = (double)(c->parts.cuts * (c->tile->shared ? 2 : 1)), t.others = (double)c->parts.others, t.whole_behind = c->parts.behind;
    t.trims = c->tile->swapped;
    t.share_a = c->tile->shared ? 2 : 1;
    if (c->tile->swapped) t.epilogue_cycles *= (double)c->columns / t.n;
    if (run->call.out[0]->format == DW_FORMAT_fp8_1x128) t.epilogue_cycles *= 2;   /* results are computed twice */
    kernel_tiles_bound_of(&t, &product, run->chip, bound);
}

/* Of parts: two for each warp of a unit, of which fewer than two for each block or pair are divided. */
static size_t counter_bytes(const chip_caps *chip) { return (size_t)chip->units * 2 * 4 * 2 * sizeof(uint32_t); }

/* Parts by estimate: behind which whole units come, or where there are enough blocks of k for all multiprocessors. Never where sums are to be divided alike for any number of rows; nor where blocks of k are more than they count to. */
static bool divides(const tiles_call *c, const kernel_run *run, bool measured) {
    const int64_t all = c->parts.units * blocks_of(c);
    if (!c->tile->parts) return true;
    return !run->invariant && all <= INT32_MAX / 2 && counter_bytes(run->chip) <= KERNEL_COUNTER_BYTES && (measured || c->parts.behind || all >= TILES_LEAST_RANGE * units_at_a_time(c->tile, run->chip));
}

/* What bounds the tile, of parts in the division of the least bound. */
static void size_best(tiles_call *c, const tile_row *t, const kernel_run *run, kernel_tiles_bound *bound) {
    tiles_division rest;
    kernel_tiles_bound other;
    size_units(c, t, run->chip);
    bound_of(c, run, bound);
    if (!t->parts || !tiles_divide_rest(c->units_m * c->units_n, units_at_a_time(t, run->chip), blocks_of(c), &rest)) return;
    const tiles_division evenly = c->parts;
    c->parts = rest;
    bound_of(c, run, &other);
    if (other.seconds < bound->seconds) *bound = other;
    else c->parts = evenly;
}

/* Of swapped operands a tile has all rows of a. */
static bool has_columns(const tiles_call *c) { return !c->tile->swapped || c->m <= c->tile->sizes.n; }

/* What parts have to gain by estimate, as their waiting for each other is a guess. */
static const double PARTS_GAIN = 1.02;

/* The measured tile, or the one of least bound, which claims no units and shares no rows: what that buys only measurements say. On a chip of whose tensor units nobody knows the rate all are alike: the first one. */
static tiles_call call_of(const kernel_run *run) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1], *out = run->call.out[0];
    const tiles_layout lies = layout_of(run->call.attrs);
    tiles_call c = {.m = kernel_result_rows(&run->call), .n = b->dims[b->rank - (lies.bn ? 1 : 2)], .n_out = out->dims[out->rank - 1], .k = a->dims[a->rank - (lies.at ? 2 : 1)], .lies = lies,
                    .halves = matmul_halves_columns(&run->post), .blocks = dw_format_is_block(out->format)};
    const tile_row *best = NULL, *measured = run->variant > 0 ? &tiles[run->variant - 1] : NULL;
    double least = 0;
    kernel_tiles_bound bound;
    tcgen05_product_of(a->format, b->format, &c.product);
    for (size_t i = 0; i < COUNT_OF(tiles); i++) {
        if (!runs(&tiles[i], c.product.kind, c.lies, c.halves, c.n / 2) || !gives(&tiles[i], c.blocks, c.halves) || ((tiles[i].claims || tiles[i].shared) && measured != &tiles[i])) continue;
        size_best(&c, &tiles[i], run, &bound);
        if (!divides(&c, run, measured == &tiles[i]) || (!has_columns(&c) && measured != &tiles[i])) continue;
        if (best != NULL && best == measured) break;
        const double seconds = bound.seconds * (tiles[i].parts ? PARTS_GAIN : 1);
        if (measured != &tiles[i] && best != NULL && seconds >= least) continue;
        best = &tiles[i];
        least = seconds;
    }
    size_best(&c, best, run, &bound);
    return c;
}

bool matmul_tcgen05_tiles_bound(const kernel_run *run, kernel_tiles_bound *bound) {
    const tiles_call c = call_of(run);
    if (!kernel_tiles_known(run->chip)) return false;
    bound_of(&c, run, bound);
    return true;
}

bool matmul_tcgen05_tiles_blocks_bound(const kernel_run *run, kernel_tiles_bound *bound) { return matmul_tcgen05_tiles_bound(run, bound); }

double matmul_tcgen05_tiles_seconds(const kernel_run *run) {
    kernel_tiles_bound bound;
    return matmul_tcgen05_tiles_bound(run, &bound) ? bound.seconds : kernel_run_roofline(run, run->call.in[0]->format, 1, 1);
}

double matmul_tcgen05_tiles_blocks_seconds(const kernel_run *run) { return matmul_tcgen05_tiles_seconds(run); }

/* Rows of a's matrices one below the other: their scales lie so, too, where each has whole tiles of them. */
static bool scales_run_on(const dw_tensor *a) {
    int64_t batches = 1;
    for (int i = 0; i < a->rank - 2; i++) batches *= a->dims[i];
    return batches == 1 || a->rank < 2 || a->dims[a->rank - 2] % 128 == 0;
}

const char *matmul_tcgen05_tiles_takes(const kernel_run *run, text *why) {
    const tiles_call c = call_of(run);
    if (c.k == 0) return "k is 0";
    if (!has_columns(&c)) return kernel_because(why, "%lld rows are more than the %d columns of the tile that was measured", (long long)c.m, c.tile->sizes.n);
    if (c.m > INT32_MAX / 2 || c.n > INT32_MAX / 2 || c.k > INT32_MAX / 4 || c.units_m * c.units_n > INT32_MAX / 2)
        return kernel_because(why, "%lld x %lld x %lld is more than it counts to", (long long)c.m, (long long)c.n, (long long)c.k);
    if (c.product.scale_block > 0 && !scales_run_on(run->call.in[0])) return kernel_because(why, "a has batches of %lld rows, and tiles of scales for each", (long long)run->call.in[0]->dims[run->call.in[0]->rank - 2]);
    return NULL;
}

const char *matmul_tcgen05_tiles_blocks_takes(const kernel_run *run, text *why) {
    if (run->call.out[0]->scale_layout == DW_SCALE_tile128x4 && !scales_run_on(run->call.out[0])) return kernel_because(why, "the result has batches, and tiles of scales for each");
    return matmul_tcgen05_tiles_takes(run, why);
}

static const char *variant_of(const kernel_problem *problem, int index, bool blocks) {
    const bool halves = matmul_halves_columns(&problem->post);
    tcgen05_product product;
    if (index >= (int)COUNT_OF(tiles)) return NULL;
    tcgen05_product_of(problem->in[0]->format, problem->in[1]->format, &product);
    if (tiles[index].parts && problem->invariant) return "";
    return runs(&tiles[index], product.kind, layout_of(problem->attrs), halves, columns_of_b(problem) / 2) && gives(&tiles[index], blocks, halves) ? tiles[index].variant : "";
}

const char *matmul_tcgen05_tiles_variant(const kernel_problem *problem, int index) { return variant_of(problem, index, false); }
const char *matmul_tcgen05_tiles_blocks_variant(const kernel_problem *problem, int index) { return variant_of(problem, index, true); }

/* ---- the launch ---- */

/* Sums of parts, two for each thread block that the chip holds at a time, of the largest tile that comes in parts. Whatever the sizes, as other numbers of rows may divide more. */
static size_t part_sum_bytes(const chip_caps *chip) {
    size_t most = 0;
    for (size_t i = 0; i < COUNT_OF(tiles); i++)
        if (tiles[i].parts && (size_t)tiles[i].sizes.n > most) most = (size_t)tiles[i].sizes.n;
    return 2 * (size_t)(chip->units > 2 ? chip->units : 2) * TILES_ROWS * most * sizeof(float);
}

size_t matmul_tcgen05_tiles_workspace(const kernel_run *run) {
    const int64_t k = run->call.in[0]->dims[run->call.in[0]->rank - (layout_of(run->call.attrs).at ? 2 : 1)];
    tcgen05_product product;
    tcgen05_product_of(run->call.in[0]->format, run->call.in[1]->format, &product);
    if (run->invariant || product.kind == KIND_E4M3_BLOCK || tcgen05_row_bytes(&product, k) <= TILES_ROW_BYTES) return 0;
    return part_sum_bytes(run->chip);
}

static void take_parts(kernel_launch *launch, const tiles_call *c, matmul_parts *parts) {
    parts->units = (int32_t)c->parts.units;
    parts->share = (int32_t)c->parts.share;
    parts->longer = (int32_t)c->parts.longer;
    if (blocks_of(c) <= 1) return;
    cuda_slot(launch, KERNEL_SLOT_COUNTERS, 0, &parts->counters, 0);
    cuda_slot(launch, KERNEL_SLOT_WORKSPACE, 0, &parts->sums, 0);
}

/* A result in blocks, and where its scales lie. */
static void take_result_blocks(kernel_launch *launch, const kernel_run *run, const tiles_call *c, matmul_tiles_arguments *g) {
    const dw_tensor *out = run->call.out[0];
    const bool tiled = out->scale_layout == DW_SCALE_tile128x4;
    g->result_bits = dw_format_bits(out->format);
    g->scale_rows = (int32_t)(tiled ? base_align_up((size_t)c->m, 128) : (size_t)c->m);
    g->scale_step = tiled ? (int32_t)base_ceil_div(c->n_out, 4 * num_info(out->format)->cols) : 0;
    if (out->format != DW_FORMAT_nvfp4) return;
    g->level = op_level(run->call.attrs);
    cuda_slot(launch, KERNEL_SLOT_SECOND, KERNEL_RESULT, &g->second, 0);
}

/* An operand as it lies: in rows of k; or turned, in boxes of 64 columns by a stage's 64 of k. */
static void take_operand(kernel_launch *launch, int operand, const tiles_call *c, int64_t rows, int box_rows, const void *field) {
    const bool turned = operand == 0 ? c->lies.at : c->lies.bn;
    if (!turned) {
        tcgen05_take_map(launch, operand, &c->product, rows, tcgen05_row_bytes(&c->product, c->k), box_rows, field);
        return;
    }
    launch->maps[launch->map_count] = (kernel_map){
        .operand = (uint16_t)operand,
        .type = KERNEL_MAP_F16,   /* only the size counts */
        .rank = 2,
        .swizzle = KERNEL_SWIZZLE_128,
        .promotion = KERNEL_PROMOTION_256,
        .dims = {(uint64_t)rows, (uint64_t)c->k},
        .strides = {(uint64_t)rows * 2},
        .box = {64, 64},
    };
    cuda_slot(launch, KERNEL_SLOT_MAP, launch->map_count++, field, 0);
}

/* The instruction descriptor's bits that the host knows: types, of swapped operands the other way round, with N. */
static uint32_t formats_of(const tiles_call *c) {
    return c->tile->swapped ? tcgen05_swapped_formats(c->product.formats) | (uint32_t)(c->columns / 8) << 17 : c->product.formats;
}

/* Two pairs in a cluster where the chip has room for that, else one: so all multiprocessors take part, however many of them lie together. */
static void take_clusters(const tile_row *t, kernel_launch *launch) {
    launch->cluster[0] = (uint32_t)t->sizes.pair;
    launch->preferred[0] = 2 * launch->cluster[0];
    launch->cluster[1] = launch->cluster[2] = launch->preferred[1] = launch->preferred[2] = 1;
}

dw_status matmul_tcgen05_tiles_shape(const kernel_run *run, kernel_launcher *launcher) {
    const tiles_call c = call_of(run);
    const tile_row *t = c.tile;
    const int64_t most = units_at_a_time(t, run->chip), units = c.units_m * c.units_n;
    kernel_launch launch;
    matmul_tiles_arguments *g = cuda_launch(&launch, t->image, t->entry, sizeof *g);
    matmul_take_epilogue(&launch, run, 2, &g->epilogue);
    g->m = (int32_t)(t->swapped ? c.n : c.m);
    g->n = (int32_t)(t->swapped ? c.m : c.n);
    g->columns = (int32_t)c.columns;
    g->blocks = (int32_t)blocks_of(&c);
    g->units_m = (int32_t)c.units_m;
    g->units_n = (int32_t)c.units_n;
    g->band = (int32_t)band_of(&c, run->chip);
    g->b_row_bytes = TILES_ROW_BYTES * c.product.b_bits / c.product.element_bits;
    g->formats = formats_of(&c);
    g->claims = t->claims;
    g->told = (1 << t->sizes.pair) - 1;
    if (t->shared) take_clusters(t, &launch);
    if (c.blocks) take_result_blocks(&launch, run, &c, g);
    if (t->parts) take_parts(&launch, &c, &g->parts);
    take_operand(&launch, 0, &c, c.m, t->swapped ? (int)c.columns / t->sizes.pair : t->shared ? TILES_ROWS / 2 : TILES_ROWS, t->swapped ? g->map_b : g->map_a);
    take_operand(&launch, 1, &c, c.n, !t->swapped ? t->sizes.n / 2 : t->sizes.scale_tiles == 0 ? TILES_ROWS / 2 : TILES_ROWS, t->swapped ? g->map_a : g->map_b);
    if (t->swapped) g->epilogue.by_tma = 0;
    if (g->epilogue.by_tma) tcgen05_take_result(&launch, run, c.m, c.n_out, g->map_out);
    if (c.product.kind == KIND_E4M3_BLOCK) tcgen05_take_block_scales(&launch, c.k, g);
    if (c.product.scale_tiles > 0) {
        tcgen05_take_scales(&launch, run, 0, base_ceil_div(c.m, 128), t->sizes.scale_tiles, t->swapped ? g->map_b_scales : g->map_a_scales);
        tcgen05_take_scales(&launch, run, 1, base_ceil_div(c.n, 128), t->sizes.scale_tiles, t->swapped ? g->map_a_scales : g->map_b_scales);
    }
    cuda_grid(&launch, (t->parts ? c.parts.units < units ? most : c.parts.ranges : units < most || t->claims ? units : most) * blocks_of_unit(t), 1, 1);
    launch.block[0] = (uint32_t)tiles_threads(t->sizes);
    launch.shared_bytes = (uint32_t)tiles_shared_bytes(t->sizes);
    return launcher->add(launcher, &launch);
}

dw_status matmul_tcgen05_tiles_blocks_shape(const kernel_run *run, kernel_launcher *launcher) { return matmul_tcgen05_tiles_shape(run, launcher); }
