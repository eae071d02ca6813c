/* The sums of panel.h, WIDTH columns at a time. Included by one file for each instruction set, which defines PANEL_ISA, PANEL_NAME and WIDTH. */
#include "panel.h"

#include <string.h>

#if WIDTH > 4
#include <immintrin.h>
#endif

typedef int32_t ints __attribute__((vector_size(4 * WIDTH)));
typedef int32_t half_ints __attribute__((vector_size(2 * WIDTH)));
typedef uint32_t words __attribute__((vector_size(4 * WIDTH)));
typedef int16_t shorts __attribute__((vector_size(2 * WIDTH)));
typedef float floats __attribute__((vector_size(4 * WIDTH)));
typedef int64_t longs __attribute__((vector_size(4 * WIDTH)));       /* half as many */
typedef double doubles __attribute__((vector_size(4 * WIDTH)));

/* Where sums leave the fast form for the simple one. BLOCK: so many products' sum fits in 32 bits. */
enum { NEAR_LEAST = -100, NEAR_MOST = 120, BLOCK = 16 };
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

static inline shorts larger_short(shorts a, shorts b) {
#if WIDTH == 16
    return (shorts)_mm256_max_epi16((__m256i)a, (__m256i)b);
#elif WIDTH == 8
    return (shorts)_mm_max_epi16((__m128i)a, (__m128i)b);
#else
    shorts first = a > b;
    return (a & first) | (b & ~first);
#endif
}

