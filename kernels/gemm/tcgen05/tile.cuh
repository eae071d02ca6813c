/* What the warps of tiles.cuh have in common: an entry's constants, places in shared memory, and which units a block, or a pair of them, computes. */
#ifndef KERNELS_GEMM_TCGEN05_TILE_CUH
#define KERNELS_GEMM_TCGEN05_TILE_CUH

#include "kernels/gpu/ptx/cluster.cuh"
#include "kernels/gpu/ptx/launch_control.cuh"
#include "kernels/gpu/pipe/schedule.cuh"
#include "kernels/gemm/group_rows.cuh"
#include "kernels/gemm/tcgen05/kinds.h"
#include "kernels/gemm/tcgen05/store.cuh"

enum { LOAD_WARP, MULTIPLY_WARP, SCALE_WARP, CLAIM_WARP, FIRST_STORE_WARP = TILES_OTHER_WARPS };
enum { STEPS = 4, BOTH_BLOCKS = 3 };
enum { TENSOR_MEMORY_BARRIER = 5 };   /* of the numbered barriers of a block; those before it: swap.cuh, blocks.cuh */

TILES_FORMULA int scale_tiles_of(const int kind) { return kind == KIND_MXFP8 ? 1 : kind == KIND_MXFP4 ? 2 : kind == KIND_NVFP4 ? 4 : 0; }

/* What an entry is besides its sizes: its result is in blocks; rows of a come in groups, each with a matrix of b of its own; some tiles are several blocks' or pairs', each of which has some of its blocks
 * of k; a is stored [k,m], b [k,n]; a tile's rows are those of b, and its columns those of a (swap.cuh); two pairs
 * of a cluster have tiles side by side, and each brings half of their rows of a for both. */
enum { FOR_BLOCKS = 1, FOR_GROUPS = 2, FOR_PARTS = 4, TURNED_A = 8, TURNED_B = 16, SWAPPED = 32, SHARED_A = 64 };
enum { TURNED_COLUMNS = 64, TURNED_BYTES = 64 * 128 };   /* of a box of an operand that lies turned: its 64 rows of k have so many columns */

/* The constants of an entry; everything in here is known to the compiler. */
typedef struct tiles_shape {
    int kind;
    tiles_sizes sizes;
    int pair, n, scale_tiles, promotes, stages;   /* of the sizes */
    int blocks, groups, parts, at, bn, swapped;   /* 1: it is for these; a, b lie turned; they are swapped */
    int pairs;                    /* of a cluster: 1; or 2, which share their rows of a, where the launch finds room for such */
} tiles_shape;

/* Turns of the barriers of sums: where the two overlap, the next products wait for the columns that they share with those before. */
TILES_FORMULA int sums_turns(const tiles_shape s) { return tiles_overlap(s.sizes) > 0 ? 1 : 2; }

typedef struct tiles_place {
    uint32_t data, staging, slots;   /* smem */
    ring_barriers ring, sums, claims, scale_slots;
    uint32_t scales_full;         /* barriers of the ring's stages */
    uint32_t responses;           /* smem [TILES_CLAIMS][16 bytes] */
    uint32_t tmem;
    int rank, number, pairs;      /* of the block in its pair; of the pair in its cluster, and how many there are */
    int side;                     /* of a unit of two tiles, which one is the pair's */
} tiles_place;

/* row: the first one of the block; begin, end: the rows that are the tile's; col, up: first columns of its two halves; group: whose matrix of b it multiplies by, 0 without groups. */
typedef struct tiles_tile { int row, begin, end, col, up, group; } tiles_tile;

/* Swapped operands without scales: rows of b come in two halves, as steps may join columns. With scales, which come for 128 rows together, the halves are those of a pair's two blocks. */
INLINE constexpr bool joins_rows(const tiles_shape s) { return s.swapped && s.scale_tiles == 0; }
INLINE constexpr bool joins_blocks(const tiles_shape s) { return s.swapped && tiles_hands_over(s.sizes) && !s.parts; }

/* Columns that a tile multiplies: of swapped operands no more than there are, as the host rounded them up, or of groups as many whole instructions as hold the tile's rows of a. */
INLINE int tile_columns(const matmul_tiles_arguments *g, const tiles_shape s) { return s.swapped ? g->columns : s.n; }
INLINE int group_columns(const tiles_shape s, const tiles_tile *tile) { return min(s.n, ceil_div(tile->end - tile->col, TILES_PART * s.pair) * TILES_PART * s.pair); }

/* Rows of a, which groups divide, and of a matrix of b: of swapped operands m counts the latter. */
INLINE int rows_of_a(const matmul_tiles_arguments *g, const tiles_shape s) { return s.swapped ? g->n : g->m; }
INLINE int rows_of_b(const matmul_tiles_arguments *g, const tiles_shape s) { return s.swapped ? g->m : g->n; }

