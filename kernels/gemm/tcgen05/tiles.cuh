/* out [m,n] = epilogue(a [m,k] b [n,k]^T) by tcgen05, operands and block scales brought by TMA: the body of the entries of tiles.cu, which gives it its constants.
 * README.md has the picture, the barriers and the columns of tensor memory.
 *
 *   warp 0, one thread    empty[s] -> TMA a box [128, 128 B], b boxes [n / 2, 128 B] -> full[s]                                ring of stages in smem
 *   warp 2, one thread    empty[s] -> TMA tiles of scales, those of b to both blocks of a pair -> scales[s]                         of the same stages
 *   warp 1, one thread    sums_empty -> (full[s], scales[s] -> tcgen05.cp scales smem -> tmem, 4 tcgen05.mma -> commit empty[s]) .. -> commit sums_full
 *   warps 4 to 7          sums_full -> tmem -> registers -> sums_empty;  epilogue -> smem -> TMA out
 *   warp 3, one thread    claims_empty -> asks for the unit of a cluster that was not launched yet -> claims_full, which all other warps read; only where arguments.claims says so
 *   or, all of it         offsets of groups -> claims_empty -> publishes the block's tiles -> claims_full; then rows of no group become zeros; only of groups
 *
 * Persistent: a block, or a pair of them, takes tiles until there are none. The rings run on from tile to tile, and there are two sums in tensor memory, so loads and products of the next
 * tile overlap the epilogue of this one.
 * pair: each block loads its 128 rows of a and half of the columns of b; the first block's thread multiplies for both, so barriers of what has arrived are the first block's; what a commit
 * says is said to both.
 * Two pairs in a cluster: each block loads half of its rows of a into itself and into the block of the other pair that has the same, so both pairs' products empty a stage. Where the chip has room for
 * no cluster of four, a pair is one by itself, in the same grid, and loads all of its rows.
 * e4m3 with scales by block of k: promote.cuh. Tiles whose blocks of k are several blocks' or pairs': parts.cuh. Few rows, for which the operands are swapped: swap.cuh; what this file calls a is b
 * there, and the other way round.
 * Resources: 1 block a multiprocessor, 256 threads, or 384. Speed: not measured, as no Blackwell was there; the README has what is predicted. */
#ifndef KERNELS_GEMM_TCGEN05_TILES_CUH
#define KERNELS_GEMM_TCGEN05_TILES_CUH

#include "kernels/gpu/ptx/tcgen05.cuh"
#include "kernels/gpu/ptx/tma_plain.cuh"
#include "kernels/gemm/tcgen05/blocks.cuh"
#include "kernels/gemm/tcgen05/parts.cuh"
#include "kernels/gemm/tcgen05/promote.cuh"
#include "kernels/gemm/tcgen05/swap.cuh"

/* Each of these warps runs its loop as a whole, and one thread issues: what a loop needs is then the same in all threads, and lies in uniform registers, where the instructions want it. */

/* A number that the compiler keeps in a register, as it cannot make it again: it would for each stage. */
INLINE uint32_t kept(uint32_t x) { return __shfl_sync(0xffffffff, x, 0); }
INLINE const tensor_map *kept_map(const uint64_t *map) { return (const tensor_map *)__shfl_sync(0xffffffff, (uint64_t)map, 0); }

/* ---- warp 0: operands ---- */

/* What a warp loads of a tile. second: the row with which the second half of its rows begins, where they come in halves. col, up: rows of the map of b. box, box_bytes, end: rows and bytes of a box of what groups divide, where such hold rows of the tile's group, and the row behind the last of them: little is brought that no row of the group needs. bytes: of all boxes of a
 * stage, of a pair both blocks'; rows that are not brought keep what was there before, and give results that nobody stores. */
typedef struct tiles_loads { int row, second, col, up, end, box; uint32_t box_bytes, bytes; } tiles_loads;

INLINE int a_boxes(const matmul_tiles_arguments *g, int row, int end) { return max(0, min(ceil_div(end - row, g->a_rows), TILES_ROWS / g->a_rows)); }

