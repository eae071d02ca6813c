/* The decoding attention's products of codes: of fp8_1x128, mxfp8 and nvfp4. Codes become f16 in registers, exactly; what their scales do is said at each format. */
#ifndef KERNELS_ATTENTION_DECODE_CODES_CUH
#define KERNELS_ATTENTION_DECODE_CODES_CUH

#include "kernels/attention/decode/products.cuh"

/* Of what scales of values multiply weights by themselves: blocks of a row. */
INLINE int weight_parts(const decode_shape s) { return s.codes == DECODE_MXFP8 ? s.value_width / 32 : 1; }

/* Two codes of e4m3 of a word, the lower or the upper ones, as a pair of f16, exactly. */
INLINE uint32_t pair_of(uint32_t codes, const int upper) { return cvt_f16x2_e4m3x2((uint16_t)(codes >> 16 * upper)); }

/* Scores of keys in fp8_1x128 without their scales (finish_scores has them): a lane reads 16 codes of a key at once, which are four steps. */
INLINE void multiply_e4m3(const decode_shape s, uint32_t q, const uint2 *kept, uint32_t k, float (*scores)[4]) {
    const int lane = threadIdx.x % 32;
    const uint32_t at = k + lane / 4 * DECODE_CODES;
#pragma unroll
    for (int i = 0; i < 4 * bunches(s); i++) scores[i / 4][i % 4] = 0;
#pragma unroll
    for (int part = 0; part < s.width / 64; part++) {
        const uint32_t place = (part * 4 + lane % 4 ^ lane / 4) << 4;
        const uint4 low = ld_shared_u32x4(at + place), high = ld_shared_u32x4(at + 8 * DECODE_CODES + place);
        const uint32_t lows[4] = {low.x, low.y, low.z, low.w}, highs[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int step = part * 4 + i;
            const uint4 a = {pair_of(lows[i], 0), pair_of(highs[i], 0), pair_of(lows[i], 1), pair_of(highs[i], 1)};
#pragma unroll
            for (int n = 0; n < bunches(s); n++) {
                const uint2 b = keeps_q(s) ? kept[step] : q_at(s, q, n, step);
                multiply(s, scores[n], a, b.x, b.y);
            }
        }
    }
}

/* Scale number i of a word of e8m0; those below 2^-126 are no normal numbers, the last code is NaN. */
INLINE float e8m0_of(uint32_t word, const int i) {
    const uint32_t code = word >> 8 * i & 0xff;
    return __uint_as_float(code == 0 ? 0x00400000 : code == 0xff ? 0x7fffffff : code << 23);
}

/* The scales of a row of mxfp8, one to 32 columns, as bytes of a word. */
INLINE uint32_t scales_of_row(const decode_shape s, uint32_t scales, int row) {
    if (s.width == 128) return ld_shared_u32(scales + row * 4);
    return ld_shared_u32(scales + (row & ~1) * 2) >> row % 2 * 16;
}

/* Of mxfp8: products of 32 columns, which have one scale, apart; scores are their sum, times scales, in fp32. A lane reads 8 codes of a key at once. */
INLINE void multiply_mxfp8(const decode_shape s, uint32_t q, const uint2 *kept, uint32_t k, uint32_t scales, float (*scores)[4]) {
    const int lane = threadIdx.x % 32;
    const uint32_t at = k + lane / 4 * DECODE_CODES + lane % 2 * 8, low_scales = scales_of_row(s, scales, lane / 4), high_scales = scales_of_row(s, scales, lane / 4 + 8);
#pragma unroll
    for (int i = 0; i < 4 * bunches(s); i++) scores[i / 4][i % 4] = 0;
#pragma unroll
    for (int part = 0; part < s.width / 32; part++) {
        const uint32_t place = (part * 2 + lane % 4 / 2 ^ lane / 4) << 4;
        const float2 low = ld_shared_f32x2(at + place), high = ld_shared_f32x2(at + 8 * DECODE_CODES + place);
        const uint32_t lows[2] = {__float_as_uint(low.x), __float_as_uint(low.y)}, highs[2] = {__float_as_uint(high.x), __float_as_uint(high.y)};
        const float scale[2] = {e8m0_of(low_scales, part), e8m0_of(high_scales, part)};
        float sums[MOST_BUNCHES][4];
#pragma unroll
        for (int i = 0; i < 4 * bunches(s); i++) sums[i / 4][i % 4] = 0;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int step = part * 2 + i;
            const uint4 a = {pair_of(lows[i], 0), pair_of(highs[i], 0), pair_of(lows[i], 1), pair_of(highs[i], 1)};
#pragma unroll
            for (int n = 0; n < bunches(s); n++) {
                const uint2 b = keeps_q(s) ? kept[step] : q_at(s, q, n, step);
                multiply(s, sums[n], a, b.x, b.y);
            }
        }
#pragma unroll
        for (int i = 0; i < 4 * bunches(s); i++) scores[i / 4][i % 4] = fmaf(sums[i / 4][i % 4], scale[i % 4 / 2], scores[i / 4][i % 4]);
    }
}