/* Unit number unit of so many units_m, in an order in which those at a time read few rows; rows are counted from the first unit's on. Of swapped operands in groups units_m and units_n count those of rows of a and of b, as
 * without: these are the tile's columns and rows. */
INLINE tiles_tile tile_of_unit(const matmul_tiles_arguments *g, const tiles_shape s, int unit, int units_m, int rank, int side) {
    const bool halves = g->epilogue.halving >= 0;
    const schedule_place place = schedule_in_bands(unit, units_m, g->units_n, g->band);
    const bool swaps = s.swapped && s.groups;
    tiles_tile tile;
    const int down = swaps ? place.col : place.row;
    if (joins_blocks(s) && halves) tile.row = down * TILES_ROWS + rank * g->epilogue.half;
    else tile.row = (down * s.pair + rank) * (joins_rows(s) && halves ? TILES_ROWS / 2 : TILES_ROWS);
    tile.begin = 0, tile.end = g->m, tile.group = 0;
    tile.col = ((swaps ? place.row : place.col) * s.pairs + side) * (halves && !s.swapped ? s.n / 2 : s.n);
    tile.up = tile.col + (halves && !s.swapped ? g->epilogue.half : tile_columns(g, s) / 2);
    return tile;
}

/* Where the matrix of a tile's group begins, counted in rows of the map of b. */
INLINE int b_row(const matmul_tiles_arguments *g, const tiles_shape s, const tiles_tile *tile) { return s.groups ? (tile->group - g->groups.first) * rows_of_b(g, s) : 0; }

INLINE uint32_t stage_at(const tiles_place *p, const tiles_shape s, int stage) { return p->data + stage * tiles_stage_bytes(s.sizes); }

/* The barrier that counts what is brought for the products: of a pair the first block's. */
INLINE uint32_t counting(const tiles_shape s, uint32_t barrier) { return s.pair == 1 ? barrier : cluster_map(barrier, s.pairs > 1 ? cluster_rank() & ~1u : 0); }

/* Blocks of the own pair, as a mask of the cluster's. */
INLINE uint16_t own_blocks(const tiles_shape s, const tiles_place *p) { return (uint16_t)(s.pairs > 1 ? BOTH_BLOCKS << 2 * p->number : BOTH_BLOCKS); }

/* ---- which units ---- */

/* A warp's unit, and its turn in the ring of claims. With groups: how many tiles came before it, and its tile as it was published. With parts: which blocks of k of the unit are this block's,
 * [from, upto); the next one of its range and that behind its last, counted over units; and the next unit that it has alone. */
typedef struct tiles_turn { int unit; ring_turn claim; uint4 published; int from, upto, next, stop, alone; } tiles_turn;

/* The unit's blocks of k that are computed. */
INLINE int first_block(const tiles_shape s, const tiles_turn *turn) { return s.parts ? turn->from : 0; }
INLINE int end_block(const matmul_tiles_arguments *g, const tiles_shape s, const tiles_turn *turn) { return s.parts ? turn->upto : g->blocks; }

/* ---- parts ----
 *
 * The blocks of k of the first parts.units units, one unit behind the other, are cut into ranges of even length, one for each block or pair, whatever unit they end in. Then come whole units. So all
 * end at about the same time, and the sums of parts are added (parts.cuh) under the products of whole units, where there are any. */
INLINE int range_begin(const matmul_parts *parts, int range) { return range * parts->share + min(range, parts->longer); }

/* The range that has block of k number at. */
INLINE int range_of(const matmul_parts *parts, int at) {
    const int of_longer = parts->longer * (parts->share + 1);
    return at < of_longer ? at / (parts->share + 1) : parts->longer + (at - of_longer) / parts->share;
}

/* The range of the block, of its pair, or of two pairs with tiles side by side. There may be fewer than of those. */
INLINE int own_range(const tiles_shape s) { return (int)blockIdx.x / (s.pair * s.pairs); }

INLINE bool next_part(const matmul_tiles_arguments *g, const tiles_shape s, tiles_turn *turn) {
    turn->from = 0, turn->upto = g->blocks;
    if (turn->next < turn->stop) {
        turn->unit = turn->next / g->blocks;
        turn->from = turn->next - turn->unit * g->blocks;
        turn->upto = min(g->blocks, turn->from + turn->stop - turn->next);
        turn->next += turn->upto - turn->from;
        return true;
    }
    turn->unit = turn->alone;
    turn->alone += gridDim.x / (s.pair * s.pairs);
    return turn->unit < g->units_m * g->units_n;
}

