/* The tiles of rows in groups, whose sizes lie in device memory. A warp of each thread block reads the offsets, 32 groups at a time, and publishes the thread block's tiles
 * (schedule.cuh) as {first row, row behind the group's last, column, group}.
 *
 * Tiles are counted group after group, so a group without rows has none and costs one lane's look; a group's last tiles hang over its end, and what lies behind
 * it is loaded, multiplied and not stored. Without groups a thread block computes its tiles from their number where they are needed. */
#ifndef KERNELS_GEMM_WGMMA_GROUPS_CUH
#define KERNELS_GEMM_WGMMA_GROUPS_CUH

#include "kernels/gemm/group_rows.cuh"
#include "kernels/gemm/wgmma/tile.cuh"

/* ---- reading tiles ---- */

INLINE tma_tile published_tile(const matmul_wgmma_arguments *g, const tma_shape s, const uint4 found) {
    tma_tile tile;
    tile.row = (int)found.x, tile.end = (int)found.y, tile.group = (int)found.w;
    tile.out_col = tile.col = (int)found.z;
    tile.up = tile.col + (g->epilogue.halving >= 0 ? g->epilogue.half : s.tile_n / 2);
    return tile;
}

/* False: there are no more. A published tile is released when it is no longer needed, once by the thread that loads and once by each warp of the others. */
INLINE bool find_tile(const matmul_wgmma_arguments *g, const tma_shape s, tma_ring ring, int turn, int rank, tma_tile *tile) {
    if (s.groups) {
        const uint4 found = schedule_wait(ring.schedule, turn);
        *tile = published_tile(g, s, found);
        return !schedule_is_end(found);
    }
    if (turn >= g->units_m * g->units_n) return false;
    *tile = tile_at(g, s, g->units_m, turn, rank);
    return true;
}

/* How many boxes of a hold the tile's rows, and the row in the map of b at which its matrix begins: of n, or where b lies turned of k. */
INLINE int a_boxes(const matmul_wgmma_arguments *g, const tma_shape s, const tma_tile *tile) {
    return s.groups ? max(0, min(ceil_div(tile->end - tile->row, g->a_rows), s.tile_m / g->a_rows)) : 1;
}
INLINE int b_row(const matmul_wgmma_arguments *g, const tma_shape s, const tma_tile *tile) { return s.groups && !s.b_turned ? (tile->group - g->groups.first) * g->n : 0; }
INLINE int b_depth(const matmul_wgmma_arguments *g, const tma_shape s, const tma_tile *tile) { return s.groups && s.b_turned ? (tile->group - g->groups.first) * g->k : 0; }

/* ---- publishing them: one warp ---- */

/* Lane l reads group base + l. Offsets that do not ascend within m end all tiles. */
INLINE void publish_tiles(const matmul_wgmma_arguments *g, const tma_shape s, tma_ring ring, int rank) {
    const int unit_rows = s.tile_m * s.pair, lane = threadIdx.x % 32;
    int turn = 0, unit = blockIdx.x / s.pair;     /* units are counted from group base on */
    for (int base = g->groups.first; base < g->groups.end; base += 32) {
        int begin = 0, end = 0;
        bool right = base + lane >= g->groups.end || rows_of_group(&g->groups, base + lane, g->m, &begin, &end);
        if (!__all_sync(0xffffffff, right)) break;
        const schedule_groups groups = schedule_groups_of(begin, end, unit_rows, g->units_n);
        const int all = schedule_groups_tiles(&groups);
        for (; unit < all; unit += gridDim.x / s.pair) {
            const schedule_group own = schedule_group_of(&groups, unit);
            const int units_m = ceil_div(own.end - own.begin, unit_rows), in_group = unit - (own.upto - units_m * g->units_n);
            tma_tile tile = tile_at(g, s, units_m, in_group, rank);
            schedule_publish(ring.schedule, turn++, make_uint4((uint32_t)(own.begin + tile.row), (uint32_t)own.end, (uint32_t)tile.col, (uint32_t)(base + own.lane)));
        }
        unit -= all;
    }
    schedule_publish_end(ring.schedule, turn);
}

#endif
