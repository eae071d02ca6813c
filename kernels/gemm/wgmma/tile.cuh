/* What the parts of the tiles by wgmma share: the constants of an entry, the places of the ring in shared memory, and which tile a block of threads takes. */
#ifndef KERNELS_GEMM_WGMMA_TILE_CUH
#define KERNELS_GEMM_WGMMA_TILE_CUH

#include "kernels/gpu/ptx/cluster.cuh"
#include "kernels/gpu/ptx/tma.cuh"
#include "kernels/gpu/pipe/schedule.cuh"
#include "kernels/gemm/epilogue.cuh"
#include "kernels/gemm/wgmma/wgmma.h"

enum { TMA_BF16, TMA_F16, TMA_E4M3 };
/* Barriers of warpgroups: 1 and 2 are those of team_sync and of sums that are joined. */
enum { HEAD_BARRIER = 3, TURN_BARRIER = 6 };
enum { ROW_BYTES = 128, CHUNK = 64, CHUNK_BYTES = CHUNK * ROW_BYTES, BOX_COLS = 64, PART_VALUES = 16, GROUP_ROWS = 2048, MOST_VALUES = 128 };

/* The constants of an entry; everything in here is known to the compiler. */
typedef struct tma_shape {
    int element, tile_m, tile_n, stages, boxes, pair, splits;
    int parts;                    /* e4m3 with scales by block: parts of the tile's columns with one each; 0: none */
    int groups;                   /* 1: rows come in groups (groups.cuh) */
    int blocks;                   /* 1: the result is in blocks (blocks_wgmma.cuh) */
    int turns;                    /* 1: a warpgroup multiplies whole tiles, in turns with the other one */
    int a_turned, b_turned;       /* 1: a lies as [k,m], b as [k,n]: their boxes are 64 of k by 128 bytes of m or n */
} tma_shape;

/* Places in shared memory, the rings of barriers (stages of tiles, slots of scales), and the tile scheduler. */
typedef struct tma_ring {
    uint32_t data, staging, columns, scales;
    ring_barriers stages, scale_slots;
    tile_schedule schedule;
} tma_ring;

typedef struct tma_tile {
    int row, col, up;             /* first row; first column of the tile's two halves */
    int out_col;
    int group, end;               /* of groups: which one, and the row behind its last */
} tma_tile;

/* Computed here and not again wherever it is used, which in the loop over k the products would wait for: what a shuffle gives, ptxas does not compute again. */
INLINE int kept(int x) { return __shfl_sync(0xffffffff, x, threadIdx.x % 32); }

/* Tiles of 64 rows: each warpgroup multiplies all of them, runs of MATMUL_SLOT_BLOCKS blocks of k in turns, and their sums are added when the tile ends. */
INLINE constexpr bool shares_rows(const tma_shape s) { return s.tile_m == 64 && !s.turns; }
/* Rows and columns that are multiplied at a time, 64 rows by a warpgroup, and how many times that is a tile. */
INLINE constexpr int wave_rows(const tma_shape s) { return shares_rows(s) || s.turns ? 64 : 128; }
/* Of 256 columns e4m3 tiles multiply one half at a time: registers are left for a part of 64 x 128. */
INLINE constexpr int wave_cols(const tma_shape s) { return s.element == TMA_E4M3 && s.tile_n == 256 ? s.tile_n / 2 : s.tile_n; }
INLINE constexpr int waves_down(const tma_shape s) { return s.tile_m / wave_rows(s); }
INLINE constexpr int waves_across(const tma_shape s) { return s.tile_n / wave_cols(s); }
INLINE constexpr int wave_count(const tma_shape s) { return waves_down(s) * waves_across(s); }
/* Of the first wave, this warpgroup's first row. */
INLINE int group_row(const tma_shape s, int group) { return shares_rows(s) || s.turns ? 0 : group * 64; }
/* Warps that hand back a stage, or a slot of scales: those that read it, and those that pass over it where warpgroups share rows. */
INLINE constexpr int reading_warps(const tma_shape s) { return s.turns ? 4 : 8; }
/* e4m3 tiles whose sums leave registers for one block's part alone. */
INLINE constexpr bool is_large(const tma_shape s) { return s.element == TMA_E4M3 && s.tile_m * s.tile_n > 128 * 128; }

/* Tiles in bands GROUP_ROWS high, so that those in flight at a time need few rows of a and of b. units_m: units of a column. */
INLINE tma_tile tile_at(const matmul_wgmma_arguments *g, const tma_shape s, int units_m, int unit, int rank) {
    const int step_n = g->epilogue.halving >= 0 ? s.tile_n / 2 : s.tile_n;
    const schedule_place place = schedule_in_bands(unit, units_m, g->units_n, GROUP_ROWS / (s.tile_m * s.pair));
    tma_tile tile;
    tile.row = (place.row * s.pair + (s.pair > 1 ? rank : 0)) * s.tile_m;
    tile.out_col = tile.col = place.col * step_n;
    tile.up = g->epilogue.halving >= 0 ? tile.col + g->epilogue.half : tile.col + s.tile_n / 2;
    tile.group = 0;
    tile.end = g->m;
    return tile;
}

/* The row behind the last that a tile stores. */
INLINE int rows_end(const matmul_wgmma_arguments *g, const tma_shape s, const tma_tile *tile) { return s.groups ? tile->end : g->m; }
/* What lies in front of the tile's matrix of b, where what belongs to b's rows is one array for all matrices. */
INLINE int rows_before(const matmul_wgmma_arguments *g, const tma_shape s, const tma_tile *tile) { return s.groups ? tile->group * g->n : 0; }

/* The blocks of k [first, end) of this block of the cluster. */
INLINE schedule_range depth_range(const matmul_wgmma_arguments *g, const tma_shape s, int rank) {
    const int all = ceil_div(g->k, s.element == TMA_E4M3 ? 128 : 64);
    const schedule_range whole = {0, all};
    return s.splits > 1 ? schedule_part(all, s.splits, rank, 1) : whole;
}

#endif
