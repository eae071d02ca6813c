/* grouped_matmul by tcgen05: the host half of the entries for groups of tiles.cuh. How many rows a group has only the device knows, so a call is planned for groups of about even size and right
 * for any. Pure: knows no driver. */
#include "kernels/gemm/tcgen05/tiles.h"

#include <math.h>

#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"
#include "kernels/gemm/host.h"
#include "kernels/gemm/tcgen05/kinds.h"

/* ---- entries ---- */

typedef struct groups_tile {
    tcgen05_kind kind;
    const char *image, *entry;
    tiles_sizes sizes;
    bool swapped;                 /* its rows are those of a matrix of b, its columns those of a group (swap.cuh) */
} groups_tile;

#define GROUPS(kind, element, name, tiles, ...) {kind, "matmul_" #element "_sm100", "matmul_tcgen05_" #element "_" #name "_groups", {__VA_ARGS__, tiles, kind == KIND_E4M3_BLOCK}, false},
#define SWAPPED(kind, element, name, tiles, ...) {kind, "matmul_" #element "_sm100", "matmul_tcgen05_" #element "_" #name "_swapped_groups", {__VA_ARGS__, tiles, 0}, true},

static const groups_tile tiles[] = {
#define TILES_DENSE_GROUPS(name, ...) GROUPS(KIND_HALF, half, name, 0, __VA_ARGS__)
#define TILES_DENSE_SWAPPED_GROUPS(name, ...) SWAPPED(KIND_HALF, half, name, 0, __VA_ARGS__)
#include "kernels/gemm/tcgen05/tiles.def"
#undef TILES_DENSE_GROUPS
#undef TILES_DENSE_SWAPPED_GROUPS
#define TILES_DENSE_GROUPS(name, ...) GROUPS(KIND_E4M3, e4m3, name, 0, __VA_ARGS__)
#define TILES_DENSE_SWAPPED_GROUPS(name, ...) SWAPPED(KIND_E4M3, e4m3, name, 0, __VA_ARGS__)
#include "kernels/gemm/tcgen05/tiles.def"
#undef TILES_DENSE_GROUPS
#undef TILES_DENSE_SWAPPED_GROUPS
#define TILES_PROMOTED_GROUPS(name, ...) GROUPS(KIND_E4M3_BLOCK, e4m3_block, name, 0, __VA_ARGS__)
#include "kernels/gemm/tcgen05/tiles.def"
#undef TILES_PROMOTED_GROUPS
#define TILES_SCALED_GROUPS(name, ...) GROUPS(KIND_MXFP8, mxfp8, name, 1, __VA_ARGS__)
#define TILES_SCALED_SWAPPED_GROUPS(name, ...) SWAPPED(KIND_MXFP8, mxfp8, name, 1, __VA_ARGS__)
#include "kernels/gemm/tcgen05/tiles.def"
#undef TILES_SCALED_GROUPS
#undef TILES_SCALED_SWAPPED_GROUPS
#define TILES_SCALED_GROUPS(name, ...) GROUPS(KIND_MXFP4, mxfp4, name, 2, __VA_ARGS__)
#define TILES_SCALED_SWAPPED_GROUPS(name, ...) SWAPPED(KIND_MXFP4, mxfp4, name, 2, __VA_ARGS__)
#include "kernels/gemm/tcgen05/tiles.def"
#undef TILES_SCALED_GROUPS
#undef TILES_SCALED_SWAPPED_GROUPS
#define TILES_SCALED_GROUPS(name, ...) GROUPS(KIND_NVFP4, nvfp4, name, 4, __VA_ARGS__)
#define TILES_SCALED_SWAPPED_GROUPS(name, ...) SWAPPED(KIND_NVFP4, nvfp4, name, 4, __VA_ARGS__)
#include "kernels/gemm/tcgen05/tiles.def"
#undef TILES_SCALED_GROUPS
#undef TILES_SCALED_SWAPPED_GROUPS
};

/* ---- what is taken ---- */