/* ---- nvfp4 ---- */

/* Codes of e2m1 number i of both halves of a word as f16, 2^-14 times their numbers, those below the normal ones too: times a scale of e4m3, as f16, a multiple of 2^-24 of at most 6 bits, so exact. */
INLINE uint32_t pair_of_e2m1(uint32_t codes, const int i) {
    const uint32_t high = codes << (12 - 4 * i);
    return (high & 0x80008000) | (high >> 3 & 0x0e000e00);
}

/* A lane reads a quarter of a key at once, whose scales are one to 16. */
INLINE void multiply_nvfp4(const decode_shape s, uint32_t q, const uint2 *kept, uint32_t k, uint32_t scales, float (*scores)[4]) {
    const int lane = threadIdx.x % 32, t = lane % 4, words = s.width / 32;
    uint32_t codes[2][4], scale[2][2];
#pragma unroll
    for (int i = 0; i < 4 * bunches(s); i++) scores[i / 4][i % 4] = 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int key = half * 8 + lane / 4;
        const uint32_t row = k + key * DECODE_ROW_BYTES(DECODE_NVFP4), turn = key / 2 % 4;
        if (words == 4) {
            const uint4 x = ld_shared_u32x4(row + ((t ^ turn) << 4));
            codes[half][0] = x.x, codes[half][1] = x.y, codes[half][2] = x.z, codes[half][3] = x.w;
        } else {
            const float2 x = ld_shared_f32x2(row + ((t / 2 ^ turn) << 4) + t % 2 * 8);
            codes[half][0] = __float_as_uint(x.x), codes[half][1] = __float_as_uint(x.y);
        }
        const uint32_t own = ld_shared_u32(scales + key * (s.width / 16) + t * (words / 2) / 4 * 4) >> t * (words / 2) % 4 * 8;
        scale[half][0] = pair_of(__byte_perm(own, 0, 0x0000), 0);
        scale[half][1] = pair_of(__byte_perm(own, 0, 0x1111), 0);
    }
#pragma unroll
    for (int step = 0; step < s.width / 16; step++) {
        uint4 a;
        a.x = mul_f16x2(pair_of_e2m1(codes[0][step / 2], step % 2 * 2), scale[0][step / 4]);
        a.y = mul_f16x2(pair_of_e2m1(codes[1][step / 2], step % 2 * 2), scale[1][step / 4]);
        a.z = mul_f16x2(pair_of_e2m1(codes[0][step / 2], step % 2 * 2 + 1), scale[0][step / 4]);
        a.w = mul_f16x2(pair_of_e2m1(codes[1][step / 2], step % 2 * 2 + 1), scale[1][step / 4]);
#pragma unroll
        for (int n = 0; n < bunches(s); n++) {
            const uint2 b = keeps_q(s) ? kept[step] : q_at(s, q, n, step);
            multiply(s, scores[n], a, b.x, b.y);
        }
    }
}

/* The scales of keys 2 (lane % 4) and the next of values, or 8 further, for block `block` of their rows, as a pair. */
INLINE uint32_t value_scales(const decode_shape s, uint32_t scales, int far, int block) {
    const int row_bytes = s.value_width / 16;
    const uint32_t at = scales + (far * 8 + threadIdx.x % 4 * 2) * row_bytes + block / 4 * 4;
    return pair_of(__byte_perm(ld_shared_u32(at), ld_shared_u32(at + row_bytes), block % 4 | (block % 4 + 4) << 4), 0);
}