INLINE bool first_part(const matmul_tiles_arguments *g, const tiles_shape s, tiles_turn *turn) {
    const int own = own_range(s), all = g->parts.units * g->blocks;
    turn->next = min(range_begin(&g->parts, own), all), turn->stop = min(range_begin(&g->parts, own + 1), all);
    turn->alone = g->parts.units + own;
    return next_part(g, s, turn);
}

/* ---- sums that the next tile's share ----
 *
 * Where two tiles' sums overlap, those of the columns that they share are loaded before any result is computed, and handed back: the next tile's products wait for nothing else. They are the first parts of
 * 16 columns in the order in which results are computed. Where a step joins columns, they lie in one of the tile's halves. */
TILES_FORMULA int parts_ahead(const tiles_shape s) { return tiles_overlap(s.sizes) / TILES_PART; }

/* Of the parts of a warp's sums. may: they are needed once. release: told behind them. */
INLINE sums_ahead load_ahead(const tiles_shape s, uint32_t sums, int parts, bool halves, bool downwards, bool may, uint32_t release) {
    sums_ahead ahead = {may ? parts_ahead(s) : 0, halves && downwards};
    uint32_t raw[MOST_AHEAD * TILES_PART];
    if (parts_ahead(s) == 0 || !may) return ahead;
    static_assert(MOST_AHEAD * TILES_PART == 48, "as many columns as scales of nvfp4 take");
#pragma unroll
    for (int i = 0; i < parts_ahead(s); i++) tmem_load_x16(raw + TILES_PART * i, sums + (ahead.is_up ? s.n / 2 : 0) + (downwards ? parts - 1 - i : i) * TILES_PART);
    tmem_wait_load_of(raw, TILES_PART * parts_ahead(s));
    release_sums(release);
#pragma unroll
    for (int i = 0; i < parts_ahead(s); i++)
#pragma unroll
        for (int k = 0; k < TILES_PART; k++) ahead.x[i][k] = __uint_as_float(raw[TILES_PART * i + k]);
    return ahead;
}

/* Of a part, the turn-th one. release: told behind the last load, where nothing was loaded ahead. */
INLINE row_sums sums_of_part(const tiles_shape s, const sums_ahead *ahead, uint32_t sums, int part, int turn, uint32_t release) {
    const row_sums of = {sums + part * TILES_PART, s.n / 2, ahead->count > 0 ? 0 : release, parts_ahead(s) > 0 ? ahead : 0, turn};
    return of;
}

/* Warps that read a claim: of each block those that load and store, and the first block's that multiplies. Published tiles each block reads by itself. */
INLINE constexpr bool brings_scales(const tiles_shape s) { return s.scale_tiles > 0 || s.promotes; }
INLINE constexpr int claim_readers(const tiles_shape s) { return s.pair * (1 + brings_scales(s) + tiles_store_warps(s.sizes)) + 1; }
INLINE int tile_readers(const tiles_shape s, int rank) { return 1 + brings_scales(s) + tiles_store_warps(s.sizes) + (rank == 0); }

/* The ring of claims, as one of published tiles. */
INLINE tile_schedule schedule_of(const tiles_shape s, const tiles_place *p) { return schedule_at(1, s.pair, TILES_CLAIMS, p->responses); }

/* A published tile: its first row, the row behind its group's last, its column, its group and how many of its first rows of a are not the group's. */
enum { SKIP_BITS = 7 };
INLINE int first_row_of_a(const tiles_shape s, const tiles_tile *tile) { return s.swapped ? tile->col : tile->row; }
INLINE uint4 publication_of(const tiles_shape s, const tiles_tile *tile) {
    return make_uint4((uint32_t)tile->row, (uint32_t)tile->end, (uint32_t)tile->col, (uint32_t)tile->group << SKIP_BITS | (uint32_t)max(0, tile->begin - first_row_of_a(s, tile)));
}

/* Published tile number turn->unit, whose place is handed back at once. By a whole warp. false: there is none. */
INLINE bool read_published(const tiles_shape s, const tiles_place *p, tiles_turn *turn) {
    const tile_schedule schedule = schedule_of(s, p);
    turn->published = schedule_wait(schedule, turn->unit);
    __syncwarp();
    if (threadIdx.x % 32 == 0) schedule_release(schedule, turn->unit);
    return !schedule_is_end(turn->published);
}

/* false: there is none, which only groups know. */
INLINE bool first_turn(const matmul_tiles_arguments *g, const tiles_shape s, const tiles_place *p, tiles_turn *turn) {
    turn->unit = s.groups ? 0 : (int)blockIdx.x / (s.pair * s.pairs);
    turn->claim = ring_reader();
    if (s.parts) return first_part(g, s, turn);
    return !s.groups || read_published(s, p, turn);
}

