/* grouped_matmul by wgmma: the host half of the entries for groups of tma.cuh. How many rows a group has only the device knows, so a call is planned for groups of
 * about even size and right for any. Operands that no entry
 * takes as they lie are dequantised to bf16 in front (dequantise/dequantise.c), b in parts of DEQUANTISED_BYTES, each multiplied before the next one takes its place. Pure: knows no driver. */
#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"
#include "kernels/gemm/wgmma/tiles.h"

enum { DEQUANTISED_BYTES = 256 << 20 };

/* ---- entries ---- */

typedef struct groups_tile {
    wgmma_kind kind;
    const char *image, *entry;
    int parts, tile_m, tile_n, stages, boxes, pair;
    double block_us, tile_us;     /* as of tiles without groups */
} groups_tile;

static const groups_tile tiles[] = {
#define MATMUL_GROUPS_HALF(name, ...) {WGMMA_BF16, "matmul_bf16_sm90", "matmul_bf16_" #name "_groups", 0, __VA_ARGS__},
#include "kernels/gemm/wgmma/tiles.def"
#undef MATMUL_GROUPS_HALF
#define MATMUL_GROUPS_HALF(name, ...) {WGMMA_F16, "matmul_f16_sm90", "matmul_f16_" #name "_groups", 0, __VA_ARGS__},
#include "kernels/gemm/wgmma/tiles.def"
#undef MATMUL_GROUPS_HALF
#define MATMUL_GROUPS_BYTE(name, ...) {WGMMA_E4M3, "matmul_e4m3_sm90", "matmul_e4m3_" #name "_groups", 0, __VA_ARGS__},
#include "kernels/gemm/wgmma/tiles.def"
#undef MATMUL_GROUPS_BYTE
#define MATMUL_GROUPS_SCALED(name, ...) {WGMMA_E4M3_BLOCK, "matmul_e4m3_block_sm90", "matmul_e4m3_block_" #name "_groups", __VA_ARGS__},
#include "kernels/gemm/wgmma/tiles.def"
#undef MATMUL_GROUPS_SCALED
};

/* ---- what a call comes to ---- */

typedef struct groups_call {
    int64_t m, n, n_out, k, groups;
    int64_t at_a_time;            /* groups of a launch */
    bool halves;
    wgmma_product product;
    const groups_tile *tile;
    double us;
} groups_call;

static bool runs(const groups_tile *t, const groups_call *c) {
    return t->kind == c->product.kind && (!c->halves || ((t->parts == 0 || t->parts == 2) && t->tile_n / 2 % 64 == 0));
}

/* Groups that have rows at all, and the units that each is cut into: half a unit at its end is empty on average. */
static double busy_groups(const groups_call *c) { return (double)(c->groups < c->m ? c->groups : c->m); }
static double units_of(const groups_tile *t, const groups_call *c) {
    double busy = busy_groups(c), down = (double)c->m / busy / (t->tile_m * t->pair) + 0.5;
    return busy * (down > 1 ? down : 1) * (double)base_ceil_div(c->n_out, c->halves ? t->tile_n / 2 : t->tile_n);
}

/* The tensor cores' time, or that of bringing the busy groups' weights once. */
static double microseconds(const groups_tile *t, const groups_call *c, const chip_caps *chip) {
    double at_a_time = chip->units / t->pair, waves = units_of(t, c) / at_a_time, tail = waves < 8 ? (double)(int64_t)waves + 1 : waves;
    double products = tail * ((double)base_ceil_div(c->k * wgmma_element_bytes(t->kind), 128) * t->block_us + t->tile_us);
    double bytes = 1e6 * busy_groups(c) * (double)(c->n * c->k * wgmma_element_bytes(t->kind)) / (0.906 * chip_bytes_per_s(chip));
    return 2 + (products > bytes ? products : bytes);
}

static size_t a_bytes(const groups_call *c) { return c->product.dequantises[0] ? matmul_dequantised_bytes(c->m, c->k) : 0; }
static size_t b_bytes(const groups_call *c, int64_t groups) { return c->product.dequantises[1] ? matmul_dequantised_bytes(groups * c->n, c->k) : 0; }

static groups_call plan_call(const dw_tensor *a, const dw_tensor *b, const dw_tensor *out, const op_post_list *post, const chip_caps *chip) {
    groups_call c = {.m = a->dims[0], .n = b->dims[1], .n_out = out->dims[1], .k = a->dims[1], .groups = b->dims[0], .halves = matmul_halves_columns(post)};
    c.product = wgmma_product_of(a->format, b->format, c.k);
    c.at_a_time = c.groups;
    if (c.product.dequantises[1]) {
        int64_t fit = (int64_t)(DEQUANTISED_BYTES / matmul_dequantised_bytes(c.n, c.k));
        if (fit < c.groups) c.at_a_time = fit > 0 ? fit : 1;
    }
    for (size_t i = 0; i < COUNT_OF(tiles) && c.m > 0; i++) {
        double us = runs(&tiles[i], &c) ? microseconds(&tiles[i], &c, chip) : -1;
        if (us >= 0 && (c.tile == NULL || us < c.us)) c.tile = &tiles[i], c.us = us;
    }
    size_t dequantised = a_bytes(&c) + (size_t)busy_groups(&c) * b_bytes(&c, 1);
    if (dequantised > 0) c.us += matmul_dequantise_us(chip, (double)dequantised) + 2.0 * (double)(base_ceil_div(c.groups, c.at_a_time) - 1);
    return c;
}

