/* Conversions between fp32 and floating-point formats of up to 16 bits, as expressions without branches: with constant
 * arguments they inline, and loops over them vectorise. NaN, infinity and the sign are the callers'. The same text is compiled for GPUs. */
#ifndef NUM_SMALL_H
#define NUM_SMALL_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define SMALL_INLINE static __device__ inline
#else
#define SMALL_INLINE static inline
#endif

#define SMALL_F32_INFINITY 0x7f800000

SMALL_INLINE int32_t small_bits(float value) {
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

SMALL_INLINE float small_float(int32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The bits of 2^exponent, -126 <= exponent <= 127. */
SMALL_INLINE int32_t small_power(int exponent) { return (exponent + 127) << 23; }

/* if_true where condition is 1, if_false where it is 0. By masks: compilers may sink a floating-point addition into one arm of ?: and
 * then, since it might trap, not vectorise. */
SMALL_INLINE int32_t small_select(int condition, int32_t if_true, int32_t if_false) {
    return if_false ^ ((if_true ^ if_false) & -condition);
}

/* The magnitude code of the fp32 number with these bits (sign cleared), rounded to nearest even. The number must round to a
 * code of the format or to the code after its largest. bias < 127. */
SMALL_INLINE int32_t small_encode(int32_t bits, int mantissa_bits, int bias) {
    int drop = 23 - mantissa_bits;
    int32_t normal = (bits + ((1 << (drop - 1)) - 1) + ((bits >> drop) & 1) - ((127 - bias) << 23)) >> drop;
    /* Below the smallest normal number the step is fixed: adding 2^23 steps makes the adder round to it. */
    int32_t shift = small_power(1 - bias - mantissa_bits + 23);
    int32_t subnormal = small_bits(small_float(bits) + small_float(shift)) - shift;
    return small_select(bits < small_power(1 - bias), subnormal, normal);
}

/* The value of a magnitude code that is neither infinity nor NaN. */
SMALL_INLINE float small_decode(int32_t code, int mantissa_bits, int bias) {
    int32_t normal = (code << (23 - mantissa_bits)) + ((127 - bias) << 23);
    float subnormal = (float)code * small_float(small_power(1 - bias - mantissa_bits));
    return small_float(small_select(code < (1 << mantissa_bits), small_bits(subnormal), normal));
}

/* fp32 to a code with its sign: saturates at the magnitude code max, whose fp32 bits are max_bits; NaN gives nan_code. */
SMALL_INLINE int32_t small_encode_saturate(float value, int bits, int mantissa_bits, int bias, int32_t max_bits, int32_t nan_code) {
    int32_t all = small_bits(value);
    int32_t magnitude = all & 0x7fffffff;
    int32_t sign = (int32_t)((uint32_t)all >> 31) << (bits - 1);
    int32_t code = small_encode(magnitude < max_bits ? magnitude : max_bits, mantissa_bits, bias) | sign;
    return small_select(magnitude > SMALL_F32_INFINITY, nan_code, code);
}

SMALL_INLINE int32_t small_e4m3(float value) { return small_encode_saturate(value, 8, 3, 7, 0x43e00000, 0x7f); }
SMALL_INLINE int32_t small_e5m2(float value) { return small_encode_saturate(value, 8, 2, 15, 0x47600000, 0x7f); }
SMALL_INLINE int32_t small_e3m2(float value) { return small_encode_saturate(value, 6, 2, 3, 0x41e00000, 0x1f); }
SMALL_INLINE int32_t small_e2m3(float value) { return small_encode_saturate(value, 6, 3, 1, 0x40f00000, 0x1f); }
SMALL_INLINE int32_t small_e2m1(float value) { return small_encode_saturate(value, 4, 1, 1, 0x40c00000, 0x7); }

/* 65520 and all above round to infinity, whose code follows the largest. */
SMALL_INLINE int32_t small_f16(float value) { return small_encode_saturate(value, 16, 10, 15, 0x477ff000, 0x7fff); }

SMALL_INLINE int32_t small_bf16(float value) {
    uint32_t bits = (uint32_t)small_bits(value);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return small_select((int32_t)(bits & 0x7fffffff) > SMALL_F32_INFINITY, 0x7fff, (int32_t)rounded);
}

/* ---- and back: codes with their sign to fp32, exactly ---- */

SMALL_INLINE float small_with_sign(float magnitude, int negative) {
    return small_float(small_bits(magnitude) | (int32_t)((uint32_t)negative << 31));
}

/* infinity: its magnitude code; all above are NaN. */
SMALL_INLINE float small_decode_ieee(int32_t magnitude, int mantissa_bits, int bias, int32_t infinity) {
    int32_t special = small_select(magnitude == infinity, SMALL_F32_INFINITY, 0x7fffffff);
    return small_float(small_select(magnitude >= infinity, special, small_bits(small_decode(magnitude, mantissa_bits, bias))));
}

SMALL_INLINE float small_from_bf16(int32_t code) { return small_float((int32_t)((uint32_t)code << 16)); }
SMALL_INLINE float small_from_f16(int32_t code) { return small_with_sign(small_decode_ieee(code & 0x7fff, 10, 15, 0x7c00), code >> 15); }
SMALL_INLINE float small_from_e5m2(int32_t code) { return small_with_sign(small_decode_ieee(code & 0x7f, 2, 15, 0x7c), code >> 7); }
SMALL_INLINE float small_from_e3m2(int32_t code) { return small_with_sign(small_decode(code & 0x1f, 2, 3), code >> 5 & 1); }
SMALL_INLINE float small_from_e2m3(int32_t code) { return small_with_sign(small_decode(code & 0x1f, 3, 1), code >> 5 & 1); }
SMALL_INLINE float small_from_e2m1(int32_t code) { return small_with_sign(small_decode(code & 0x7, 1, 1), code >> 3 & 1); }

SMALL_INLINE float small_from_e4m3(int32_t code) {
    int32_t magnitude = code & 0x7f;
    return small_with_sign(magnitude == 0x7f ? small_float(0x7fffffff) : small_decode(magnitude, 3, 7), code >> 7);
}

SMALL_INLINE float small_from_e8m0(int32_t code) { return code == 0 ? 0x1p-127f : small_float(code == 0xff ? 0x7fffffff : code << 23); }

#endif
