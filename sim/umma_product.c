/* See umma_product.h. Floats: all terms aligned to the largest exponent, cut to 25 bits behind it, added, cut to the result. Operands of 4 bits with block
 * scales: 16 products (of a sparse A those of 32 columns) exactly, times their scales' significands, cut to 35 bits. fp16 results are rounded to nearest. Integers are exact. */
#include "umma_product.h"

#include <math.h>
#include <string.h>

#include "panel.h"
#include "real.h"

#include "num/num.h"

enum { FRACTION = 25, EXACT = 16 };   /* EXACT: products of packed operands that are added exactly */

/* A's rows one behind another, B's columns in panels (panel.h). The significands count in units of 2^-significand_bits of their exponents; those of integers and
 * packed operands are whole numbers (twice the value of packed ones). */
struct umma_numbers {
    int which;
    int32_t significand[UMMA_MAX_ROWS * UMMA_MAX_K], exponent[UMMA_MAX_ROWS * UMMA_MAX_K];
    int32_t scale_significand[UMMA_MAX_ROWS * UMMA_MAX_SCALES], scale_exponent[UMMA_MAX_ROWS * UMMA_MAX_SCALES];
    product_number number[UMMA_MAX_ROWS][UMMA_MAX_K];   /* of lines that are not finite */
    bool finite[UMMA_MAX_ROWS], all_finite;
    uint64_t there[UMMA_MAX_ROWS][2];                   /* of a sparse A */
};

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

/* How far a line's significands are moved from their formats' own places. */
static int move_of(const umma_numbers *s, const umma_product *p) {
    int bits = significand_bits(p);
    return bits - formats[s->which == 0 ? p->a : p->b].mantissa + (s->which == 0 ? panel_move(bits, FRACTION) : 0);
}

umma_numbers *umma_numbers_of(int which, const umma_product *p) {
    static _Thread_local umma_numbers numbers[2];
    umma_numbers *s = &numbers[which];
    s->which = which;
    s->all_finite = true;
    if (which == 1 && p->n % PANEL_COLUMNS != 0) {   /* what fills up the last panel */
        memset(&s->significand[p->n / PANEL_COLUMNS * PANEL_COLUMNS * p->k], 0, sizeof *s->significand * PANEL_COLUMNS * (size_t)p->k);
        memset(&s->exponent[p->n / PANEL_COLUMNS * PANEL_COLUMNS * p->k], 0, sizeof *s->exponent * PANEL_COLUMNS * (size_t)p->k);
    }
    return s;
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

/* Where the line's i-th of `lines` numbers lies: from *at on, *step apart. */
static void place_of(const umma_numbers *s, int line, int lines, int *at, int *step) {
    *at = s->which == 0 ? line * lines : panel_at(line, lines);
    *step = s->which == 0 ? 1 : PANEL_COLUMNS;
}

static bool set_scales(umma_numbers *s, const umma_product *p, int line, const uint8_t *scales) {
    int at, step;
    bool finite = true;
    place_of(s, line, p->scales, &at, &step);
    for (int i = 0; i < p->scales; i++) finite &= read_scale(p, scales[i], &s->scale_significand[at + i * step], &s->scale_exponent[at + i * step]);
    return finite;
}

static void set_whole(umma_numbers *s, const umma_product *p, int line, const uint32_t *codes) {
    static const int8_t twice[] = {0, 1, 2, 3, 4, 6, 8, 12};
    umma_type type = s->which == 0 ? p->a : p->b;
    bool negate = s->which == 0 ? p->negate_a : p->negate_b;
    int at, step;
    place_of(s, line, p->k, &at, &step);
    for (int i = 0; i < p->k; i++) {
        int32_t value = twice[codes[i] & 7];
        if (is_integer(type)) value = type == UMMA_s8 ? (int8_t)codes[i] : (uint8_t)codes[i];
        else if (((codes[i] & 8) != 0) != negate) value = -value;
        s->significand[at + i * step] = value;
    }
}

void umma_set_line(umma_numbers *s, const umma_product *p, int line, const uint32_t *codes, bool lost, const uint8_t *scales) {
    const product_format *f = &formats[s->which == 0 ? p->a : p->b];
    bool negate = s->which == 0 ? p->negate_a : p->negate_b, packed = umma_is_packed(p->kind);
    int32_t significand[UMMA_MAX_K], exponent[UMMA_MAX_K], *to_significand = significand, *to_exponent = exponent, scale_exponent = 0, scale_significand = 0;
    s->finite[line] = !lost;
    if (packed || p->kind == UMMA_I8) {
        set_whole(s, p, line, codes);
        if (packed) s->finite[line] &= set_scales(s, p, line, scales);
        s->all_finite &= s->finite[line];
        return;
    }
    bool scale_is_nan = p->scales > 0 && !read_scale(p, scales[0], &scale_significand, &scale_exponent);
    if (s->which == 0) {
        to_significand = &s->significand[line * p->k];
        to_exponent = &s->exponent[line * p->k];
    }
    s->finite[line] &= panel_isa_now()->decode(f, codes, p->k, negate, move_of(s, p), to_significand, to_exponent) && !scale_is_nan;
    for (int i = 0; i < p->k && p->scales > 0; i++) to_exponent[i] += scale_exponent;
    if (s->which == 1) panel_put((panel_numbers){significand, exponent}, p->k, line, s->significand, s->exponent);
    s->all_finite &= s->finite[line];
    if (s->finite[line]) return;
    for (int i = 0; i < p->k; i++) {
        product_number n = product_read(f, codes[i], negate);
        if (lost || scale_is_nan) n.kind = 2;
        n.significand *= 1 << (significand_bits(p) - f->mantissa);
        n.exponent = (int16_t)(n.exponent + scale_exponent);
        s->number[line][i] = n;
    }
}

void umma_set_there(umma_numbers *s, int line, const uint64_t there[2]) { memcpy(s->there[line], there, sizeof s->there[line]); }

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
    int at, step, moved = s->which == 0 ? panel_move(significand_bits(p), FRACTION) : 0;
    place_of(s, line, p->k, &at, &step);
    for (int i = 0; i < p->k; i++) {
        int32_t significand = s->significand[at + i * step] / (1 << moved);
        numbers[i] = (product_number){.significand = significand, .exponent = (int16_t)s->exponent[at + i * step], .negative = significand < 0};
        if (!s->finite[line]) numbers[i] = s->number[line][i];
    }
}