INLINE tiles_loads loads_of(const matmul_tiles_arguments *g, const tiles_shape s, const tiles_tile *tile, int rank) {
    const int matrix = b_row(g, s, tile), first = s.swapped ? 0 : matrix, up = first + tile->up, row = tile->row + (s.swapped ? matrix : 0);
    tiles_loads loads = {row, row + (g->epilogue.halving >= 0 ? g->epilogue.half : TILES_ROWS / 2), rank == 1 ? up : first + tile->col, up, 0, 0, 0, (uint32_t)(s.pair * TILES_ROWS * TILES_ROW_BYTES + s.n * g->b_row_bytes)};
    if (s.swapped) loads.bytes = (uint32_t)(s.pair * TILES_ROWS * g->b_row_bytes + g->columns * TILES_ROW_BYTES);
    if (!s.groups) return loads;
    if (s.swapped) {
        const int rows = ceil_div(group_columns(s, tile) / s.pair, g->a_rows) * g->a_rows;
        loads.bytes = (uint32_t)(s.pair * (TILES_ROWS * g->b_row_bytes + rows * TILES_ROW_BYTES));
        loads.box = (int)kept((uint32_t)g->a_rows), loads.box_bytes = loads.box * TILES_ROW_BYTES;
        loads.end = loads.col + rows;
        return loads;
    }
    const int own = a_boxes(g, tile->row, tile->end), boxes = own + (s.pair > 1 && rank == 0 ? a_boxes(g, tile->row + TILES_ROWS, tile->end) : 0);
    loads.bytes = (uint32_t)(s.n * g->b_row_bytes + boxes * g->a_rows * TILES_ROW_BYTES);
    loads.box = (int)kept((uint32_t)g->a_rows), loads.box_bytes = loads.box * TILES_ROW_BYTES;
    loads.end = loads.row + own * loads.box;
    return loads;
}

INLINE void load_box(const tiles_shape s, uint32_t to, const tensor_map *map, uint32_t full, int x, int y) {
    if (s.pair > 1) tma_pair_bring_2d(to, map, full, x, y);
    else tma_bring_2d(to, map, full, x, y);
}

/* Rows of the product, from number first on, of an operand that lies turned: they are columns there. */
INLINE void load_turned(const tiles_shape s, uint32_t to, const tensor_map *map, uint32_t full, int x, int first, const int rows) {
#pragma unroll
    for (int i = 0; i < rows / TURNED_COLUMNS; i++) load_box(s, to + i * TURNED_BYTES, map, full, first + i * TURNED_COLUMNS, x);
}

/* Of the rows of a that a block of each pair has, the half that is this one's, for both. */
INLINE void load_half_of_a(const tiles_place *p, uint32_t a, const tensor_map *map, uint32_t full, int x, int row) {
    const int first = p->number * (TILES_ROWS / 2);
    tma_pair_bring_2d_multicast(a + first * TILES_ROW_BYTES, map, full, x, row + first, (uint16_t)(5 << p->rank));
}

/* Those of a group, from row on, in as many boxes as hold any. */
INLINE void load_group(const tiles_shape s, const tiles_loads *loads, uint32_t to, const tensor_map *map, uint32_t full, int x, int row) {
#pragma unroll 1
    for (; row < loads->end; row += loads->box, to += loads->box_bytes) load_box(s, to, map, full, x, row);
}

/* All of them, in the same boxes, by a pair that is a cluster by itself. */
INLINE void load_halves_of_a(const tiles_shape s, uint32_t a, const tensor_map *map, uint32_t full, int x, int row) {
#pragma unroll
    for (int i = 0; i < 2; i++) load_box(s, a + i * (TILES_ROWS / 2) * TILES_ROW_BYTES, map, full, x, row + i * (TILES_ROWS / 2));
}

/* A stage, from column x of the operands on. pairs: of the cluster. Of a pair the first block has the tile's first columns of b, the second one the others; a single block brings them as two boxes, or as one where it has them
 * all. */
INLINE void load_stage(const matmul_tiles_arguments *g, const tiles_shape s, const tiles_place *p, const int pairs, const tiles_loads *loads, const tensor_map *map_b, uint32_t a, uint32_t full, int x) {
    const tensor_map *map_a = (const tensor_map *)g->map_a;
    const uint32_t b = a + TILES_ROWS * TILES_ROW_BYTES;
    if (s.at) load_turned(s, a, map_a, full, x, loads->row, TILES_ROWS);
    if (pairs > 1) load_half_of_a(p, a, map_a, full, x, loads->row);
    else if (s.pairs > 1) load_halves_of_a(s, a, map_a, full, x, loads->row);
    if (s.groups && !s.swapped) load_group(s, loads, a, map_a, full, x, loads->row);
    else if (!s.at && s.pairs == 1 && !joins_rows(s)) load_box(s, a, map_a, full, x, loads->row);
    if (joins_rows(s)) {
        load_box(s, a, map_a, full, x, loads->row);
        load_box(s, a + TILES_ROWS / 2 * TILES_ROW_BYTES, map_a, full, x, loads->second);
    }
    if (s.bn) load_turned(s, b, map_b, full, x, loads->col, s.n / 2);
    else if (s.groups && s.swapped) load_group(s, loads, b, map_b, full, x, loads->col);
    else load_box(s, b, map_b, full, x, loads->col);
    if (s.pair > 1 || s.swapped) return;
    if (s.bn) load_turned(s, b + s.n / 2 * TILES_ROW_BYTES, map_b, full, x, loads->up, s.n / 2);
    else load_box(s, b + s.n / 2 * TILES_ROW_BYTES, map_b, full, x, loads->up);
}

