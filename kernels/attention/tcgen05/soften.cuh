/* Of attention by tcgen05: the warps of the softmax, a thread a row. Scores come from tensor memory, weights go there. */
#ifndef KERNELS_ATTENTION_TCGEN05_SOFTEN_CUH
#define KERNELS_ATTENTION_TCGEN05_SOFTEN_CUH

#include "kernels/attention/tcgen05/place.cuh"
#include "kernels/gpu/ptx/pairs.cuh"

/* A row so far: weights are 2^(score x unit - shift), shift belonging to max; sum is theirs. The largest score may be larger than max: it follows only where a weight would pass 2^SLACK, so sums
 * are seldom scaled. */
typedef struct soft_row { float max, shift, sum; } soft_row;
#define SLACK 8.0f

/* Infinite scores leave no weights: NaN. Without any score all weights are 0. */
INLINE float shift_of(float max, float unit) { return max == -INFINITE ? 0 : max < INFINITE ? max * unit : NOT_A_NUMBER; }

INLINE soft_row begin_row(const attention_tcgen05_arguments *g, float unit, int head) {
    const attention_arguments *p = &g->call;
    const float sink = p->has_sink ? load_float(&p->sink, head * p->sink_stride) : -INFINITE, max = p->has_sink ? sink / p->scale : sink;
    const soft_row row = {max, max == -INFINITE ? 0 : max * unit, lone_sink_weight(sink)};   /* of a sink that passes all numbers when it is scaled, infinity: then no key has weight */
    return row;
}

/* ---- powers of 2 ---- */

/* 2^x of a pair by multiplying and adding, x at most 2^SLACK: the integer part goes to the exponent, the fraction through a cubic, whose relative error is at most 8.6e-5 where weights are rounded
 * to 2^-9 or 2^-12. -127 and less give 0. x that are not numbers give nonsense: of a row with one all other weights are NaN. */
INLINE f32_pair powers_by_fma(f32_pair x) {
    const float round = 12582912;   /* 1.5 x 2^23: what is added to it is rounded to integers, which are its last bits */
    const float2 raw = f32_of_pair(x);
    const f32_pair clamped = pair_of_f32(fmaxf(raw.x, -127), fmaxf(raw.y, -127)), whole = add_down_f32x2(clamped, pair_of_f32(round, round));
    const f32_pair part = fma_f32x2(add_f32x2(whole, pair_of_f32(-round, -round)), pair_of_f32(-1, -1), clamped);
    f32_pair y = fma_f32x2(pair_of_f32(0.0770672f, 0.0770672f), part, pair_of_f32(0.22764482f, 0.22764482f));
    y = fma_f32x2(y, part, pair_of_f32(0.69511682f, 0.69511682f));
    y = fma_f32x2(y, part, pair_of_f32(1, 1));
    const uint2 exponents = u32_of_pair(whole), bits = u32_of_pair(y);
    return pair_of_f32(__uint_as_float((exponents.x << 23) + bits.x), __uint_as_float((exponents.y << 23) + bits.y));
}

INLINE f32_pair powers(f32_pair x, const bool by_fma) {
    if (by_fma) return powers_by_fma(x);
    const float2 raw = f32_of_pair(x);
    return pair_of_f32(ex2(raw.x), ex2(raw.y));
}

/* ---- a block ---- */

INLINE void read_scores(uint32_t at, float *scores) {
    uint32_t raw[ATTEND_KEYS];
#pragma unroll
    for (int i = 0; i < ATTEND_KEYS; i += 32) tmem_load_x32(raw + i, at + i);
    tmem_wait_load();
#pragma unroll
    for (int i = 0; i < ATTEND_KEYS; i++) scores[i] = __uint_as_float(raw[i]);
}

/* Scores of keys that the row does not see, [low, high) of the block, become -inf. */
INLINE void hide_keys(int low, int high, float *scores) {
    if (!agreed(low > 0 || high < ATTEND_KEYS)) return;
    const uint32_t count = (uint32_t)max(high - low, 0);
#pragma unroll
    for (int i = 0; i < ATTEND_KEYS; i++)
        if ((uint32_t)(i - low) >= count) scores[i] = -INFINITE;
}

/* NaN if one is. */
INLINE float largest_of(const float *scores) {
    float top[4] = {scores[0], scores[1], scores[2], scores[3]};
#pragma unroll
    for (int i = 4; i < ATTEND_KEYS; i += 4) {
#pragma unroll
        for (int k = 0; k < 4; k++) top[k] = max_nan(top[k], scores[i + k]);
    }
    return max_nan(max_nan(top[0], top[1]), max_nan(top[2], top[3]));
}