const char *grouped_wgmma_refuses(const kernel_problem *problem, text *why) {
    int64_t groups, n;
    const op_type *b = problem->in[1];
    if (!op_attr_bool(problem->attrs, OP_ATTR_bt)) return "b is stored with n last; it is read as [n,k]";
    const char *reason = wgmma_reject_products(problem, why);
    if (reason != NULL) return reason;
    if (!dim_is_constant(b->dims[0], &groups) || !dim_is_constant(b->dims[1], &n)) return "the number of groups is not known at plan time";
    if (groups == 0) return "there are no groups";
    if (n > INT32_MAX / 2 / groups) return "the rows of all groups' b are more than this kernel counts to";
    return matmul_reject_post(problem, 3, why);
}

static groups_call call_of(const kernel_run *run) { return plan_call(run->call.in[0], run->call.in[1], run->call.out[0], &run->post, run->chip); }

double grouped_wgmma_seconds(const kernel_run *run) { return 1e-6 * call_of(run).us; }

const char *grouped_wgmma_takes(const kernel_run *run, text *why) {
    const groups_call c = call_of(run);
    if (c.m <= INT32_MAX / 2 && c.k <= INT32_MAX / 2 && (c.m / 128 + c.groups) * base_ceil_div(c.n_out, 64) <= INT32_MAX / 2) return NULL;
    return kernel_because(why, "%lld x %lld x %lld is more than it counts to", (long long)c.m, (long long)c.n, (long long)c.k);
}

size_t grouped_wgmma_workspace(const kernel_run *run) {
    const groups_call c = call_of(run);
    return a_bytes(&c) + b_bytes(&c, c.at_a_time);
}

/* ---- the launches ---- */

/* Boxes of a of about a group's rows, so that little is brought that no group of the tile has. */
static int box_rows(const groups_call *c) {
    int rows = 16;
    while (rows < 128 && rows < c->m / (int64_t)busy_groups(c)) rows *= 2;
    return rows;
}

static void take_operand(kernel_launch *launch, const kernel_run *run, const groups_call *c, int i, int64_t rows, int64_t at, int box, const void *field) {
    if (!c->product.dequantises[i]) wgmma_take_map(launch, (kernel_map){.operand = (uint16_t)i}, run->call.in[i]->format, c->k, rows, c->k, box, field);
    else wgmma_take_map(launch, (kernel_map){.operand = KERNEL_WORKSPACE, .offset = at}, DW_FORMAT_bf16, c->k, rows, base_ceil_div(c->k, 8) * 8, box, field);
}

static dw_status launch_groups(const kernel_run *run, kernel_launcher *launcher, const groups_call *c, int64_t first, int64_t end) {
    const groups_tile *t = c->tile;
    kernel_launch launch;
    matmul_wgmma_arguments *g = cuda_launch(&launch, t->image, t->entry, sizeof *g);
    g->m = (int32_t)c->m;
    g->n = (int32_t)c->n;
    g->k = (int32_t)c->k;
    g->units_n = (int32_t)base_ceil_div(c->n_out, c->halves ? t->tile_n / 2 : t->tile_n);
    g->a_rows = box_rows(c);
    matmul_take_epilogue(&launch, run, 3, &g->epilogue);
    matmul_take_groups(&launch, run, first, end, &g->groups);
    if (t->kind == WGMMA_E4M3_BLOCK) wgmma_take_block_scales(&launch, g);
    take_operand(&launch, run, c, 0, c->m, 0, g->a_rows, g->map_a);
    take_operand(&launch, run, c, 1, (end - first) * c->n, (int64_t)a_bytes(c), t->tile_n / 2, g->map_b);
    if (g->epilogue.by_tma) wgmma_take_map(&launch, (kernel_map){.operand = KERNEL_RESULT}, run->call.out[0]->format, c->n_out, c->m, c->n_out, MATMUL_OUT_ROWS(true), g->map_out);
    cuda_grid(&launch, run->chip->units / t->pair * t->pair, 1, 1);
    launch.block[0] = MATMUL_THREADS;
    launch.shared_bytes = (uint32_t)MATMUL_SHARED_BYTES(t->tile_m, t->tile_n, t->stages, t->boxes, t->kind == WGMMA_E4M3_BLOCK) + MATMUL_TOLD_BYTES;
    return launcher->add(launcher, &launch);
}

dw_status grouped_wgmma_shape(const kernel_run *run, kernel_launcher *launcher) {
    const groups_call c = call_of(run);
    for (int64_t first = 0; first < c.groups; first += c.at_a_time) {
        int64_t end = first + c.at_a_time < c.groups ? first + c.at_a_time : c.groups;
        const int64_t at[2] = {c.product.dequantises[0] && first == 0 ? 0 : -1, c.product.dequantises[1] ? (int64_t)a_bytes(&c) : -1};
        if (at[0] >= 0 || at[1] >= 0) TRY(matmul_dequantise_shape(run, launcher, at, first, end));
        TRY(launch_groups(run, launcher, &c, first, end));
    }
    return DW_OK;
}
