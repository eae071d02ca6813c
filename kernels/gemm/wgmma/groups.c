/* grouped_matmul by wgmma: the host half of the entries for groups of tma.cuh. How many rows a group has only the device knows, so a call is planned for groups of
 * about even size and right for any. Pure: knows no driver. */
#include <math.h>

#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"
#include "kernels/gemm/wgmma/tiles.h"

/* ---- entries ---- */

enum { TURNED_ROWS = 64 };       /* of k, in a box of a b that lies turned */

typedef struct groups_tile {
    wgmma_kind kind;
    bool bn;                      /* matrices of b lie as [k,n] */
    const char *image, *entry;
    int parts, tile_m, tile_n, stages, boxes, pair;
    double block_us, tile_us;     /* as of tiles without groups */
} groups_tile;

static const groups_tile tiles[] = {
#define MATMUL_GROUPS_HALF(name, ...) {WGMMA_BF16, false, "matmul_bf16_sm90", "matmul_bf16_" #name "_groups", 0, __VA_ARGS__},
#include "kernels/gemm/wgmma/tiles.def"
#undef MATMUL_GROUPS_HALF
#define MATMUL_GROUPS_HALF(name, ...) {WGMMA_F16, false, "matmul_f16_sm90", "matmul_f16_" #name "_groups", 0, __VA_ARGS__},
#include "kernels/gemm/wgmma/tiles.def"
#undef MATMUL_GROUPS_HALF
#define MATMUL_GROUPS_BYTE(name, ...) {WGMMA_E4M3, false, "matmul_e4m3_sm90", "matmul_e4m3_" #name "_groups", 0, __VA_ARGS__},
#include "kernels/gemm/wgmma/tiles.def"
#undef MATMUL_GROUPS_BYTE
#define MATMUL_GROUPS_SCALED(name, ...) {WGMMA_E4M3_BLOCK, false, "matmul_e4m3_block_sm90", "matmul_e4m3_block_" #name "_groups", __VA_ARGS__},
#include "kernels/gemm/wgmma/tiles.def"
#undef MATMUL_GROUPS_SCALED
#define MATMUL_GROUPS_TURNED(name, ...) {WGMMA_BF16, true, "matmul_bf16_turned_sm90", "matmul_bf16_" #name "_groups", 0, __VA_ARGS__},
#include "kernels/gemm/wgmma/tiles.def"
#undef MATMUL_GROUPS_TURNED
#define MATMUL_GROUPS_TURNED(name, ...) {WGMMA_F16, true, "matmul_f16_turned_sm90", "matmul_f16_" #name "_groups", 0, __VA_ARGS__},
#include "kernels/gemm/wgmma/tiles.def"
#undef MATMUL_GROUPS_TURNED
};

/* ---- what a call comes to ---- */

typedef struct groups_call {
    int64_t m, n, n_out, k, groups;
    double rows, busy;            /* rows that are expected to be in groups, and groups that are to have any */
    bool halves, bn;
    wgmma_kind kind;
    const groups_tile *tile;
    double us;
    bool padded;                  /* rows of no group become zeros */
    double result_bytes;          /* of an element */
} groups_call;

static bool runs(const groups_tile *t, const groups_call *c) {
    return t->kind == c->kind && t->bn == c->bn && (!c->halves || ((t->parts == 0 || t->parts == 2) && t->tile_n / 2 % 64 == 0));
}

/* The units that groups are cut into: half a unit at the end of each is empty on average. */
static double units_of(const groups_tile *t, const groups_call *c) {
    double down = c->rows / c->busy / (t->tile_m * t->pair) + 0.5;
    return c->busy * (down > 1 ? down : 1) * (double)base_ceil_div(c->n_out, c->halves ? t->tile_n / 2 : t->tile_n);
}

static int64_t units_at_a_time(const groups_tile *t, const chip_caps *chip) { return chip->units > t->pair ? chip->units / t->pair : 1; }

/* The tensor cores' time, or that of bringing the busy groups' weights once, which fewer tiles than multiprocessors do at a part of the bandwidth, and those of bytes at less. The start and the
 * shares are those of a model's step on an H200 (bench/results/h200/models.md). */
static double microseconds(const groups_tile *t, const groups_call *c, const chip_caps *chip) {
    const double start_us = 4.5, units = units_of(t, c), filled = units * t->pair < chip->units ? units * t->pair / chip->units : 1;
    double waves = units / (double)units_at_a_time(t, chip), tail = waves < 8 ? (double)(int64_t)waves + 1 : waves;
    double products = tail * ((double)base_ceil_div(c->k * wgmma_element_bytes(t->kind), 128) * t->block_us + t->tile_us);
    const double share = wgmma_element_bytes(t->kind) == 1 ? 0.8 : 0.906;
    double bytes = 1e6 * c->busy * (double)(c->n * c->k * wgmma_element_bytes(t->kind)) / (share * filled * chip_bytes_per_s(chip));
    const double zeros = c->padded ? 1e6 * fmax(0, (double)c->m - c->rows) * (double)c->n_out * c->result_bytes / (0.906 * chip_bytes_per_s(chip)) : 0;
    return start_us + (products > bytes ? products : bytes) + zeros;
}