/* By a block of a cluster of so many pairs. */
INLINE void load_tiles(const matmul_tiles_arguments *g, const tiles_shape s, const tiles_place *p, const int pairs) {
    const tensor_map *map_b = kept_map(g->map_b);
    const bool issues = elect_one(), counts = elect_one() && p->rank == 0;
    const int depth = s.kind == KIND_HALF ? TILES_ROW_BYTES / 2 : TILES_ROW_BYTES;
    const uint32_t full = counting(s, p->ring.full);
    ring_turn turn = ring_writer();
    tiles_turn at;
    for (bool more = first_turn(g, s, p, &at); more; more = next_turn(g, s, p, &at)) {
        const tiles_tile tile = tile_at(g, s, &at, p, p->rank);
        tiles_loads loads = loads_of(g, s, &tile, p->rank);
        loads.bytes = kept(loads.bytes);
        const int end = end_block(g, s, &at) * depth;
#pragma unroll 1
        for (int x = first_block(s, &at) * depth; x < end; x += depth) {
            ring_wait_empty(p->ring, turn);
            if (issues) {
                if (counts) ring_expect_full(p->ring, turn, loads.bytes);
                load_stage(g, s, p, pairs, &loads, map_b, stage_at(p, s, turn.stage), full + turn.stage * BARRIER_BYTES, x);
            }
            ring_next(&turn, s.stages);
        }
    }
    grid_release();                  /* not before: a block has all shared memory of its multiprocessor, so what began early would crowd on those without a tile */
    /* Until all stages are handed back: what the first block still says to the second one's barriers has come before that ends. */
    for (int i = 0; i < s.stages && s.pair > 1; i++) {
        ring_wait_empty(p->ring, turn);
        ring_next(&turn, s.stages);
    }
}

/* ---- warp 2: scales ---- */

/* In tiles of 128 rows: where the scales of a block's rows lie, and those of the columns of b that it loads. A single block loads those of all columns of the tile; of a pair, each block those of
 * 128 columns, for both. Where a step joins columns, the second 128 are the other half's. */
typedef struct scale_places { int a, b, up; } scale_places;

INLINE scale_places scales_at(const matmul_tiles_arguments *g, const tiles_shape s, const tiles_place *p, const tiles_tile *tile) {
    const int matrix = s.groups ? (tile->group - g->groups.first) * ceil_div(rows_of_b(g, s), 128) : 0, first = s.swapped ? 0 : matrix, up = first + (g->epilogue.halving >= 0 && !s.swapped ? tile->up : tile->col + 128) / 128;
    const scale_places places = {tile->row / 128 + (s.swapped ? matrix : 0), s.pair > 1 && p->rank == 1 ? up : first + tile->col / 128, up};
    return places;
}

/* A stage, from tile `at` of a row's scales on. to: the stage's scales in shared memory, of a and then of b. of_b: where those of b that this block loads lie behind those of a. */
INLINE void load_scales_of_stage(const tiles_shape s, const tiles_place *p, const scale_places places, const tensor_map *map_a, const tensor_map *map_b, uint32_t to, uint32_t of_b, bool loads_b, uint32_t full, int at) {
    const int bytes = s.scale_tiles * TILES_SCALE_TILE;
    if (s.pair > 1) {
        tma_pair_bring_3d(to, map_a, full, 0, at, places.a);
        if (loads_b) tma_pair_bring_3d_multicast(to + of_b, map_b, full, 0, at, places.b, own_blocks(s, p));
        return;
    }
    tma_bring_3d(to, map_a, full, 0, at, places.a);
    tma_bring_3d(to + bytes, map_b, full, 0, at, places.b);
    if (tiles_b_scale_tiles(s.sizes) > 1) tma_bring_3d(to + 2 * bytes, map_b, full, 0, at, places.up);
}