/* Four columns lie in the 16 bits that are turned together: of each 32 columns a lane has sums of 4 (lane / 4) and the next three, two to a product. */
INLINE void add_nvfp4(const decode_shape s, const uint2 (*weights)[MOST_BUNCHES], uint32_t v, uint32_t scales, float (*sums)[4]) {
    const int lane = threadIdx.x % 32, key = lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
    for (int two = 0; two < s.value_width / 64; two++) {
        const uint4 codes = ldmatrix_x4_transposed(v + key * DECODE_ROW_BYTES(DECODE_NVFP4) + ((two * 2 + lane / 16 ^ key / 2 % 4) << 4));
        const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int block = (two * 2 + i) * 2 + lane / 16;
            const uint32_t low = value_scales(s, scales, 0, block), high = value_scales(s, scales, 1, block);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const uint4 a = {mul_f16x2(pair_of_e2m1(words[2 * i], 2 * j), low), mul_f16x2(pair_of_e2m1(words[2 * i], 2 * j + 1), low),
                                 mul_f16x2(pair_of_e2m1(words[2 * i + 1], 2 * j), high), mul_f16x2(pair_of_e2m1(words[2 * i + 1], 2 * j + 1), high)};
#pragma unroll
                for (int n = 0; n < bunches(s); n++) multiply(s, sums[((two * 2 + i) * 2 + j) * bunches(s) + n], a, weights[0][n].x, weights[0][n].y);
            }
        }
    }
}

/* ---- of any format ---- */

/* scores: products, for e4m3 without scales. */
INLINE void multiply_codes(const decode_shape s, uint32_t q, const uint2 *kept, uint32_t k, uint32_t scales, float (*scores)[4]) {
    if (s.codes == DECODE_MXFP8) multiply_mxfp8(s, q, kept, k, scales, scores);
    else if (s.codes == DECODE_NVFP4) multiply_nvfp4(s, q, kept, k, scales, scores);
    else multiply_e4m3(s, q, kept, k, scores);
}

/* Two columns lie in the 16 bits that are turned together, so that of each 16 columns a lane has sums of 2 (lane / 4) and the next. weights [parts][bunches]. */
INLINE void add_e4m3(const decode_shape s, const uint2 (*weights)[MOST_BUNCHES], uint32_t v, float (*sums)[4]) {
    const int lane = threadIdx.x % 32, key = lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
    for (int step = 0; step < s.value_width / 32; step++) {
        const uint4 codes = ldmatrix_x4_transposed(v + key * DECODE_CODES + ((step * 2 + lane / 16 ^ key % 8) << 4));
        const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t low = __byte_perm(words[2 * i], 0, 0x3120), high = __byte_perm(words[2 * i + 1], 0, 0x3120);
            const uint4 a = {pair_of(low, 0), pair_of(low, 1), pair_of(high, 0), pair_of(high, 1)};
#pragma unroll
            for (int n = 0; n < bunches(s); n++) multiply(s, sums[(step * 2 + i) * bunches(s) + n], a, weights[s.codes == DECODE_MXFP8 ? step : 0][n].x, weights[s.codes == DECODE_MXFP8 ? step : 0][n].y);
        }
    }
}

INLINE void add_codes(const decode_shape s, const uint2 (*weights)[MOST_BUNCHES], uint32_t v, uint32_t scales, float (*sums)[4]) {
    if (s.codes == DECODE_NVFP4) add_nvfp4(s, weights, v, scales, sums);
    else add_e4m3(s, weights, v, sums);
}

/* The column of the sums `i` of 16, of a lane's first two or last two. */
INLINE int sum_column(const decode_shape s, int i, int last) {
    const int g = threadIdx.x % 32 / 4;
    if (s.codes == DECODE_NVFP4) return i / 2 * 32 + g * 4 + i % 2 * 2 + last;
    return s.codes ? i * 16 + g * 2 + last : i * 16 + g + last * 8;
}

#endif
