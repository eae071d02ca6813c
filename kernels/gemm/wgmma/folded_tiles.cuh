/* out [m,n] = epilogue(a [m,k] b [n,k]^T) of mxfp8 by mxfp8 in tiles of 64 rows of a by 32 of b: codes are multiplied as they are, and what scales mean is multiplied into sums, each 32 of k. The body
 * of the entry of folded_tiles.cu. b is the second operand, so a tile is narrow, and k is divided among two blocks at most to have tiles for all multiprocessors. Quantises nothing.
 *
 *   warp 8, one thread   empty[s] -> TMA b 2 x [16, 128], a [64, 128] -> full[s]       ring of stages in smem
 *   warps 9 and 10       scales of 4 stages at a time: gmem -> reg -> floats in smem -> full[s]
 *   warps 0 to 3, 4 to 7 even and odd stages: smem -> wgmma m64n32k32 -> parts in registers, two under way at a time; a part times its factors is added in fp32 -> empty[s]
 *   at the end           sums -> smem; those of both warpgroups, and of all blocks of a cluster, are added in the order of blocks and warpgroups -> epilogue -> gmem
 *
 * A part times 2^b times 2^a is exact but for what is beyond fp32's range. A part of 32 products is between 2^-18 and 2^23, so where b's exponents are within 64 of 0 the first product is, too. A stage with
 * others has two factors for each 2^b, on either side of 2^a: of an exponent within 64 of 0 itself and 1, as a large 2^a between two halves would be beyond the range where the product is not; of another one
 * two of about half of it, with which what is beyond the range between them is so behind them.
 * The tensor core adds products of 8 bits in shorter sums than fp32 (docs/precision.md): each part is one, and what is added to it afterwards is fp32.
 * Speed: README.md. */
#ifndef KERNELS_GEMM_WGMMA_FOLDED_TILES_CUH
#define KERNELS_GEMM_WGMMA_FOLDED_TILES_CUH

#include "kernels/gpu/ptx/cluster.cuh"
#include "kernels/gpu/ptx/wgmma.cuh"
#include "kernels/gemm/rows.cuh"
#include "kernels/gemm/wgmma/few_pieces.cuh"
#include "kernels/gemm/wgmma/folded_codes.cuh"
#include "kernels/gemm/wgmma/folded_tiles.h"

typedef matmul_folded_tiles_arguments folded_call;

/* Parts of a stage, 32 of k each; of a part, values of a thread; warps that multiply. */
enum { PARTS = 4, PART_SUMS = FOLDED_TILE_COLS / 2, SUM_WARPS = 8 };
/* Columns of half a tile; floats from one row of sums in shared memory to the next, so that rows begin in banks of their own. */
enum { HALF_COLS = FOLDED_TILE_COLS / 2, SUM_PITCH = FOLDED_TILE_COLS + 8 };

/* Places in shared memory, and this block's tile: first row of a; first columns of b of its two halves, and of the result; stages of k. */
typedef struct folded_tile {
    uint32_t data, factors;
    ring_barriers stages;
    int row, col, up;
    schedule_range range;
} folded_tile;

INLINE folded_tile tile_of(const folded_call *g) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const bool halves = g->epilogue.halving >= 0;
    const int unit = blockIdx.x / g->splits, across = unit / g->units_m;
    folded_tile tile;
    tile.data = shared_address(shared);
    tile.factors = tile.data + FOLDED_TILE_STAGES * FOLDED_TILE_CODES;
    tile.stages = ring_at(tile.factors + FOLDED_TILE_STAGES * FOLDED_TILE_FACTORS, FOLDED_TILE_STAGES);
    tile.row = (unit - across * g->units_m) * FOLDED_TILE_ROWS;
    tile.col = across * (halves ? HALF_COLS : FOLDED_TILE_COLS);
    tile.up = tile.col + (halves ? g->epilogue.half : HALF_COLS);
    tile.range = schedule_part(g->k / FOLDED_TILE_DEPTH, g->splits, blockIdx.x % g->splits, 1);
    return tile;
}

