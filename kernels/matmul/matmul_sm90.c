/* matmul on Hopper: the host half of tma_sm90.cuh. Which products its entries take, which tile a call gets, and the launches; calls of so few rows that reading b is
 * all go to stream_sm90.c, unless this row was asked for by name. Operands that no entry takes as they lie are first decoded to bf16 (decode.c). Pure: knows no driver. */
#include "kernels/matmul/matmul_sm90.h"

#include <string.h>

#include "kernels/common/cuda/host.h"
#include "kernels/kernels.h"
#include "kernels/matmul/matmul_host.h"
#include "kernels/quantize/quantised.h"
#include "kernels/matmul/tiles_sm90.h"

/* ---- entries ---- */

typedef struct sm90_tile {
    sm90_kind kind;
    bool blocks;                  /* its result is in blocks of e4m3 along a row (blocks_sm90.cuh) */
    const char *image, *entry;
    int parts, tile_m, tile_n, stages, boxes, pair, splits;
    double block_us, tile_us;     /* measured: one block of k, and what a tile costs besides */
} sm90_tile;

static const sm90_tile tiles[] = {
#define MATMUL_TILE_HALF(name, ...) {SM90_BF16, false, "matmul_bf16_sm90", "matmul_bf16_" #name, 0, __VA_ARGS__},
#include "kernels/matmul/tiles_sm90.def"
#undef MATMUL_TILE_HALF
#define MATMUL_TILE_HALF(name, ...) {SM90_F16, false, "matmul_f16_sm90", "matmul_f16_" #name, 0, __VA_ARGS__},
#include "kernels/matmul/tiles_sm90.def"
#undef MATMUL_TILE_HALF
#define MATMUL_TILE_BYTE(name, ...) {SM90_E4M3, false, "matmul_e4m3_sm90", "matmul_e4m3_" #name, 0, __VA_ARGS__},
#include "kernels/matmul/tiles_sm90.def"
#undef MATMUL_TILE_BYTE
#define MATMUL_TILE_SCALED(name, ...) {SM90_E4M3_BLOCK, false, "matmul_e4m3_block_sm90", "matmul_e4m3_block_" #name, __VA_ARGS__},
#include "kernels/matmul/tiles_sm90.def"
#undef MATMUL_TILE_SCALED
#define MATMUL_BLOCKS_BYTE(name, tile_m, tile_n, stages, boxes, pair, block_us, tile_us) \
    {SM90_E4M3, true, "matmul_e4m3_sm90", "matmul_e4m3_" #name "_blocks", 0, tile_m, tile_n, stages, boxes, pair, 1, block_us, tile_us},
#include "kernels/matmul/tiles_sm90.def"
#undef MATMUL_BLOCKS_BYTE
#define MATMUL_BLOCKS_SCALED(name, parts, tile_m, tile_n, stages, boxes, pair, block_us, tile_us) \
    {SM90_E4M3_BLOCK, true, "matmul_e4m3_block_sm90", "matmul_e4m3_block_" #name "_blocks", parts, tile_m, tile_n, stages, boxes, pair, 1, block_us, tile_us},
#include "kernels/matmul/tiles_sm90.def"
#undef MATMUL_BLOCKS_SCALED
};

static bool is_one_scale(dw_format format) { return format == DW_FORMAT_fp8_tensor || format == DW_FORMAT_fp8_row; }

/* The entries that take both operands as they lie. */
static sm90_kind kind_of(dw_format a, dw_format b) {
    if (a == DW_FORMAT_bf16 && b == DW_FORMAT_bf16) return SM90_BF16;
    if (a == DW_FORMAT_f16 && b == DW_FORMAT_f16) return SM90_F16;
    if (is_one_scale(a) && is_one_scale(b)) return SM90_E4M3;
    if (a == DW_FORMAT_fp8_1x128 && b == DW_FORMAT_fp8_128x128) return SM90_E4M3_BLOCK;
    return SM90_NONE;
}

/* The copy engine wants rows of whole 16 bytes. */
static bool has_whole_rows(dw_format format, int64_t k) { return k * dw_format_bits(format) / 8 % 16 == 0; }

sm90_product sm90_product_of(dw_format a, dw_format b, int64_t k) {
    sm90_product p = {.kind = kind_of(a, b)};
    const dw_format formats[2] = {a, b};
    if (p.kind != SM90_NONE && k * sm90_element_bytes(p.kind) % 16 == 0) return p;
    if (!matmul_decodes(a) || !matmul_decodes(b)) return (sm90_product){.kind = SM90_NONE};
    p.kind = SM90_BF16;
    for (int i = 0; i < 2; i++) p.decodes[i] = formats[i] != DW_FORMAT_bf16 || !has_whole_rows(formats[i], k);
    return p;
}

/* Bytes of rows of bf16 in the workspace: a's, and behind them b's. */
static size_t decoded_bytes(const sm90_product *p, int64_t m, int64_t n, int64_t k) {
    return (p->decodes[0] ? matmul_decoded_bytes(m, k) : 0) + (p->decodes[1] ? matmul_decoded_bytes(n, k) : 0);
}

/* A unit is a tile, or a pair of them one below the other. */
static int64_t units_down(const sm90_tile *t, int64_t m) { return base_ceil_div(m, t->tile_m * t->pair); }
static int64_t units_across(const sm90_tile *t, int64_t n_out, bool halves) { return base_ceil_div(n_out, halves ? t->tile_n / 2 : t->tile_n); }

static int64_t units_at_a_time(const sm90_tile *t, int multiprocessors) {
    int cluster = t->pair * t->splits;
    return cluster > 2 ? multiprocessors / 33 * 32 / cluster : multiprocessors / cluster;   /* clusters of four leave some multiprocessors out */
}

static double microseconds(const sm90_tile *t, int64_t m, int64_t n_out, int64_t k, bool halves, int multiprocessors) {
    int64_t blocks = base_ceil_div(base_ceil_div(k * sm90_element_bytes(t->kind), 128), t->splits), most = units_at_a_time(t, multiprocessors);
    int64_t waves = base_ceil_div(units_down(t, m) * units_across(t, n_out, halves), most > 0 ? most : 1);
    return 2 + (double)waves * ((double)blocks * t->block_us + t->tile_us);
}

enum { STREAM_VARIANT = COUNT_OF(tiles) };

/* Columns that a step joins lie in the two halves of a tile, each of which is stored in boxes of 64, or in none, and has a scale by block of its own. */
static bool takes_halves(const sm90_tile *t) { return (t->parts == 0 || t->parts == 2) && (t->tile_n / 2 % 64 == 0 || t->splits > 1 || t->tile_n < 64); }
static bool runs(const sm90_tile *t, sm90_kind kind, bool halves) { return t->kind == kind && (!halves || takes_halves(t)); }

/* Results in blocks that tiles write themselves, where the result's columns of a tile are whole blocks. */
static bool is_written(dw_format out, dw_scale_layout layout) { return (out == DW_FORMAT_fp8_1x128 || out == DW_FORMAT_mxfp8) && layout == DW_SCALE_plain; }
/* Does a tile make a result of this format; COUNT: a plain one? */
static bool gives(const sm90_tile *t, dw_format blocks, bool halves) {
    return blocks == DW_FORMAT_COUNT ? !t->blocks : t->blocks && (halves ? t->tile_n / 2 : t->tile_n) % num_info(blocks)->cols == 0;
}

/* From so many rows on a result in blocks that some tile writes is written by one, so that room for plain results is bounded. */
enum { WRITTEN_ROWS = 512 };

/* Decoding and product. */
static double all_microseconds(const sm90_product *p, const sm90_tile *t, int64_t m, int64_t n, int64_t n_out, int64_t k, bool halves, const chip_caps *chip) {
    size_t bytes = decoded_bytes(p, m, n, k);
    return microseconds(t, m, n_out, k, halves, chip->units) + (bytes > 0 ? matmul_decode_us(chip, (double)bytes) : 0);
}

/* The tile of least estimated time among those that give a plain result, blocks COUNT, or one of this format, of which there may be none. */
static const sm90_tile *choose_tile(sm90_kind kind, int64_t m, int64_t n_out, int64_t k, bool halves, dw_format blocks, int multiprocessors) {
    const sm90_tile *best = NULL;
    double least = 0;
    for (size_t i = 0; i < COUNT_OF(tiles); i++) {
        const sm90_tile *t = &tiles[i];
        if (!runs(t, kind, halves) || !gives(t, blocks, halves)) continue;
        double us = microseconds(t, m, n_out, k, halves, multiprocessors);
        if (best == NULL || us < least) best = t, least = us;
    }
    return best;
}

const char *matmul_sm90_entry(int element, int scaled, int64_t m, int64_t n_out, int64_t k, int halves, int multiprocessors) {
    sm90_kind kind = element == MATMUL_bf16 ? SM90_BF16 : element == MATMUL_f16 ? SM90_F16 : element != MATMUL_e4m3 ? SM90_NONE : scaled ? SM90_E4M3_BLOCK : SM90_E4M3;
    const sm90_tile *tile = choose_tile(kind, m, n_out, k, halves, DW_FORMAT_COUNT, multiprocessors);
    return tile == NULL ? NULL : tile->entry;
}

/* ---- what is taken ---- */

const char *sm90_reject_products(const kernel_problem *problem, text *why) {
    const op_type *a = problem->in[0], *b = problem->in[1];
    int64_t k, n;
    if (!dim_is_constant(a->dims[a->rank - 1], &k) || !dim_is_constant(b->dims[b->rank - 2], &n)) return "k or n is not known at plan time";
    if (k == 0 || n == 0) return "k or n is 0";
    sm90_kind kind = sm90_product_of(a->format, b->format, k).kind;
    if (kind == SM90_NONE && kind_of(a->format, b->format) != SM90_NONE) {
        text_printf(why, "rows of k = %lld elements are not multiples of 16 bytes", (long long)k);
        return text_string(why);
    }
    if (kind == SM90_NONE) {
        text_printf(why, "%s times %s is not one of its products", dw_format_name(a->format), dw_format_name(b->format));
        return text_string(why);
    }
    if (kind == SM90_E4M3_BLOCK && matmul_halves_columns(&problem->post) && n % 128 != 0) return "half of n is not a multiple of 64, and scales are for blocks of 128 columns";
    return NULL;
}

const char *matmul_sm90_reject(const kernel_problem *problem, text *why) {
    if (dw_format_is_block(problem->out[0]->format)) return quantised_reject(problem, why, matmul_sm90_reject);
    if (op_attr_bool(problem->attrs, OP_ATTR_at)) return "a is stored with k first";
    if (!op_attr_bool(problem->attrs, OP_ATTR_bt)) return "b is stored with n last; it is read as [n,k]";
    const char *reason = sm90_reject_products(problem, why);
    return reason != NULL ? reason : matmul_reject_result(problem, why);
}

/* What a call comes to: few rows are streamed past b, or a tile takes the product. */
typedef struct sm90_call {
    int64_t m, n, n_out, k;
    bool halves, streams;
    const sm90_tile *writer;      /* of a result in blocks: the best of the tiles that write it; NULL: there is none */
    bool behind;                  /* a result in blocks is made behind the product */
    sm90_product product;
    const sm90_tile *tile;
    double us;
} sm90_call;

/* variant: asked for by measurements, or -1. named: the row was asked for by name. */
static sm90_call plan_call(const dw_tensor *a, const dw_tensor *b, const dw_tensor *out, const op_attrs *attrs, const op_post_list *post, const chip_caps *chip, bool named, int variant) {
    sm90_call c = {.m = 1, .n = b->dims[b->rank - 2], .n_out = out->dims[out->rank - 1], .k = a->dims[a->rank - 1], .halves = matmul_halves_columns(post)};
    for (int i = 0; i < out->rank - 1; i++) c.m *= out->dims[i];
    c.product = sm90_product_of(a->format, b->format, c.k);
    const double stream_us = matmul_stream_us(chip, a->format, b->format, c.m, c.n, c.k);
    const double plain_bytes = (double)c.m * (double)c.n_out * dw_format_bits(quantised_from(attrs, out->format)) / 8;
    const double behind_us = dw_format_is_block(out->format) ? 1e6 * quantised_seconds(chip, plain_bytes) : 0;
    if (is_written(out->format, out->scale_layout)) c.writer = choose_tile(c.product.kind, c.m, c.n_out, c.k, c.halves, out->format, chip->units);
    const bool is_tile = variant >= 0 && variant < STREAM_VARIANT && runs(&tiles[variant], c.product.kind, c.halves) &&
                         gives(&tiles[variant], c.writer != NULL ? out->format : DW_FORMAT_COUNT, c.halves);
    c.tile = is_tile ? &tiles[variant] : choose_tile(c.product.kind, c.m, c.n_out, c.k, c.halves, DW_FORMAT_COUNT, chip->units);
    c.us = all_microseconds(&c.product, c.tile, c.m, c.n, c.n_out, c.k, c.halves, chip) + behind_us;
    c.behind = behind_us > 0;
    if (c.writer != NULL) {
        const sm90_tile *writer = is_tile ? c.tile : c.writer;
        const double us = all_microseconds(&c.product, writer, c.m, c.n, c.n_out, c.k, c.halves, chip);
        if (is_tile || c.m >= WRITTEN_ROWS || us < c.us) c.tile = writer, c.us = us, c.behind = false;
    }
    const bool may_stream = !named && !is_tile && !(c.writer != NULL && c.m >= WRITTEN_ROWS);
    c.streams = stream_us >= 0 && may_stream && (variant == STREAM_VARIANT || stream_us + behind_us < c.us + MATMUL_IN_STEP_US);
    if (c.streams) c.us = stream_us + behind_us, c.behind = behind_us > 0;
    return c;
}

double matmul_sm90_cost(const kernel_problem *problem) {
    dw_tensor in[KERNEL_MAX_OPERANDS], out[KERNEL_MAX_RESULTS];
    const dw_tensor *in_pointers[KERNEL_MAX_OPERANDS], *out_pointers[KERNEL_MAX_RESULTS];
    op_call call;
    const dw_format a = problem->in[0]->format;
    double bound = kernel_roofline(problem, kind_of(a, problem->in[1]->format) == SM90_NONE ? DW_FORMAT_bf16 : a, 1, 0.906);
    if (problem->symbols == NULL || kernel_problem_call(problem, in, out, in_pointers, out_pointers, &call) != DW_OK) return bound;
    sm90_call c = plan_call(&in[0], &in[1], &out[0], problem->attrs, &problem->post, problem->chip, problem->named, -1);
    return c.streams || 1e-6 * c.us > bound ? 1e-6 * c.us : bound;
}

/* Does a tile run the problem, and write its result in blocks where some tile does? */
static bool is_variant(const kernel_problem *problem, const sm90_tile *t, int64_t k) {
    const op_type *a = problem->in[0], *b = problem->in[1], *out = problem->out[0];
    const bool halves = matmul_halves_columns(&problem->post);
    const sm90_kind kind = sm90_product_of(a->format, b->format, k).kind;
    if (!runs(t, kind, halves)) return false;
    const bool some = is_written(out->format, out->scale_layout) && choose_tile(kind, 1, 1, k, halves, out->format, problem->chip->units) != NULL;
    return gives(t, some ? out->format : DW_FORMAT_COUNT, halves);
}

/* Variants are the tiles, by the names of their entries, and behind them the kernel for few rows, which past its rows leaves the choice to the estimate. */
const char *matmul_sm90_variant(const kernel_problem *problem, int index) {
    const op_type *a = problem->in[0], *b = problem->in[1];
    int64_t k, m = 1;
    if (index > STREAM_VARIANT) return NULL;
    if (!dim_is_constant(a->dims[a->rank - 1], &k)) return "";
    if (index < STREAM_VARIANT) return is_variant(problem, &tiles[index], k) ? tiles[index].entry : "";
    if (problem->named) return "";
    for (int i = 0; i < a->rank - 1; i++) {
        int64_t size;
        m = dim_is_constant(a->dims[i], &size) ? m * size : 1;
    }
    return matmul_stream_us(problem->chip, a->format, b->format, m, 1, k) >= 0 ? "matmul_stream" : "";
}

static sm90_call call_of(const kernel_run *run) {
    const dw_tensor *out = run->call.out[0];
    int64_t m = 1;
    for (int i = 0; i < out->rank - 1; i++) m *= out->dims[i];
    return plan_call(run->call.in[0], run->call.in[1], out, run->call.attrs, &run->post, run->chip, run->named, kernel_tuned_variant(run, m));
}

/* Of a result in blocks that tiles write, plain results of few rows have room, however many rows there are: what is reserved for the most has to do for fewer. */
size_t matmul_sm90_workspace(const kernel_run *run) {
    const dw_tensor *out = run->call.out[0];
    sm90_call c = call_of(run);
    if (!dw_format_is_block(out->format)) return c.streams ? 0 : decoded_bytes(&c.product, c.m, c.n, c.k);
    if (c.writer == NULL || c.m < WRITTEN_ROWS) return quantised_workspace(run, matmul_sm90_workspace);
    const int64_t dims[] = {WRITTEN_ROWS, c.n_out};
    dw_tensor plain;
    op_tensor_init(&plain, quantised_from(run->call.attrs, out->format), DW_SCALE_plain, 2, dims, NULL);
    return quantised_bytes(decoded_bytes(&c.product, c.m, c.n, c.k), &plain);
}

/* ---- the launch ---- */

static kernel_map_type map_type(dw_format format) {
    switch (format) {
    case DW_FORMAT_bf16: return KERNEL_MAP_BF16;
    case DW_FORMAT_f16: return KERNEL_MAP_F16;
    case DW_FORMAT_f32: return KERNEL_MAP_F32;
    default: return KERNEL_MAP_BYTE;
    }
}

void sm90_take_map(kernel_launch *launch, kernel_map view, dw_format format, int64_t cols, int64_t rows, int64_t row_stride, int box_rows, const void *field) {
    int bytes = dw_format_bits(format) / 8;
    launch->maps[launch->map_count] = (kernel_map){
        .operand = view.operand,
        .offset = view.offset,
        .type = map_type(format),
        .rank = 2,
        .swizzle = KERNEL_SWIZZLE_128,
        .promotion = KERNEL_PROMOTION_256,
        .dims = {(uint64_t)cols, (uint64_t)rows},
        .strides = {(uint64_t)(row_stride * bytes)},
        .box = {(uint32_t)(128 / bytes), (uint32_t)box_rows},
    };
    cuda_slot(launch, KERNEL_SLOT_MAP, launch->map_count++, field, 0);
}

/* Operand i, or what is decoded of it, at bytes behind the workspace's beginning. */
static void take_operand(kernel_launch *launch, const kernel_run *run, const sm90_call *c, int i, int64_t at, int box_rows, const void *field) {
    const int64_t rows = i == 0 ? c->m : c->n;
    if (!c->product.decodes[i]) sm90_take_map(launch, (kernel_map){.operand = (uint16_t)i}, run->call.in[i]->format, c->k, rows, c->k, box_rows, field);
    else sm90_take_map(launch, (kernel_map){.operand = KERNEL_WORKSPACE, .offset = at}, DW_FORMAT_bf16, c->k, rows, base_ceil_div(c->k, 8) * 8, box_rows, field);
}

void sm90_take_block_scales(kernel_launch *launch, matmul_sm90_arguments *g) {
    cuda_slot(launch, KERNEL_SLOT_SCALES, 0, &g->a_scales, 0);
    cuda_slot(launch, KERNEL_SLOT_SCALES, 1, &g->b_scales, 0);
    g->a_scale_stride = g->b_scale_stride = base_ceil_div(g->k, 128);
}

static uint32_t shared_bytes(const sm90_tile *t) {
    return (uint32_t)MATMUL_SHARED_BYTES(t->tile_m, t->tile_n, t->stages, t->boxes, t->kind == SM90_E4M3_BLOCK);
}

static dw_status launch_tiles(const kernel_run *run, kernel_launcher *launcher, const sm90_call *c, const int64_t at[2]) {
    const dw_tensor *out = run->call.out[0];
    const sm90_tile *t = c->tile;
    kernel_launch launch;
    matmul_sm90_arguments *g = cuda_launch(&launch, t->image, t->entry, sizeof *g);
    g->m = (int32_t)c->m;
    g->n = (int32_t)c->n;
    g->k = (int32_t)c->k;
    g->units_m = (int32_t)units_down(t, c->m);
    g->units_n = (int32_t)units_across(t, c->n_out, c->halves);
    g->a_rows = c->m < t->tile_m ? (int32_t)base_ceil_div(c->m, 8) * 8 : t->tile_m;
    matmul_take_epilogue(&launch, run, 2, &g->epilogue);
    if (t->kind == SM90_E4M3_BLOCK) sm90_take_block_scales(&launch, g);
    take_operand(&launch, run, c, 0, at[0], g->a_rows, g->map_a);
    take_operand(&launch, run, c, 1, at[1], t->tile_n / 2, g->map_b);
    if (g->epilogue.by_engine) sm90_take_map(&launch, (kernel_map){.operand = KERNEL_RESULT}, out->format, c->n_out, c->m, c->n_out, MATMUL_OUT_ROWS(false), g->map_out);
    int64_t units = units_down(t, c->m) * units_across(t, c->n_out, c->halves), most = t->splits > 1 ? units : run->chip->units / t->pair;
    cuda_grid(&launch, (units < most ? units : most) * t->pair * t->splits, 1, 1);
    launch.block[0] = MATMUL_THREADS;
    launch.shared_bytes = shared_bytes(t);
    return launcher->add(launcher, &launch);
}

dw_status matmul_sm90_shape(const kernel_run *run, kernel_launcher *launcher) {
    const sm90_call c = call_of(run);
    if (c.m == 0) return DW_OK;
    if (c.m > INT32_MAX / 2 || c.n > INT32_MAX / 2 || c.k > INT32_MAX / 2)
        return base_fail(run->call.context, DW_LIMIT, "matmul: %lld x %lld x %lld is more than this kernel counts to", (long long)c.m, (long long)c.n, (long long)c.k);
    if (c.behind) return quantised_shape(run, launcher, matmul_sm90_workspace, matmul_sm90_shape);
    if (c.streams) return matmul_stream_shape(run, launcher);
    const sm90_product *p = &c.product;
    const int64_t at[2] = {p->decodes[0] ? 0 : -1, !p->decodes[1] ? -1 : p->decodes[0] ? (int64_t)matmul_decoded_bytes(c.m, c.k) : 0};
    if (p->decodes[0] || p->decodes[1]) TRY(matmul_decode_shape(run, launcher, at, 0, 0));
    return launch_tiles(run, launcher, &c, at);
}
