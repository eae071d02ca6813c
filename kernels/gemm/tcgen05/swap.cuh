/* Results of tiles whose operands are swapped: the rows of a tile are those of b, its columns those of a, of which there are few. A thread has a column of the result, and TCGEN05_CHUNK rows
 * of it, one below the other. Neighbours in a warp have neighbours in a row, so each load and store of a warp is of 32 elements side by side.
 *
 *   sums [32 lanes: columns of the result] x [16 columns of tensor memory: its rows] -> registers -> factors, post list -> a store for each row
 *
 * Where a step joins columns c and c + half, the tile has 64 rows of b of each: those of c first, which are warps' 0 and 1, and then those of c + half, which warps 2 and 3 bring as far as that step and hand
 * over in smem. With block scales the first block of a pair has 128 rows of c and the second one those of c + half, each of whose warps hands over to the same warp of the first block. */
#ifndef KERNELS_GEMM_TCGEN05_SWAP_CUH
#define KERNELS_GEMM_TCGEN05_SWAP_CUH

#include "kernels/gemm/tcgen05/epilogue.cuh"
#include "kernels/gemm/tcgen05/tile.cuh"

enum { EXCHANGE_ROWS = 8 };

#define EACH_ROW _Pragma("unroll") for (int i = 0; i < TCGEN05_CHUNK; i++)

/* A column of the result, and the first of the thread's rows; begin, rows: the first one that is the tile's, and the row behind the last. What is outside is computed, from operands taken as 0, and not stored. group: the row of a
 * bias that has one for each group; -1: there are no groups. */
typedef struct column_place { int col, cols, row, begin, rows, group; } column_place;

INLINE bool column_has(const column_place p, int i) { return p.col < p.cols && p.row + i >= p.begin && p.row + i < p.rows; }

INLINE void column_factors(const matmul_epilogue *e, float all, float of_column, float *values, const column_place p) {
    EACH_ROW values[i] *= (e->row_factors != 0 ? all * factor_at(e->row_factors, p.row + i, p.row + i >= p.begin && p.row + i < p.rows) : all) * of_column;
}

INLINE void column_step(const matmul_step *step, float *values, const column_place p) {
    if (step->step != MATMUL_POST_bias && step->step != MATMUL_POST_add && step->step != MATMUL_POST_mul) {
        activate(step->step, values);
        return;
    }
    const bool of_group = step->step == MATMUL_POST_bias && p.group >= 0;
    const int64_t first = (of_group ? p.group : p.row) * step->row_stride + p.col * step->col_stride, stride = of_group ? 0 : step->row_stride;
    float x[TCGEN05_CHUNK];
    EACH_ROW x[i] = column_has(p, i) ? load_operand(step, first + i * stride) : 0;
    if (step->step == MATMUL_POST_mul) multiply_each(values, x);
    else add_each(values, x);
}

INLINE void column_store(const matmul_epilogue *e, const float *values, const column_place p) {
    const int64_t first = p.row * e->out_row_stride + p.col;
    EACH_ROW {
        if (!column_has(p, i)) continue;
        const int64_t at = first + i * e->out_row_stride;
        if (e->out_format == MATMUL_f32) ((float *)e->out)[at] = values[i];
        else ((uint16_t *)e->out)[at] = (uint16_t)(e->out_format == MATMUL_bf16 ? cvt_bf16x2(values[i], 0) : cvt_f16x2(values[i], 0));
    }
}

/* Has the warp columns behind half, of those that a step joins? */
INLINE bool swap_is_up(const matmul_tiles_arguments *g, const tiles_shape s, int rank, int lanes) { return g->epilogue.halving >= 0 && (joins_blocks(s) ? rank == 1 : lanes >= 64); }

/* A warp's first column of those that it stores, or hands over for another to store. */
INLINE int swap_column(const matmul_tiles_arguments *g, const tiles_shape s, const tiles_tile *tile, int rank, int lanes) {
    if (joins_blocks(s)) return tile->row + lanes - (swap_is_up(g, s, rank, lanes) ? g->epilogue.half : 0);
    return tile->row + (g->epilogue.halving >= 0 ? lanes % 64 : lanes);
}
INLINE bool swap_has_columns(const matmul_tiles_arguments *g, const tiles_shape s, const tiles_tile *tile, int rank, int lanes) {
    return swap_column(g, s, tile, rank, lanes) < (g->epilogue.halving >= 0 ? g->epilogue.half : g->m);
}

