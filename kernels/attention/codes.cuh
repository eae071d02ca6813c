/* What kernels share that multiply q and k as codes: scales beside products of them, and codes as numbers. */
#ifndef KERNELS_ATTENTION_CODES_CUH
#define KERNELS_ATTENTION_CODES_CUH

#include "kernels/attention/scores.cuh"

/* Keys of a scale of fp8_128x128. So small a scale is as good as 0, by which a hidden key's -inf cannot be multiplied. */
enum { CODES_KEYS = 128 };
#define LEAST_FACTOR 1e-18f

INLINE float e4m3_at(uint64_t codes, int i) { return cvt_f32_f16((uint16_t)cvt_f16x2_e4m3x2(((const uint8_t *)codes)[i])); }

#endif