INLINE void load_scales(const matmul_tiles_arguments *g, const tiles_shape s, const tiles_place *p) {
    const tensor_map *map_a = kept_map(g->map_a_scales), *map_b = kept_map(g->map_b_scales);
    const bool issues = elect_one(), counts = elect_one() && p->rank == 0, loads_b = tiles_b_scale_tiles(s.sizes) == s.pair || p->rank == 0;
    const uint32_t of_b = (1 + p->rank) * s.scale_tiles * TILES_SCALE_TILE, full = counting(s, p->scales_full);
    ring_turn turn = ring_writer();
    tiles_turn unit;
    for (bool more = first_turn(g, s, p, &unit); more; more = next_turn(g, s, p, &unit)) {
        const tiles_tile tile = tile_at(g, s, &unit, p, p->rank);
        const scale_places places = scales_at(g, s, p, &tile);
        const int end = end_block(g, s, &unit) * s.scale_tiles;
#pragma unroll 1
        for (int at = first_block(s, &unit) * s.scale_tiles; at < end; at += s.scale_tiles) {
            ring_wait_empty(p->ring, turn);
            if (issues) {
                if (counts) mbarrier_arrive_expect(p->scales_full + turn.stage * BARRIER_BYTES, s.pair * tiles_scale_bytes(s.sizes));
                load_scales_of_stage(s, p, places, map_a, map_b, stage_at(p, s, turn.stage) + tiles_operand_bytes(s.sizes), of_b, loads_b, full + turn.stage * BARRIER_BYTES, at);
            }
            ring_next(&turn, s.stages);
        }
    }
}

/* ---- warp 1: products ---- */

/* PTX ISA, "Instruction descriptor": fp32 sums (dense) or ue8m0 scales, M and N; which operands lie turned; of block scales, which of a column's four bytes count. Of swapped operands N comes with the
 * formats, of groups with the tile. */
INLINE constexpr uint32_t descriptor_of(const tiles_shape s, const int step) {
    const uint32_t size = s.swapped ? 0 : s.n / 8 << 17, id = s.kind == KIND_MXFP8 ? step : s.kind == KIND_MXFP4 ? step % 2 * 2 : 0;
    return s.scale_tiles == 0 ? size | 1u << 4 | (uint32_t)s.at << 15 | (uint32_t)s.bn << 16 | (uint32_t)(s.pair * TILES_ROWS / 16) << 24
                              : size | (uint32_t)(s.kind != KIND_NVFP4) << 23 | (uint32_t)s.pair << 27 | id << 4 | id << 29;
}

INLINE void copy_scales(const tiles_shape s, uint32_t to, uint64_t from) {
    if (s.pair > 1) tcgen05_pair_copy_scales(to, from);
    else tcgen05_copy_scales(to, from);
}

/* blocks: of the cluster, where there are several. */
INLINE void commit(const tiles_shape s, uint32_t barrier, uint16_t blocks) {
    if (s.pair > 1) tcgen05_pair_commit(barrier, blocks);
    else tcgen05_commit(barrier);
}

/* Products of 32 bytes of k. scales_a, scales_b: columns of tensor memory. */
INLINE void multiply(const tiles_shape s, uint32_t sums, uint64_t a, uint64_t b, uint32_t idesc, uint32_t scales_a, uint32_t scales_b, uint32_t accumulate) {
#define PRODUCTS(group)                                                                                              \
    if (s.kind == KIND_HALF) tcgen05_##group##_f16(sums, a, b, idesc, accumulate);                                   \
    if (s.kind == KIND_E4M3 || s.kind == KIND_E4M3_BLOCK) tcgen05_##group##_f8(sums, a, b, idesc, accumulate);       \
    if (s.kind == KIND_MXFP8) tcgen05_##group##_mxf8(sums, a, b, idesc, scales_a, scales_b, accumulate);             \
    if (s.kind == KIND_MXFP4) tcgen05_##group##_mxf4(sums, a, b, idesc, scales_a, scales_b, accumulate);             \
    if (s.kind == KIND_NVFP4) tcgen05_##group##_nvf4(sums, a, b, idesc, scales_a, scales_b, accumulate);
    if (s.pair > 1) {
        PRODUCTS(pair_mma)
    } else {
        PRODUCTS(mma)
    }
#undef PRODUCTS
}

/* What the products of a tile have in common. */
typedef struct tiles_products {
    uint32_t sums, scales, scales_b;   /* columns of tensor memory; scales_b: where the first column's scale of b lies, which need not be the first that was copied */
    uint32_t formats;
} tiles_products;

/* A stage, which begins at 16 times at. Scales are copied behind the products of the stage before: both are done in order. Descriptors come of each other by additions of 64 bits, which are one instruction each: their low words
 * never overflow, but as 32 bits they would be an addition, and a high word anew. */
