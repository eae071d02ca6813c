/* matmul on Hopper: the host half of tma_sm90.cuh. Which products its entries take, which tile a call gets, and the launch; calls of so few rows that reading b is
 * all go to stream_sm90.c. Pure: knows no driver. */
#include "kernels/matmul/matmul_sm90.h"

#include <string.h>

#include "kernels/common/cuda/host.h"
#include "kernels/kernels.h"
#include "kernels/matmul/matmul_host.h"

/* ---- entries ---- */

/* What two formats share: the entries' element, and how scales are applied. */
typedef enum sm90_kind { SM90_BF16, SM90_F16, SM90_E4M3, SM90_E4M3_BLOCK, SM90_NONE } sm90_kind;

typedef struct sm90_tile {
    sm90_kind kind;
    const char *image, *entry;
    int parts, tile_m, tile_n, stages, boxes, pair, splits;
    double block_us, tile_us;     /* measured: one block of k, and what a tile costs besides */
} sm90_tile;

static const sm90_tile tiles[] = {
#define MATMUL_TILE_HALF(name, ...) {SM90_BF16, "matmul_bf16_sm90", "matmul_bf16_" #name, 0, __VA_ARGS__},
#include "kernels/matmul/tiles_sm90.def"
#undef MATMUL_TILE_HALF
#define MATMUL_TILE_HALF(name, ...) {SM90_F16, "matmul_f16_sm90", "matmul_f16_" #name, 0, __VA_ARGS__},
#include "kernels/matmul/tiles_sm90.def"
#undef MATMUL_TILE_HALF
#define MATMUL_TILE_BYTE(name, ...) {SM90_E4M3, "matmul_e4m3_sm90", "matmul_e4m3_" #name, 0, __VA_ARGS__},
#include "kernels/matmul/tiles_sm90.def"
#undef MATMUL_TILE_BYTE
#define MATMUL_TILE_SCALED(name, ...) {SM90_E4M3_BLOCK, "matmul_e4m3_block_sm90", "matmul_e4m3_block_" #name, __VA_ARGS__},
#include "kernels/matmul/tiles_sm90.def"
#undef MATMUL_TILE_SCALED
};

static bool is_one_scale(dw_format format) { return format == DW_FORMAT_fp8_tensor || format == DW_FORMAT_fp8_row; }

static sm90_kind kind_of(dw_format a, dw_format b) {
    if (a == DW_FORMAT_bf16 && b == DW_FORMAT_bf16) return SM90_BF16;
    if (a == DW_FORMAT_f16 && b == DW_FORMAT_f16) return SM90_F16;
    if (is_one_scale(a) && is_one_scale(b)) return SM90_E4M3;
    if (a == DW_FORMAT_fp8_1x128 && b == DW_FORMAT_fp8_128x128) return SM90_E4M3_BLOCK;
    return SM90_NONE;
}

static int element_bytes(sm90_kind kind) { return kind <= SM90_F16 ? 2 : 1; }

static int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

/* A unit is a tile, or a pair of them one below the other. */
static int64_t units_down(const sm90_tile *t, int64_t m) { return ceil_div(m, t->tile_m * t->pair); }
static int64_t units_across(const sm90_tile *t, int64_t n_out, bool halves) { return ceil_div(n_out, halves ? t->tile_n / 2 : t->tile_n); }

static int64_t units_at_a_time(const sm90_tile *t, int multiprocessors) {
    int cluster = t->pair * t->splits;
    return cluster > 2 ? multiprocessors / 33 * 32 / cluster : multiprocessors / cluster;   /* clusters of four leave some multiprocessors out */
}

static double microseconds(const sm90_tile *t, int64_t m, int64_t n_out, int64_t k, bool halves, int multiprocessors) {
    int64_t blocks = ceil_div(ceil_div(k * element_bytes(t->kind), 128), t->splits), most = units_at_a_time(t, multiprocessors);
    int64_t waves = ceil_div(units_down(t, m) * units_across(t, n_out, halves), most > 0 ? most : 1);
    return 2 + (double)waves * ((double)blocks * t->block_us + t->tile_us);
}

/* Columns that a step joins lie in the two halves of a tile, each of which is stored in boxes of 64 and has a scale by block of its own. */
static bool takes_halves(const sm90_tile *t) { return (t->parts == 0 || t->parts == 2) && (t->tile_n / 2 % 64 == 0 || t->splits > 1); }
static bool runs(const sm90_tile *t, sm90_kind kind, bool halves) { return t->kind == kind && (!halves || takes_halves(t)); }