/* By a whole warp. false: there is none. A claim's place is handed back at once; the engine writes there next, and ordinary loads have read it. */
INLINE bool next_turn(const matmul_tiles_arguments *g, const tiles_shape s, const tiles_place *p, tiles_turn *turn) {
    if (s.groups) {
        turn->unit++;
        return read_published(s, p, turn);
    }
    if (s.parts) return next_part(g, s, turn);
    if (s.pairs > 1 || !g->claims) {
        turn->unit += gridDim.x / (s.pair * s.pairs);
        return turn->unit < g->units_m * g->units_n;
    }
    ring_wait_full(p->claims, turn->claim);
    const int first = launch_claimed(p->responses + turn->claim.stage * 16);
    fence_proxy_async();
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive_cluster(counting(s, ring_empty(p->claims, turn->claim.stage)));
    ring_next(&turn->claim, TILES_CLAIMS);
    turn->unit = first / s.pair;
    return first >= 0;
}

INLINE tiles_tile tile_at(const matmul_tiles_arguments *g, const tiles_shape s, const tiles_turn *turn, const tiles_place *p, int rank) {
    if (!s.groups) return tile_of_unit(g, s, turn->unit, g->units_m, rank, p->side);
    tiles_tile tile;
    tile.row = (int)turn->published.x, tile.end = (int)turn->published.y, tile.col = (int)turn->published.z;
    tile.begin = first_row_of_a(s, &tile) + (int)(turn->published.w & ((1u << SKIP_BITS) - 1)), tile.group = (int)(turn->published.w >> SKIP_BITS);
    tile.up = tile.col + (s.swapped ? group_columns(s, &tile) / 2 : g->epilogue.halving >= 0 ? g->epilogue.half : s.n / 2);
    return tile;
}

/* Warp 3 of the first block asks for units, up to the first that is not granted: then this block, or pair, has no more. It waits for each answer, so none is under way when it ends. */
INLINE void claim_units(const tiles_shape s, const tiles_place *p) {
    ring_turn turn = ring_writer(), answer = ring_reader();
    if (!elect_one()) return;
    for (int first = 0; first >= 0;) {
        const uint32_t full = ring_full(p->claims, turn.stage), response = p->responses + turn.stage * 16;
        ring_wait_empty(p->claims, turn);
        for (int rank = 0; rank < s.pair; rank++) mbarrier_arrive_expect_cluster(s.pair > 1 ? cluster_map(full, rank) : full, 16);
        launch_claim(response, full);
        ring_wait_full(p->claims, answer);
        first = launch_claimed(response);
        fence_proxy_async();          /* of this read, too, before the engine writes there again */
        ring_next(&turn, TILES_CLAIMS);
        ring_next(&answer, TILES_CLAIMS);
    }
}

/* ---- rows in groups ----
 *
 * Warp 3 of each block reads the offsets, 32 groups at a time, one a lane, and publishes the tiles of its block; both blocks of a pair find the same units. Units are counted group after group, so a
 * group without rows has none. Scales of a come by whole tiles of 128 rows: there a group's units begin at the last multiple of 128 that is not behind its first row, else at that row. Rows in
 * front of the group's first and behind its last are loaded and multiplied, as others' or as zeros, and not stored. Offsets that do not ascend within m end all tiles. */
INLINE void publish_tiles(const matmul_tiles_arguments *g, const tiles_shape s, const tiles_place *p) {
    const int unit_rows = s.swapped ? s.n : TILES_ROWS * s.pair, lane = threadIdx.x % 32;
    const tile_schedule schedule = schedule_of(s, p);
    int turn = 0, unit = blockIdx.x / s.pair;     /* units are counted from group base on */
    for (int base = g->groups.first; base < g->groups.end; base += 32) {
        int begin = 0, end = 0;
        const bool right = base + lane >= g->groups.end || rows_of_group(&g->groups, base + lane, rows_of_a(g, s), &begin, &end);
        if (!__all_sync(0xffffffff, right)) break;
        const schedule_groups groups = schedule_groups_of(s.scale_tiles > 0 && end > begin ? begin / 128 * 128 : begin, end, unit_rows, g->units_n);
        const int all = schedule_groups_tiles(&groups);
        for (; unit < all; unit += gridDim.x / s.pair) {
            const schedule_group own = schedule_group_of(&groups, unit);
            const int units_m = ceil_div(own.end - own.begin, unit_rows);
            tiles_tile tile = tile_of_unit(g, s, unit - (own.upto - units_m * g->units_n), units_m, p->rank, 0);
            if (s.swapped) tile.col += own.begin;
            else tile.row += own.begin;
            tile.begin = __shfl_sync(0xffffffff, begin, own.lane), tile.end = own.end, tile.group = base + own.lane;
            schedule_publish(schedule, turn++, publication_of(s, &tile));
        }
        unit -= all;
    }
    schedule_publish_end(schedule, turn);
}

#endif
