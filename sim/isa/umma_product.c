/* See umma_product.h. Floats: all terms aligned to the largest exponent, cut to 25 bits behind it, added, cut to the result. Operands of 4 bits with block
 * scales: 16 products (of a sparse A those of 32 columns) exactly, times their scales' significands, cut to 35 bits. fp16 results are rounded to nearest. Integers are exact. */
#include "umma_product.h"

#include <math.h>
#include <string.h>

#include "sim/math/panel.h"
#include "sim/math/real.h"

#include "num/num.h"

enum { FRACTION = 25, EXACT = 16 };   /* EXACT: products of packed operands that are added exactly */

/* ---- numbers ---- */

static const product_format formats[UMMA_TYPE_COUNT] = {
    [UMMA_f16] = {0, 16, 5, 10, 15, 0, PRODUCT_INFINITY},   [UMMA_bf16] = {0, 16, 8, 7, 127, 0, PRODUCT_INFINITY}, [UMMA_tf32] = {0, 32, 8, 10, 127, 13, PRODUCT_INFINITY},
    [UMMA_e4m3] = {0, 8, 4, 3, 7, 0, PRODUCT_ONE_NAN},      [UMMA_e5m2] = {0, 8, 5, 2, 15, 0, PRODUCT_INFINITY},   [UMMA_e2m3] = {0, 6, 2, 3, 1, 0, PRODUCT_FINITE},
    [UMMA_e3m2] = {0, 6, 3, 2, 3, 0, PRODUCT_FINITE},       [UMMA_e2m1] = {0, 4, 2, 1, 1, 0, PRODUCT_FINITE},      [UMMA_u8] = {0, 8, 0, 0, 0, 0, PRODUCT_FINITE},
    [UMMA_s8] = {0, 8, 0, 0, 0, 0, PRODUCT_FINITE},
};

int umma_type_bits(umma_type type) { return formats[type].bits; }

static bool is_integer(umma_type type) { return type == UMMA_u8 || type == UMMA_s8; }

static int significand_bits(const umma_product *p) {
    int a = formats[p->a].mantissa, b = formats[p->b].mantissa;
    return a > b ? a : b;
}

umma_numbers *umma_numbers_of(int which) {
    static _Thread_local umma_numbers numbers[2];
    numbers[which].which = which;
    return &numbers[which];
}

/* ue8m0: 2^(code - 127); ue4m3: as e4m3, whose sign does not count. */
static bool read_scale(const umma_product *p, uint8_t code, int32_t *significand, int32_t *exponent) {
    if (p->scales_e8m0) {
        *significand = 8;
        *exponent = code - 127;
        return code != 0xff;
    }
    product_number n = product_read(&formats[UMMA_e4m3], code & 0x7f, false);
    *significand = n.significand;
    *exponent = n.significand != 0 ? n.exponent : -126;   /* as the published rules have it of zero */
    return n.kind == 0;
}

void umma_set_scales(umma_numbers *s, const umma_product *p, int line, const uint8_t *scales) {
    const int at = s->which == 0 ? line * p->scales : panel_at(line, p->scales), step = s->which == 0 ? 1 : PANEL_COLUMNS;
    for (int i = 0; i < p->scales; i++) {
        if (!read_scale(p, scales[i], &s->scale_significand[at + i * step], &s->scale_exponent[at + i * step])) s->nan[line] = true;
    }
}