/* The tile of least estimated time. */
static const sm90_tile *choose_tile(sm90_kind kind, int64_t m, int64_t n_out, int64_t k, bool halves, int multiprocessors) {
    const sm90_tile *best = NULL;
    double least = 0;
    for (size_t i = 0; i < COUNT_OF(tiles); i++) {
        const sm90_tile *t = &tiles[i];
        if (!runs(t, kind, halves)) continue;
        double us = microseconds(t, m, n_out, k, halves, multiprocessors);
        if (best == NULL || us < least) best = t, least = us;
    }
    return best;
}

const char *matmul_sm90_entry(int element, int scaled, int64_t m, int64_t n_out, int64_t k, int halves, int multiprocessors) {
    sm90_kind kind = element == MATMUL_bf16 ? SM90_BF16 : element == MATMUL_f16 ? SM90_F16 : element != MATMUL_e4m3 ? SM90_NONE : scaled ? SM90_E4M3_BLOCK : SM90_E4M3;
    const sm90_tile *tile = choose_tile(kind, m, n_out, k, halves, multiprocessors);
    return tile == NULL ? NULL : tile->entry;
}

/* ---- what is taken ---- */

static const char *reject_shape(const kernel_problem *problem, sm90_kind kind, text *why) {
    const op_type *a = problem->in[0], *b = problem->in[1];
    int64_t k, n;
    if (!dim_is_constant(a->dims[a->rank - 1], &k) || !dim_is_constant(b->dims[b->rank - 2], &n)) return "k or n is not known at plan time";
    if (k == 0 || n == 0) return "k or n is 0";
    if (k * element_bytes(kind) % 16 != 0) {
        text_printf(why, "rows of k = %lld elements are not multiples of 16 bytes", (long long)k);
        return text_string(why);
    }
    if (kind == SM90_E4M3_BLOCK && matmul_halves_columns(&problem->post) && n % 128 != 0) return "half of n is not a multiple of 64, and scales are for blocks of 128 columns";
    return NULL;
}

const char *matmul_sm90_reject(const kernel_problem *problem, text *why) {
    const op_type *a = problem->in[0], *b = problem->in[1];
    sm90_kind kind = kind_of(a->format, b->format);
    if (kind == SM90_NONE) {
        text_printf(why, "%s times %s is not one of its products", dw_format_name(a->format), dw_format_name(b->format));
        return text_string(why);
    }
    if (op_attr_bool(problem->attrs, OP_ATTR_at)) return "a is stored with k first";
    if (!op_attr_bool(problem->attrs, OP_ATTR_bt)) return "b is stored with n last; it is read as [n,k]";
    const char *reason = reject_shape(problem, kind, why);
    return reason != NULL ? reason : matmul_reject_result(problem, why);
}

double matmul_sm90_cost(const kernel_problem *problem) {
    dw_tensor in[KERNEL_MAX_OPERANDS], out[KERNEL_MAX_RESULTS];
    const dw_tensor *in_pointers[KERNEL_MAX_OPERANDS], *out_pointers[KERNEL_MAX_RESULTS];
    op_call call;
    double bound = kernel_roofline(problem, problem->in[0]->format, 0.85, 0.85);
    if (problem->symbols == NULL || kernel_problem_call(problem, in, out, in_pointers, out_pointers, &call) != DW_OK) return bound;
    int64_t m = 1;
    for (int i = 0; i < out[0].rank - 1; i++) m *= out[0].dims[i];
    bool halves = matmul_halves_columns(&problem->post);
    int64_t n = out[0].dims[out[0].rank - 1], k = in[0].dims[in[0].rank - 1];
    sm90_kind kind = kind_of(problem->in[0]->format, problem->in[1]->format);
    double us = microseconds(choose_tile(kind, m, n, k, halves, problem->chip->units), m, n, k, halves, problem->chip->units);
    double stream_us = matmul_stream_us(problem->chip, in[0].format, in[1].format, m, in[1].dims[in[1].rank - 2], k);
    if (stream_us >= 0 && stream_us < us) return 1e-6 * stream_us;
    return 1e-6 * us > bound ? 1e-6 * us : bound;
}

/* Variants are the tiles, by the names of their entries. */
const char *matmul_sm90_variant(const kernel_problem *problem, int index) {
    if (index >= (int)COUNT_OF(tiles)) return NULL;
    return runs(&tiles[index], kind_of(problem->in[0]->format, problem->in[1]->format), matmul_halves_columns(&problem->post)) ? tiles[index].entry : "";
}

size_t matmul_sm90_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

/* ---- the launch ---- */

