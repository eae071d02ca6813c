/* Results of tiles whose operands are swapped: the rows of a tile are those of b, its columns those of a, of which there are few. A thread has a column of the result, and TCGEN05_CHUNK rows
 * of it, one below the other. Neighbours in a warp have neighbours in a row, so each load and store of a warp is of 32 elements side by side.
 *
 *   sums [32 lanes: columns of the result] x [16 columns of tensor memory: its rows] -> registers -> factors, post list -> a store for each row
 *
 * Where a step joins columns c and c + half, the tile has 64 rows of b of each: those of c first, which are warps' 0 and 1, and then those of c + half, which warps 2 and 3 bring as far as that step and hand
 * over in smem. */
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

/* A warp's first column of those that it stores, or hands over for another to store. */
INLINE int swap_column(const matmul_tiles_arguments *g, const tiles_tile *tile, int lanes) { return tile->row + (g->epilogue.halving >= 0 ? lanes % 64 : lanes); }
INLINE bool swap_has_columns(const matmul_tiles_arguments *g, const tiles_tile *tile, int lanes) { return swap_column(g, tile, lanes) < (g->epilogue.halving >= 0 ? g->epilogue.half : g->m); }

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

/* A warp's 32 columns of the result, of which the tile has all rows. release: told behind the last load of sums. */
INLINE void store_columns(const matmul_tiles_arguments *g, const tiles_shape s, const tiles_tile *tile, int lanes, uint32_t staging, uint32_t sums, uint32_t release) {
    const matmul_epilogue *e = &g->epilogue;
    const bool joins = e->halving >= 0, is_up = joins && lanes >= 64;
    const int first = swap_column(g, tile, lanes) + (int)threadIdx.x % 32, end = joins ? e->half : g->m;
    column_place place = {is_up ? first + e->half : first, is_up ? g->m : end, 0, 0, g->n, -1};
    if (!swap_has_columns(g, tile, lanes)) {
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
            if (number == e->halving) join_warps(e->steps[number].step, values, staging, lanes);
            else column_step(&e->steps[number], values, place);
        }
        if (!is_up) column_store(e, values, place);
    }
}

#endif
