/* Products of attention by three products of tf32: of queries and keys, of weights and values; and these by multiply-adds, where numbers are not finite. Not: what scores become. */
#ifndef KERNELS_ATTENTION_TF32X3_PRODUCTS_CUH
#define KERNELS_ATTENTION_TF32X3_PRODUCTS_CUH

#include "kernels/attention/tf32x3/place.cuh"
#include "kernels/gpu/ptx/mma.cuh"

/* ---- queries and keys ---- */

/* What a lane multiplies of a slab's 16 columns, by step. */
typedef struct query_parts { uint32_t high[2][4], low[2][4]; } query_parts;

INLINE query_parts parts_of_queries(const tile_place *place, const tf32x3_shape s, int slab, int columns) {
    query_parts parts;
#pragma unroll
    for (int step = 0; step < 2; step++) {
        const float4 x = *(const float4 *)query_place(place, s, slab, columns, step);
        const float xs[4] = {x.x, x.y, x.z, x.w};
        float4 low = make_float4(0, 0, 0, 0);
        if (s.split) low = *(const float4 *)query_place(place, s, slab, columns, 2 + step);
        const float lows[4] = {low.x, low.y, low.z, low.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            parts.high[step][i] = s.split ? __float_as_uint(xs[i]) : high_of(xs[i]);
            parts.low[step][i] = s.split ? __float_as_uint(lows[i]) : low_of(xs[i]);
        }
    }
    return parts;
}

INLINE uint32_t first_of(float4 x, int step) { return __float_as_uint(step == 0 ? x.x : x.z); }
INLINE uint32_t second_of(float4 x, int step) { return __float_as_uint(step == 0 ? x.y : x.w); }
INLINE float4 rests_of(float4 x) { return make_float4(rest_of(x.x), rest_of(x.y), rest_of(x.z), rest_of(x.w)); }

/* Products of the warp's queries and of a block's keys: of turn j of 8 keys, elements 2 half and the next are those of keys 8 j + 2 t and the next. */
INLINE void multiply_keys(const tile_place *place, const tf32x3_shape s, int stage, float (*products)[MOST_TURNS][4]) {
    const int row = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    const float *k = place->k + stage * s.keys * s.depth + row * s.depth + 4 * t, *turned[2] = {k + 16 * (row & 1), k + 16 - 16 * (row & 1)};   /* pieces of even columns, and of odd ones */
    float small[MOST_SLABS][MOST_TURNS][4];
#pragma unroll
    for (int m = 0; m < s.slabs; m++)
#pragma unroll
        for (int j = 0; j < s.keys / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) products[m][j][i] = small[m][j][i] = 0;
#pragma unroll 2
    for (int c = 0; c < s.depth / 16; c++) {
        query_parts q[MOST_SLABS];
        float4 key[MOST_TURNS];
#pragma unroll
        for (int m = 0; m < s.slabs; m++) q[m] = parts_of_queries(place, s, m, c);
#pragma unroll
        for (int j = 0; j < s.keys / 8; j++) key[j] = *(const float4 *)(turned[c % 2] + 8 * j * s.depth + 16 * (c - c % 2));
#pragma unroll
        for (int step = 0; step < 2; step++) {
#pragma unroll
            for (int m = 0; m < s.slabs; m++)
#pragma unroll
                for (int j = 0; j < s.keys / 8; j++) mma_tf32(small[m][j], q[m].low[step], first_of(key[j], step), second_of(key[j], step));
#pragma unroll
            for (int m = 0; m < s.slabs; m++)
#pragma unroll
                for (int j = 0; j < s.keys / 8; j++) mma_tf32(products[m][j], q[m].high[step], first_of(key[j], step), second_of(key[j], step));
#pragma unroll
            for (int m = 0; m < s.slabs; m++)
#pragma unroll
                for (int j = 0; j < s.keys / 8; j++) mma_tf32(small[m][j], q[m].high[step], first_of(rests_of(key[j]), step), second_of(rests_of(key[j]), step));
        }
    }
#pragma unroll
    for (int m = 0; m < s.slabs; m++)
#pragma unroll
        for (int j = 0; j < s.keys / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) products[m][j][i] += small[m][j][i];
}

/* Products that are NaN, again by multiply-adds, of queries as they are in memory. */
INLINE void mend_products(const attention_arguments *p, const tile_place *place, const tf32x3_shape s, int stage, float (*products)[4], int slab) {
    const int t = (int)threadIdx.x % 4, width = (int)p->width;
    const int64_t last = p->queries - 1, head = place->batch * p->q_strides[0] + place->head * p->q_strides[1];
    const float *k = place->k + stage * s.keys * s.depth, *rows[2];
    float exact[MOST_TURNS][4];
#pragma unroll
    for (int half = 0; half < 2; half++) rows[half] = (const float *)p->q.data + head + min((int64_t)(place->first + row_of(s, slab, half)), last) * p->q_strides[2];
#pragma unroll
    for (int j = 0; j < s.keys / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) exact[j][i] = 0;
#pragma unroll 1
    for (int d = 0; d < width; d++) {
        const float q[2] = {rows[0][d], rows[1][d]};
#pragma unroll
        for (int j = 0; j < s.keys / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) exact[j][i] = fmaf(q[i / 2], k[key_place(s.depth, 8 * j + 2 * t + i % 2, d / 4) + d % 4], exact[j][i]);
    }
#pragma unroll
    for (int j = 0; j < s.keys / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) products[j][i] = products[j][i] != products[j][i] ? exact[j][i] : products[j][i];
}