INLINE void multiply_stage(const tiles_shape s, const tiles_products *p, uint32_t at, uint32_t first) {
    const uint64_t a = (s.at ? tcgen05_turned_descriptor(0) : tcgen05_descriptor(0)) | at;
    const uint64_t b = s.at == s.bn ? a + TILES_ROWS * TILES_ROW_BYTES / 16 : (s.bn ? tcgen05_turned_descriptor(0) : tcgen05_descriptor(0)) | (at + TILES_ROWS * TILES_ROW_BYTES / 16);
    const uint64_t scales = (tcgen05_rows_descriptor(0) | at) + tiles_operand_bytes(s.sizes) / 16;
    const int step_a = s.at ? 128 : 2, step_b = s.bn ? 128 : 2, tile = TILES_SCALE_TILE / 16, b_tiles = tiles_b_scale_tiles(s.sizes);
#pragma unroll
    for (int i = 0; i < s.scale_tiles; i++) copy_scales(s, p->scales + 4 * i, scales + i * tile);
#pragma unroll
    for (int i = 0; i < s.scale_tiles; i++)
#pragma unroll
        for (int k = 0; k < b_tiles; k++) copy_scales(s, p->scales + 4 * (s.scale_tiles + i * b_tiles + k), scales + (s.scale_tiles * (1 + k) + i) * tile);
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        const int of = s.kind == KIND_NVFP4 ? step : s.kind == KIND_MXFP4 ? step / 2 : 0;
        multiply(s, p->sums, a + step_a * step, b + step_b * step, p->formats | descriptor_of(s, step), p->scales + 4 * of, p->scales_b + 4 * b_tiles * of, step > 0 ? 1 : first);
    }
}

/* The sums that the next products go to, once they have been handed back. */
INLINE void take_sums(const tiles_shape s, const tiles_place *p, ring_turn turn, int second, tiles_products *products) {
    products->sums = p->tmem + (second ? tiles_second_sums(s.sizes) : 0);
    ring_wait_empty(p->sums, turn);
    tcgen05_fence_after();
}

/* Told when the products that go to them are done. */
INLINE void pass_sums(const tiles_shape s, const tiles_place *p, bool issues, ring_turn *turn, int *second) {
    if (issues) commit(s, ring_full(p->sums, turn->stage), own_blocks(s, p));
    ring_next(turn, sums_turns(s));
    *second ^= 1;
}

INLINE void multiply_tiles(const matmul_tiles_arguments *g, const tiles_shape s, const tiles_place *p) {
    const bool issues = elect_one();
    const uint32_t data = p->data >> 4;
    const uint16_t told = (uint16_t)(s.pairs > 1 ? (1u << cluster_blocks()) - 1 : kept((uint32_t)g->told));
    ring_turn turn = ring_reader(), sums = ring_writer();
    tiles_turn at;
    int second = 0;
    tiles_products products;
    products.scales = p->tmem + tiles_scales_at(s.sizes);
    products.formats = g->formats;
    for (bool more = first_turn(g, s, p, &at); more; more = next_turn(g, s, p, &at)) {
        /* Scales are copied by whole tiles of 128 columns: a tile that begins inside of one begins at a later column. */
        products.scales_b = products.scales + 4 * s.scale_tiles + (s.scale_tiles > 0 && s.n % 128 != 0 ? tile_at(g, s, &at, p, 0).col % 128 / 32 : 0);
        if (s.swapped && s.groups) {
            const tiles_tile tile = tile_at(g, s, &at, p, 0);
            products.formats = g->formats | (uint32_t)(group_columns(s, &tile) / 8) << 17;
        }
        const int first = first_block(s, &at), end = end_block(g, s, &at);
        if (!s.promotes) take_sums(s, p, sums, second, &products);
#pragma unroll 1
        for (int block = first; block < end; block++) {
            if (s.promotes) take_sums(s, p, sums, second, &products);
            if (s.scale_tiles > 0) mbarrier_wait(p->scales_full + turn.stage * BARRIER_BYTES, turn.phase);
            ring_wait_full(p->ring, turn);
            if (issues) {
                multiply_stage(s, &products, data + turn.stage * (tiles_stage_bytes(s.sizes) / 16), !s.promotes && block > first);
                commit(s, ring_empty(p->ring, turn.stage), told);
            }
            ring_next(&turn, s.stages);
            if (s.promotes) pass_sums(s, p, issues, &sums, &second);
        }
        if (!s.promotes) pass_sums(s, p, issues, &sums, &second);
    }
}

/* ---- warps from 4 on: results ---- */

/* Has the warp any rows of the tile, and are they stored by boxes? */
INLINE bool stores_none(const tiles_tile *tile, int row) { return row >= tile->end || row + 32 <= tile->begin; }
INLINE bool stores_boxes(const matmul_epilogue *e, const tiles_shape s, const tiles_tile *tile, int row, int columns) {
    return store_is_staged(e, columns) && (!s.groups || (row >= tile->begin && row + 32 <= tile->end));
}
INLINE int warp_columns(const matmul_epilogue *e, const tiles_shape s) { return (e->halving >= 0 ? s.n / 2 : s.n) * 4 / tiles_store_warps(s.sizes); }

/* With two boxes one takes in an operand while the other has results. */
INLINE constexpr bool may_bring(const tiles_shape s) { return s.sizes.boxes > 1 && !s.blocks && !s.swapped; }