static bool runs(const groups_tile *t, tcgen05_kind kind, bool halves, int64_t half) {
    return t->kind == kind && (t->swapped ? tcgen05_swapped_runs(&t->sizes, false, halves, half) : tcgen05_tile_runs(&t->sizes, halves, half));
}

static bool has_tile(tcgen05_kind kind, bool halves, int64_t half) {
    for (size_t i = 0; i < COUNT_OF(tiles); i++)
        if (runs(&tiles[i], kind, halves, half)) return true;
    return false;
}

const char *grouped_tcgen05_refuses(const kernel_problem *problem, text *why) {
    const op_type *b = problem->in[1];
    int64_t groups, n = 0;
    tcgen05_product product;
    const char *reason = tcgen05_refuses_operands(problem, &product, why);
    if (reason == NULL) reason = tcgen05_refuses_layout(problem, &product, why);
    if (reason == NULL) reason = matmul_reject_post(problem, 3, why);
    if (reason != NULL) return reason;
    (void)dim_is_constant(b->dims[1], &n);
    if (!dim_is_constant(b->dims[0], &groups)) return "the number of groups is not known at plan time";
    if (groups == 0) return "there are no groups";
    if (groups >= TILES_MOST_GROUPS || n > INT32_MAX / 4 / groups) return "the groups, or the rows of all groups' b, are more than this kernel counts to";
    return has_tile(product.kind, matmul_halves_columns(&problem->post), n / 2) ? NULL : tcgen05_no_tile(&product, false);
}

/* ---- which tile, how long ---- */

typedef struct groups_call {
    int64_t m, n, n_out, k, groups;
    int64_t apart;                /* rows from one padded group to the next; 0: groups lie side by side */
    double rows;                  /* that are expected to be in groups */
    bool halves;
    tcgen05_product product;
    const groups_tile *tile;
    double busy;                  /* groups that are expected to have any */
} groups_call;

static double rows_of_group(const groups_call *c) { return c->rows / c->busy; }

/* Rows in front of a group's first with which its tiles begin: where scales come for 128 rows together, half as many; none where groups begin with such. */
static double lead_of(const groups_call *c) { return c->product.scale_block > 0 && c->groups > 1 && (c->apart == 0 || c->apart % 128 != 0) ? 64 : 0; }

/* Rows of a group that a unit has. */
static int rows_of_unit(const groups_tile *t) { return t->swapped ? t->sizes.n : TILES_ROWS * t->sizes.pair; }
/* Units that lie side by side: with the same rows of a group. */
static int64_t units_of_row(const groups_call *c, const groups_tile *t) {
    if (t->swapped) return base_ceil_div(c->halves ? 2 * c->n_out : c->n, TILES_ROWS * t->sizes.pair);
    return base_ceil_div(c->n_out, c->halves ? t->sizes.n / 2 : t->sizes.n);
}

static int64_t units_at_a_time(const groups_tile *t, const chip_caps *chip) { return chip->units > t->sizes.pair ? chip->units / t->sizes.pair : 1; }

static int64_t band_of(const groups_call *c, const groups_tile *t, const chip_caps *chip) {
    const int64_t units_m = (int64_t)ceil((rows_of_group(c) + lead_of(c)) / rows_of_unit(t));
    if (t->swapped) return units_m;    /* all of a group's, which are few, by the same rows of b */
    return tcgen05_band(&t->sizes, units_m, units_of_row(c, t), units_at_a_time(t, chip));
}

/* As counted in machine code (README.md): of the warp that loads, a k-block. */
enum { LOAD_INSTRUCTIONS = 45 };