/* Of a stage: rows' factors [64][4]; columns' [4][32], those of a thread side by side; the same again, of stages that need two; whether it does. */
INLINE uint32_t rows_at(const folded_tile *tile, int stage) { return tile->factors + stage * FOLDED_TILE_FACTORS; }
INLINE uint32_t columns_at(const folded_tile *tile, int stage) { return rows_at(tile, stage) + FOLDED_TILE_ROWS * 16; }
INLINE uint32_t rest_at(const folded_tile *tile, int stage) { return columns_at(tile, stage) + FOLDED_TILE_COLS * 16; }
INLINE uint32_t is_far_at(const folded_tile *tile, int stage) { return rest_at(tile, stage) + FOLDED_TILE_COLS * 16; }

/* ---- loads: one thread ---- */

INLINE int a_boxes(const folded_call *g, const folded_tile *tile) { return ceil_div(min(FOLDED_TILE_ROWS, g->m - tile->row), g->a_rows); }

INLINE void load_b(const folded_call *g, const folded_tile *tile, int block, const ring_turn turn) {
    const tensor_map *map = (const tensor_map *)g->map_b;
    const uint32_t to = tile->data + turn.stage * FOLDED_TILE_CODES, full = ring_expect_full(tile->stages, turn, (a_boxes(g, tile) * g->a_rows + FOLDED_TILE_COLS) * FOLDED_TILE_DEPTH);
    const uint64_t policy = g->units_m == 1 ? TMA_EVICT_FIRST : TMA_EVICT_NORMAL;
    tma_load_2d(to, map, full, block * FOLDED_TILE_DEPTH, tile->col, policy);
    tma_load_2d(to + HALF_COLS * FOLDED_TILE_DEPTH, map, full, block * FOLDED_TILE_DEPTH, tile->up, policy);
}

INLINE void load_a(const folded_call *g, const folded_tile *tile, int block, const ring_turn turn) {
    const uint32_t to = tile->data + turn.stage * FOLDED_TILE_CODES + FOLDED_TILE_COLS * FOLDED_TILE_DEPTH;
    for (int i = 0; i < a_boxes(g, tile); i++)
        tma_load_2d(to + i * g->a_rows * FOLDED_TILE_DEPTH, (const tensor_map *)g->map_a, ring_full(tile->stages, turn.stage), block * FOLDED_TILE_DEPTH, tile->row + i * g->a_rows, TMA_EVICT_LAST);
}

INLINE void load_all(const folded_call *g, const folded_tile *tile) {
    const int first = tile->range.first, end = tile->range.end, ahead = min(FOLDED_TILE_STAGES, end - first);
    ring_turn turn = ring_writer();
    if (!g->b_is_constant) grid_wait();
    for (int i = 0; i < ahead; i++) {
        load_b(g, tile, first + i, turn);
        ring_next(&turn, FOLDED_TILE_STAGES);
    }
    grid_wait();
    turn = ring_writer();
    for (int i = 0; i < ahead; i++) {
        load_a(g, tile, first + i, turn);
        ring_next(&turn, FOLDED_TILE_STAGES);
    }
    for (int block = first + ahead; block < end; block++) {
        ring_wait_empty(tile->stages, turn);
        load_b(g, tile, block, turn);
        load_a(g, tile, block, turn);
        ring_next(&turn, FOLDED_TILE_STAGES);
    }
}

/* ---- factors: two warps, every other slot of four stages each; of rows behind the last, the last one's. A slot is half the ring, so a warp sees all phases of the stages that it fills ---- */

/* Words of a row's scales of slot number slot, four codes each. in_quads: they lie side by side, all four of each slot. */
INLINE uint4 slot_of(const matmul_scales *scales, int64_t place, bool in_quads, int slot, int blocks) {
    const uint8_t *from = (const uint8_t *)scales->data + place;
    uint32_t words[FOLDED_TILE_SLOT];
    if (in_quads) return *(const uint4 *)(from + (int64_t)slot * 16);
#pragma unroll
    for (int i = 0; i < FOLDED_TILE_SLOT; i++) words[i] = *(const uint32_t *)(from + (int64_t)min(slot * FOLDED_TILE_SLOT + i, blocks - 1) * scales->quad_step);
    return make_uint4(words[0], words[1], words[2], words[3]);
}
INLINE bool lies_in_quads(const matmul_scales *scales) { return scales->quad_step == 4 && ((scales->data | (uint64_t)scales->row_step | (uint64_t)scales->cols) % 16) == 0; }