/* The tile is that of all groups, also where the call is of a part of them. */
static groups_call call_of(const kernel_run *run) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1], *offsets = run->call.in[2], *out = run->call.out[0];
    const bool bn = !op_attr_bool(run->call.attrs, OP_ATTR_bt);
    groups_call c = {.m = a->dims[0], .n = b->dims[bn ? 2 : 1], .n_out = out->dims[1], .k = a->dims[1], .groups = offsets->dims[0], .halves = matmul_halves_columns(&run->post), .bn = bn};
    c.kind = wgmma_kind_of(a->format, b->format);
    c.rows = op_group_rows_expected(&run->call);
    c.padded = op_attr_int(run->call.attrs, OP_ATTR_padded) > 0;
    c.result_bytes = dw_format_bits(out->format) / 8.0;
    c.busy = fmax(1, op_groups_filled(&run->call));
    for (size_t i = 0; i < COUNT_OF(tiles) && c.m > 0; i++) {
        double us = runs(&tiles[i], &c) ? microseconds(&tiles[i], &c, run->chip) : -1;
        if (us >= 0 && (c.tile == NULL || us < c.us)) c.tile = &tiles[i], c.us = us;
    }
    return c;
}

/* Of matrices that lie as [k,n], blocks of k end where a matrix does: what lies behind is the next one's. */
static const char *reject_turned(const kernel_problem *problem, text *why) {
    const op_type *b = problem->in[1];
    const wgmma_kind kind = wgmma_kind_of(problem->in[0]->format, b->format);
    int64_t k, n;
    if (kind != WGMMA_BF16 && kind != WGMMA_F16) return "b is stored with n last, and operands of other than 16 bits are read as [n,k]";
    if (!dim_is_constant(b->dims[1], &k) || !dim_is_constant(b->dims[2], &n)) return "k or n is not known at plan time";
    if (k == 0 || n == 0) return "k or n is 0";
    if (matmul_halves_columns(&problem->post)) return "b is stored with n last, and a step joins columns";
    if (k % TURNED_ROWS == 0 && n % 8 == 0) return NULL;
    text_printf(why, "b is stored with n last, and k = %lld is no multiple of %d, or n = %lld none of 8", (long long)k, TURNED_ROWS, (long long)n);
    return text_string(why);
}

const char *grouped_wgmma_refuses(const kernel_problem *problem, text *why) {
    int64_t groups, rows;
    const op_type *b = problem->in[1];
    const char *reason = op_attr_bool(problem->attrs, OP_ATTR_bt) ? wgmma_reject_products(problem, why) : reject_turned(problem, why);
    if (reason != NULL) return reason;
    if (!dim_is_constant(b->dims[0], &groups) || !dim_is_constant(b->dims[1], &rows)) return "the number of groups is not known at plan time";
    if (groups == 0) return "there are no groups";
    if (rows > INT32_MAX / 2 / groups) return "the rows of all groups' b are more than this kernel counts to";
    return matmul_reject_post(problem, 3, why);
}

double grouped_wgmma_seconds(const kernel_run *run) { return 1e-6 * call_of(run).us; }

const char *grouped_wgmma_takes(const kernel_run *run, text *why) {
    const groups_call c = call_of(run);
    if (c.m <= INT32_MAX / 2 && c.k <= INT32_MAX / 2 && (c.m / 128 + c.groups) * base_ceil_div(c.n_out, 64) <= INT32_MAX / 2) return NULL;
    return kernel_because(why, "%lld x %lld x %lld is more than it counts to", (long long)c.m, (long long)c.n, (long long)c.k);
}

/* ---- the launch ---- */

/* Boxes of a of about a group's rows, so that little is brought that no group of the tile has. */
static int box_rows(const groups_call *c) {
    int rows = 16;
    while (rows < 128 && rows < (int64_t)c->rows / (int64_t)c->busy) rows *= 2;
    return rows;
}

dw_status grouped_wgmma_shape(const kernel_run *run, kernel_launcher *launcher) {
    const groups_call c = call_of(run);
    const groups_tile *t = c.tile;
    const int64_t here = run->call.in[1]->dims[0];
    kernel_launch launch;
    matmul_wgmma_arguments *g = cuda_launch(&launch, t->image, t->entry, sizeof *g);
    g->m = (int32_t)c.m;
    g->n = (int32_t)c.n;
    g->k = (int32_t)c.k;
    g->units_n = (int32_t)base_ceil_div(c.n_out, c.halves ? t->tile_n / 2 : t->tile_n);
    g->a_rows = box_rows(&c);
    matmul_take_epilogue(&launch, run, 3, &g->epilogue);
    matmul_take_groups(&launch, run, run->first_group, run->first_group + here, &g->groups);
    if (t->kind == WGMMA_E4M3_BLOCK) wgmma_take_block_scales(&launch, g);
    wgmma_take_map(&launch, run, 0, c.m, g->a_rows, g->map_a);
    wgmma_take_map(&launch, run, 1, here * (t->bn ? c.k : c.n), t->bn ? TURNED_ROWS : t->tile_n / 2, g->map_b);
    if (g->epilogue.by_tma) wgmma_take_map(&launch, run, KERNEL_RESULT, c.m, MATMUL_OUT_ROWS(true), g->map_out);
    cuda_grid(&launch, units_at_a_time(t, run->chip) * t->pair, 1, 1);
    launch.block[0] = MATMUL_THREADS;
    launch.shared_bytes = (uint32_t)MATMUL_SHARED_BYTES(t->tile_m, t->tile_n, t->stages, t->boxes, t->kind == WGMMA_E4M3_BLOCK) + MATMUL_TOLD_BYTES;
    return launcher->add(launcher, &launch);
}
