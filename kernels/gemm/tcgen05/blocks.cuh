/* A tile's results in blocks along a row. Of 16, of nvfp4 under a second level that is known: a part. Of 32, of mxfp8 or mxfp4: two parts of 16 columns, held in registers. Of 128, of fp8_1x128: more than a thread holds, so they are computed twice: once for
 * their largest magnitude, and once to be stored.
 *
 *   fp8_1x128    sums -> results of 128 columns -> largest magnitude -> scale;  sums -> results -> codes
 *
 * Where two warps have the halves of a block of 128 (promote.cuh), each tells the other its largest magnitude. */
#ifndef KERNELS_GEMM_TCGEN05_BLOCKS_CUH
#define KERNELS_GEMM_TCGEN05_BLOCKS_CUH

#include "kernels/gemm/tcgen05/tile.cuh"

enum { WIDE_PARTS = 128 / TILES_PART };

/* The larger one of what a thread and that of the other warp of its rows have. The second wait is for the place's next use. */
INLINE float larger_of_warps(float most, const store_boxes *boxes) {
    const int warp = threadIdx.x / 32 - FIRST_STORE_WARP, other = (warp < 4 ? 4 : -4) * boxes->count * TILES_BOX_BYTES;
    const uint32_t place = boxes->place + threadIdx.x % 32 * 4;
    st_shared_f32(place, most);
    barrier_sync(1 + warp % 4, 64);
    most = max_nan(most, ld_shared_f32(place + other));
    barrier_sync(1 + warp % 4, 64);
    return most;
}

/* Results of one part of a block of 128, number turn of the block's: first those of all its parts for their largest magnitude, then those that are stored. */
typedef struct wide_block { float most, inverse; } wide_block;

INLINE void wide_part(const matmul_epilogue *e, float *values, int turn, int each, int share, const row_place p, wide_block *block, const store_boxes *boxes) {
    block_round(e->out_format, values, p.col, p.end);
    if (turn >= each) {
        if (p.row < p.rows) block_store_e4m3(e, values, block->inverse, p);
        return;
    }
    block->most = block_largest(turn == 0 ? 0 : block->most, values);
    if (turn < each - 1) return;
    if (each < WIDE_PARTS) block->most = larger_of_warps(block->most, boxes);
    block->inverse = fp8_inverse(block->most);
    if (p.row < p.rows && (each == WIDE_PARTS || share == 0) && p.col / 128 < e->scale_row_stride)
        ((float *)e->scales)[p.row * e->scale_row_stride + p.col / 128] = fp8_scale(block->most);
}

/* As store_tile of tiles.cuh. */
INLINE void store_blocks(const matmul_tiles_arguments *g, const tiles_shape s, const tiles_tile *tile, int row, int share, uint32_t sums, bool downwards, uint32_t release, const store_boxes *boxes) {
    const matmul_epilogue *e = &g->epilogue;
    const bool halves = e->halving >= 0, wide = e->block == 128;
    const int parts = (halves ? s.n / 2 : s.n) * 4 / tiles_store_warps(s.sizes) / TILES_PART, each = min(parts, WIDE_PARTS);
    const int turns = wide ? 2 * parts : parts, last = turns - 1;
    const sums_ahead ahead = load_ahead(s, sums, parts, halves, downwards, !wide, release);
    row_place place = {row + (int)threadIdx.x % 32, tile->end, 0, halves ? e->half : g->n, row + (int)threadIdx.x % 32, 0};
    const float factor = row_factor(e, place.row, tile->end);
    wide_block block = {0, 0};
    if (e->block == TILES_PART && row == 0 && tile->col == 0 && share == 0 && threadIdx.x % 32 == 0) *(float *)g->second = g->level;
    float held[TILES_PART];
    int held_col = 0;
#pragma unroll 1
    for (int turn = 0; turn < turns; turn++) {
        const int at = wide ? turn / (2 * each) * each + turn % each : turn, part = share * parts + (downwards && !wide ? parts - 1 - at : at);
        float values[TILES_PART];
        place.col = tile->col + part * TILES_PART;
        const row_sums from = sums_of_part(s, &ahead, sums, part, turn, turn == last ? release : 0);
        row_results(e, &from, factor, values, place, 0);
        if (wide) {
            wide_part(e, values, turn % (2 * each), each, share, place, &block, boxes);
            continue;
        }
        if (e->block == TILES_PART) {
            store_block_nvfp4(g, values, place);
            continue;
        }
        if (turn % 2 == 1) {
            const int col = place.col;
            place.col = tile->col + part / 2 * 32;
            store_block(g, held, values, place, held_col, col);
        }
        EACH_COLUMN held[i] = values[i];
        held_col = tile->col + part * TILES_PART;
    }
}

#endif