/* The step whose operand is brought ahead. */
INLINE int tile_brings(const matmul_epilogue *e, const tiles_shape s, const tiles_tile *tile, int row) {
    if (!may_bring(s)) return -1;
    return stores_none(tile, row) || !stores_boxes(e, s, tile, row, warp_columns(e, s)) ? -1 : brought_step(e);
}

/* A tile's first box of it. downwards: the last one. */
INLINE void bring_first(const matmul_epilogue *e, const tiles_shape s, const tiles_tile *tile, int row, int share, bool downwards, int number, const store_boxes *boxes) {
    const int columns = warp_columns(e, s), of_box = parts_of_box(e) * TILES_PART;
    bring_box(e, number, boxes, row, tile->end, tile->col + share * columns + (downwards ? columns - of_box : 0), e->halving >= 0 ? e->half : (int)e->out_row_stride, 1);
}

/* A warp's 32 rows of a tile, from row on, by parts of 16 columns, of which the first ones are those that the next tile's sums share: of tiles in parts joined has them, else they are loaded. share: of the warps that have
 * these rows, each with as many of the result's columns. release: told once all that are shared, or else all, have been loaded. */
INLINE void store_tile(const matmul_tiles_arguments *g, const tiles_shape s, const tiles_tile *tile, int row, int share, uint32_t sums, const sums_ahead *joined, bool downwards, uint32_t release, int brings, store_boxes *boxes) {
    const matmul_epilogue *e = &g->epilogue;
    const bool halves = e->halving >= 0;
    const int columns = warp_columns(e, s), parts = columns / TILES_PART, each = parts_of_box(e);
    const bool staged = stores_boxes(e, s, tile, row, columns);
    row_place place = {row + (int)threadIdx.x % 32, tile->end, 0, halves ? e->half : g->n, row + (int)threadIdx.x % 32, b_row(g, s, tile)};
    if (row >= (s.blocks ? g->scale_rows : tile->end) || row + 32 <= tile->begin) {
        if (s.promotes || tiles_overlap(s.sizes) > 0) release_sums(release);   /* it has stored sums, or loaded some of a tile before behind what it passed on then */
        else pass_on_sums(release);
        return;
    }
    if (s.blocks) {
        store_blocks(g, s, tile, row, share, sums, downwards, release, boxes);
        return;
    }
    if (s.groups) {
        if (place.row < tile->begin) place.row = tile->end;   /* not one of the group's */
        place.bias = tile->group;
    }
    const sums_ahead ahead = s.parts ? *joined : load_ahead(s, sums, parts, halves, downwards, true, release);
    const float factor = row_factor(e, place.row, tile->end);
    if (s.parts && brings >= 0) bring_first(e, s, tile, row, share, downwards, brings, boxes);
#pragma unroll 1
    for (int turn = 0; turn < parts; turn++) {
        const int part = share * parts + (downwards ? parts - 1 - turn : turn), of_box = turn & (each - 1);
        if (staged && !s.promotes && of_box == 0) store_begin_box(boxes);
        if (brings >= 0 && of_box == 0) wait_brought();
        float values[TILES_PART];
        const row_sums from = sums_of_part(s, &ahead, sums, part, turn, turn == parts - 1 ? release : 0);
        place.col = tile->col + part * TILES_PART;
        const row_brought brought = {brings, boxes->place + boxes->next * TILES_BOX_BYTES, (part & (each - 1)) * (8 / each)};
        row_results(e, &from, factor, values, place, may_bring(s) ? &brought : 0);
        if (staged && s.promotes && of_box == 0) store_begin_box(boxes);   /* there, sums leave no registers for what it would keep meanwhile */
        if (staged) store_part(e, (const tensor_map *)g->map_out, boxes, values, turn, part, row, tile->col);
        else if (place.row < tile->end) row_store(e, values, place);
        if (brings < 0 || of_box != 1 || turn + each - 1 >= parts) continue;
        bring_box(e, brings, boxes, row, tile->end, tile->col + (part / each + (downwards ? -1 : 1)) * each * TILES_PART, place.end, 0);
    }
}

