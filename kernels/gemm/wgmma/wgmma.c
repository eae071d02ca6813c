/* matmul by wgmma: the host half of tma.cuh, two ways: tiles that store plain results, and those that write results in blocks. Which products its entries take, which tile a call
 * gets, and the launch. Pure: knows no driver. */
#include "kernels/gemm/arguments.h"

#include <string.h>

#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"
#include "kernels/gemm/host.h"
#include "kernels/gemm/wgmma/tiles.h"

/* ---- entries ---- */

typedef struct wgmma_tile {
    wgmma_kind kind;
    bool blocks;                  /* its result is in blocks of e4m3 along a row (blocks_wgmma.cuh) */
    bool turns;                   /* a tile's epilogue runs under the products of the next one */
    bool at, bn;                  /* a is stored [k,m], b [k,n] */
    const char *image, *entry;
    int parts, tile_m, tile_n, stages, boxes, pair, splits;
    double block_us, tile_us;     /* measured: one block of k, and what a tile costs besides */
} wgmma_tile;

static const wgmma_tile tiles[] = {
#define MATMUL_TILE_HALF(name, ...) {WGMMA_BF16, false, false, false, false, "matmul_bf16_sm90", "matmul_bf16_" #name, 0, __VA_ARGS__},
#define MATMUL_TURNS_HALF(name, tile_m, tile_n, stages, boxes, pair, block_us, tile_us) \
    {WGMMA_BF16, false, true, false, false, "matmul_bf16_sm90", "matmul_bf16_" #name, 0, tile_m, tile_n, stages, boxes, pair, 1, block_us, tile_us},
#include "kernels/gemm/wgmma/tiles.def"
#undef MATMUL_TILE_HALF
#undef MATMUL_TURNS_HALF
#define MATMUL_TURNED_HALF(name, at, bn, tile_m, tile_n, stages, boxes, pair, splits, block_us, tile_us) \
    {WGMMA_BF16, false, false, at, bn, "matmul_bf16_turned_sm90", "matmul_bf16_" #name, 0, tile_m, tile_n, stages, boxes, pair, splits, block_us, tile_us},
#include "kernels/gemm/wgmma/tiles.def"
#undef MATMUL_TURNED_HALF
#define MATMUL_TILE_HALF(name, ...) {WGMMA_F16, false, false, false, false, "matmul_f16_sm90", "matmul_f16_" #name, 0, __VA_ARGS__},
#define MATMUL_TURNS_HALF(name, tile_m, tile_n, stages, boxes, pair, block_us, tile_us) \
    {WGMMA_F16, false, true, false, false, "matmul_f16_sm90", "matmul_f16_" #name, 0, tile_m, tile_n, stages, boxes, pair, 1, block_us, tile_us},
#include "kernels/gemm/wgmma/tiles.def"
#undef MATMUL_TILE_HALF
#undef MATMUL_TURNS_HALF
#define MATMUL_TURNED_HALF(name, at, bn, tile_m, tile_n, stages, boxes, pair, splits, block_us, tile_us) \
    {WGMMA_F16, false, false, at, bn, "matmul_f16_turned_sm90", "matmul_f16_" #name, 0, tile_m, tile_n, stages, boxes, pair, splits, block_us, tile_us},
#include "kernels/gemm/wgmma/tiles.def"
#undef MATMUL_TURNED_HALF
#define MATMUL_TILE_BYTE(name, ...) {WGMMA_E4M3, false, false, false, false, "matmul_e4m3_sm90", "matmul_e4m3_" #name, 0, __VA_ARGS__},
#include "kernels/gemm/wgmma/tiles.def"
#undef MATMUL_TILE_BYTE
#define MATMUL_TILE_SCALED(name, ...) {WGMMA_E4M3_BLOCK, false, false, false, false, "matmul_e4m3_block_sm90", "matmul_e4m3_block_" #name, __VA_ARGS__},
#include "kernels/gemm/wgmma/tiles.def"
#undef MATMUL_TILE_SCALED
#define MATMUL_BLOCKS_BYTE(name, tile_m, tile_n, stages, boxes, pair, block_us, tile_us) \
    {WGMMA_E4M3, true, false, false, false, "matmul_e4m3_sm90", "matmul_e4m3_" #name "_blocks", 0, tile_m, tile_n, stages, boxes, pair, 1, block_us, tile_us},
#include "kernels/gemm/wgmma/tiles.def"
#undef MATMUL_BLOCKS_BYTE
#define MATMUL_BLOCKS_SCALED(name, parts, tile_m, tile_n, stages, boxes, pair, block_us, tile_us) \
    {WGMMA_E4M3_BLOCK, true, false, false, false, "matmul_e4m3_block_sm90", "matmul_e4m3_block_" #name "_blocks", parts, tile_m, tile_n, stages, boxes, pair, 1, block_us, tile_us},
#include "kernels/gemm/wgmma/tiles.def"
#undef MATMUL_BLOCKS_SCALED
};

static bool is_one_scale(dw_format format) { return format == DW_FORMAT_fp8_tensor || format == DW_FORMAT_fp8_row; }

wgmma_kind wgmma_kind_of(dw_format a, dw_format b) {
    if (a == DW_FORMAT_bf16 && b == DW_FORMAT_bf16) return WGMMA_BF16;
    if (a == DW_FORMAT_f16 && b == DW_FORMAT_f16) return WGMMA_F16;
    if (is_one_scale(a) && is_one_scale(b)) return WGMMA_E4M3;
    if (a == DW_FORMAT_fp8_1x128 && b == DW_FORMAT_fp8_128x128) return WGMMA_E4M3_BLOCK;
    return WGMMA_NONE;
}

/* TMA reads rows of whole 16 bytes. */
static bool has_whole_rows(dw_format format, int64_t k) { return k * dw_format_bits(format) / 8 % 16 == 0; }

unsigned matmul_wgmma_dequantised(const dw_format formats[2], const int64_t rows[2]) {
    if (wgmma_kind_of(formats[0], formats[1]) != WGMMA_NONE && has_whole_rows(formats[0], rows[0]) && has_whole_rows(formats[1], rows[1])) return 0;
    return dequantised_operands(formats, rows);
}

/* Does a step join the result's columns with those half of n further on, and if so, does nothing but a bias come before it, and is half of n whole blocks of 128? Tiles of
 * 256 columns whose result is in blocks want that. */
typedef enum wgmma_halving { HALVES_NOT, HALVES_LATE, HALVES_FIRST } wgmma_halving;

static wgmma_halving halving_of(const op_post_list *post, int64_t n) {
    int at = 0;
    while (at < post->count && !op_post_halves(post->steps[at])) at++;
    if (at == post->count) return HALVES_NOT;
    return n % 256 == 0 && (at == 0 || (at == 1 && post->steps[0] == OP_POST_bias)) ? HALVES_FIRST : HALVES_LATE;
}

/* A unit is a tile, or a pair of them one below the other. */
static int64_t units_down(const wgmma_tile *t, int64_t m) { return base_ceil_div(m, t->tile_m * t->pair); }
static int64_t units_across(const wgmma_tile *t, int64_t n_out, bool halves) { return base_ceil_div(n_out, halves ? t->tile_n / 2 : t->tile_n); }

static int64_t units_at_a_time(const wgmma_tile *t, int multiprocessors) {
    int cluster = t->pair * t->splits;
    const int whole = cluster > 2 ? multiprocessors / 33 * 32 / cluster : multiprocessors / cluster;   /* clusters of four leave some multiprocessors out */
    return whole > 0 ? whole : 1;
}

/* Microseconds that a step takes of a tile whose threads hold 128 values each: bias, relu, gelu and swiglu as measured (bench/results/h200/matmul.md), what
 * reads a whole operand as in models' runs (bench/results/h200/models.md), the others by their instructions. */
static const double step_us[OP_POST_COUNT] = {
    [OP_POST_bias] = 0.3, [OP_POST_add] = 7.7, [OP_POST_mul] = 7.7, [OP_POST_relu] = 0.9, [OP_POST_silu] = 2, [OP_POST_gelu] = 2.4, [OP_POST_gelu_tanh] = 2.4, [OP_POST_quick_gelu] = 2,
    [OP_POST_tanh] = 2, [OP_POST_sigmoid] = 1.8, [OP_POST_swiglu] = 0.3, [OP_POST_geglu] = 0.5, [OP_POST_geglu_tanh] = 0.5,
};

/* A post list: all of it, and what of it is arithmetic rather than waiting for operands. */
typedef struct wgmma_steps { double all_us, arithmetic_us; } wgmma_steps;

static wgmma_steps steps_of(const op_post_list *post) {
    wgmma_steps sum = {0, 0};
    for (int i = 0; i < post->count; i++) {
        const double us = step_us[post->steps[i]];
        sum.all_us += us;
        if (op_post_operand_of(post->steps[i]) != OP_POST_FULL) sum.arithmetic_us += us;
    }
    return sum;
}

/* A tile that is taken in turns: its products, which wait a little for registers that the other tile's arithmetic reads, or the other one's epilogue, if that takes longer. One warpgroup's steps
 * take 0.8 of what those of two at a time do. */
enum { EPILOGUE_US = 3 };
static double turn_us(const wgmma_tile *t, int64_t blocks, wgmma_steps steps) {
    const double products = (double)blocks * t->block_us + 0.5 * steps.arithmetic_us, epilogue = EPILOGUE_US + 0.8 * steps.all_us;
    return products > epilogue ? products : epilogue;
}

/* Tiles for few rows, of operands that lie straight, where they leave a quarter of the multiprocessors idle, take less: a start; of 32 columns, a tile; of splits by four that leave half of them idle, a block of k
 * and a tile, as measured with up to so many blocks for each part. As steps of BERT-base and -large of 128 tokens, and of GPT-2 with 16 and 64 texts, on an H200 take them (bench/results/h200/models.md, "Few rows by
 * tiles of our own"). Of ViT-large with 197 rows, where 128 thread blocks run, they take what the other estimate says or more: 8.3 and 18.5 us.
 * Of fp8 with scales by block that was measured of splits alone, with 6 blocks for each part. */
enum { BRIEF_BLOCKS = 16, BRIEF_SCALED_BLOCKS = 6 };
#define START_US 2
#define BRIEF_START_US 0.9
#define BRIEF_NARROW_US 0.8
#define BRIEF_SPLIT_BLOCK_US 0.2
#define BRIEF_SPLIT_US 2.2

static bool is_brief(const wgmma_tile *t, int64_t blocks, int64_t units, int64_t most) {
    const bool is_half = t->kind <= WGMMA_F16, is_scaled = t->kind == WGMMA_E4M3_BLOCK && blocks >= BRIEF_SCALED_BLOCKS;
    if (t->at || t->bn) return false;
    return t->splits == 4 ? (is_half || is_scaled) && blocks <= BRIEF_BLOCKS && 2 * units <= most : is_half && t->tile_m == 64 && 4 * units <= 3 * most;
}

static double microseconds(const wgmma_tile *t, int64_t m, int64_t n_out, int64_t k, bool halves, wgmma_steps steps, int multiprocessors) {
    int64_t blocks = base_ceil_div(base_ceil_div(k * wgmma_element_bytes(t->kind), 128), t->splits), most = units_at_a_time(t, multiprocessors);
    const int64_t units = units_down(t, m) * units_across(t, n_out, halves), waves = base_ceil_div(units, most);
    const bool brief = is_brief(t, blocks, units, most), split = brief && t->splits > 1, narrow = brief && t->tile_n < 64;
    const double part = t->tile_m * t->tile_n / (256.0 * 128) / t->splits, start = brief ? BRIEF_START_US : START_US;
    const double block_us = split ? BRIEF_SPLIT_BLOCK_US : t->block_us, tile_us = split ? BRIEF_SPLIT_US : narrow ? BRIEF_NARROW_US : t->tile_us;
    if (t->turns) return start + (double)waves * turn_us(t, blocks, steps) + t->tile_us;
    return start + (double)waves * ((double)blocks * block_us + tile_us + part * steps.all_us);
}

/* How operands lie. */
typedef struct wgmma_layout { bool at, bn; } wgmma_layout;

static wgmma_layout layout_of(const op_attrs *attrs) { return (wgmma_layout){op_attr_bool(attrs, OP_ATTR_at), !op_attr_bool(attrs, OP_ATTR_bt)}; }

/* Columns that a step joins lie in the two halves of a tile, each of which is stored in boxes of 64, or in none, and has a scale by block of its own. */
static bool takes_halves(const wgmma_tile *t) {
    if (t->bn) return t->tile_n / 2 % 64 == 0;
    return (t->parts == 0 || t->parts == 2) && (t->tile_n / 2 % 64 == 0 || t->splits > 1 || t->tile_n < 64);
}
static bool runs(const wgmma_tile *t, wgmma_kind kind, wgmma_layout lies, wgmma_halving halves) {
    const bool at_once = t->blocks && t->tile_n > 128;
    return t->kind == kind && t->at == lies.at && t->bn == lies.bn && (halves == HALVES_NOT ? !at_once : takes_halves(t) && (!at_once || halves == HALVES_FIRST));
}

/* Results in blocks that tiles write themselves, where the result's columns of a tile are whole blocks. */
static bool is_written(dw_format out, dw_scale_layout layout) { return (out == DW_FORMAT_fp8_1x128 || out == DW_FORMAT_mxfp8) && layout == DW_SCALE_plain; }
/* Does a tile make a result of this format; COUNT: a plain one? */
static bool gives(const wgmma_tile *t, dw_format blocks, bool halves) {
    if (blocks == DW_FORMAT_COUNT) return !t->blocks;
    return t->blocks && is_written(blocks, DW_SCALE_plain) && (halves ? t->tile_n / 2 : t->tile_n) % num_info(blocks)->cols == 0;
}

/* From so many rows on a result in blocks that some tile writes is written by one, so that room for plain results is bounded, and its estimate is not asked. */
enum { WRITTEN_ROWS = 512 };

/* Does it add k in order, whatever it holds side by side? Not where thread blocks share k, or warpgroups, as in tiles of 64 rows. */
static bool is_whole(const wgmma_tile *t) { return t->splits == 1 && (t->tile_m > 64 || t->turns); }

/* The tile of least estimated time among those that give a plain result, blocks COUNT, or one of this format, of which there may be none. whole: of tiles that add k in order alone, so that a
 * row has the same bits among any others. */
static const wgmma_tile *choose_tile(wgmma_kind kind, wgmma_layout lies, int64_t m, int64_t n_out, int64_t k, wgmma_halving halves, wgmma_steps steps, dw_format blocks, bool whole, int multiprocessors) {
    const wgmma_tile *best = NULL;
    double least = 0;
    for (size_t i = 0; i < COUNT_OF(tiles); i++) {
        const wgmma_tile *t = &tiles[i];
        if (!runs(t, kind, lies, halves) || !gives(t, blocks, halves) || (whole && !is_whole(t))) continue;
        double us = microseconds(t, m, n_out, k, halves, steps, multiprocessors);
        if (best == NULL || us < least) best = t, least = us;
    }
    return best;
}

const char *matmul_wgmma_entry(int element, int scaled, int64_t m, int64_t n_out, int64_t k, int halves, int multiprocessors) {
    wgmma_kind kind = element == MATMUL_bf16 ? WGMMA_BF16 : element == MATMUL_f16 ? WGMMA_F16 : element != MATMUL_e4m3 ? WGMMA_NONE : scaled ? WGMMA_E4M3_BLOCK : WGMMA_E4M3;
    const wgmma_tile *tile = choose_tile(kind, (wgmma_layout){false, false}, m, n_out, k, halves ? HALVES_LATE : HALVES_NOT, (wgmma_steps){0, 0}, DW_FORMAT_COUNT, false, multiprocessors);
    return tile == NULL ? NULL : tile->entry;
}

/* ---- what is taken ---- */

static const char *reject_kind(const kernel_problem *problem, wgmma_kind kind, text *why) {
    if (kind != WGMMA_NONE) return NULL;
    text_printf(why, "%s times %s is not one of its products", dw_format_name(problem->in[0]->format), dw_format_name(problem->in[1]->format));
    return text_string(why);
}

/* Rows of an operand, of so many elements. */
static const char *reject_row(const kernel_problem *problem, int operand, const char *name, int64_t size, text *why) {
    if (has_whole_rows(problem->in[operand]->format, size) || problem->dequantised != 0) return NULL;
    text_printf(why, "rows of %s = %lld elements are not multiples of 16 bytes", name, (long long)size);
    return text_string(why);
}

const char *wgmma_reject_products(const kernel_problem *problem, text *why) {
    const op_type *a = problem->in[0], *b = problem->in[1];
    int64_t k, n;
    if (!dim_is_constant(a->dims[a->rank - 1], &k) || !dim_is_constant(b->dims[b->rank - 2], &n)) return "k or n is not known at plan time";
    if (k == 0 || n == 0) return "k or n is 0";
    const wgmma_kind kind = wgmma_kind_of(a->format, b->format);
    const char *reason = reject_kind(problem, kind, why);
    if (reason == NULL) reason = reject_row(problem, 0, "k", k, why);
    if (reason != NULL) return reason;
    if (kind == WGMMA_E4M3_BLOCK && matmul_halves_columns(&problem->post) && n % 128 != 0) return "half of n is not a multiple of 64, and scales are for blocks of 128 columns";
    return NULL;
}

/* Operands that lie turned: what is asked of rows is asked of how long they are as they lie, and only n and rows have to be known. */
static const char *reject_turned(const kernel_problem *problem, wgmma_layout lies, text *why) {
    const op_type *a = problem->in[0], *b = problem->in[1], *out = problem->out[0];
    int64_t row[2], n;
    const wgmma_kind kind = wgmma_kind_of(a->format, b->format);
    const char *reason = reject_kind(problem, kind, why);
    if (reason != NULL) return reason;
    if (kind != WGMMA_BF16 && kind != WGMMA_F16) return "operands of 8 bits are read with k last";
    if (!dim_is_constant(a->dims[a->rank - 1], &row[0]) || !dim_is_constant(b->dims[b->rank - 1], &row[1]) || !dim_is_constant(b->dims[b->rank - (lies.bn ? 1 : 2)], &n))
        return "n, or how long the operands' rows are, is not known at plan time";
    if (row[0] == 0 || row[1] == 0 || n == 0) return "k, n or m is 0";
    if (lies.at && a->rank > 2 && a->rank == out->rank)
        for (int i = 0; i < a->rank - 2; i++)
            if (!dim_is_constant(a->dims[i], &n) || n != 1) return "a has batches and is stored with k first";
    reason = reject_row(problem, 0, lies.at ? "m" : "k", row[0], why);
    if (reason == NULL) reason = reject_row(problem, 1, lies.bn ? "n" : "k", row[1], why);
    if (reason != NULL) return reason;
    return lies.bn && matmul_halves_columns(&problem->post) && row[1] % 16 != 0 ? "half of n is not a multiple of 8, and the columns of a box of a turned b begin at a multiple of 16 bytes" : NULL;
}

const char *matmul_wgmma_refuses(const kernel_problem *problem, text *why) {
    const wgmma_layout lies = layout_of(problem->attrs);
    const char *reason = lies.at || lies.bn ? reject_turned(problem, lies, why) : wgmma_reject_products(problem, why);
    return reason != NULL ? reason : matmul_reject_result(problem, why);
}

/* n, which is known where products are not refused. */
static int64_t columns_of(const kernel_problem *problem) {
    const op_type *b = problem->in[1];
    int64_t n = 0;
    (void)dim_is_constant(b->dims[b->rank - (layout_of(problem->attrs).bn ? 1 : 2)], &n);
    return n;
}

/* Does some tile write the result in blocks? */
static bool has_writer(wgmma_kind kind, wgmma_layout lies, dw_format out, dw_scale_layout layout, wgmma_halving halves) {
    for (size_t i = 0; i < COUNT_OF(tiles) && is_written(out, layout); i++)
        if (runs(&tiles[i], kind, lies, halves) && gives(&tiles[i], out, halves)) return true;
    return false;
}

const char *matmul_wgmma_blocks_refuses(const kernel_problem *problem, text *why) {
    const op_type *a = problem->in[0], *b = problem->in[1], *out = problem->out[0];
    op_type type;
    const op_type *result;
    if (!is_written(out->format, out->scale_layout)) return "it writes results in blocks of fp8_1x128 or mxfp8";
    const kernel_problem plain = quantised_plain(problem, &type, &result);
    const char *reason = matmul_wgmma_refuses(&plain, why);
    if (reason != NULL) return reason;
    return has_writer(wgmma_kind_of(a->format, b->format), layout_of(problem->attrs), out->format, out->scale_layout, halving_of(&problem->post, columns_of(problem))) ? NULL : "no tile of its products writes such blocks";
}

/* ---- which tile, how long ---- */

/* blocks: of the result, DW_FORMAT_COUNT of a plain one. */
typedef struct wgmma_call {
    int64_t m, n, n_out, k;
    wgmma_halving halves;
    dw_format blocks;
    wgmma_kind kind;
    wgmma_layout lies;
    wgmma_steps steps;
    const wgmma_tile *tile;
} wgmma_call;

static wgmma_call call_of(const kernel_run *run) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1], *out = run->call.out[0];
    const wgmma_layout lies = layout_of(run->call.attrs);
    const int64_t n = b->dims[b->rank - (lies.bn ? 1 : 2)];
    wgmma_call c = {.m = kernel_result_rows(&run->call), .n = n, .n_out = out->dims[out->rank - 1], .k = a->dims[a->rank - (lies.at ? 2 : 1)], .lies = lies,
                   .halves = halving_of(&run->post, n), .blocks = dw_format_is_block(out->format) ? out->format : DW_FORMAT_COUNT};
    c.kind = wgmma_kind_of(a->format, b->format);
    c.steps = steps_of(&run->post);
    const wgmma_tile *measured = run->variant > 0 ? &tiles[run->variant - 1] : NULL;
    const bool is_tile = measured != NULL && runs(measured, c.kind, c.lies, c.halves) && gives(measured, c.blocks, c.halves);
    c.tile = is_tile ? measured : choose_tile(c.kind, c.lies, c.m, c.n_out, c.k, c.halves, c.steps, c.blocks, run->invariant, run->chip->units);
    return c;
}

/* A column of a tile whose result has rows that no tensor map describes, as those of odd vocabularies: stores of single elements, as measured of up to 64 rows of GPT-2's logits on an H100. */
#define LOOSE_COLUMN_US 0.069
/* A wave of gated tiles of fp8 by block past few rows: 1 and 64 rows of 16384 x 2048 took 20.3 and 23.9 us in steps of Llama-1B on an H100, where 14.3 and 17.8 were expected. Gated tiles of 16 bits past fewer: 8 rows took
 * 22.8 in such a step on an H200 for 18.2, and 16 rows of 28672 x 4096 some 64 behind a norm for 58 (bench/results/h200/skinny.md). */
enum { FEW_ROWS = 64, FEWER_ROWS = 16 };
#define GATED_WAVE_US 2.0
#define GATED_US 3.0

static double seconds_of(const kernel_run *run) {
    const wgmma_call c = call_of(run);
    const dw_tensor *out = run->call.out[0];
    double us = microseconds(c.tile, c.m, c.n_out, c.k, c.halves, c.steps, run->chip->units);
    const int64_t most = units_at_a_time(c.tile, run->chip->units), waves = base_ceil_div(units_down(c.tile, c.m) * units_across(c.tile, c.n_out, c.halves), most);
    if (c.halves != HALVES_NOT && c.m <= FEW_ROWS && c.kind == WGMMA_E4M3_BLOCK) us += GATED_WAVE_US * (double)waves;
    if (c.halves != HALVES_NOT && c.m <= FEWER_ROWS && c.kind <= WGMMA_F16) us += GATED_US;
    if (c.blocks == DW_FORMAT_COUNT && c.n_out * dw_format_bits(out->format) % 128 != 0) us += LOOSE_COLUMN_US * (double)(waves * c.tile->tile_n);
    return 1e-6 * us;
}

double matmul_wgmma_seconds(const kernel_run *run) { return seconds_of(run); }
double matmul_wgmma_blocks_seconds(const kernel_run *run) { return seconds_of(run); }

/* What bounds the tile that the run gets, which is not its estimate: that is made of measured times. Sums of fp8 are added by threads after each block of k. Bands are GROUP_ROWS of tile.cuh
 * high. */
enum { BAND_ROWS = 2048 };
static bool bound_of(const kernel_run *run, kernel_tiles_bound *bound) {
    if (!kernel_tiles_known(run->chip)) return false;
    const wgmma_call c = call_of(run);
    const wgmma_tile *t = c.tile;
    const int bits = 8 * wgmma_element_bytes(t->kind);
    const kernel_tiles tiles = {.m = t->tile_m, .n = t->tile_n, .share_b = t->pair, .stages = t->stages, .accumulators = t->turns ? 2 : 1, .splits = t->splits,
                                .raster = BAND_ROWS / t->tile_m};
    const kernel_product product = {.m = c.m, .n = c.n, .k = c.k, .bits = {bits, bits}, .promotes = bits == 8, .result_bytes = dw_format_bits(run->call.out[0]->format) / 8};
    kernel_tiles_bound_of(&tiles, &product, run->chip, bound);
    return true;
}

bool matmul_wgmma_bound(const kernel_run *run, kernel_tiles_bound *bound) { return bound_of(run, bound); }
bool matmul_wgmma_blocks_bound(const kernel_run *run, kernel_tiles_bound *bound) { return bound_of(run, bound); }

int64_t matmul_wgmma_rows(const kernel_run *run) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1], *out = run->call.out[0];
    const wgmma_layout lies = layout_of(run->call.attrs);
    const dw_format formats[2] = {a->format, b->format};
    const int64_t rows[2] = {a->dims[a->rank - 1], b->dims[b->rank - 1]};
    const wgmma_kind kind = matmul_wgmma_dequantised(formats, rows) != 0 ? WGMMA_BF16 : wgmma_kind_of(a->format, b->format);
    return has_writer(kind, lies, out->format, out->scale_layout, halving_of(&run->post, b->dims[b->rank - (lies.bn ? 1 : 2)])) ? WRITTEN_ROWS - 1 : INT64_MAX;
}

static const char *takes(const kernel_run *run, text *why) {
    const wgmma_call c = call_of(run);
    if (c.k == 0) return "k is 0";
    if (c.m <= INT32_MAX / 2 && c.n <= INT32_MAX / 2 && c.k <= INT32_MAX / 2) return NULL;
    return kernel_because(why, "%lld x %lld x %lld is more than it counts to", (long long)c.m, (long long)c.n, (long long)c.k);
}

const char *matmul_wgmma_takes(const kernel_run *run, text *why) { return takes(run, why); }
const char *matmul_wgmma_blocks_takes(const kernel_run *run, text *why) { return takes(run, why); }

/* Variants are the tiles, by the names of their entries. */
static const char *variant_of(const kernel_problem *problem, int index, bool blocks) {
    const op_type *a = problem->in[0], *b = problem->in[1], *out = problem->out[0];
    const wgmma_halving halves = halving_of(&problem->post, columns_of(problem));
    if (index >= (int)COUNT_OF(tiles)) return NULL;
    const wgmma_tile *t = &tiles[index];
    return runs(t, wgmma_kind_of(a->format, b->format), layout_of(problem->attrs), halves) && gives(t, blocks ? out->format : DW_FORMAT_COUNT, halves) ? t->entry : "";
}

const char *matmul_wgmma_variant(const kernel_problem *problem, int index) { return variant_of(problem, index, false); }
const char *matmul_wgmma_blocks_variant(const kernel_problem *problem, int index) { return variant_of(problem, index, true); }

/* ---- the launch ---- */

static kernel_map_type map_type(dw_format format) {
    switch (format) {
    case DW_FORMAT_bf16: return KERNEL_MAP_BF16;
    case DW_FORMAT_f16: return KERNEL_MAP_F16;
    case DW_FORMAT_f32: return KERNEL_MAP_F32;
    default: return KERNEL_MAP_BYTE;
    }
}

void wgmma_take_map(kernel_launch *launch, const kernel_run *run, int operand, int64_t rows, int box_rows, const void *field) {
    const dw_tensor *x = kernel_operand(run, operand);
    const int64_t cols = x->dims[x->rank - 1], row_stride = operand < 2 && run->came[operand] != NULL ? x->strides[x->rank - 2] : cols;
    const int bytes = dw_format_bits(x->format) / 8;
    launch->maps[launch->map_count] = (kernel_map){
        .operand = (uint16_t)operand,
        .type = map_type(x->format),
        .rank = 2,
        .swizzle = KERNEL_SWIZZLE_128,
        .promotion = KERNEL_PROMOTION_256,
        .dims = {(uint64_t)cols, (uint64_t)rows},
        .strides = {(uint64_t)(row_stride * bytes)},
        .box = {(uint32_t)(128 / bytes), (uint32_t)box_rows},
    };
    cuda_slot(launch, KERNEL_SLOT_MAP, launch->map_count++, field, 0);
}

void wgmma_take_block_scales(kernel_launch *launch, matmul_wgmma_arguments *g) {
    cuda_slot(launch, KERNEL_SLOT_SCALES, 0, &g->a_scales, 0);
    cuda_slot(launch, KERNEL_SLOT_SCALES, 1, &g->b_scales, 0);
    g->a_scale_stride = g->b_scale_stride = base_ceil_div(g->k, 128);
}

static uint32_t shared_bytes(const wgmma_tile *t) {
    return (uint32_t)MATMUL_SHARED_BYTES(t->tile_m, t->tile_n, t->stages, t->boxes, t->kind == WGMMA_E4M3_BLOCK);
}

enum { TURNED_ROWS = 64 };       /* of k, in a box of an operand that lies turned */

static dw_status shape(const kernel_run *run, kernel_launcher *launcher) {
    const wgmma_call call = call_of(run), *c = &call;
    const wgmma_tile *t = c->tile;
    kernel_launch launch;
    matmul_wgmma_arguments *g = cuda_launch(&launch, t->image, t->entry, sizeof *g);
    g->m = (int32_t)c->m;
    g->n = (int32_t)c->n;
    g->k = (int32_t)c->k;
    g->units_m = (int32_t)units_down(t, c->m);
    g->units_n = (int32_t)units_across(t, c->n_out, c->halves);
    g->a_rows = c->m < t->tile_m ? (int32_t)base_ceil_div(c->m, 8) * 8 : t->tile_m;
    matmul_take_epilogue(&launch, run, 2, &g->epilogue);
    if (t->kind == WGMMA_E4M3_BLOCK) wgmma_take_block_scales(&launch, g);
    wgmma_take_map(&launch, run, 0, t->at ? c->k : c->m, t->at ? TURNED_ROWS : g->a_rows, g->map_a);
    wgmma_take_map(&launch, run, 1, t->bn ? c->k : c->n, t->bn ? TURNED_ROWS : t->tile_n / 2, g->map_b);
    if (g->epilogue.by_tma) wgmma_take_map(&launch, run, KERNEL_RESULT, c->m, MATMUL_OUT_ROWS(false), g->map_out);
    int64_t units = units_down(t, c->m) * units_across(t, c->n_out, c->halves), most = t->splits > 1 ? units : units_at_a_time(t, run->chip->units);
    cuda_grid(&launch, (units < most ? units : most) * t->pair * t->splits, 1, 1);
    launch.block[0] = MATMUL_THREADS;
    launch.shared_bytes = shared_bytes(t);
    return launcher->add(launcher, &launch);
}

dw_status matmul_wgmma_shape(const kernel_run *run, kernel_launcher *launcher) { return shape(run, launcher); }
dw_status matmul_wgmma_blocks_shape(const kernel_run *run, kernel_launcher *launcher) { return shape(run, launcher); }