/* Numbers of the driver interface. */
enum { TYPE_BYTE = 0, TYPE_F16 = 6, TYPE_F32 = 7, TYPE_BF16 = 9, SWIZZLE_128 = 3, PROMOTION_256 = 3 };

static int map_type(dw_format format) {
    switch (format) {
    case DW_FORMAT_bf16: return TYPE_BF16;
    case DW_FORMAT_f16: return TYPE_F16;
    case DW_FORMAT_f32: return TYPE_F32;
    default: return TYPE_BYTE;
    }
}

static void take_map(kernel_launch *launch, int operand, dw_format format, int64_t cols, int64_t rows, int64_t row_stride, int box_rows, const void *field) {
    int bytes = dw_format_bits(format) / 8;
    launch->maps[launch->map_count] = (kernel_map){
        .operand = (uint16_t)operand,
        .type = map_type(format),
        .rank = 2,
        .swizzle = SWIZZLE_128,
        .promotion = PROMOTION_256,
        .dims = {(uint64_t)cols, (uint64_t)rows},
        .strides = {(uint64_t)(row_stride * bytes)},
        .box = {(uint32_t)(128 / bytes), (uint32_t)box_rows},
    };
    cuda_slot(launch, KERNEL_SLOT_MAP, launch->map_count++, field, 0);
}

static void take_block_scales(kernel_launch *launch, matmul_sm90_arguments *g) {
    cuda_slot(launch, KERNEL_SLOT_SCALES, 0, &g->a_scales, 0);
    cuda_slot(launch, KERNEL_SLOT_SCALES, 1, &g->b_scales, 0);
    g->a_scale_stride = g->b_scale_stride = ceil_div(g->k, 128);
}

static uint32_t shared_bytes(const sm90_tile *t) {
    return (uint32_t)MATMUL_SHARED_BYTES(t->tile_m, t->tile_n, t->stages, t->boxes, t->kind == SM90_E4M3_BLOCK);
}

dw_status matmul_sm90_shape(const kernel_run *run, kernel_launcher *launcher) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1], *out = run->call.out[0];
    int64_t m = 1, n = b->dims[b->rank - 2], k = a->dims[a->rank - 1], n_out = out->dims[out->rank - 1];
    for (int i = 0; i < out->rank - 1; i++) m *= out->dims[i];
    if (m == 0) return DW_OK;
    if (m > INT32_MAX / 2 || n > INT32_MAX / 2 || k > INT32_MAX / 2)
        return base_fail(run->call.context, DW_LIMIT, "matmul: %lld x %lld x %lld is more than this kernel counts to", (long long)m, (long long)n, (long long)k);
    bool halves = matmul_halves_columns(&run->post);
    const int tuned = kernel_tuned_variant(run, m);
    const sm90_tile *t = tuned >= 0 ? &tiles[tuned] : choose_tile(kind_of(a->format, b->format), m, n_out, k, halves, run->chip->units);
    double stream_us = tuned >= 0 ? -1 : matmul_stream_us(run->chip, a->format, b->format, m, n, k);
    if (stream_us >= 0 && stream_us < microseconds(t, m, n_out, k, halves, run->chip->units)) return matmul_stream_shape(run, launcher);
    kernel_launch launch;
    matmul_sm90_arguments *g = cuda_launch(&launch, t->image, t->entry, sizeof *g);
    g->m = (int32_t)m;
    g->n = (int32_t)n;
    g->k = (int32_t)k;
    g->units_m = (int32_t)units_down(t, m);
    g->units_n = (int32_t)units_across(t, n_out, halves);
    g->a_rows = m < t->tile_m ? (int32_t)ceil_div(m, 8) * 8 : t->tile_m;
    matmul_take_epilogue(&launch, run, &g->epilogue);
    if (a->format == DW_FORMAT_fp8_1x128) take_block_scales(&launch, g);
    take_map(&launch, 0, a->format, k, m, k, g->a_rows, g->map_a);
    take_map(&launch, 1, b->format, k, n, k, t->tile_n / 2, g->map_b);
    if (g->epilogue.by_engine) take_map(&launch, KERNEL_RESULT, out->format, n_out, m, n_out, 64, g->map_out);
    int64_t units = units_down(t, m) * units_across(t, n_out, halves), most = t->splits > 1 ? units : run->chip->units / t->pair;
    cuda_grid(&launch, (units < most ? units : most) * t->pair * t->splits, 1, 1);
    launch.block[0] = MATMUL_THREADS;
    launch.shared_bytes = shared_bytes(t);
    return launcher->add(launcher, &launch);
}
