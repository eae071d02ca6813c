/* Scales of mxfp8, four codes to a word, as factors of a part of a product (folded.cuh, folded_tiles.cuh). A code is the exponent of a power of two, plus 127; far: not within 64 of 127. */
#ifndef KERNELS_GEMM_WGMMA_FOLDED_CODES_CUH
#define KERNELS_GEMM_WGMMA_FOLDED_CODES_CUH

#include "kernels/gpu/ptx/math.cuh"

/* Code number number of a word, which is not far, as a float. */
INLINE float near_factor(uint32_t word, const int number) { return __uint_as_float(prmt(word, 0, 0x0444 | number << 12) >> 1); }

/* Bytes whose highest bit is set are far. */
INLINE uint32_t far_codes(uint32_t word) { return ~(word ^ word << 1) & 0x80808080; }

/* Any code as a product of two: of one that is not far itself and 1, as a factor between two halves could leave fp32's range where the product does not; of a far one two of about half its exponent. NaN: first. */
INLINE float2 two_factors(int code) {
    const int exponent = code - 127, half = code < 64 || code >= 192 ? exponent >> 1 : exponent;
    return make_float2(__uint_as_float(code == 255 ? 0x7fc00000 : (uint32_t)(half + 127) << 23), __uint_as_float((uint32_t)(exponent - half + 127) << 23));
}

#endif