/* One cell where a line is not finite. c is fp32, or of integers theirs. */
static uint32_t sum_special(const umma_product *p, const umma_numbers *a, int row, const umma_numbers *b, int column, uint32_t c) {
    product_number x[UMMA_MAX_K], y[UMMA_MAX_K];
    if (umma_is_packed(p->kind)) return F32_NAN;
    read_line(a, p, row, x);
    read_line(b, p, column, y);
    int terms = p->k;
    if (p->sparse) {
        terms = 0;
        for (int i = 0; i < p->k; i++) {
            if ((a->there[row][i / 64] >> (i % 64) & 1) == 0) continue;
            x[terms] = x[i];
            y[terms++] = y[i];
        }
    }
    if (p->d != UMMA_RESULT_F16) return product_sum(x, y, terms, c, significand_bits(p), FRACTION, 23);
    return to_f16(product_sum_exact(x, y, terms, c, significand_bits(p), FRACTION));
}

void umma_sum_row(const umma_product *p, const umma_numbers *a, int row, const umma_numbers *b, int first, uint32_t *cells, int count) {
    uint32_t own[UMMA_MAX_ROWS + PANEL_COLUMNS], before[UMMA_MAX_ROWS + PANEL_COLUMNS], *c = own;
    int skip = first % PANEL_COLUMNS, columns = panel_padded(skip + count);   /* panels are whole */
    bool special = p->kind != UMMA_I8 && !(a->finite[row] && b->all_finite), half = p->d == UMMA_RESULT_F16;
    if (columns == count && !half) {
        c = cells;
    } else {
        memset(c, 0, (size_t)columns * sizeof *c);
        for (int i = 0; i < count; i++) c[skip + i] = half ? f32_bits(num_f16_to_f32((uint16_t)cells[i])) : cells[i];
    }
    if (special) memcpy(before, c, (size_t)columns * sizeof *c);
    const panel_isa *isa = panel_isa_now();
    int panel = first - skip;
    const panel_sum sum = {.k = p->k, .columns = columns, .row = {&a->significand[row * p->k], &a->exponent[row * p->k]},
                           .panels = {&b->significand[panel * p->k], &b->exponent[panel * p->k]}, .fraction = FRACTION, .result_bits = 23, .half = half, .saturate = p->saturate,
                           .group = p->sparse ? 2 * EXACT : EXACT, .scales = p->scales, .row_scales = {&a->scale_significand[row * p->scales], &a->scale_exponent[row * p->scales]},
                           .panel_scales = {&b->scale_significand[panel * p->scales], &b->scale_exponent[panel * p->scales]}, .c = c};
    (p->kind == UMMA_I8 ? isa->integers : umma_is_packed(p->kind) ? isa->packed : isa->floats)(&sum);
    if (c != cells) memcpy(cells, c + skip, (size_t)count * sizeof *cells);
    for (int i = 0; i < count && special; i++) {
        if (!a->finite[row] || !b->finite[first + i]) cells[i] = sum_special(p, a, row, b, first + i, before[skip + i]);
    }
}

uint32_t umma_scaled(const umma_product *p, uint32_t c, int scale) {
    if (scale == 0 || p->d == UMMA_RESULT_S32) return c;
    double value = ldexp(to_double(p->d == UMMA_RESULT_F16 ? c & 0xffff : c, p->d), -scale);
    return p->d == UMMA_RESULT_F16 ? to_f16(value) : f32_bits((float)value);
}