/* The lanes whose sign is set, as bits. */
static inline uint32_t negatives(ints a) {
#if WIDTH == 16
    return _mm512_movepi32_mask((__m512i)a);
#elif WIDTH == 8
    return (uint32_t)_mm256_movemask_ps((__m256)a);
#else
    return (uint32_t)(a[0] < 0) | (uint32_t)(a[1] < 0) << 1 | (uint32_t)(a[2] < 0) << 2 | (uint32_t)(a[3] < 0) << 3;
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
static inline shorts choose_short(shorts mask, shorts a, shorts b) { return (a & mask) | (b & ~mask); }
static inline ints splat(int32_t value) { return value - (ints){0}; }
static inline floats power_of_2(ints exponent) { return (floats)((exponent + 127) << 23); }   /* of a normal number */

static inline ints load(const void *from) {
    ints v;
    memcpy(&v, from, sizeof v);
    return v;
}

static inline shorts load_shorts(const int16_t *from) {
    shorts v;
    memcpy(&v, from, sizeof v);
    return v;
}

static inline floats load_floats(const float *from) {
    floats v;
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

/* What is added to: an fp32, a significand with 23 bits, and the exponent of its leading bit's place. */
typedef struct addends { ints bits, significand, place; } addends;

static inline ints f16_to_f32(ints code) {
    ints magnitude = code & 0x7fff, special = magnitude >= HALF_INFINITY;
    ints bits = (ints)((floats)(magnitude << 13) * 0x1p112f);   /* exact, of subnormal numbers too */
    return (code & 0x8000) << 16 | choose(special, (magnitude << 13) | INFINITY_BITS, bits);
}

static inline addends read_addends(const panel_sum *s, int from) {
    addends a = {.bits = load(s->c + from)};
    if (s->half) a.bits = f16_to_f32(a.bits);
    ints exponent = a.bits >> 23 & 255, subnormal = exponent == 0;
    a.significand = (a.bits & 0x7fffff) | (0x800000 & ~subnormal);
    a.place = exponent - subnormal - 127;
    return a;
}

/* Infinity stays, NaN becomes the unit's. */
static inline void store_results(const panel_sum *s, int from, addends c, ints results) {
    ints magnitude = c.bits & NAN_BITS;
    if (negatives(INFINITY_BITS - 1 - magnitude) == 0) {
        memcpy(s->c + from, &results, sizeof results);
        return;
    }
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

/* Significands with so many bits behind the leading bit's place; of zeros 0. */
static inline ints significand_of(ints value, ints place, int bits) {
    ints exponent = value >> 23 & 255, subnormal = exponent == 0;
    ints by = place - (exponent - subnormal - 127) + (C_BITS - bits);
    return with_sign(shift_right((value & 0x7fffff) | (0x800000 & ~subnormal), by & ~(by >> 31)) & ~(by >> 31), value >> 31);
}

/* An exact sum * 2^unit as results, none of which is infinite as fp32. */
static inline ints near_results(const panel_sum *s, ints sum, ints unit) {
#if WIDTH == 16
    __m512 cut = _mm512_cvt_roundepi32_ps((__m512i)sum, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC), power = _mm512_cvtepi32_ps((__m512i)unit);
    if (!s->half) {
        cut = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(cut), _mm512_set1_epi32(-(1 << (23 - s->result_bits)))));
        return (ints)_mm512_castps_si512(_mm512_scalef_round_ps(cut, power, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC));
    }
    /* A last bit that stands for what was cut makes the second rounding as if it were the only one. */
    __mmask16 inexact = _mm512_cmpneq_epi32_mask(_mm512_cvttps_epi32(cut), (__m512i)sum);
    cut = _mm512_castsi512_ps(_mm512_mask_or_epi32(_mm512_castps_si512(cut), inexact, _mm512_castps_si512(cut), _mm512_set1_epi32(1)));
    return (ints)_mm512_cvtepu16_epi32(_mm512_cvtps_ph(_mm512_scalef_ps(cut, power), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
    const doubles parts[2] = {__builtin_convertvector(part_of(sum, 0), doubles), __builtin_convertvector(part_of(sum, 1), doubles)};
    return to_results(s, parts, unit);
#endif
}

/* A row as the sums of its columns take it: places in every lane; and, only where the simple form needs them (read_rest), significands, moved so that products have `fraction`
 * bits, and places with their scale's exponent. */
typedef struct sum_row { shorts places[PANEL_MAX_K]; bool has_rest; int32_t significand[PANEL_MAX_K], place[PANEL_MAX_K]; } sum_row;

static inline int unit_of(int base) { return base == PANEL_FAR ? 0 : base; }

static void read_rest(const panel_sum *s, sum_row *row) {
    for (int i = 0; i < s->k; i++) {
        ints bits;
        memcpy(&bits, &(floats){s->row.value[i]}, sizeof bits);
        row->significand[i] = significand_of(bits, splat(s->row.place[i] - unit_of(s->row_base)), s->significand_bits)[0] * (1 << (s->fraction - 2 * s->significand_bits));
        row->place[i] = s->row.place[i] + (s->scales > 0 ? s->row_scales.exponent[0] : 0);
    }
    row->has_rest = true;
}

/* WIDTH columns, from one on, with numbers of any size. */
static void sum_any(const panel_sum *s, int from, const sum_row *row) {
    int move = s->fraction - C_BITS, move_left = move > 0 ? move : 0, move_right = move_left - move, at = panel_at(from, s->k);
    ints significand[PANEL_MAX_K], place[PANEL_MAX_K];
    addends c = read_addends(s, from);
    c.place = choose(c.significand == 0, splat(NOTHING), c.place);
    ints largest = c.place, scale = s->scales > 0 ? load(s->panel_scales.exponent + from) : splat(0);
    for (int i = 0; i < s->k; i++) {
        ints own = __builtin_convertvector(load_shorts(s->panels.place + at + i * PANEL_COLUMNS), ints);
        significand[i] = significand_of(load(s->panels.value + at + i * PANEL_COLUMNS), own - unit_of(s->bases[from / PANEL_COLUMNS]), s->significand_bits);
        place[i] = own + scale + row->place[i];
        largest = larger(largest, place[i]);
    }
    doubles sum[2] = {{0}, {0}};
    for (int first = 0; first < s->k; first += BLOCK) {
        words all = {0}, negative = {0};
        for (int i = first; i < s->k && i < first + BLOCK; i++) add_term(significand[i] * row->significand[i], largest - place[i], &all, &negative);
        ints part = (ints)(all - 2 * negative);
        for (int i = 0; i < 2; i++) sum[i] += __builtin_convertvector(part_of(part, i), doubles);
    }
    ints own = with_sign(shift_right(c.significand << move_left, largest - c.place + move_right), c.bits >> 31);
    for (int i = 0; i < 2; i++) sum[i] += __builtin_convertvector(part_of(own, i), doubles);
    store_results(s, from, c, to_results(s, sum, largest - s->fraction));
}

/* What is added to as a term: cut to an integer in units of 2^(largest - fraction). */
static inline ints own_term(const panel_sum *s, addends c, ints largest) {
#if WIDTH == 16
    return (ints)_mm512_cvttps_epi32(_mm512_scalef_ps((__m512)c.bits, _mm512_cvtepi32_ps((__m512i)(s->fraction - largest))));
#else
    int move = s->fraction - C_BITS, move_left = move > 0 ? move : 0, move_right = move_left - move;
    return with_sign(shift_right(c.significand << move_left, largest - c.place + move_right), c.bits >> 31);
#endif
}

/* The terms of up to BLOCK products, each cut to an integer. */
static inline ints near_block(const float *value, const float *row, int count, floats factor) {
    ints sum = {0};
    for (int i = 0; i < count; i += 4) {
        for (int j = i; j < i + 4; j++) sum += __builtin_convertvector(load_floats(value + j * PANEL_COLUMNS) * row[j] * factor, ints);
    }
    return sum;
}

/* As sum_any, but products are made in fp32, and terms cut by converting them to integers. Products in fp32 are exact where they count, if the largest is no small number:
 * others are far below what is kept. false: it is one, or a sum is beyond 32 bits, or a result perhaps infinite; nothing is stored. */
static inline bool sum_near(const panel_sum *s, int from, const sum_row *row) {
    const float *value = s->panels.value + panel_at(from, s->k);
    const int16_t *place = s->panels.place + panel_at(from, s->k);
    addends c = read_addends(s, from);
    c.place = choose(c.significand == 0, splat(NOTHING), c.place);
    shorts most = {0};
    most += 2 * PANEL_ZERO;
    for (int i = 0; i < s->k; i += 4) {
        for (int j = i; j < i + 4; j++) most = larger_short(most, load_shorts(place + j * PANEL_COLUMNS) + row->places[j]);
    }
    const int of_lines = s->row_base + s->bases[from / PANEL_COLUMNS];
    ints base = splat(of_lines), largest = __builtin_convertvector(most, ints);
    if (s->scales > 0) {
        ints scale = load(s->panel_scales.exponent + from) + s->row_scales.exponent[0];
        largest += scale;
        base += scale;
    }
    largest = larger(largest, c.place);
    ints far = ((largest - base - NEAR_LEAST) | (NEAR_MOST - largest)) & (largest > NOTHING);   /* not of nothing but zeros */
    if (negatives(far) != 0) return false;
    const bool based = s->scales > 0 || of_lines != 0;
    if (!based) largest = larger(largest, splat(NEAR_LEAST));
    ints of_terms = s->fraction - largest + base;
    if (based) of_terms = choose(of_terms > 127, splat(127), larger(of_terms, splat(-127)));
    floats factor = power_of_2(of_terms);
    ints sum = own_term(s, c, largest), beyond = {0};
    for (int first = 0; first < s->k; first += BLOCK, value += BLOCK * PANEL_COLUMNS) {
        const int count = s->k - first < BLOCK ? s->k - first : BLOCK;
        ints part = near_block(value, s->row.value + first, count, factor);
        ints total = (ints)((words)sum + (words)part);
        beyond |= ~(sum ^ part) & (sum ^ total);
        sum = total;
    }
    if (negatives(beyond) != 0) return false;
    store_results(s, from, c, near_results(s, sum, largest - s->fraction));
    return true;
}

static void sum_floats(const panel_sum *s) {
    sum_row row;
    row.has_rest = false;
    for (int i = 0; i < s->k; i++) row.places[i] = s->row.place[i] - (shorts){0};
    for (int from = 0; from < s->columns; from += WIDTH) {
        if (sum_near(s, from, &row)) continue;
        if (!row.has_rest) read_rest(s, &row);
        sum_any(s, from, &row);
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
        const int32_t *significand = s->whole_panels + panel_at(from, s->k);
        const int32_t *scale = s->panel_scales.significand + panel_at(from, s->scales), *scale_exponent = s->panel_scales.exponent + panel_at(from, s->scales);
        ints terms[PANEL_MAX_K / 16], exponents[PANEL_MAX_K / 16];
        addends c = read_addends(s, from);
        ints largest = c.place;
        for (int g = 0; g < groups; g++) {
            int of = g / per_scale;
            ints dot = {0};
            for (int first = g * s->group; first < (g + 1) * s->group; first += 16)
                for (int i = first; i < first + 16; i++) dot += load(significand + i * PANEL_COLUMNS) * s->whole_row[i];
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
        const int32_t *significand = s->whole_panels + panel_at(from, s->k);
        ints dot = {0}, c = load(s->c + from);
        for (int i = 0; i < s->k; i++) dot += load(significand + i * PANEL_COLUMNS) * s->whole_row[i];
        ints sum = (ints)((words)c + (words)dot);
        if (s->saturate) sum = choose((~(c ^ dot) & (c ^ sum)) < 0, (c >> 31) ^ INT32_MAX, sum);
        memcpy(s->c + from, &sum, sizeof sum);
    }
}

static void decode(const product_format *f, const uint32_t *codes, int lines, bool negate, float *value, int16_t *place, uint16_t *special) {
    int32_t below = f->below, bits = f->mantissa, magnitudes = (1 << (bits + f->exponent_bits)) - 1, first_special = product_first_special(f);
    ints flip = splat(negate ? INT32_MIN : 0);
    for (int line = 0; line < lines; line++) {
        uint32_t found = 0;
        for (int at = line * PANEL_COLUMNS, first = 0; first < PANEL_COLUMNS; first += WIDTH, at += WIDTH) {
            ints code = (ints)((words)load(codes + at) >> below), magnitude = code & magnitudes, exponent = magnitude >> bits;
            ints sign = (code << (31 - bits - f->exponent_bits) & INT32_MIN) ^ flip;
            ints leading = larger(exponent, splat(1)) - f->bias, significand = magnitude - ((leading + (f->bias - 1)) << bits);
            ints result = f->bias == 127 ? magnitude << (C_BITS - bits) : (ints)(__builtin_convertvector(significand, floats) * power_of_2(leading - bits));
            shorts where = __builtin_convertvector(choose(magnitude == 0, splat(PANEL_ZERO), leading), shorts);
            result |= sign;
            found |= negatives(first_special - 1 - magnitude) << first;
            memcpy(value + at, &result, sizeof result);
            memcpy(place + at, &where, sizeof where);
        }
        special[line] = (uint16_t)found;
    }
}

/* Products of numbers between LEAST and MOST have room on both sides, and those of others have when their largest is moved to MOST, unless they are too far apart. */
enum { LEAST = -45, MOST = 60, SPAN = 180, BASE_LEAST = -120 };

static int center(float *value, const int16_t *place, int lines) {
    shorts largest = {0}, not_least = {0};
    largest += PANEL_ZERO;
    not_least += INT16_MIN;
    const shorts nothing = not_least;
    for (int i = 0; i < lines * PANEL_COLUMNS; i += WIDTH) {
        const shorts own = load_shorts(place + i);
        largest = larger_short(largest, own);
        not_least = larger_short(not_least, choose_short(own == PANEL_ZERO, nothing, ~own));
    }
    ints most = __builtin_convertvector(largest, ints), least = ~__builtin_convertvector(not_least, ints);
    if (negatives((MOST - most) | (least - LEAST)) == 0) return 0;
    int top = PANEL_ZERO, bottom = INT16_MAX;
    for (int i = 0; i < WIDTH; i++) {
        top = most[i] > top ? most[i] : top;
        bottom = least[i] < bottom ? least[i] : bottom;
    }
    if (top - bottom > SPAN) return PANEL_FAR;
    const int base = top - MOST > BASE_LEAST ? top - MOST : BASE_LEAST;
    for (int i = 0; i < lines * PANEL_COLUMNS; i += WIDTH) {
        floats moved = load_floats(value + i) * power_of_2(splat(-base));
        memcpy(value + i, &moved, sizeof moved);
    }
    return base;
}

const panel_isa PANEL_ISA = {PANEL_NAME, sum_floats, sum_packed, sum_integers, decode, center};
