/* The products of the decoding attention: queries as operands, and blocks of 16 plain keys and values. Those of codes: codes.cuh. */
#ifndef KERNELS_ATTENTION_DECODE_PRODUCTS_CUH
#define KERNELS_ATTENTION_DECODE_PRODUCTS_CUH

#include "kernels/attention/decode/place.cuh"
#include "kernels/gpu/ptx/half.cuh"
#include "kernels/gpu/ptx/mma.cuh"
#include "kernels/gpu/ptx/movmatrix.cuh"

/* ---- queries ---- */

/* A power of 2 by which the largest of x, where that is finite, comes to lie in [2^to, 2^(to + 1)), or comes near it. */
INLINE float power_to(float x, const int to) {
    const int exponent = (int)(__float_as_uint(x) >> 23) - 127, by = to - exponent;
    return __uint_as_float((uint32_t)(min(max(by, -100), 100) + 127) << 23);
}

INLINE float inverse_power(float power) { return __uint_as_float((254u << 23) - __float_as_uint(power)); }

/* The columns of a product's step of which a lane has pairs: the first of two neighbours, so far 0 or 1. Plain: 2 (lane % 4), and 8 further. Beside codes the columns of those that a lane reads at once: of fp8_1x128 16, in four
 * steps; of mxfp8 8 of a block of 32, in two; of nvfp4 a quarter of a row, of which a word has 8, and a pair those 4 apart. */
INLINE int q_column(const decode_shape s, int step, int far) {
    const int t = threadIdx.x % 4;
    switch (s.codes) {
    case DECODE_E4M3: return step / 4 * 64 + t * 16 + step % 4 * 4 + far * 2;
    case DECODE_MXFP8: return step / 2 * 32 + t * 8 + step % 2 * 4 + far * 2;
    case DECODE_NVFP4: return t * (s.width / 4) + step / 2 * 8 + step % 2 * 2 + far;
    default: return step * 16 + t * 2 + far * 8;
    }
}

INLINE uint32_t q_pair(const attention_decode_arguments *g, const decode_shape s, uint64_t q, int step, int far) {
    const int col = q_column(s, step, far);
    if (q == 0 || col >= g->call.width) return 0;
    if (s.codes != DECODE_NVFP4) return *(const uint32_t *)(q + col * 2);
    return *(const uint16_t *)(q + col * 2) | (uint32_t)*(const uint16_t *)(q + (col + 4) * 2) << 16;
}

INLINE float2 numbers_of(const decode_shape s, uint32_t pair) {
    if (s.element == ELEMENT_BF16) return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000));
    return make_float2(cvt_f32_f16((uint16_t)pair), cvt_f32_f16((uint16_t)(pair >> 16)));
}

/* Beside codes q is in f16, each row by a power of 2 below its largest number, so nothing is rounded that fp32 sums would show; all warps find these powers, each stores a part. */
INLINE void load_q(const attention_decode_arguments *g, const decode_shape s, decode_smem m, const decode_tile *tile, decode_rows *rows) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < bunches(s); n++) {
        const int row = n * 8 + lane / 4;
        const uint64_t q = row < tile->rows ? q_of_row(&g->call, tile, row) : 0;
        float up = 1;
        if (s.codes) {
            float most = 0;
#pragma unroll
            for (int i = 0; i < s.width / 8; i++) {
                const float2 x = numbers_of(s, q_pair(g, s, q, i / 2, i % 2));
                if (fabsf(x.x) < INFINITE) most = fmaxf(most, fabsf(x.x));
                if (fabsf(x.y) < INFINITE) most = fmaxf(most, fabsf(x.y));
            }
            most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 1));
            most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 2));
            up = power_to(most, 15);
            rows->factor[2 * n] *= __shfl_sync(0xffffffff, inverse_power(up), lane % 4 * 8);
            rows->factor[2 * n + 1] *= __shfl_sync(0xffffffff, inverse_power(up), lane % 4 * 8 + 4);
        }
#pragma unroll
        for (int step = threadIdx.x / 32; step < s.width / 16; step += WARPS) {
            uint32_t pair[2];
#pragma unroll
            for (int far = 0; far < 2; far++) {
                pair[far] = q_pair(g, s, q, step, far);
                if (!s.codes) continue;
                const float2 x = numbers_of(s, pair[far]);
                pair[far] = cvt_f16x2(x.x * up, x.y * up);
            }
            st_shared_u32x2(m.q + (n * (s.width / 16) + step) * Q_BYTES + lane * 8, pair[0], pair[1]);
        }
    }
}

