/* The sums of panel.h, WIDTH columns at a time. Included by one file for each instruction set, which defines PANEL_ISA, PANEL_NAME and WIDTH. */
#include "panel.h"

#include <string.h>

#if WIDTH > 4
#include <immintrin.h>
#endif

typedef int32_t ints __attribute__((vector_size(4 * WIDTH)));
typedef int32_t half_ints __attribute__((vector_size(2 * WIDTH)));
typedef uint32_t words __attribute__((vector_size(4 * WIDTH)));
typedef int64_t longs __attribute__((vector_size(4 * WIDTH)));       /* half as many */
typedef double doubles __attribute__((vector_size(4 * WIDTH)));

enum { NAN_BITS = 0x7fffffff, INFINITY_BITS = 0x7f800000, HALF_NAN = 0x7fff, HALF_INFINITY = 0x7c00, C_BITS = 23, NOTHING = -4096, PACKED_FRACTION = 35, PACKED_POINT = 8 };

/* ---- what the compiler's vectors lack ---- */

static inline ints larger(ints a, ints b) {
#if WIDTH == 16
    return (ints)_mm512_max_epi32((__m512i)a, (__m512i)b);
#elif WIDTH == 8
    return (ints)_mm256_max_epi32((__m256i)a, (__m256i)b);
#else
    ints first = a > b;
    return (a & first) | (b & ~first);
#endif
}

/* Of a value that is not negative; 0 beyond 31. */
static inline ints shift_right(ints value, ints by) {
#if WIDTH == 16
    return (ints)_mm512_srlv_epi32((__m512i)value, (__m512i)by);
#elif WIDTH == 8
    return (ints)_mm256_srlv_epi32((__m256i)value, (__m256i)by);
#else
    ints beyond = by > 31;
    return (value >> (by & ~beyond)) & ~beyond;
#endif
}

static inline longs shift_right_long(longs value, longs by) {
#if WIDTH == 16
    return (longs)_mm512_srlv_epi64((__m512i)value, (__m512i)by);
#elif WIDTH == 8
    return (longs)_mm256_srlv_epi64((__m256i)value, (__m256i)by);
#else
    longs beyond = by > 63;
    return (value >> (by & ~beyond)) & ~beyond;
#endif
}

static inline ints choose(ints mask, ints a, ints b) { return (a & mask) | (b & ~mask); }
static inline longs choose_long(longs mask, longs a, longs b) { return (a & mask) | (b & ~mask); }
static inline ints splat(int32_t value) { return value - (ints){0}; }

static inline ints load(const void *from) {
    ints v;
    memcpy(&v, from, sizeof v);
    return v;
}

/* The lower (part 0) or the upper half. Not by memory, which sums would have to live in then. */
static inline half_ints part_of(ints v, int part) {
#if WIDTH == 16
    return (half_ints)(part == 0 ? _mm512_castsi512_si256((__m512i)v) : _mm512_extracti64x4_epi64((__m512i)v, 1));
#elif WIDTH == 8
    return (half_ints)(part == 0 ? _mm256_castsi256_si128((__m256i)v) : _mm256_extracti128_si256((__m256i)v, 1));
#else
    return part == 0 ? (half_ints){v[0], v[1]} : (half_ints){v[2], v[3]};
#endif
}

static inline ints joined(half_ints low, half_ints high) {
#if WIDTH == 16
    return (ints)_mm512_inserti64x4(_mm512_castsi256_si512((__m256i)low), (__m256i)high, 1);
#elif WIDTH == 8
    return (ints)_mm256_inserti128_si256(_mm256_castsi128_si256((__m128i)low), (__m128i)high, 1);
#else
    return (ints){low[0], low[1], high[0], high[1]};
#endif
}

/* ---- results ---- */

#if WIDTH == 16
/* The conversion that rounds to zero cuts, subnormal numbers, too; beyond the largest number it gives that, and the units infinity. */
static inline half_ints to_f32(doubles sum, half_ints unit, int result_bits) {
    __m512d value = _mm512_scalef_pd((__m512d)sum, _mm512_cvtepi32_pd((__m256i)unit));
    __m256i cut = _mm256_castps_si256(_mm512_cvt_roundpd_ps(value, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC));
    __mmask8 beyond = _mm512_cmp_pd_mask(_mm512_abs_pd(value), _mm512_set1_pd(0x1p128), _CMP_GE_OQ);
    __m256i infinity = _mm256_or_si256(_mm256_and_si256(cut, _mm256_set1_epi32(INT32_MIN)), _mm256_set1_epi32(INFINITY_BITS));
    return (half_ints)_mm256_mask_mov_epi32(_mm256_and_si256(cut, _mm256_set1_epi32(-(1 << (23 - result_bits)))), beyond, infinity);
}
#else
/* sum * 2^unit as fp32 whose fraction has result_bits, cut toward zero. */
static inline half_ints to_f32(doubles sum, half_ints short_unit, int result_bits) {
    longs unit = __builtin_convertvector(short_unit, longs);
    longs bits = (longs)sum, magnitude = bits & INT64_MAX, exponent = (magnitude >> 52) - 1023 + unit, below = -126 - exponent;
    longs significand = (magnitude & ((1ll << 52) - 1)) | 1ll << 52;
    int64_t cut = ((int64_t)1 << (23 - result_bits)) - 1;
    longs kept = shift_right_long(significand, 29 + (below & ~(below >> 63))) & ~cut;
    longs value = choose_long(exponent >= -126, (exponent + 127) << 23 | (kept & 0x7fffff), kept);
    value = choose_long(exponent > 127, (longs){0} + INFINITY_BITS, value);
    return __builtin_convertvector((value | (bits >> 63 & 0x80000000ll)) & (magnitude != 0), half_ints);
}
#endif