/* Where column c of the tile has its factor among those of 32 of k. */
INLINE int column_place(int c) { return c % 8 / 2 * (FOLDED_TILE_COLS / 4) + c / 8 * 2 + c % 2; }

INLINE void leave_row(uint32_t to, uint32_t word, bool near) {
    float f[PARTS];
#pragma unroll
    for (int i = 0; i < PARTS; i++) f[i] = near ? near_factor(word, i) : float_of_e8m0(word >> (8 * i) & 0xff);
    st_shared_f32x4(to, f[0], f[1], f[2], f[3]);
}

/* A column's, as one factor or as two, the second of which is 1 where the code is within 64 of 0. */
INLINE void leave_near_column(uint32_t to, uint32_t word) {
#pragma unroll
    for (int i = 0; i < PARTS; i++) st_shared_f32(to + i * FOLDED_TILE_COLS * 4, near_factor(word, i));
}
INLINE void leave_far_column(uint32_t to, uint32_t word) {
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        const float2 two = two_factors(word >> (8 * i) & 0xff);
        st_shared_f32(to + i * FOLDED_TILE_COLS * 4, two.x);
        st_shared_f32(to + (PARTS + i) * FOLDED_TILE_COLS * 4, two.y);
    }
}

/* All of a stage, by words of scales: of a's rows lane and lane + 32, and of column lane. */
INLINE void leave_stage(const folded_tile *tile, int stage, const uint32_t a[2], uint32_t b) {
    const int lane = threadIdx.x % 32;
    const uint32_t rows = rows_at(tile, stage) + lane * 16, column = columns_at(tile, stage) + column_place(lane) * 4, far_b = far_codes(b);
    const bool near = !__any_sync(0xffffffff, (far_b | far_codes(a[0]) | far_codes(a[1])) != 0), far = !near && __any_sync(0xffffffff, far_b != 0);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (near) leave_row(rows + 32 * i * 16, a[i], true);
        else leave_row(rows + 32 * i * 16, a[i], false);
    }
    if (far) leave_far_column(column, b);
    else leave_near_column(column, b);
    if (lane == 0) st_shared_u32(is_far_at(tile, stage), far);
}

INLINE void make_factors(const folded_call *g, const folded_tile *tile, int maker) {
    const int lane = threadIdx.x % 32, first = tile->range.first, end = tile->range.end, blocks = g->k / FOLDED_TILE_DEPTH, last = (end - 1) / FOLDED_TILE_SLOT;
    const bool a_in_quads = lies_in_quads(&g->a_scales), b_in_quads = lies_in_quads(&g->scales);
    const int64_t column = scales_of_row(&g->scales, min(lane < HALF_COLS ? tile->col + lane : tile->up + lane - HALF_COLS, g->n - 1));
    int64_t rows[2];
    uint4 a[2], b;
    int slot = first / FOLDED_TILE_SLOT + maker;
#pragma unroll
    for (int i = 0; i < 2; i++) rows[i] = scales_of_row(&g->a_scales, min(tile->row + lane + 32 * i, g->m - 1));
    if (!g->b_is_constant) grid_wait();
    b = slot_of(&g->scales, column, b_in_quads, min(slot, last), blocks);
    grid_wait();
#pragma unroll
    for (int i = 0; i < 2; i++) a[i] = slot_of(&g->a_scales, rows[i], a_in_quads, min(slot, last), blocks);
#pragma unroll 1
    for (; slot * FOLDED_TILE_SLOT < end; slot += FOLDED_TILE_MAKERS) {
        const int next = min(slot + FOLDED_TILE_MAKERS, last);
        const uint4 b_next = slot_of(&g->scales, column, b_in_quads, next, blocks);
        uint4 a_next[2];
#pragma unroll
        for (int i = 0; i < 2; i++) a_next[i] = slot_of(&g->a_scales, rows[i], a_in_quads, next, blocks);
#pragma unroll
        for (int j = 0; j < FOLDED_TILE_SLOT; j++) {
            const int block = slot * FOLDED_TILE_SLOT + j;
            if (block < first || block >= end) continue;
            const ring_turn turn = ring_writer_turn((uint32_t)(block - first), FOLDED_TILE_STAGES);
            const uint32_t of_a[2] = {word_of(a[0], j), word_of(a[1], j)};
            ring_wait_empty(tile->stages, turn);
            leave_stage(tile, turn.stage, of_a, word_of(b, j));
            __syncwarp();
            if (lane == 0) ring_arrive_full(tile->stages, turn);
        }
        a[0] = a_next[0], a[1] = a_next[1], b = b_next;
    }
}

