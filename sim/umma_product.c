/* See umma_product.h. Floats: all terms aligned to the largest exponent, cut to 25 bits behind it, added, cut to the result. Operands of 4 bits with block
 * scales: 16 products exactly, times their scales' significands, cut to 35 bits. fp16 results are rounded to nearest. Integers are exact. */
#include "umma_product.h"

#include <math.h>
#include <string.h>

#include "product.h"
#include "real.h"

enum { FRACTION = 25, FRACTION_PACKED = 35 };

/* The significands of all rows count in units of 2^-significand of their exponents; those of integers and packed operands are whole numbers. */
struct umma_numbers {
    int32_t significand[UMMA_MAX_ROWS * UMMA_MAX_K], exponent[UMMA_MAX_ROWS * UMMA_MAX_K], negative[UMMA_MAX_ROWS * UMMA_MAX_K];
    product_number number[UMMA_MAX_ROWS * UMMA_MAX_K];   /* of rows that are not finite */
    int8_t small[UMMA_MAX_ROWS * UMMA_MAX_K];            /* packed: twice the value */
    int32_t scale_significand[UMMA_MAX_ROWS][UMMA_MAX_SCALES], scale_exponent[UMMA_MAX_ROWS][UMMA_MAX_SCALES];
    bool finite[UMMA_MAX_ROWS], lost[UMMA_MAX_ROWS];
};

/* ---- numbers ---- */

typedef struct format { int bits, exponent_bits, mantissa, bias; enum { HAS_NOTHING, HAS_INFINITY, HAS_ONE_NAN } special; } format;
static const format formats[UMMA_TYPE_COUNT] = {
    [UMMA_f16] = {16, 5, 10, 15, HAS_INFINITY}, [UMMA_bf16] = {16, 8, 7, 127, HAS_INFINITY}, [UMMA_tf32] = {32, 8, 10, 127, HAS_INFINITY},
    [UMMA_e4m3] = {8, 4, 3, 7, HAS_ONE_NAN},    [UMMA_e5m2] = {8, 5, 2, 15, HAS_INFINITY},   [UMMA_e2m3] = {6, 2, 3, 1, HAS_NOTHING},
    [UMMA_e3m2] = {6, 3, 2, 3, HAS_NOTHING},    [UMMA_e2m1] = {4, 2, 1, 1, HAS_NOTHING},     [UMMA_u8] = {8, 0, 0, 0, HAS_NOTHING},
    [UMMA_s8] = {8, 0, 0, 0, HAS_NOTHING},
};

int umma_type_bits(umma_type type) { return formats[type].bits; }

static bool is_integer(umma_type type) { return type == UMMA_u8 || type == UMMA_s8; }

static product_number read_number(umma_type type, uint32_t code, bool negate) {
    const format *f = &formats[type];
    if (type == UMMA_tf32) code >>= 13;   /* the upper 19 bits count */
    uint32_t mantissa = code & ((1u << f->mantissa) - 1), exponent = code >> f->mantissa & ((1u << f->exponent_bits) - 1), top = (1u << f->exponent_bits) - 1;
    bool negative = ((code >> (f->mantissa + f->exponent_bits) & 1) != 0) != negate;
    product_number n = {.negative = negative};
    if (f->special == HAS_INFINITY && exponent == top) {
        n.kind = mantissa == 0 ? 1 : 2;
    } else if (f->special == HAS_ONE_NAN && exponent == top && mantissa == (1u << f->mantissa) - 1) {
        n.kind = 2;
    } else {
        n.significand = (int32_t)(exponent == 0 ? mantissa : mantissa | 1u << f->mantissa);
        n.exponent = (int16_t)((exponent == 0 ? 1 : (int)exponent) - f->bias);
        if (negative) n.significand = -n.significand;
    }
    return n;
}

static int significand_bits(const umma_product *p) {
    int a = formats[p->a].mantissa, b = formats[p->b].mantissa;
    return a > b ? a : b;
}

umma_numbers *umma_numbers_of(int which) {
    static _Thread_local umma_numbers numbers[2];
    return &numbers[which];
}

/* ue8m0: 2^(code - 127); ue4m3: as e4m3, whose sign does not count. */
static bool read_scale(const umma_product *p, uint8_t code, int32_t *significand, int32_t *exponent) {
    if (p->scales_e8m0) {
        *significand = 8;
        *exponent = code - 127;
        return code != 0xff;
    }
    product_number n = read_number(UMMA_e4m3, code & 0x7f, false);
    *significand = n.significand;
    *exponent = n.significand != 0 ? n.exponent : -126;   /* as the published rules have it of zero */
    return n.kind == 0;
}

static void set_packed(umma_numbers *s, const umma_product *p, bool negate, int row, const uint32_t *codes, const uint8_t *scales) {
    static const int8_t twice[] = {0, 1, 2, 3, 4, 6, 8, 12};
    for (int i = 0; i < p->k; i++) {
        int8_t value = twice[codes[i] & 7];
        s->small[row * p->k + i] = (int8_t)(((codes[i] & 8) != 0) != negate ? -value : value);
    }
    for (int i = 0; i < p->scales; i++) s->finite[row] &= read_scale(p, scales[i], &s->scale_significand[row][i], &s->scale_exponent[row][i]);
}

