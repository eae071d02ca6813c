/* Codes of 8 and 4 bits to pairs of bf16 or f16 by moving their bits: what decoded.cuh does to weights, and few_around.cu to the rows that they are multiplied by. */
#ifndef KERNELS_GEMM_WGMMA_DECODED_BITS_CUH
#define KERNELS_GEMM_WGMMA_DECODED_BITS_CUH

#include "kernels/gpu/ptx/half.cuh"
#include "kernels/gemm/rows.cuh"
#include "kernels/gemm/wgmma/few.h"

INLINE constexpr int bits_of(const int weights) { return FEW_BITS(weights); }
/* What the exponent of a code has in bf16's place is less by this than what it means. */
INLINE constexpr int decoded_bias(const int weights) { return weights == DECODED_MXFP8_E5M2 ? 112 : weights == DECODED_MXFP4 ? 126 : 120; }

/* Pair number half of a word of 8 bits: bytes 0 and 2, or 1 and 3, without their bias. */
INLINE uint32_t raw_pair(const int weights, uint32_t word, const int half) {
    const bool wide = weights == DECODED_MXFP8_E5M2;
    const uint32_t signs = half == 0 ? word << 8 : word, rest = half == 0 ? word << (wide ? 5 : 4) : word >> (wide ? 3 : 4);
    return (signs & 0x80008000) | (rest & (wide ? 0x0fe00fe0 : 0x07f007f0));
}

/* Of a word of 4 bits the even elements (odd 0) or the odd ones, four, of which half 0 are the first two: f16, times 2^-6. As codes of e4m3 they have the same bits, and the chip converts those. */
INLINE uint32_t halves_of_e2m1(uint32_t word, const int odd, const int half) {
    const uint32_t signs = odd ? word : word << 4, rest = odd ? word >> 2 : word << 2, codes = (signs & 0x80808080) | (rest & 0x1c1c1c1c);
    return halves_of_e4m3(codes, half);
}

/* A scale in e4m3 for both of a pair: times 64 in f16, as halves_of_e2m1 wants it; in bf16. */
INLINE uint32_t halves_of_scale(uint32_t code) { return mul_f16x2(half_twice(cvt_f16x2_e4m3x2((uint16_t)code), 0), 0x54005400); }
INLINE uint32_t pair_of_e4m3_scale(uint32_t code) {
    const float scale = cvt_f32_f16((uint16_t)cvt_f16x2_e4m3x2((uint16_t)code));
    return cvt_bf16x2(scale, scale);
}

/* The same, of any codes, as they are meant. */
INLINE uint32_t odd_pair(const int weights, uint32_t word, const int half) {
    const uint32_t two = prmt(word, 0, half == 0 ? 0x4420 : 0x4431);
    return weights == DECODED_MXFP8_E5M2 ? pair_of_e5m2(two) : pair_of_e4m3(two);
}

/* Bytes whose highest bit is set are codes that are not finite, or stand above one: adding 1 (of e5m2 4) to such a code, and to no other, changes its highest bit. */
INLINE uint32_t odd_codes(const int weights, uint32_t word) {
    if (bits_of(weights) == 4) return 0;
    return (word + (weights == DECODED_MXFP8_E5M2 ? 0x04040404 : 0x01010101)) ^ word;
}
/* Bytes whose highest bit is set are scales: in e8m0 those that, bias added, are no exponent of a number; in e4m3 NaN, of which the factor is NaN all the same (decoded.cuh says what the branch is for). */
INLINE uint32_t odd_scales(const int weights, uint32_t word) {
    if (weights == DECODED_E4M3) return 0;
    if (weights == DECODED_NVFP4) return (word & 0x7f7f7f7f) + 0x01010101;
    return word & ((word & 0x7f7f7f7f) + (decoded_bias(weights) + 1) * 0x01010101u);
}
enum : uint32_t { DECODED_ODD = 0x80808080 };

#endif