static void set_whole(umma_type type, bool negate, const uint32_t *codes, int count, int32_t *to) {
    static const int8_t twice[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    for (int i = 0; i < count && type == UMMA_s8; i++) to[i] = (int8_t)codes[i];
    for (int i = 0; i < count && type == UMMA_u8; i++) to[i] = (uint8_t)codes[i];
    for (int i = 0; i < count && !is_integer(type); i++) to[i] = twice[(codes[i] & 15) ^ (negate ? 8 : 0)];
}

/* A line with a NaN makes nothing else; of a sparse product only what is there counts. */
static void find_nan(umma_numbers *s, const umma_product *p, const product_format *f, int line) {
    if (!p->sparse && f->bits >= 8 && !is_integer(s->which == 0 ? p->a : p->b)) s->nan[line] |= product_has_nan(f, s->code[line], p->k);
}

void umma_set_row(umma_numbers *s, const umma_product *p, int row) {
    const int at = row * UMMA_MAX_K;
    s->finite[row] = !s->nan[row];
    if (umma_is_packed(p->kind) || p->kind == UMMA_I8) set_whole(p->a, p->negate_a, s->code[row], p->k, &s->whole[at]);
    else s->finite[row] &= panel_decode_row(&formats[p->a], s->code[row], p->k, p->negate_a, &s->value[at], &s->place[at], &s->base[row]);
    if (!s->finite[row]) find_nan(s, p, &formats[p->a], row);
}

void umma_set_columns(umma_numbers *s, const umma_product *p) {
    const bool whole = umma_is_packed(p->kind) || p->kind == UMMA_I8;
    s->all_finite = true;
    for (int first = 0; first < p->n; first += PANEL_COLUMNS) {
        const int at = panel_at(first, p->k), there = p->n - first < PANEL_COLUMNS ? p->n - first : PANEL_COLUMNS;
        uint32_t panel[PANEL_COLUMNS * UMMA_MAX_K], special = 0;
        if (whole) panel_codes(s->code[first], UMMA_MAX_K, there, p->k, panel);
        if (whole) set_whole(p->b, p->negate_b, panel, p->k * PANEL_COLUMNS, &s->whole[at]);
        else special = panel_decode_columns(&formats[p->b], s->code[first], UMMA_MAX_K, there, p->k, p->negate_b, &s->value[at], &s->place[at], &s->base[first / PANEL_COLUMNS]);
        for (int i = 0; i < there; i++) {
            s->all_finite &= s->finite[first + i] = !s->nan[first + i] && (special >> i & 1) == 0;
            if (!s->finite[first + i]) find_nan(s, p, &formats[p->b], first + i);
        }
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

/* The line's numbers one by one. */
static void read_line(const umma_numbers *s, const umma_product *p, int line, product_number *numbers) {
    const product_format *f = &formats[s->which == 0 ? p->a : p->b];
    const int scale = p->scales == 0 ? 0 : s->scale_exponent[s->which == 0 ? line * p->scales : panel_at(line, p->scales)];
    for (int i = 0; i < p->k; i++) {
        numbers[i] = product_read(f, s->code[line][i], s->which == 0 ? p->negate_a : p->negate_b);
        numbers[i].significand *= 1 << (significand_bits(p) - f->mantissa);
        numbers[i].exponent = (int16_t)(numbers[i].exponent + scale);
    }
}

/* One cell where a line is not finite. */
static uint32_t sum_special(const umma_product *p, const umma_numbers *a, int row, const umma_numbers *b, int column, uint32_t c) {
    product_number x[UMMA_MAX_K], y[UMMA_MAX_K];
    const bool half = p->d == UMMA_RESULT_F16;
    if (a->nan[row] || b->nan[column]) return half ? F16_NAN : F32_NAN;
    if (!half && is_f32_nan(c)) return F32_NAN;
    read_line(a, p, row, x);
    read_line(b, p, column, y);
    int terms = p->sparse ? 0 : p->k;
    for (int i = 0; i < p->k && p->sparse; i++) {
        if ((a->there[row][i / 64] >> (i % 64) & 1) == 0) continue;
        x[terms] = x[i];
        y[terms++] = y[i];
    }
    if (!half) return product_sum(x, y, terms, c, significand_bits(p), FRACTION, 23);
    return to_f16(product_sum_exact(x, y, terms, f32_bits(num_f16_to_f32((uint16_t)c)), significand_bits(p), FRACTION));
}

void umma_sum_row(const umma_product *p, const umma_numbers *a, int row, const umma_numbers *b, int first, uint32_t *cells, int count) {
    uint32_t own[UMMA_MAX_ROWS + PANEL_COLUMNS], before[UMMA_MAX_ROWS + PANEL_COLUMNS], *c = cells;
    int skip = first % PANEL_COLUMNS, columns = panel_padded(skip + count);   /* panels are whole */
    bool special = p->kind != UMMA_I8 && !(a->finite[row] && b->all_finite);
    if (columns != count) {
        c = own;
        memset(c, 0, (size_t)columns * sizeof *c);
        memcpy(c + skip, cells, (size_t)count * sizeof *c);
    }
    if (special) memcpy(before, cells, (size_t)count * sizeof *before);
    const panel_isa *isa = panel_isa_now();
    const int panel = first - skip, at = panel * p->k, scale_at = panel * p->scales;
    const panel_sum sum = {.k = p->k, .columns = columns, .row = {&a->value[row * UMMA_MAX_K], &a->place[row * UMMA_MAX_K]}, .panels = {&b->value[at], &b->place[at]},
                           .row_base = a->base[row], .bases = &b->base[panel / PANEL_COLUMNS],
                           .whole_row = &a->whole[row * UMMA_MAX_K], .whole_panels = &b->whole[at], .significand_bits = significand_bits(p), .fraction = FRACTION, .result_bits = 23,
                           .half = p->d == UMMA_RESULT_F16, .saturate = p->saturate,
                           .group = p->sparse ? 2 * EXACT : EXACT, .scales = p->scales, .row_scales = {&a->scale_significand[row * p->scales], &a->scale_exponent[row * p->scales]},
                           .panel_scales = {&b->scale_significand[scale_at], &b->scale_exponent[scale_at]}, .c = c};
    if (!a->nan[row] || p->kind == UMMA_I8) (p->kind == UMMA_I8 ? isa->integers : umma_is_packed(p->kind) ? isa->packed : isa->floats)(&sum);
    if (c != cells) memcpy(cells, c + skip, (size_t)count * sizeof *cells);
    for (int i = 0; i < count && special; i++) {
        if (!a->finite[row] || !b->finite[first + i]) cells[i] = sum_special(p, a, row, b, first + i, before[i]);
    }
}

uint32_t umma_scaled(const umma_product *p, uint32_t c, int scale) {
    if (scale == 0 || p->d == UMMA_RESULT_S32) return c;
    double value = ldexp(to_double(p->d == UMMA_RESULT_F16 ? c & 0xffff : c, p->d), -scale);
    return p->d == UMMA_RESULT_F16 ? to_f16(value) : f32_bits((float)value);
}
