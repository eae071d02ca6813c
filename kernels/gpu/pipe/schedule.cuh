/* The tile scheduler: which tiles a thread block computes, and in which order.
 *
 *   plain      tiles have numbers; a thread block (or a cluster) computes numbers first, first + stride, ..
 *   grouped    the rows of each group lie in device memory, so one warp finds the tiles while the kernel runs, and publishes them one after the other in a
 *              ring of slots; the other warps read them there. A group's rows may be any range: of groups side by side, or of padded (masked) ones
 *   split      the thread blocks of a cluster each compute a part of a tile's depth
 *
 * What a tile is, and what the 16 bytes of a published one mean, is up to the kernel. */
#ifndef KERNELS_GPU_PIPE_SCHEDULE_CUH
#define KERNELS_GPU_PIPE_SCHEDULE_CUH

#include "kernels/gpu/ptx/ldst.cuh"
#include "kernels/gpu/pipe/ring.cuh"

INLINE int ceil_div(int x, int y) { return (x + y - 1) / y; }

/* ---- order ---- */

/* Where a tile lies among rows x cols of them. */
typedef struct schedule_place { int row, col; } schedule_place;

/* Tiles are numbered in bands of `band` rows, in a band column by column, so that those computed at the same time read few rows and columns. */
INLINE schedule_place schedule_in_bands(int number, int rows, int cols, int band) {
    const int first = number / (band * cols) * band, height = min(band, rows - first), rest = number - first * cols, col = rest / height;
    const schedule_place place = {first + rest - col * height, col};
    return place;
}

/* ---- split ---- */

typedef struct schedule_range { int first, end; } schedule_range;

/* Part number `part` of the steps of a tile, of which there are `all`: a multiple of grain, but at the end. Parts may be empty. */
INLINE schedule_range schedule_part(int all, int parts, int part, int grain) {
    const int share = ceil_div(ceil_div(all, parts), grain) * grain, first = min(part * share, all);
    const schedule_range range = {first, min(first + share, all)};
    return range;
}

/* ---- the tiles of a thread block ---- */

/* published, cluster (thread blocks that compute a tile together) and slots are constants of the entry. tiles: smem [slots][16 bytes]. */
typedef struct tile_schedule {
    int published, cluster, slots;
    uint32_t tiles;
    ring_barriers ring;
} tile_schedule;

/* base: a multiple of 16, of slots * 32 bytes. */
INLINE tile_schedule schedule_at(const int published, const int cluster, const int slots, uint32_t base) {
    const tile_schedule schedule = {published, cluster, slots, base, ring_at(base + 16 * slots, slots)};
    return schedule;
}

/* By one thread. readers: arrivals (schedule_release) that free a slot. */
INLINE void schedule_init(const tile_schedule s, int readers) {
    if (s.published) ring_init(s.ring, s.slots, 1, readers);
}

/* A turn: of published tiles how many came before it, else the tile's number. */
INLINE int schedule_first(const tile_schedule s) { return s.published ? 0 : blockIdx.x / s.cluster; }
INLINE int schedule_next(const tile_schedule s, int turn) { return s.published ? turn + 1 : turn + gridDim.x / s.cluster; }

/* The published tile of a turn. schedule_wait waits for it; once that has returned and until the release, schedule_read reads it again. */
INLINE uint4 schedule_read(const tile_schedule s, int turn) { return ld_shared_u32x4(s.tiles + ring_reader_turn(turn, s.slots).stage * 16); }
INLINE uint4 schedule_wait(const tile_schedule s, int turn) {
    ring_wait_full(s.ring, ring_reader_turn(turn, s.slots));
    return schedule_read(s, turn);
}
INLINE bool schedule_is_end(const uint4 tile) { return (int)tile.x < 0; }

/* The reader no longer needs the published tile. */
INLINE void schedule_release(const tile_schedule s, int turn) { ring_arrive_empty(s.ring, ring_reader_turn(turn, s.slots)); }

/* By one warp. tile.x is less than 2^31; schedule_publish_end comes behind the last tile. */
INLINE void schedule_publish(const tile_schedule s, int turn, const uint4 tile) {
    const ring_turn slot = ring_writer_turn(turn, s.slots);
    ring_wait_empty(s.ring, slot);
    if (threadIdx.x % 32 == 0) {
        st_shared_u32x4(s.tiles + slot.stage * 16, tile);
        ring_arrive_full(s.ring, slot);
    }
    __syncwarp();
}
INLINE void schedule_publish_end(const tile_schedule s, int turn) { schedule_publish(s, turn, make_uint4(0xffffffff, 0, 0, 0)); }

/* ---- groups ---- */

/* 32 groups, one a lane: its rows [begin, end), and the tiles of all groups up to it. */
typedef struct schedule_groups { int begin, end, upto; } schedule_groups;

/* begin, end: of this lane's group. A tile has tile_rows rows; cols tiles lie side by side. */
INLINE schedule_groups schedule_groups_of(int begin, int end, int tile_rows, int cols) {
    schedule_groups groups = {begin, end, ceil_div(end - begin, tile_rows) * cols};
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        int before = __shfl_up_sync(0xffffffff, groups.upto, step);
        if ((int)(threadIdx.x % 32) >= step) groups.upto += before;
    }
    return groups;
}

INLINE int schedule_groups_tiles(const schedule_groups *groups) { return __shfl_sync(0xffffffff, groups->upto, 31); }

/* One of the 32 groups: its lane, its rows, and the tiles of the groups up to it. */
typedef struct schedule_group { int lane, begin, end, upto; } schedule_group;

/* The group of tile number `number` of the 32 groups' tiles. By a warp. */
INLINE schedule_group schedule_group_of(const schedule_groups *groups, int number) {
    schedule_group found;
    found.lane = __popc(__ballot_sync(0xffffffff, groups->upto <= number));
    found.begin = __shfl_sync(0xffffffff, groups->begin, found.lane);
    found.end = __shfl_sync(0xffffffff, groups->end, found.lane);
    found.upto = __shfl_sync(0xffffffff, groups->upto, found.lane);
    return found;
}

#endif