/* The same as fp16, to nearest, ties to even. */
static inline half_ints to_f16(doubles sum, half_ints short_unit) {
    longs unit = __builtin_convertvector(short_unit, longs);
    longs bits = (longs)sum, magnitude = bits & INT64_MAX, exponent = (magnitude >> 52) - 1023 + unit, below = -14 - exponent;
    longs significand = (magnitude & ((1ll << 52) - 1)) | 1ll << 52, drop = 42 + (below & ~(below >> 63));
    drop = choose_long(drop > 62, (longs){0} + 62, drop);
    longs kept = shift_right_long(significand + shift_right_long((longs){0} + (1ll << 62), 63 - drop) - 1 + (shift_right_long(significand, drop) & 1), drop);
    longs value = kept + choose_long(exponent >= -14, (exponent + 14) << 10, (longs){0});   /* a significand that is rounded up moves to the next exponent */
    value = choose_long((exponent > 15) | (value > HALF_INFINITY), (longs){0} + HALF_INFINITY, value);
    return __builtin_convertvector((value | (bits >> 63 & 0x8000)) & (magnitude != 0), half_ints);
}

static inline ints to_results(const panel_sum *s, const doubles sum[2], ints unit) {
    half_ints parts[2];
    for (int i = 0; i < 2; i++) parts[i] = s->half ? to_f16(sum[i], part_of(unit, i)) : to_f32(sum[i], part_of(unit, i), s->result_bits);
    return joined(parts[0], parts[1]);
}

/* What is added to: a significand with 23 bits, and the exponent of its leading bit's place. */
typedef struct addends { ints bits, significand, place; } addends;

static inline addends read_addends(const uint32_t *c) {
    addends a = {.bits = load(c)};
    ints exponent = a.bits >> 23 & 255, subnormal = exponent == 0;
    a.significand = (a.bits & 0x7fffff) | (0x800000 & ~subnormal);
    a.place = exponent - subnormal - 127;
    return a;
}

/* Infinity stays, NaN becomes the unit's. */
static inline void store_results(const panel_sum *s, int from, addends c, ints results) {
    ints magnitude = c.bits & NAN_BITS;
    ints infinity = s->half ? (c.bits >> 16 & 0x8000) | HALF_INFINITY : c.bits, nan = splat(s->half ? HALF_NAN : NAN_BITS);
    results = choose(magnitude >= INFINITY_BITS, choose(magnitude > INFINITY_BITS, nan, infinity), results);
    memcpy(s->c + from, &results, sizeof results);
}

/* ---- sums ---- */

static inline ints with_sign(ints magnitude, ints sign) { return (magnitude ^ sign) - sign; }

/* |product| >> by: to all, and of a negative product to those. */
static inline void add_term(ints product, ints by, words *all, words *negative) {
#if WIDTH == 16
    __m512i term = _mm512_srlv_epi32(_mm512_abs_epi32((__m512i)product), (__m512i)by);
    *negative = (words)_mm512_mask_add_epi32((__m512i)*negative, _mm512_movepi32_mask((__m512i)product), (__m512i)*negative, term);
#else
    ints sign = product >> 31, term = shift_right(with_sign(product, sign), by);
    *negative += (words)(term & sign);
#endif
    *all += (words)term;
}