void umma_set_row(umma_numbers *s, const umma_product *p, umma_type type, bool negate, int row, const uint32_t *codes, bool lost, const uint8_t *scales) {
    int at = row * p->k, shift = significand_bits(p) - formats[type].mantissa;
    int32_t significand, exponent = 0;
    s->lost[row] = lost;
    s->finite[row] = !lost;
    if (umma_is_packed(p->kind)) {
        set_packed(s, p, negate, row, codes, scales);
        return;
    }
    if (is_integer(type)) {
        for (int i = 0; i < p->k; i++) s->significand[at + i] = type == UMMA_s8 ? (int8_t)codes[i] : (uint8_t)codes[i];
        return;
    }
    bool scale_is_nan = p->scales > 0 && !read_scale(p, scales[0], &significand, &exponent);
    for (int i = 0; i < p->k; i++) {
        product_number n = read_number(type, codes[i], negate);
        if (lost || scale_is_nan) n.kind = 2;
        n.significand *= 1 << shift;
        n.exponent = (int16_t)(n.exponent + exponent);
        s->number[at + i] = n;
        s->finite[row] &= n.kind == 0;
        s->significand[at + i] = n.significand < 0 ? -n.significand : n.significand;
        s->exponent[at + i] = n.significand == 0 ? -16384 : n.exponent;
        s->negative[at + i] = -(int32_t)(n.significand < 0);
    }
}

/* ---- sums ---- */

static double to_double(uint32_t c, umma_result type) {
    if (type != UMMA_RESULT_F16) return (double)f32_from(c);
    int exponent = (int)(c >> 10 & 31);
    double magnitude = exponent == 31 ? ((c & 0x3ff) != 0 ? NAN : INFINITY) : ldexp((double)((c & 0x3ff) | (exponent != 0 ? 0x400u : 0)), (exponent != 0 ? exponent : 1) - 25);
    return (c & 0x8000) != 0 ? -magnitude : magnitude;
}

/* To nearest, ties to even; beyond the largest number infinity. */
static uint32_t to_f16(double value) {
    uint32_t sign = signbit(value) ? 0x8000 : 0;
    double magnitude = fabs(value);
    int exponent;
    if (isnan(value)) return 0x7fff;
    if (magnitude >= 65520) return sign | 0x7c00;
    (void)frexp(magnitude, &exponent);
    if (exponent < -13 || magnitude == 0) exponent = -13;
    double steps = rint(ldexp(magnitude, 11 - exponent));   /* exact in double; 2^11 moves to the next exponent by itself */
    return sign | ((uint32_t)steps + (exponent > -13 ? (uint32_t)(exponent + 13) << 10 : 0));
}

static uint32_t sum_integers(const umma_product *p, const umma_numbers *a, int row_a, const umma_numbers *b, int row_b, uint32_t c) {
    const int32_t *x = &a->significand[row_a * p->k], *y = &b->significand[row_b * p->k];
    int64_t sum = (int32_t)c;
    for (int i = 0; i < p->k; i++) sum += (int64_t)x[i] * y[i];
    if (p->saturate) sum = sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum;
    return (uint32_t)sum;
}

static uint32_t sum_packed(const umma_product *p, const umma_numbers *a, int row_a, const umma_numbers *b, int row_b, uint32_t c) {
    const int8_t *x = &a->small[row_a * p->k], *y = &b->small[row_b * p->k];
    int groups = p->k / 16, per_scale = groups / p->scales;
    int64_t terms[UMMA_MAX_K / 16];
    int exponents[UMMA_MAX_K / 16];
    if (!a->finite[row_a] || !b->finite[row_b]) return F32_NAN;
    for (int g = 0; g < groups; g++) {
        int32_t dot = 0, scale = g / per_scale;
        for (int i = 0; i < 16; i++) dot += x[g * 16 + i] * y[g * 16 + i];
        terms[g] = (int64_t)dot * a->scale_significand[row_a][scale] * b->scale_significand[row_b][scale];   /* in units of 2^-8 */
        exponents[g] = a->scale_exponent[row_a][scale] + b->scale_exponent[row_b][scale];
    }
    return product_sum_terms(terms, exponents, groups, 8, c, FRACTION_PACKED);
}

uint32_t umma_sum(const umma_product *p, const umma_numbers *a, int row_a, const umma_numbers *b, int row_b, uint32_t c) {
    if (p->kind == UMMA_I8) return sum_integers(p, a, row_a, b, row_b, c);
    if (umma_is_packed(p->kind)) return sum_packed(p, a, row_a, b, row_b, c);
    int at_a = row_a * p->k, at_b = row_b * p->k;
    uint32_t start = p->d == UMMA_RESULT_F16 ? f32_bits((float)to_double(c & 0xffff, UMMA_RESULT_F16)) : c;
    int results = p->d == UMMA_RESULT_F16 ? 0 : 23;
    if (a->finite[row_a] && b->finite[row_b] && results != 0) {
        const product_factors x = {&a->significand[at_a], &a->exponent[at_a], &a->negative[at_a]}, y = {&b->significand[at_b], &b->exponent[at_b], &b->negative[at_b]};
        return product_sum_finite(x, y, p->k, start, significand_bits(p), FRACTION, results);
    }
    if (results != 0) return product_sum(&a->number[at_a], &b->number[at_b], p->k, start, significand_bits(p), FRACTION, results);
    return to_f16(product_sum_exact(&a->number[at_a], &b->number[at_b], p->k, start, significand_bits(p), FRACTION));
}

uint32_t umma_scaled(const umma_product *p, uint32_t c, int scale) {
    if (scale == 0 || p->d == UMMA_RESULT_S32) return c;
    double value = ldexp(to_double(p->d == UMMA_RESULT_F16 ? c & 0xffff : c, p->d), -scale);
    return p->d == UMMA_RESULT_F16 ? to_f16(value) : f32_bits((float)value);
}
