/* See product.h. */
#include "product.h"

#include "sim/ptx/ptx.h"

#include <math.h>
#include <stddef.h>

enum { C_BITS = 23, NAN_BITS = 0x7fffffff };

/* ---- numbers ---- */

static const product_format formats[] = {
    {PTX_f16, 16, 5, 10, 15, 0, PRODUCT_INFINITY}, {PTX_bf16, 16, 8, 7, 127, 0, PRODUCT_INFINITY}, {PTX_tf32, 32, 8, 10, 127, 13, PRODUCT_INFINITY},
    {PTX_e4m3, 8, 4, 3, 7, 0, PRODUCT_ONE_NAN},    {PTX_e5m2, 8, 5, 2, 15, 0, PRODUCT_INFINITY},
};

const product_format *product_format_of(int type) {
    for (size_t i = 0; i < COUNT_OF(formats); i++) {
        if (formats[i].type == type) return &formats[i];
    }
    return NULL;
}

bool product_has_nan(const product_format *f, const uint32_t *codes, int count) {
    for (int i = 0; i < count; i++)
        if (product_read(f, codes[i], false).kind == 2) return true;
    return false;
}

/* ---- sums ---- */

static int leading(uint64_t a) { return a == 0 ? -1 : 63 - __builtin_clzll(a); }

/* value * 2^shift, toward zero. */
static int64_t shifted(int64_t value, int shift) {
    uint64_t magnitude = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    if (magnitude == 0 || shift <= -64) return 0;
    magnitude = shift >= 0 ? magnitude << shift : magnitude >> -shift;
    return value < 0 ? -(int64_t)magnitude : (int64_t)magnitude;
}

/* sum * 2^unit as an fp32 whose fraction has result_bits, cut toward zero. */
static uint32_t to_f32(int64_t sum, int unit, int result_bits) {
    uint32_t sign = sum < 0 ? 0x80000000u : 0;
    uint64_t magnitude = sum < 0 ? 0 - (uint64_t)sum : (uint64_t)sum;
    if (magnitude == 0) return 0;
    int exponent = leading(magnitude) + unit, least = exponent < -126 ? -126 : exponent;
    if (exponent > 127) return sign | 0x7f800000u;
    int drop = least - result_bits - unit;   /* bits below the last one that is kept */
    uint64_t kept = drop > 63 ? 0 : drop >= 0 ? magnitude >> drop : magnitude << -drop;
    kept <<= 23 - result_bits;
    if (exponent < -126) return sign | (uint32_t)kept;
    return sign | (uint32_t)(exponent + 127) << 23 | ((uint32_t)kept & 0x7fffff);
}

/* A sum as value * 2^unit; or special: 1 an infinity (of value's sign), 2 NaN. */
typedef struct total { int64_t value; int unit, special; } total;

static total add_up(const product_number *a, const product_number *b, int count, uint32_t c, int significand_bits, int fraction) {
    int largest = INT32_MIN;
    int infinities = 0;   /* bit 0: positive, 1: negative */
    uint32_t c_exponent = c >> 23 & 255;
    if ((c & 0x7fffffff) > 0x7f800000) return (total){.special = 2};
    if (c_exponent == 255) infinities |= 1 << (c >> 31);
    for (int i = 0; i < count; i++) {
        if ((a[i].kind | b[i].kind) != 0) {
            if (a[i].kind == 2 || b[i].kind == 2 || (a[i].kind == 0 && a[i].significand == 0) || (b[i].kind == 0 && b[i].significand == 0)) return (total){.special = 2};
            infinities |= 1 << (a[i].negative ^ b[i].negative);
        } else if (a[i].significand != 0 && b[i].significand != 0) {
            int exponent = a[i].exponent + b[i].exponent;
            if (exponent > largest) largest = exponent;
        }
    }
    if (infinities == 3) return (total){.special = 2};
    if (infinities != 0) return (total){.value = infinities == 1 ? 1 : -1, .special = 1};
    int64_t c_significand = c_exponent == 0 ? (int64_t)(c & 0x7fffff) : (int64_t)((c & 0x7fffff) | 0x800000);
    int c_place = c_exponent == 0 ? -126 : (int)c_exponent - 127;
    if ((c >> 31) != 0) c_significand = -c_significand;
    if (c_significand != 0 && c_place > largest) largest = c_place;
    if (largest == INT32_MIN) return (total){0};
    int unit = largest - fraction;
    int64_t sum = shifted(c_significand, c_place - C_BITS - unit);
    for (int i = 0; i < count; i++) {
        int64_t product = (int64_t)a[i].significand * b[i].significand;
        if (product != 0) sum += shifted(product, a[i].exponent + b[i].exponent - 2 * significand_bits - unit);
    }
    return (total){.value = sum, .unit = unit};
}

uint32_t product_sum(const product_number *a, const product_number *b, int count, uint32_t c, int significand_bits, int fraction, int result_bits) {
    total t = add_up(a, b, count, c, significand_bits, fraction);
    if (t.special == 2) return NAN_BITS;
    if (t.special == 1) return t.value > 0 ? 0x7f800000u : 0xff800000u;
    return to_f32(t.value, t.unit, result_bits);
}

double product_sum_exact(const product_number *a, const product_number *b, int count, uint32_t c, int significand_bits, int fraction) {
    total t = add_up(a, b, count, c, significand_bits, fraction);
    if (t.special == 2) return NAN;
    if (t.special == 1) return t.value > 0 ? INFINITY : -INFINITY;
    return ldexp((double)t.value, t.unit);
}

uint32_t product_sum_terms(const int64_t *terms, const int *exponents, int count, int point, uint32_t c, int fraction) {
    uint32_t c_exponent = c >> 23 & 255;
    int64_t c_significand = c_exponent == 0 ? (int64_t)(c & 0x7fffff) : (int64_t)((c & 0x7fffff) | 0x800000);
    int c_place = c_exponent == 0 ? -126 : (int)c_exponent - 127, largest = c_place;
    if ((c & 0x7fffffff) > 0x7f800000) return NAN_BITS;
    if (c_exponent == 255) return c;
    if ((c >> 31) != 0) c_significand = -c_significand;
    for (int i = 0; i < count; i++) largest = exponents[i] > largest ? exponents[i] : largest;
    int unit = largest - fraction;
    int64_t sum = shifted(c_significand, c_place - C_BITS - unit);
    for (int i = 0; i < count; i++) sum += shifted(terms[i], exponents[i] - point - unit);
    return to_f32(sum, unit, 23);
}