INLINE void store_tiles(const matmul_tiles_arguments *g, const tiles_shape s, const tiles_place *p) {
    const int warp = threadIdx.x / 32 - FIRST_STORE_WARP, lanes = warp % 4 * 32;
    tiles_turn at;
    promote_turns turns = {ring_reader(), ring_reader(), 0};
    store_boxes boxes = {s.sizes.boxes, 0, p->staging + warp * s.sizes.boxes * TILES_BOX_BYTES};
    ring_turn hand = first_hand(p->rank);
    for (bool more = first_turn(g, s, p, &at); more; more = next_turn(g, s, p, &at)) {
        const tiles_tile tile = tile_at(g, s, &at, p, p->rank);
        const bool downwards = tiles_overlap(s.sizes) > 0 && !turns.second;
        const int brings = tile_brings(&g->epilogue, s, &tile, tile.row + lanes);
        uint32_t sums = p->tmem + (turns.second ? tiles_second_sums(s.sizes) : 0) + (lanes << 16);
        if (brings >= 0 && !s.parts) bring_first(&g->epilogue, s, &tile, tile.row + lanes, warp / 4, downwards, brings, &boxes);
        if (s.promotes) {
            sums = promote_tile(g, s, p, warp, &turns);
        } else {
            ring_wait_full(p->sums, turns.sums);
            tcgen05_fence_after();
        }
        const uint32_t release = counting(s, ring_empty(p->sums, turns.sums.stage));
        const bool has_none = s.swapped ? !swap_has_columns(g, s, &tile, p->rank, lanes) : tile.row + lanes >= tile.end;
        parts_sums joined = {sums, downwards};
        const bool is_whole = !s.parts || has_none || join_parts(g, s, p, &at, warp, &joined, release);
        if (is_whole && s.swapped) store_columns(g, s, &tile, p->rank, lanes, p->staging, sums, release, &hand);
        else if (is_whole) store_tile(g, s, &tile, tile.row + lanes, warp / 4, sums, &joined.ahead, downwards, release, brings, &boxes);
        ring_next(&turns.sums, sums_turns(s));
        turns.second ^= 1;
    }
    if (!s.swapped && threadIdx.x % 32 == 0) tma_wait_read(0);
}

/* ---- all together ---- */

INLINE tiles_place place_of(const tiles_shape s, uint32_t shared) {
    tiles_place p;
    p.data = shared;
    p.staging = stage_at(&p, s, s.stages);
    p.slots = p.staging + tiles_staging_bytes(s.sizes);
    p.responses = p.slots + tiles_slots_bytes(s.sizes);
    p.claims = ring_at(p.responses + TILES_CLAIMS * 16, TILES_CLAIMS);
    p.scale_slots = ring_at(p.slots + TILES_SLOTS * tiles_slot_bytes(s.sizes), TILES_SLOTS);
    p.ring = ring_at(ring_end(p.claims, TILES_CLAIMS), s.stages);
    p.scales_full = ring_end(p.ring, s.stages);
    p.sums = ring_at(p.scales_full + s.stages * BARRIER_BYTES, 2);
    p.rank = s.pair > 1 ? cluster_rank() & 1 : 0;
    p.number = s.pairs > 1 ? cluster_rank() >> 1 : 0;
    p.pairs = s.pairs > 1 ? cluster_blocks() / 2 : 1;
    p.side = s.pairs > 1 ? blockIdx.x / 2 % 2 : 0;
    return p;
}

/* By one thread. Sums are handed back by a thread of each warp that stores, of both blocks. Only claims and published tiles use the ring of claims. */
INLINE void init_barriers(const matmul_tiles_arguments *g, const tiles_shape s, const tiles_place *p) {
    if (s.groups || g->claims) ring_init(p->claims, TILES_CLAIMS, 1, s.groups ? tile_readers(s, p->rank) : claim_readers(s));
    ring_init(p->ring, s.stages, 1, p->pairs);
    for (int i = 0; i < s.stages && s.scale_tiles > 0; i++) mbarrier_init(p->scales_full + i * BARRIER_BYTES, 1);
    if (joins_blocks(s) && g->epilogue.halving >= 0) init_hands(s, p->staging);
    if (s.promotes) ring_init(p->scale_slots, TILES_SLOTS, 32, tiles_store_warps(s.sizes));
    ring_init(p->sums, sums_turns(s), 1, s.pair * tiles_store_warps(s.sizes));
    fence_mbarrier_init();
}

INLINE void prefetch_maps(const matmul_tiles_arguments *g, const tiles_shape s) {
    tma_prefetch((const tensor_map *)g->map_a);
    tma_prefetch((const tensor_map *)g->map_b);
    if (s.scale_tiles > 0) tma_prefetch((const tensor_map *)g->map_a_scales);
    if (s.scale_tiles > 0) tma_prefetch((const tensor_map *)g->map_b_scales);
    if (g->epilogue.by_tma) tma_prefetch((const tensor_map *)g->map_out);
}

/* All threads of both blocks have come here. */
INLINE void meet(const tiles_shape s) {
    tcgen05_fence_before();
    __syncthreads();
    if (s.pair > 1) {
        cluster_arrive();
        cluster_wait();
    }
    tcgen05_fence_after();
}

/* Where a thread adds up 128 sums, other warps leave it registers. */
INLINE constexpr bool gives_registers(const tiles_shape s) { return s.promotes && promote_columns(s) == PROMOTE_MOST; }

