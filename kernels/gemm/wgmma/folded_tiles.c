/* Tiles of mxfp8 by mxfp8 whose codes are multiplied as they are: the host half of folded_tiles.cuh. How a call is divided, how long it takes, the launch. What is taken: folded.c. Pure: knows no driver. */
#include "kernels/gemm/wgmma/folded_tiles.h"

#include "kernels/gpu/host/host.h"
#include "kernels/gemm/host.h"

/* Thread blocks that share a tile's k, and microseconds, fitted to an H200 (bench/results/h200/decoded.md): where each has a multiprocessor alone, a start and a stage of k; where they are more, a start, and for as many as run at
 * a time a tile and a stage. */
typedef struct tile_division { const char *name; int splits; double alone, alone_stage, start, tile, stage; } tile_division;
static const tile_division divisions[] = {
    {"matmul_folded_n32", 1, 2.8, 0.318, 1.0, 2.2, 0.484},
    {"matmul_folded_n32split2", 2, 4.2, 0.313, 1.2, 4.0, 0.473},
};

const char *folded_tiles_variant(int number) { return number < (int)COUNT_OF(divisions) ? divisions[number].name : NULL; }

static int64_t rows_of_tiles(const kernel_run *run) { return base_ceil_div(kernel_result_rows(&run->call), FOLDED_TILE_ROWS); }
static int64_t blocks_of(const kernel_run *run, int splits) {
    const dw_tensor *out = run->call.out[0];
    return base_ceil_div(out->dims[out->rank - 1], matmul_halves_columns(&run->post) ? FOLDED_TILE_COLS / 2 : FOLDED_TILE_COLS) * rows_of_tiles(run) * splits;
}

static double microseconds(const kernel_run *run, const tile_division *d) {
    const dw_tensor *a = run->call.in[0];
    const int64_t blocks = blocks_of(run, d->splits);
    const double stages = (double)base_ceil_div(a->dims[a->rank - 1] / FOLDED_TILE_DEPTH, d->splits);
    if (blocks <= run->chip->units) return d->alone + stages * d->alone_stage;
    return d->start + (double)base_ceil_div(blocks, 2 * run->chip->units) * (d->tile + stages * d->stage);
}

folded_division folded_tiles_divide(const kernel_run *run, int number) {
    folded_division best = {0, 0};
    for (int i = 0; i < (int)COUNT_OF(divisions); i++) {
        const double us = microseconds(run, &divisions[i]);
        if (number >= 0 ? i == number : best.splits == 0 || us < best.us) best = (folded_division){divisions[i].splits, us};
    }
    return best;
}

static void take_map(kernel_launch *launch, int operand, int64_t k, int64_t rows, int box_rows, const void *field) {
    launch->maps[launch->map_count] = (kernel_map){.operand = operand, .type = KERNEL_MAP_BYTE, .rank = 2, .swizzle = KERNEL_SWIZZLE_128, .promotion = KERNEL_PROMOTION_256,
                                                   .dims = {(uint64_t)k, (uint64_t)rows}, .strides = {(uint64_t)k}, .box = {FOLDED_TILE_DEPTH, (uint32_t)box_rows}};
    cuda_slot(launch, KERNEL_SLOT_MAP, launch->map_count++, field, 0);
}

/* Boxes that hang over the edge of a cost more: few rows come in one as high as they are, and half a tile's where the last tile has no more. */
static int rows_of_box(int64_t m) {
    if (m < FOLDED_TILE_ROWS) return (int)(base_ceil_div(m, 8) * 8);
    return m % FOLDED_TILE_ROWS > 0 && m % FOLDED_TILE_ROWS <= FOLDED_TILE_ROWS / 2 ? FOLDED_TILE_ROWS / 2 : FOLDED_TILE_ROWS;
}

dw_status folded_tiles_multiply(const kernel_run *run, kernel_launcher *launcher, const folded_division *d) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1];
    kernel_launch launch;
    matmul_folded_tiles_arguments *g = cuda_launch(&launch, "matmul_folded_tiles_sm90", "matmul_folded_tile", sizeof *g);
    g->m = (int32_t)kernel_result_rows(&run->call);
    g->n = (int32_t)b->dims[b->rank - 2];
    g->k = (int32_t)a->dims[a->rank - 1];
    g->a_rows = rows_of_box(g->m);
    g->units_m = (int32_t)rows_of_tiles(run);
    g->splits = d->splits;
    g->b_is_constant = (run->constant_in >> 1 & 1) != 0;
    matmul_take_epilogue(&launch, run, 2, &g->epilogue);
    matmul_take_scales(&launch, run, 1, &g->scales);
    matmul_take_scales(&launch, run, 0, &g->a_scales);
    take_map(&launch, 0, g->k, g->m, g->a_rows, g->map_a);
    take_map(&launch, 1, g->k, g->n, FOLDED_TILE_COLS / 2, g->map_b);
    if (d->splits > 1) launch.cluster[0] = (uint32_t)d->splits, launch.cluster[1] = launch.cluster[2] = 1;
    cuda_grid(&launch, blocks_of(run, d->splits), 1, 1);
    launch.block[0] = FOLDED_TILE_THREADS;
    launch.shared_bytes = (uint32_t)FOLDED_TILE_SHARED;
    launch.overlaps = true;
    return launcher->add(launcher, &launch);
}