/* ---- products: two warpgroups ---- */

/* Part number number of a stage, as a group. */
INLINE void issue_part(const folded_tile *tile, int stage, const int number, float *part) {
    const uint32_t data = tile->data + stage * FOLDED_TILE_CODES;
    const uint64_t b = wgmma_descriptor(data) + 2 * number, a = wgmma_descriptor(data + FOLDED_TILE_COLS * FOLDED_TILE_DEPTH) + 2 * number;
    wgmma_fence();
    wgmma_n32_e4m3(part, a, b, 0);
    wgmma_commit();
}

/* A stage's factors, as this thread reads them: of its two rows, all; where those of its columns begin; whether there are two of each. */
typedef struct stage_factors { uint4 rows[2]; uint32_t columns; bool far; } stage_factors;

INLINE stage_factors factors_of(const folded_tile *tile, int stage) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
    stage_factors f;
#pragma unroll
    for (int i = 0; i < 2; i++) f.rows[i] = ld_shared_u32x4(rows_at(tile, stage) + (row + 8 * i) * 16);
    f.columns = columns_at(tile, stage) + lane % 4 * FOLDED_TILE_COLS;
    f.far = ld_shared_u32(is_far_at(tile, stage)) != 0;
    return f;
}

/* A part to the sums. */
INLINE void fold_part(const stage_factors *f, const int number, const float *part, float *sums) {
    const float rows[2] = {__uint_as_float(word_of(f->rows[0], number)), __uint_as_float(word_of(f->rows[1], number))};
    const uint32_t columns = f->columns + number * FOLDED_TILE_COLS * 4;
    if (!f->far) {
#pragma unroll
        for (int j = 0; j < FOLDED_TILE_COLS / 16; j++) {
            const uint4 four = ld_shared_u32x4(columns + j * 16);
#pragma unroll
            for (int i = 0; i < 8; i++) sums[8 * j + i] = fmaf(part[8 * j + i] * __uint_as_float(word_of(four, i / 4 * 2 + i % 2)), rows[i / 2 % 2], sums[8 * j + i]);
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < FOLDED_TILE_COLS / 16; j++) {
        const uint4 four = ld_shared_u32x4(columns + j * 16), rest = ld_shared_u32x4(columns + FOLDED_TILE_COLS * 16 + j * 16);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int c = i / 4 * 2 + i % 2;
            sums[8 * j + i] = fmaf(part[8 * j + i] * __uint_as_float(word_of(four, c)) * rows[i / 2 % 2], __uint_as_float(word_of(rest, c)), sums[8 * j + i]);
        }
    }
}

/* The stages of this warpgroup, every other one: so it has seen all phases of those that it waits for. */
INLINE void multiply_own(const folded_tile *tile, int group, float *sums) {
    int left = (tile->range.end - tile->range.first - group + 1) / 2;
    ring_turn turn = {group, 0};
    float even[PART_SUMS], odd[PART_SUMS];
    if (left <= 0) return;
#pragma unroll 1
    for (; left > 0; left--) {
        const ring_turn here = turn;
        ring_wait_full(tile->stages, here);
        issue_part(tile, here.stage, 0, even);
        issue_part(tile, here.stage, 1, odd);
        const stage_factors factors = factors_of(tile, here.stage);
        wgmma_wait(1);
        fold_part(&factors, 0, even, sums);
        issue_part(tile, here.stage, 2, even);
        wgmma_wait(1);
        fold_part(&factors, 1, odd, sums);
        issue_part(tile, here.stage, 3, odd);
        wgmma_wait(1);
        fold_part(&factors, 2, even, sums);
        wgmma_wait(0);
        fold_part(&factors, 3, odd, sums);
        turn.stage += 2;
        if (turn.stage >= FOLDED_TILE_STAGES) turn.stage -= FOLDED_TILE_STAGES, turn.phase ^= 1;
        __syncwarp();
        if (threadIdx.x % 32 == 0) ring_arrive_empty(tile->stages, here);
    }
}