static void bound_of(const groups_call *c, const groups_tile *tile, const kernel_run *run, kernel_tiles_bound *bound) {
    kernel_product product = {.m = (int64_t)c->rows, .n = c->n, .k = c->k, .groups = c->busy, .bits = {c->product.element_bits, c->product.b_bits}, .scale_block = c->product.scale_block,
                              .promotes = c->product.kind == KIND_E4M3_BLOCK, .result_bytes = dw_format_bits(run->call.out[0]->format) / 8.0};
    if (c->apart > 0) product.more_bytes = fmax(0, (double)c->m - c->rows) * (double)c->n_out * product.result_bytes;   /* zeros */
    kernel_tiles t = tcgen05_tiles(&tile->sizes, tile->swapped, run->post.count);
    t.load = LOAD_INSTRUCTIONS;
    t.raster = (int)band_of(c, tile, run->chip);
    t.lead = lead_of(c);
    if (tile->swapped) {
        product.m = c->n, product.n = (int64_t)c->rows, product.groups_columns = true;
        product.bits[0] = c->product.b_bits, product.bits[1] = c->product.element_bits;
        t.trims = true;
        t.raster = 0;
        t.epilogue_cycles *= fmin(1, (rows_of_group(c) + t.lead) / t.n);
    }
    kernel_tiles_bound_of(&t, &product, run->chip, bound);
}

/* Where main memory binds, many tiles have about the same bound: the one whose multiprocessors have least to do leaves the most room for what the bound does not know. */
static double busy_cycles(const kernel_tiles_bound *b) {
    double most = 0;
    for (int i = 0; i < KERNEL_RESOURCES; i++)
        if (i != KERNEL_RESOURCE_l2 && i != KERNEL_RESOURCE_memory && b->cycles[i] > most) most = b->cycles[i];
    return most + b->behind_cycles;
}

static bool is_better(const kernel_tiles_bound *b, const kernel_tiles_bound *best) {
    const double alike = 0.01;
    if (b->seconds < best->seconds * (1 - alike)) return true;
    return b->seconds <= best->seconds * (1 + alike) && busy_cycles(b) < busy_cycles(best);
}

/* The measured tile, or the one of least bound. On a chip of whose tensor units nobody knows the rate all are alike: the first one. */
static groups_call call_of(const kernel_run *run) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1], *offsets = run->call.in[2], *out = run->call.out[0];
    groups_call c = {.m = a->dims[0], .n = b->dims[1], .n_out = out->dims[1], .k = a->dims[1], .groups = offsets->dims[0], .halves = matmul_halves_columns(&run->post)};
    kernel_tiles_bound best = {0};
    tcgen05_product_of(a->format, b->format, &c.product);
    c.apart = op_rows_apart(&run->call);
    c.rows = op_group_rows_expected(&run->call);
    c.busy = fmax(1, op_groups_filled(&run->call));
    if (run->variant > 0) c.tile = &tiles[run->variant - 1];
    for (size_t i = 0; i < COUNT_OF(tiles) && run->variant <= 0; i++) {
        kernel_tiles_bound bound;
        if (!runs(&tiles[i], c.product.kind, c.halves, c.n / 2)) continue;
        bound_of(&c, &tiles[i], run, &bound);
        if (c.tile != NULL && !is_better(&bound, &best)) continue;
        c.tile = &tiles[i];
        best = bound;
    }
    return c;
}

bool grouped_tcgen05_bound(const kernel_run *run, kernel_tiles_bound *bound) {
    const groups_call c = call_of(run);
    if (!kernel_tiles_known(run->chip)) return false;
    bound_of(&c, c.tile, run, bound);
    return true;
}

double grouped_tcgen05_seconds(const kernel_run *run) {
    kernel_tiles_bound bound;
    return grouped_tcgen05_bound(run, &bound) ? bound.seconds : kernel_run_roofline(run, run->call.in[0]->format, 1, 1);
}

/* Units are counted over all groups, of each of which the last one may be short, and the first one begin in front of its rows. */
static int64_t most_units(const groups_call *c) {
    const int64_t busy = c->groups < c->m ? c->groups : c->m;
    return (c->m / rows_of_unit(c->tile) + 2 * busy) * units_of_row(c, c->tile);
}

const char *grouped_tcgen05_takes(const kernel_run *run, text *why) {
    const groups_call c = call_of(run);
    if (c.m <= INT32_MAX / 2 && c.k <= INT32_MAX / 4 && most_units(&c) <= INT32_MAX / 2) return NULL;
    return kernel_because(why, "%lld x %lld x %lld in %lld groups is more than it counts to", (long long)c.m, (long long)c.n, (long long)c.k, (long long)c.groups);
}