/* The step that joins columns, by two warps with 32 columns each: one hands over its values, EXCHANGE_ROWS rows at a time, through the two warps' place in smem, and the other one goes on with the results. */
INLINE void join_warps(int step, float *values, uint32_t staging, int lanes) {
    const int couple = lanes / 32 % 2;
    const uint32_t place = staging + couple * (TILES_EXCHANGE_BYTES / 2) + threadIdx.x % 32 * 4;
    float others[TCGEN05_CHUNK];
#pragma unroll
    for (int first = 0; first < TCGEN05_CHUNK; first += EXCHANGE_ROWS) {
        if (lanes >= 64)
#pragma unroll
            for (int i = 0; i < EXCHANGE_ROWS; i++) st_shared_f32(place + i * 128, values[first + i]);
        barrier_sync(1 + couple, 64);
#pragma unroll
        for (int i = 0; i < EXCHANGE_ROWS; i++) others[first + i] = ld_shared_f32(place + i * 128);
        barrier_sync(1 + couple, 64);
    }
    gate(step, values, others);
}

/* Places of what a warp of the second block hands over to that of the first one, which lie in the first one, and their barriers: full in the first block, empty in the second one.
 *
 *     second block   empty[place] -> 16 rows of 32 columns to the first block's smem -> full[place]
 *     first block    full[place]  -> registers -> empty[place];  joins them with its own */
INLINE ring_barriers hand_barriers(const tiles_shape s, uint32_t staging, int warp) {
    return ring_at(staging + TILES_HANDS * (tiles_store_warps(s.sizes) * TILES_HAND_BYTES + warp * 16), TILES_HANDS);
}

/* By one thread of each block. */
INLINE void init_hands(const tiles_shape s, uint32_t staging) {
    for (int warp = 0; warp < tiles_store_warps(s.sizes); warp++) ring_init(hand_barriers(s, staging, warp), TILES_HANDS, 1, 1);
}

/* The turn of a warp of the second block, or of the first one. */
INLINE ring_turn first_hand(int rank) { return rank == 1 ? ring_writer() : ring_reader(); }

/* The step that joins columns, by two warps of the two blocks. */
INLINE void join_blocks(const tiles_shape s, int step, float *values, uint32_t staging, int rank, int warp, ring_turn *turn) {
    const ring_barriers hands = hand_barriers(s, staging, warp);
    const uint32_t place = staging + (warp * TILES_HANDS + turn->stage) * TILES_HAND_BYTES + threadIdx.x % 32 * 4;
    float others[TCGEN05_CHUNK];
    if (rank == 1) {
        const uint32_t to = cluster_map(place, 0);
        mbarrier_acquire_cluster(ring_empty(hands, turn->stage), turn->phase);
        EACH_ROW st_cluster_f32(to + i * 128, values[i]);
    } else {
        mbarrier_acquire_cluster(ring_full(hands, turn->stage), turn->phase);
        EACH_ROW others[i] = ld_shared_f32(place + i * 128);
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_release_cluster(rank == 1 ? cluster_map(ring_full(hands, turn->stage), 0) : cluster_map(ring_empty(hands, turn->stage), 1));
    ring_next(turn, TILES_HANDS);
    if (rank == 0) gate(step, values, others);
}

/* A warp's 32 columns of the result, of which the tile has all rows. release: told behind the last load of sums. */
INLINE void store_columns(const matmul_tiles_arguments *g, const tiles_shape s, const tiles_tile *tile, int rank, int lanes, uint32_t staging, uint32_t sums, uint32_t release, ring_turn *hand) {
    const matmul_epilogue *e = &g->epilogue;
    const bool joins = e->halving >= 0, is_up = swap_is_up(g, s, rank, lanes);
    const int first = swap_column(g, s, tile, rank, lanes) + (int)threadIdx.x % 32, end = joins ? e->half : g->m;
    column_place place = {is_up ? first + e->half : first, is_up ? g->m : end, 0, 0, g->n, -1};
    if (!swap_has_columns(g, s, tile, rank, lanes)) {
        pass_on_sums(release);
        return;
    }
    if (s.groups) place.row = tile->col, place.begin = tile->begin, place.rows = min(tile->end, tile->col + s.n), place.group = tile->group;
    const int matrix = b_row(g, s, tile), origin = place.row;
    const float all = row_factor(e, 0, 0), of_column = e->col_factors != 0 ? factor_at(e->col_factors, matrix + place.col, place.col < place.cols) : 1;
#pragma unroll 1
    for (; place.row < place.rows; place.row += TCGEN05_CHUNK) {
        float values[TCGEN05_CHUNK];
        load_sums(sums + place.row - origin, values);
        if (place.row + TCGEN05_CHUNK >= place.rows) release_sums(release);
        column_factors(e, all, of_column, values, place);
#pragma unroll 1
        for (int number = 0; number < (is_up ? e->halving + 1 : e->count); number++) {
            if (number == e->halving && joins_blocks(s)) join_blocks(s, e->steps[number].step, values, staging, rank, lanes / 32, hand);
            else if (number == e->halving) join_warps(e->steps[number].step, values, staging, lanes);
            else column_step(&e->steps[number], values, place);
        }
        if (!is_up) column_store(e, values, place);
    }
}

#endif