/* The row grows to a block's largest score; by what sums so far are to be multiplied. */
INLINE float raise_row(soft_row *row, float unit, float largest) {
    const float top = max_nan(row->max, largest);
    if ((row->max - top) * unit >= -SLACK || (row->max == top && largest < INFINITE)) return 1;
    const float shift = shift_of(top, unit), factor = row->max == top ? 1 : row->max == -INFINITE ? 0 : ex2(row->shift - shift);
    row->max = top;
    row->shift = shift;
    return factor;
}

INLINE uint32_t pack_pair(const int element, float2 x) { return element == ELEMENT_BF16 ? cvt_bf16x2(x.x, x.y) : cvt_f16x2(x.x, x.y); }

/* Weights to tensor memory at `to`, a quarter of the block at a time: products begin when three are there. */
INLINE void give_weights(const attend_shape s, const attend_place *p, const soft_row *row, int tile, uint32_t to, float unit, float *scores) {
    const f32_pair units = pair_of_f32(unit, unit), shifts = pair_of_f32(-row->shift, -row->shift);
#pragma unroll
    for (int quarter = 0; quarter < 4; quarter++) {
        uint32_t packed[ATTEND_KEYS / 8];
#pragma unroll
        for (int i = 0; i < ATTEND_KEYS / 8; i++) {
            float *pair = scores + quarter * (ATTEND_KEYS / 4) + 2 * i;
            const float2 weights = f32_of_pair(powers(fma_f32x2(pair_of_f32(pair[0], pair[1]), units, shifts), i % 8 < s.sizes.emulated));
            pair[0] = weights.x, pair[1] = weights.y;
            packed[i] = pack_pair(s.element, weights);
        }
        tmem_store_x16(to + quarter * (ATTEND_KEYS / 8), packed);
        if (quarter < 2) continue;
        tmem_wait_store();
        arrive_behind_tmem((quarter == 2 ? p->ready : p->rest) + tile * BARRIER_BYTES);
    }
}

INLINE float sum_of(const float *weights) {
    f32_pair sums[2] = {pair_of_f32(weights[0], weights[1]), pair_of_f32(weights[2], weights[3])};
#pragma unroll
    for (int i = 4; i < ATTEND_KEYS; i += 4) {
        sums[0] = add_f32x2(sums[0], pair_of_f32(weights[i], weights[i + 1]));
        sums[1] = add_f32x2(sums[1], pair_of_f32(weights[i + 2], weights[i + 3]));
    }
    const float2 sum = f32_of_pair(add_f32x2(sums[0], sums[1]));
    return sum.x + sum.y;
}

/* To the threads that correct, of each row a pair. */
INLINE void say(const attend_place *p, int tile, int row, uint32_t *phase, float x, float y) {
    mbarrier_wait(ring_empty(p->said_ring, tile), *phase);
    *phase ^= 1;
    st_shared_f32x2(p->said + (tile * ATTEND_ROWS + row) * 8, x, y);
    arrive(ring_full(p->said_ring, tile));
}

/* ---- units ---- */

/* Four warps, of one tile. */
INLINE void soften_units(const attention_tcgen05_arguments *g, const attend_shape s, const attend_place *p, int tile) {
    const int warp = threadIdx.x / 32 % TILE_WARPS, row_of_tile = warp * 32 + threadIdx.x % 32;
    const uint32_t at = p->tmem + tile * ATTEND_KEYS + (warp * 32 << 16);
    const float unit = g->call.scale * LOG2_E;
    uint32_t said = 1, phase = 0;
    attend_unit u;
    for (int number = 0; next_unit(g, p, number, &u); number++) {
        if (tile >= u.tiles) continue;
        const int query = u.first + tile * ATTEND_ROWS + row_of_tile, begin = keys_begin(g, query), end = keys_end(g, query);
        soft_row row = begin_row(g, unit, head_of(g, &u));
#pragma unroll 1
        for (int block = u.begin; block < u.end; block++) {
            float scores[ATTEND_KEYS];
            wait_for_tmem(p->scores + tile * BARRIER_BYTES, phase);
            phase ^= 1;
            read_scores(at, scores);
            hide_keys(begin - block * ATTEND_KEYS, end - block * ATTEND_KEYS, scores);
            const float factor = raise_row(&row, unit, largest_of(scores));
            if (block > u.begin) say(p, tile, row_of_tile, &said, factor, 0);
            give_weights(s, p, &row, tile, at, unit, scores);
            row.sum = fmaf(row.sum, factor, sum_of(scores));
        }
        say(p, tile, row_of_tile, &said, row.sum, row.max);
    }
}

#endif