/* ---- results ---- */

/* Sums of a warpgroup where the ring was: [64][SUM_PITCH]. */
INLINE uint32_t sum_place(const folded_tile *tile, int group, int row, int col) { return tile->data + ((group * FOLDED_TILE_ROWS + row) * SUM_PITCH + col) * 4; }

INLINE void leave_sums(const folded_tile *tile, int group, const float *sums) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < PART_SUMS; i += 2) st_shared_f32x2(sum_place(tile, group, row + i / 2 % 2 * 8, i / 4 * 8 + lane % 4 * 2), sums[i], sums[i + 1]);
}

/* Each warp takes a piece at a time, 16 rows by 16 columns; the blocks of a cluster share them. */
INLINE void store_results(const folded_call *g, const folded_tile *tile) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = g->splits > 1 ? cluster_rank() : 0;
    const bool halves = g->epilogue.halving >= 0;
#pragma unroll 1
    for (int i = warp * g->splits + rank; i < FOLDED_TILE_ROWS / FEW_PIECE * (FOLDED_TILE_COLS / FEW_PIECE); i += SUM_WARPS * g->splits) {
        const int row = i / (FOLDED_TILE_COLS / FEW_PIECE) * FEW_PIECE, first = i % (FOLDED_TILE_COLS / FEW_PIECE) * (halves ? FEW_PIECE / 2 : FEW_PIECE);
        const few_piece piece = {tile->row + row, first, first + (halves ? HALF_COLS : FEW_PIECE / 2), tile->col + first};
        float values[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (piece.row >= g->m) break;
#pragma unroll 1
        for (int block = 0; block < g->splits; block++)
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const uint32_t place = sum_place(tile, j / 4, row + lane / 4 + j % 2 * 8, (j / 2 % 2 == 0 ? piece.first : piece.other) + lane % 4 * 2);
                const float2 two = g->splits > 1 ? ld_cluster_f32x2(cluster_map(place, block)) : ld_shared_f32x2(place);
                values[j % 4 * 2] += two.x, values[j % 4 * 2 + 1] += two.y;
            }
        finish_piece(&g->epilogue, &piece, values, g->m, g->n);
    }
}

/* ---- the life of a block of threads ---- */

INLINE void meet_cluster(void) {
    __syncwarp();
    cluster_arrive();
    cluster_wait();
}

/* Of a cluster all threads come here. */
INLINE void end_beside(const folded_call *g) {
    if (g->splits == 1) return;
    meet_cluster();                          /* sums lie in shared memory */
    meet_cluster();                          /* nobody reads them any more */
}

INLINE void multiply_tile(const folded_call *g, const folded_tile *tile, int group) {
    float sums[PART_SUMS];
#pragma unroll
    for (int i = 0; i < PART_SUMS; i++) sums[i] = 0;
    multiply_own(tile, group, sums);
    barrier_sync(1, SUM_WARPS * 32);         /* nobody reads the ring any more */
    leave_sums(tile, group, sums);
    if (g->splits == 1) barrier_sync(1, SUM_WARPS * 32);
    else meet_cluster();
    grid_wait();
    store_results(g, tile);
    if (g->splits > 1) meet_cluster();
}

INLINE void matmul_folded_tile_body(const folded_call *g) {
    const folded_tile tile = tile_of(g);
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
    if (threadIdx.x == 0) {
        ring_init(tile.stages, FOLDED_TILE_STAGES, 2, 4);
        fence_mbarrier_init();
    }
    if (threadIdx.x == SUM_WARPS * 32) {
        tma_prefetch((const tensor_map *)g->map_a);
        tma_prefetch((const tensor_map *)g->map_b);
    }
    __syncthreads();
    if (warp < SUM_WARPS) {
        multiply_tile(g, &tile, warp / 4);
        return;
    }
    if (warp == SUM_WARPS) {
        if (elect_one()) load_all(g, &tile);
        __syncwarp();
        grid_wait();
        grid_release();
    } else {
        make_factors(g, &tile, warp - SUM_WARPS - 1);
    }
    end_beside(g);
}

#endif
