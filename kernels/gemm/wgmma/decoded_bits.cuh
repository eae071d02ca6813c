/* Codes of 8 and 4 bits to pairs of bf16 by moving their bits: what decoded.cuh does to weights, and few_around.cu to the rows that they are multiplied by. */
#ifndef KERNELS_GEMM_WGMMA_DECODED_BITS_CUH
#define KERNELS_GEMM_WGMMA_DECODED_BITS_CUH

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