/* ---- weights and values ---- */

/* sums = sums down + weights v: of tile n columns 8 n + 2 t and the next. */
INLINE void add_values(const tile_place *place, const tf32x3_shape s, int stage, const float (*weights)[MOST_TURNS][4], const float *down, float (*sums)[MOST_TILES][4]) {
    const int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4, tiles = 8 / s.slabs;
    const float *v = place->v + stage * s.keys * s.depth + 2 * t * s.depth + g % 4, *turned[4];
#pragma unroll
    for (int i = 0; i < 4; i++) turned[i] = v + 4 * ((2 * i + g / 4) ^ (2 * t));
#pragma unroll
    for (int first = 0; first < s.depth / 8; first += tiles) {
        float part[MOST_SLABS][8][4];
#pragma unroll
        for (int m = 0; m < s.slabs; m++)
#pragma unroll
            for (int n = 0; n < tiles; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) part[m][n][e] = 0;
#pragma unroll
        for (int j = 0; j < s.keys / 8; j++) {
            float even[8], odd[8];
            uint32_t high[MOST_SLABS][4], low[MOST_SLABS][4];
#pragma unroll
            for (int n = 0; n < tiles; n++) {
                const float *at = turned[(first + n) % 4] + 8 * j * s.depth + (first + n) / 4 * 32;
                even[n] = at[0];
                odd[n] = at[s.depth];
            }
#pragma unroll
            for (int m = 0; m < s.slabs; m++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float w = weights[m][j][2 * (i % 2) + i / 2];
                    high[m][i] = high_of(w);
                    low[m][i] = low_of(w);
                }
#pragma unroll
            for (int m = 0; m < s.slabs; m++)
#pragma unroll
                for (int n = 0; n < tiles; n++) mma_tf32(part[m][n], low[m], __float_as_uint(even[n]), __float_as_uint(odd[n]));
#pragma unroll
            for (int m = 0; m < s.slabs; m++)
#pragma unroll
                for (int n = 0; n < tiles; n++) mma_tf32(part[m][n], high[m], __float_as_uint(rest_of(even[n])), __float_as_uint(rest_of(odd[n])));
#pragma unroll
            for (int m = 0; m < s.slabs; m++)
#pragma unroll
                for (int n = 0; n < tiles; n++) mma_tf32(part[m][n], high[m], __float_as_uint(even[n]), __float_as_uint(odd[n]));
        }
#pragma unroll
        for (int m = 0; m < s.slabs; m++)
#pragma unroll
            for (int n = 0; n < tiles; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) sums[m][first + n][e] = fmaf(sums[m][first + n][e], down[2 * m + e / 2], part[m][n][e]);
    }
}

/* Sums that have come to nothing, whatever they hold. */
INLINE void clear_sums(const tf32x3_shape s, const float *down, float (*sums)[MOST_TILES][4]) {
#pragma unroll
    for (int m = 0; m < s.slabs; m++)
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int n = 0; n < s.depth / 8; n++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++) sums[m][n][e] = down[2 * m + half] == 0 ? 0 : sums[m][n][e];
}

/* The same by multiply-adds, without the keys of no weight. Weights pass through smem where the block's keys were, of one slab after the other. */
INLINE void add_guarded_values(const tile_place *place, const tf32x3_shape s, int stage, const float (*weights)[4], const float *down, float (*sums)[4]) {
    const int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    const float *v = place->v + stage * s.keys * s.depth;
    float *passing = place->k + stage * s.keys * s.depth + (int)threadIdx.x / 32 * SLAB * s.keys;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < s.keys / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) passing[(g + 8 * (i / 2)) * s.keys + 8 * j + 2 * t + i % 2] = weights[j][i];
    __syncwarp();
#pragma unroll
    for (int n = 0; n < s.depth / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) sums[n][e] *= down[e / 2];
#pragma unroll 1
    for (int key = 0; key < s.keys; key++) {
        const float w[2] = {passing[g * s.keys + key], passing[(g + 8) * s.keys + key]};
#pragma unroll
        for (int n = 0; n < s.depth / 8; n++) {
            const float2 x = *(const float2 *)(v + value_place(s.depth, key, 2 * n + t / 2) + 2 * (t % 2));
            const float xs[2] = {x.x, x.y};
#pragma unroll
            for (int e = 0; e < 4; e++) sums[n][e] = fmaf(w[e / 2], w[e / 2] == 0 ? 0 : xs[e % 2], sums[n][e]);
        }
    }
}

#endif