/* Where the row of q lies that is a lane's column of products, of 8 rows at most; 0: there is none. */
INLINE uint64_t q_of_lane(const attention_decode_arguments *g, const decode_tile *tile) {
    const int row = (int)threadIdx.x % 32 / 4;
    return row < tile->rows ? q_of_row(&g->call, tile, row) : 0;
}

/* Operands of all steps of products, by each warp for itself. */
INLINE void take_q(const attention_decode_arguments *g, const decode_shape s, uint64_t q, uint2 *kept) {
#pragma unroll
    for (int step = 0; step < s.width / 16; step++) kept[step] = make_uint2(q_pair(g, s, q, step, 0), q_pair(g, s, q, step, 1));
}

INLINE uint2 q_at(const decode_shape s, uint32_t q, int n, int step) {
    const float2 pairs = ld_shared_f32x2(q + (n * (s.width / 16) + step) * Q_BYTES + threadIdx.x % 32 * 8);
    return make_uint2(__float_as_uint(pairs.x), __float_as_uint(pairs.y));
}

/* ---- products: of a block's 16 keys, or of 16 columns of its values, with bunches of 8 rows ---- */

/* d += a b, of 16 x 16 and 16 x 8. */
INLINE void multiply(const decode_shape s, float *d, uint4 a, uint32_t b_low, uint32_t b_high) {
    if (s.element == ELEMENT_BF16 && !s.codes) mma_bf16(d, a.x, a.y, a.z, a.w, b_low, b_high);
    else mma_f16(d, a.x, a.y, a.z, a.w, b_low, b_high);
}

/* scores [bunches][4]: of key lane / 4 for rows 2 (lane % 4) and the next, and of the key 8 further. k: [16, width] smem; kept: q in registers, where it is. */
INLINE void multiply_keys(const decode_shape s, uint32_t q, const uint2 *kept, uint32_t k, float (*scores)[4]) {
    const int lane = threadIdx.x % 32, key = lane / 8 % 2 * 8 + lane % 8;
    const uint32_t at = k + key * ROW_BYTES, place = (lane / 16 ^ lane % 8) << 4;
#pragma unroll
    for (int i = 0; i < 4 * bunches(s); i++) scores[i / 4][i % 4] = 0;
#pragma unroll
    for (int step = 0; step < s.width / 16; step++) {
        const uint4 a = ldmatrix_x4(at + step / 4 * CHUNK_BYTES + (place ^ step % 4 << 5));
#pragma unroll
        for (int n = 0; n < bunches(s); n++) {
            const uint2 b = keeps_q(s) ? kept[step] : q_at(s, q, n, step);
            multiply(s, scores[n], a, b.x, b.y);
        }
    }
}

/* Weights [16 keys, 8 rows] as they come of scores become the second operand of products with values. */
INLINE uint2 weights_of(const decode_shape s, const float *weights) {
    const bool bf16 = s.element == ELEMENT_BF16 && !s.codes;
    const uint32_t low = bf16 ? cvt_bf16x2(weights[0], weights[1]) : cvt_f16x2(weights[0], weights[1]), high = bf16 ? cvt_bf16x2(weights[2], weights[3]) : cvt_f16x2(weights[2], weights[3]);
    return make_uint2(movmatrix_transposed(low), movmatrix_transposed(high));
}

/* sums [16 columns][bunches][4]: of columns lane / 4 and 8 further, of rows as scores. v: [16, value_width] smem. */
INLINE void add_values(const decode_shape s, const uint2 *weights, uint32_t v, float (*sums)[4]) {
    const int lane = threadIdx.x % 32, key = lane / 16 * 8 + lane % 8;
    const uint32_t at = v + key * ROW_BYTES, place = (lane / 8 % 2 ^ lane % 8) << 4;
#pragma unroll
    for (int step = 0; step < s.value_width / 16; step++) {
        const uint4 a = ldmatrix_x4_transposed(at + step / 4 * CHUNK_BYTES + (place ^ step % 4 << 5));
#pragma unroll
        for (int n = 0; n < bunches(s); n++) multiply(s, sums[step * bunches(s) + n], a, weights[n].x, weights[n].y);
    }
}

#endif
