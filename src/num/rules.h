/* The rules of block scales as num.h states them at num_quantize, for one block each; the same text is compiled for GPUs. Sources: OCP MX 1.0
 * section 6.3; PTX ISA "cvt" (ue8m0, satfinite); NVFP4: Transformer Engine, core_nvfp4.cuh, whose order of operations is part of the rule: multiplying by
 * a reciprocal and dividing give different codes. Each operation is rounded on its own: compile without contraction. */
#ifndef NUM_RULES_H
#define NUM_RULES_H

#include "num/small.h"

#define RULES_FLT_MAX 3.402823466e+38f

SMALL_INLINE int rules_is_nan(float x) { return (small_bits(x) & 0x7fffffff) > SMALL_F32_INFINITY; }
SMALL_INLINE float rules_least(float a, float b) { return a < b ? a : b; }   /* neither is a NaN, or a is and stays out */

/* ceil(log2(amax / max)) or floor(log2 amax) - floor(log2 max), by the bits of both numbers. The first is cvt.rp of
 * amax * fl(1 / max) wherever that product is a normal number. */
SMALL_INLINE int32_t rules_mx_scale(float amax, float max, int floors) {
    if (rules_is_nan(amax)) return 0xff;
    int32_t a = small_bits(amax), m = small_bits(max);
    if (a == SMALL_F32_INFINITY) return 0xfe;
    int32_t exponent = (a >> 23) - (m >> 23);
    if (!floors && (a & 0x7fffff) > (m & 0x7fffff)) exponent++;
    return exponent + 127 < 0 ? 0 : exponent + 127;
}

/* 2^-e, exact; NaN for a NaN scale. */
SMALL_INLINE float rules_mx_inverse(int32_t code) {
    if (code == 0xff) return small_float(0x7fffffff);
    return small_float(code == 0xfe ? 0x00400000 : (254 - code) << 23);
}

/* S_enc of NVFP4 from the largest magnitude; S_dec is 1 / S_enc. */
SMALL_INLINE float rules_nv_encode(float amax) {
    float encode = rules_least((448.0f * 6.0f) / amax, RULES_FLT_MAX);
    return amax == 0 || encode == 0 ? 1.0f : encode;
}

/* The same from a given S_dec. */
SMALL_INLINE float rules_nv_encode_of(float second) { return rules_least(1.0f / second, RULES_FLT_MAX); }

SMALL_INLINE int32_t rules_nv_scale(float amax, float encode) { return small_e4m3(amax * (encode * (1.0f / 6.0f))); }

SMALL_INLINE float rules_nv_inverse(int32_t code, float decode) {
    float scale = small_from_e4m3(code);
    if (rules_is_nan(scale)) return scale;
    return scale == 0 ? 0.0f : rules_least(1.0f / (scale * decode), RULES_FLT_MAX);
}

/* What is added to the code of an NVFP4 scale for the candidates of a search, in the order in which they are tried. */
#define RULES_NV_STEPS {0, -1, 1, 4, 5, 3}

/* Between 448 * 2^-126 and FLT_MAX, so that neither the scale nor its reciprocal leaves the normal numbers: the scale is bounded / 448. */
SMALL_INLINE float rules_fp8_bounded(float amax) {
    float least = 448.0f * 0x1p-126f;
    return amax == 0 ? 448.0f : rules_least(amax > least ? amax : least, RULES_FLT_MAX);
}

#endif