const char *grouped_tcgen05_variant(const kernel_problem *problem, int index) {
    tcgen05_product product;
    int64_t n = 0;
    if (index >= (int)COUNT_OF(tiles)) return NULL;
    (void)dim_is_constant(problem->in[1]->dims[1], &n);
    tcgen05_product_of(problem->in[0]->format, problem->in[1]->format, &product);
    return runs(&tiles[index], product.kind, matmul_halves_columns(&problem->post), n / 2) ? tiles[index].entry : "";
}

/* ---- the launch ---- */

/* Boxes of a of about a group's rows, so that little is brought that no group of the tile has; of swapped operands a block has half of a pair's. */
static int box_rows(const groups_call *c) {
    const int share = c->tile->swapped ? c->tile->sizes.pair : 1, most = c->tile->swapped ? c->tile->sizes.n / share : TILES_ROWS;
    int rows = 16;
    while (rows < most && rows < (rows_of_group(c) + lead_of(c) * c->tile->swapped) / share) rows *= 2;
    return rows;
}

dw_status grouped_tcgen05_shape(const kernel_run *run, kernel_launcher *launcher) {
    const groups_call c = call_of(run);
    const groups_tile *t = c.tile;
    const int64_t here = run->call.in[1]->dims[0], row_bytes = tcgen05_row_bytes(&c.product, c.k), most = units_at_a_time(t, run->chip), units = most_units(&c);
    kernel_launch launch;
    matmul_tiles_arguments *g = cuda_launch(&launch, t->image, t->entry, sizeof *g);
    matmul_take_epilogue(&launch, run, 3, &g->epilogue);
    matmul_take_groups(&launch, run, run->first_group, run->first_group + here, &g->groups);
    g->m = (int32_t)(t->swapped ? c.n : c.m);
    g->n = (int32_t)(t->swapped ? c.m : c.n);
    g->blocks = (int32_t)base_ceil_div(row_bytes, TILES_ROW_BYTES);
    g->units_n = (int32_t)units_of_row(&c, t);
    g->band = (int32_t)band_of(&c, t, run->chip);
    g->told = (1 << c.tile->sizes.pair) - 1;
    g->b_row_bytes = TILES_ROW_BYTES * c.product.b_bits / c.product.element_bits;
    g->formats = t->swapped ? tcgen05_swapped_formats(c.product.formats) : c.product.formats;
    g->a_rows = box_rows(&c);
    tcgen05_take_map(&launch, 0, &c.product, c.m, row_bytes, g->a_rows, t->swapped ? g->map_b : g->map_a);
    tcgen05_take_map(&launch, 1, &c.product, here * c.n, row_bytes, !t->swapped ? t->sizes.n / 2 : t->sizes.scale_tiles == 0 ? TILES_ROWS / 2 : TILES_ROWS, t->swapped ? g->map_a : g->map_b);
    if (t->swapped) g->epilogue.by_tma = 0;
    if (g->epilogue.by_tma) tcgen05_take_result(&launch, run, c.m, c.n_out, g->map_out);
    if (c.product.kind == KIND_E4M3_BLOCK) tcgen05_take_block_scales(&launch, c.k, g);
    if (c.product.scale_tiles > 0) {
        tcgen05_take_scales(&launch, run, 0, base_ceil_div(c.m, 128), t->sizes.scale_tiles, t->swapped ? g->map_b_scales : g->map_a_scales);
        tcgen05_take_scales(&launch, run, 1, here * base_ceil_div(c.n, 128), t->sizes.scale_tiles, t->swapped ? g->map_a_scales : g->map_b_scales);
    }
    cuda_grid(&launch, (units < most ? units : most) * t->sizes.pair, 1, 1);
    launch.block[0] = (uint32_t)tiles_threads(t->sizes);
    launch.shared_bytes = (uint32_t)tiles_shared_bytes(t->sizes);
    return launcher->add(launcher, &launch);
}