static void sum_floats(const panel_sum *s) {
    int move = s->fraction - C_BITS, move_left = move > 0 ? move : 0, move_right = move_left - move;
    for (int from = 0; from < s->columns; from += WIDTH) {
        const int32_t *significand = s->panels.significand + panel_at(from, s->k), *exponent = s->panels.exponent + panel_at(from, s->k);
        addends c = read_addends(s->c + from);
        c.place = choose(c.significand == 0, splat(NOTHING), c.place);
        ints largest = c.place;
        for (int i = 0; i < s->k; i++) largest = larger(largest, load(exponent + i * PANEL_COLUMNS) + s->row.exponent[i]);
        doubles sum[2] = {{0}, {0}};
        for (int first = 0; first < s->k; first += 16) {   /* so many fit in 32 bits */
            int end = s->k < first + 16 ? s->k : first + 16;
            words all = {0}, negative = {0};
            for (int i = first; i < end; i++) {
                ints product = load(significand + i * PANEL_COLUMNS) * s->row.significand[i];
                add_term(product, largest - s->row.exponent[i] - load(exponent + i * PANEL_COLUMNS), &all, &negative);
            }
            ints part = (ints)(all - 2 * negative);
            for (int i = 0; i < 2; i++) sum[i] += __builtin_convertvector(part_of(part, i), doubles);
        }
        ints own = with_sign(shift_right(c.significand << move_left, largest - c.place + move_right), c.bits >> 31);
        for (int i = 0; i < 2; i++) sum[i] += __builtin_convertvector(part_of(own, i), doubles);
        store_results(s, from, c, to_results(s, sum, largest - s->fraction));
    }
}

/* value * 2^move, cut by bits below, toward zero. */
static inline longs placed(half_ints value, int move, half_ints below) {
    longs wide = __builtin_convertvector(value, longs), sign = wide >> 63;
    return (shift_right_long(((wide ^ sign) - sign) << move, __builtin_convertvector(below, longs)) ^ sign) - sign;
}

static void sum_packed(const panel_sum *s) {
    int groups = s->k / s->group, per_scale = groups / s->scales;
    for (int from = 0; from < s->columns; from += WIDTH) {
        const int32_t *significand = s->panels.significand + panel_at(from, s->k);
        const int32_t *scale = s->panel_scales.significand + panel_at(from, s->scales), *scale_exponent = s->panel_scales.exponent + panel_at(from, s->scales);
        ints terms[PANEL_MAX_K / 16], exponents[PANEL_MAX_K / 16];
        addends c = read_addends(s->c + from);
        ints largest = c.place;
        for (int g = 0; g < groups; g++) {
            int of = g / per_scale;
            ints dot = {0};
            for (int first = g * s->group; first < (g + 1) * s->group; first += 16)
                for (int i = first; i < first + 16; i++) dot += load(significand + i * PANEL_COLUMNS) * s->row.significand[i];
            terms[g] = dot * (load(scale + of * PANEL_COLUMNS) * s->row_scales.significand[of]);
            exponents[g] = load(scale_exponent + of * PANEL_COLUMNS) + s->row_scales.exponent[of];
            largest = larger(largest, exponents[g]);
        }
        doubles sum[2];
        ints own = with_sign(c.significand, c.bits >> 31);
        for (int i = 0; i < 2; i++) {
            longs total = placed(part_of(own, i), PACKED_FRACTION - C_BITS, part_of(largest - c.place, i));
            for (int g = 0; g < groups; g++) total += placed(part_of(terms[g], i), PACKED_FRACTION - PACKED_POINT, part_of(largest - exponents[g], i));
            sum[i] = __builtin_convertvector(total, doubles);   /* below 2^53 */
        }
        store_results(s, from, c, to_results(s, sum, largest - PACKED_FRACTION));
    }
}

static void sum_integers(const panel_sum *s) {
    for (int from = 0; from < s->columns; from += WIDTH) {
        const int32_t *significand = s->panels.significand + panel_at(from, s->k);
        ints dot = {0}, c = load(s->c + from);
        for (int i = 0; i < s->k; i++) dot += load(significand + i * PANEL_COLUMNS) * s->row.significand[i];
        ints sum = (ints)((words)c + (words)dot);
        if (s->saturate) sum = choose((~(c ^ dot) & (c ^ sum)) < 0, (c >> 31) ^ INT32_MAX, sum);
        memcpy(s->c + from, &sum, sizeof sum);
    }
}

static bool decode(const product_format *f, const uint32_t *codes, int count, bool negate, int move, int32_t *significand, int32_t *exponent) {
    int32_t below = f->below, bits = f->mantissa, top = (1 << f->exponent_bits) - 1, low = (1 << bits) - 1, bias = f->bias, flip = -(int32_t)negate, special = 0;
    int32_t first_special = product_first_special(f), sign_at = 31 - bits - f->exponent_bits;
    for (int i = 0; i < count; i++) {
        uint32_t code = codes[i] >> below;
        int32_t sign = ((int32_t)(code << sign_at) >> 31) ^ flip, e = (int32_t)(code >> bits) & top, mantissa = (int32_t)code & low, normal = e != 0;
        int32_t magnitude = mantissa | normal << bits;
        special |= (e << bits | mantissa) >= first_special;
        significand[i] = ((magnitude << move) ^ sign) - sign;
        exponent[i] = magnitude == 0 ? PANEL_ZERO : e + 1 - normal - bias;
    }
    return special == 0;
}

const panel_isa PANEL_ISA = {PANEL_NAME, sum_floats, sum_packed, sum_integers, decode};