/* Warps 0 to 3. tmem_at: where it lies in smem where tensor memory does. */
INLINE void bring_and_multiply(const matmul_tiles_arguments *g, const tiles_shape s, tiles_place *p, int warp, uint32_t tmem_at) {
    if (warp == LOAD_WARP) {
        if (s.pairs > 1 && p->pairs > 1) load_tiles(g, s, p, 2);
        else load_tiles(g, s, p, 1);
    } else if (warp == MULTIPLY_WARP) {
        p->tmem = ld_shared_u32(tmem_at);
        if (p->rank == 0) multiply_tiles(g, s, p);
    } else if (warp == SCALE_WARP) {
        if (s.scale_tiles > 0) load_scales(g, s, p);
        if (s.promotes) load_block_scales(g, s, p);
    } else {
        if (s.groups) {
            publish_tiles(g, s, p);
            clear_rest(&g->epilogue, &g->groups, rows_of_a(g, s));
        } else if (g->claims && p->rank == 0) {
            claim_units(s, p);
        }
        __syncwarp();
    }
}

/* Warp 1 takes tensor memory while the first loads are under way, and says where it lies to the warps that store: no other knows. The two blocks of a pair take theirs together. Where it lies each branch of the code reads by itself:
 * of what comes by several ways the compiler keeps nothing in uniform registers. */
INLINE void take_tensor_memory(const tiles_shape s, uint32_t tmem_at, uint32_t columns, int warp) {
    if (warp == MULTIPLY_WARP) {
        if (s.pair > 1) tmem_pair_alloc(tmem_at, columns), tmem_pair_relinquish();
        else tmem_alloc(tmem_at, columns), tmem_relinquish();
    }
    barrier_sync(TENSOR_MEMORY_BARRIER, 32 * (1 + tiles_store_warps(s.sizes)));
}

INLINE void matmul_tiles(const matmul_tiles_arguments *g, const tiles_shape s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const uint32_t columns = tiles_tmem_columns(s.sizes);
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
    tiles_place p = place_of(s, shared_address(shared));
    const uint32_t tmem_at = ring_end(p.sums, 2);
    if (threadIdx.x == LOAD_WARP * 32) {
        init_barriers(g, s, &p);
        prefetch_maps(g, s);
    }
    meet(s);
    if (warp == MULTIPLY_WARP || warp >= FIRST_STORE_WARP) take_tensor_memory(s, tmem_at, columns, warp);
    grid_wait();
    if (warp < FIRST_STORE_WARP) {
        if (gives_registers(s)) setmaxnreg_dec(72);
        bring_and_multiply(g, s, &p, warp, tmem_at);
    } else {
        if (gives_registers(s)) setmaxnreg_inc(216);
        p.tmem = ld_shared_u32(tmem_at);
        store_tiles(g, s, &p);
    }
    meet(s);
    if (warp != MULTIPLY_WARP) return;
    if (s.pair > 1) tmem_pair_dealloc(ld_shared_u32(tmem_at), columns);
    else tmem_dealloc(ld_shared_u32(tmem_at), columns);
}

#define TILES_ENTRY_OF(clusters, name, what, kind, ...)                                                                                                  \
    static constexpr tiles_sizes name##_sizes = {__VA_ARGS__, scale_tiles_of(kind), kind == KIND_E4M3_BLOCK};                                            \
    static_assert(tiles_used_columns(name##_sizes) <= TILES_TMEM, "sums and scales fit in tensor memory");                                               \
    static_assert(tiles_stages(name##_sizes) >= 3 && tiles_shared_bytes(name##_sizes) <= TILES_SHARED_BYTES, "three stages fit in shared memory");       \
    extern "C" __global__ void clusters __launch_bounds__(tiles_threads(name##_sizes), 1)                                                                 \
        name(const __grid_constant__ matmul_tiles_arguments arguments) {                                                                                 \
        constexpr tiles_sizes sizes = name##_sizes;                                                                                                      \
        const tiles_shape shape = {kind, sizes, sizes.pair, sizes.n, sizes.scale_tiles, sizes.promotes, tiles_stages(sizes), ((what) & FOR_BLOCKS) != 0, \
                                   ((what) & FOR_GROUPS) != 0, ((what) & FOR_PARTS) != 0, ((what) & TURNED_A) != 0, ((what) & TURNED_B) != 0, ((what) & SWAPPED) != 0, (what) & SHARED_A ? 2 : 1}; \
        matmul_tiles(&arguments, shape);                                                                                                                 \
    }

#define MATMUL_TILES_ENTRY(name, ...) TILES_ENTRY_OF(__cluster_dims__(name##_sizes.pair, 1, 1), name, __VA_ARGS__)
/* The launch says the sizes of clusters: two pairs, or one. */
#define MATMUL_TILES_SHARED_ENTRY(name, ...) TILES_ENTRY_OF(, name, __VA_ARGS__)

#endif
