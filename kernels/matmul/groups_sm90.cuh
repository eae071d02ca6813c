/* Which tiles there are of rows in groups, whose sizes lie in device memory. A warp of each block reads the offsets, 32 groups at a time, and tells the block's tiles one
 * after the other through a ring of MATMUL_TOLD slots in shared memory; whoever loads, multiplies or stores takes them from there:
 *
 *   warp 2     offsets (gmem) -> empty[slot] -> {first row, row behind the group's last, column, group} -> full[slot];  behind the last one a row of -1
 *   the others full[slot] -> the tile -> empty[slot]
 *
 * Units are counted group after group, so a group without rows has none and costs one lane's look; a group's last tiles hang over its end, and what lies behind
 * it is loaded, multiplied and not stored. Without groups a block's tiles are computed from their number where they are needed. */
#ifndef KERNELS_MATMUL_GROUPS_SM90_CUH
#define KERNELS_MATMUL_GROUPS_SM90_CUH

#include "kernels/matmul/groups.cuh"
#include "kernels/matmul/tile_sm90.cuh"

/* ---- taking tiles ---- */

/* Where a role stands: with groups the number of the told tile, else that of the unit. */
INLINE int first_turn(const tma_shape s) { return s.groups ? 0 : blockIdx.x / (s.pair * s.splits); }
INLINE int next_turn(const tma_shape s, int turn) { return s.groups ? turn + 1 : turn + gridDim.x / (s.pair * s.splits); }

INLINE tma_tile told_tile(const matmul_sm90_arguments *g, const tma_shape s, tma_ring ring, int turn) {
    uint4 told = ld_shared_u32x4(ring.told + turn % MATMUL_TOLD * 16);
    tma_tile tile;
    tile.row = (int)told.x, tile.end = (int)told.y, tile.group = (int)told.w;
    tile.out_col = tile.col = (int)told.z;
    tile.up = tile.col + (g->epilogue.halving >= 0 ? g->epilogue.half : s.tile_n / 2);
    return tile;
}

/* False: there are no more. A told tile is given back when it is no longer looked at, once by the thread that loads and once by each warp of the others. */
INLINE bool take_tile(const matmul_sm90_arguments *g, const tma_shape s, tma_ring ring, int turn, int rank, tma_tile *tile) {
    if (s.groups) {
        ring_wait_full(ring.told_slots, ring_reader_turn(turn, MATMUL_TOLD));
        *tile = told_tile(g, s, ring, turn);
        return tile->row >= 0;
    }
    if (turn >= g->units_m * g->units_n) return false;
    *tile = tile_at(g, s, g->units_m, turn, rank);
    return true;
}

INLINE void give_tile(tma_ring ring, int turn) { ring_arrive_empty(ring.told_slots, ring_reader_turn(turn, MATMUL_TOLD)); }

/* How many boxes of a hold the tile's rows, and the row in the map of b at which its matrix begins. */
INLINE int a_boxes(const matmul_sm90_arguments *g, const tma_shape s, const tma_tile *tile) {
    return s.groups ? max(0, min(ceil_div(tile->end - tile->row, g->a_rows), s.tile_m / g->a_rows)) : 1;
}
INLINE int b_row(const matmul_sm90_arguments *g, const tma_shape s, const tma_tile *tile) { return s.groups ? (tile->group - g->groups.first) * g->n : 0; }

/* ---- telling them: one warp ---- */

INLINE void tell_tile(tma_ring ring, int turn, int row, int end, int col, int group) {
    const ring_turn slot = ring_writer_turn(turn, MATMUL_TOLD);
    ring_wait_empty(ring.told_slots, slot);
    if (threadIdx.x % 32 == 0) {
        st_shared_u32x4(ring.told + slot.stage * 16, make_uint4((uint32_t)row, (uint32_t)end, (uint32_t)col, (uint32_t)group));
        ring_arrive_full(ring.told_slots, slot);
    }
    __syncwarp();
}

/* Lane l looks at group base + l. Offsets that do not ascend within m end all tiles. */
INLINE void tell_tiles(const matmul_sm90_arguments *g, const tma_shape s, tma_ring ring, int rank) {
    const int unit_rows = s.tile_m * s.pair, lane = threadIdx.x % 32;
    int turn = 0, unit = blockIdx.x / s.pair;     /* units are counted from group base on */
    for (int base = g->groups.first; base < g->groups.end; base += 32) {
        int begin = 0, end = 0;
        bool right = base + lane >= g->groups.end || rows_of_group(&g->groups, base + lane, g->m, &begin, &end);
        if (!__all_sync(0xffffffff, right)) break;
        int upto = ceil_div(end - begin, unit_rows) * g->units_n;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            int before = __shfl_up_sync(0xffffffff, upto, step);
            if (lane >= step) upto += before;
        }
        const int all = __shfl_sync(0xffffffff, upto, 31);
        for (; unit < all; unit += gridDim.x / s.pair) {
            int which = __popc(__ballot_sync(0xffffffff, upto <= unit)), top = __shfl_sync(0xffffffff, begin, which), bottom = __shfl_sync(0xffffffff, end, which);
            int units_m = ceil_div(bottom - top, unit_rows), in_group = unit - (__shfl_sync(0xffffffff, upto, which) - units_m * g->units_n);
            tma_tile tile = tile_at(g, s, units_m, in_group, rank);
            tell_tile(ring, turn++, top + tile.row, bottom, tile.col, base + which);
        }
        unit -= all;
    }
    tell_tile(ring, turn, -1, 0, 0, 0);
}

#endif
