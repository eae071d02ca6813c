/* Sums of products side by side (panel.h) are the sums one at a time (product.h), on every instruction set that this machine has: random, extreme, subnormal
 * numbers and such that cancel, in every format that matrix units read, with every result; and decoding is what decoding one at a time gives. */
#include "support/support.h"

#include <math.h>
#include <string.h>

#include "num/num.h"
#include "sim/math/panel.h"

enum { ROUNDS = 400, MAX_COLUMNS = 48 };

/* As the units read them: PTX's five, and those of 6 and 4 bits that only tcgen05 has. */
static const product_format formats[] = {
    {0, 16, 5, 10, 15, 0, PRODUCT_INFINITY}, {0, 16, 8, 7, 127, 0, PRODUCT_INFINITY}, {0, 32, 8, 10, 127, 13, PRODUCT_INFINITY}, {0, 8, 4, 3, 7, 0, PRODUCT_ONE_NAN},
    {0, 8, 5, 2, 15, 0, PRODUCT_INFINITY},   {0, 6, 2, 3, 1, 0, PRODUCT_FINITE},      {0, 6, 3, 2, 3, 0, PRODUCT_FINITE},        {0, 4, 2, 1, 1, 0, PRODUCT_FINITE},
};

static uint64_t state = 88172645463325252ull;

static uint32_t next_word(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 16);
}

enum { KINDS = 6 };

/* Codes of one kind: any bits, near one, subnormal and zero, the largest and the smallest, where fp32 still has every product and where it has not, almost all zero. */
static uint32_t random_code(const product_format *f, int kind) {
    uint32_t exponents = (1u << f->exponent_bits) - 1, mantissas = (1u << f->mantissa) - 1, sign = next_word() & 1, exponent = next_word() & exponents, mantissa = next_word() & mantissas;
    if (kind == 1) exponent = (uint32_t)f->bias + next_word() % 3 - 1;
    if (kind == 2) exponent = 0, mantissa = next_word() % 3 == 0 ? 0 : mantissa;
    if (kind == 3) exponent = next_word() % 2 == 0 ? exponents - (f->special == PRODUCT_INFINITY) : 1, mantissa = next_word() % 2 == 0 ? mantissas : mantissa;
    if (kind == 4 && f->exponent_bits == 8) exponent = (uint32_t)f->bias + (next_word() % 2 == 0 ? 56 : 0) - (next_word() % 2 == 0 ? 46 : 0) + next_word() % 8;
    if (kind == 5 && next_word() % 32 != 0) exponent = mantissa = 0;
    uint32_t code = sign << (f->exponent_bits + f->mantissa) | (exponent & exponents) << f->mantissa | mantissa;
    return code << f->below | (f->below > 0 ? next_word() & ((1u << f->below) - 1) : 0);
}

static bool is_finite(const product_format *f, uint32_t code) { return product_read(f, code, false).kind == 0; }

static uint32_t finite_code(const product_format *f, int kind) {
    uint32_t code;
    do code = random_code(f, kind);
    while (!is_finite(f, code));
    return code;
}

/* fp32: any bits, small ones, zeros, infinities and NaN among them. */
static uint32_t random_c(int kind) {
    static const uint32_t special[] = {0, 0x80000000, 1, 0x80000001, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f7fffff, 0xff7fffff, 0x00800000, 0x007fffff};
    if (kind == 5 && next_word() % 2 == 0) return 0;
    if (next_word() % 8 == 0) return special[next_word() % (sizeof special / sizeof *special)];
    return kind == 1 ? (next_word() & 0x83ffffff) | 0x3c000000 : next_word();
}

static uint32_t rounded_to_half(double sum) { return isnan(sum) ? 0x7fff : (uint32_t)num_encode(DW_FORMAT_f16, sum, false); }

typedef struct problem {
    uint32_t row_code[PANEL_MAX_K], column_code[MAX_COLUMNS][PANEL_MAX_K], c[MAX_COLUMNS], result[MAX_COLUMNS];
    int32_t row[PANEL_MAX_K], panels[MAX_COLUMNS * PANEL_MAX_K];   /* of integers and packed ones */
    float row_value[PANEL_MAX_K], values[MAX_COLUMNS * PANEL_MAX_K];
    int16_t row_place[PANEL_MAX_K], places[MAX_COLUMNS * PANEL_MAX_K];
    int32_t row_scale, scale[MAX_COLUMNS];
    int row_base, bases[MAX_COLUMNS / PANEL_COLUMNS];
    int k, columns;
} problem;

static void numbers_of(const product_format *f, const uint32_t *codes, int k, int significand_bits, int scale, product_number *numbers) {
    for (int i = 0; i < k; i++) {
        numbers[i] = product_read(f, codes[i], false);
        numbers[i].significand *= 1 << (significand_bits - f->mantissa);
        numbers[i].exponent = (int16_t)(numbers[i].exponent + scale);
    }
}

/* The row, and the panel from a column on, as numbers. */
static void decode_row(const panel_isa *isa, const product_format *f, problem *p) {
    uint16_t special[PANEL_MAX_K / PANEL_COLUMNS];
    isa->decode(f, p->row_code, PANEL_MAX_K / PANEL_COLUMNS, false, p->row_value, p->row_place, special);
    p->row_base = isa->center(p->row_value, p->row_place, PANEL_MAX_K / PANEL_COLUMNS);
}

static void decode_panel(const panel_isa *isa, const product_format *f, problem *p, int column) {
    uint32_t codes[PANEL_COLUMNS * PANEL_MAX_K];
    uint16_t special[PANEL_MAX_K];
    const int at = panel_at(column, p->k);
    panel_codes(p->column_code[column], PANEL_MAX_K, PANEL_COLUMNS, p->k, codes);
    isa->decode(f, codes, p->k, false, p->values + at, p->places + at, special);
    for (int i = 0; i < p->k; i++) assert_int_equal(special[i], 0);
    p->bases[column / PANEL_COLUMNS] = isa->center(p->values + at, p->places + at, p->k);
}

typedef struct rules { int fraction, result_bits; bool half, scaled; } rules;

static void check_floats(const panel_isa *isa, const product_format *fa, const product_format *fb, rules r) {
    static problem p;
    const int bits = fa->mantissa > fb->mantissa ? fa->mantissa : fb->mantissa, kind = (int)(next_word() % KINDS), range = next_word() % 2 == 0 ? 8 : 256;
    p.k = 4 << next_word() % 5;
    p.columns = PANEL_COLUMNS * (1 + (int)(next_word() % 3));
    memset(p.row_code, 0, sizeof p.row_code);
    for (int i = 0; i < p.k; i++) p.row_code[i] = finite_code(fa, kind);
    p.row_scale = r.scaled ? (int32_t)(next_word() % (unsigned)range) - range / 2 : 0;
    for (int j = 0; j < p.columns; j++) {
        for (int i = 0; i < p.k; i++) p.column_code[j][i] = finite_code(fb, kind);
        for (int i = 0; i + 1 < p.k && kind == 1 && j % 2 == 0; i += 2) {   /* products that cancel */
            p.row_code[i + 1] = p.row_code[i];
            p.column_code[j][i + 1] = p.column_code[j][i] ^ 1u << (fb->exponent_bits + fb->mantissa + fb->below);
        }
        p.c[j] = r.half ? next_word() & 0xffff : random_c(kind);
        p.scale[j] = r.scaled ? (int32_t)(next_word() % (unsigned)range) - range / 2 : 0;
    }
    decode_row(isa, fa, &p);
    for (int j = 0; j < p.columns; j += PANEL_COLUMNS) decode_panel(isa, fb, &p, j);
    memcpy(p.result, p.c, sizeof p.c);
    const panel_sum sum = {.k = p.k, .columns = p.columns, .row = {p.row_value, p.row_place}, .panels = {p.values, p.places}, .row_base = p.row_base, .bases = p.bases, .significand_bits = bits, .fraction = r.fraction,
                           .result_bits = r.result_bits, .half = r.half, .scales = r.scaled, .row_scales = {NULL, &p.row_scale}, .panel_scales = {NULL, p.scale}, .c = p.result};
    isa->floats(&sum);
    for (int j = 0; j < p.columns; j++) {
        product_number a[PANEL_MAX_K], b[PANEL_MAX_K];
        float c;
        uint32_t word = p.c[j], expected;
        numbers_of(fa, p.row_code, p.k, bits, p.row_scale, a);
        numbers_of(fb, p.column_code[j], p.k, bits, p.scale[j], b);
        if (r.half) {
            c = num_f16_to_f32((uint16_t)word);
            memcpy(&word, &c, sizeof word);
            expected = rounded_to_half(product_sum_exact(a, b, p.k, word, bits, r.fraction));
        } else {
            expected = product_sum(a, b, p.k, word, bits, r.fraction, r.result_bits);
        }
        if (p.result[j] != expected) {
            fail_msg("%s: %d bits times %d bits, kind %d, k = %d, scales %d and %d, column %d, onto 0x%08x: 0x%08x, and one at a time 0x%08x", isa->name, fa->bits, fb->bits, kind, p.k,
                     p.row_scale, p.scale[j], j, p.c[j], p.result[j], expected);
        }
    }
}

static void floats_are_the_sums_one_at_a_time(void **context) {
    (void)context;
    const panel_isa *isa;
    for (int i = 0; (isa = panel_isa_at(i)) != NULL; i++) {
        for (int round = 0; round < ROUNDS; round++) {
            int a = (int)(next_word() % 3), small = 3 + (int)(next_word() % 5), other = 3 + (int)(next_word() % 5);
            check_floats(isa, &formats[a], &formats[a], (rules){25, 23, false, false});
            check_floats(isa, &formats[a], &formats[a], (rules){25, 23, true, false});
            check_floats(isa, &formats[small], &formats[other], (rules){25, 23, false, false});
            check_floats(isa, &formats[small], &formats[other], (rules){25, 23, false, true});
            check_floats(isa, &formats[small], &formats[other], (rules){13, 13, false, false});
            check_floats(isa, &formats[small], &formats[other], (rules){25, 23, true, false});
            check_floats(isa, &formats[small], &formats[other], (rules){13, 13, true, false});
        }
    }
}

static void packed_are_the_sums_one_at_a_time(void **context) {
    (void)context;
    static const int8_t twice[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    static problem p;
    const panel_isa *isa;
    for (int i = 0; (isa = panel_isa_at(i)) != NULL; i++) {
        for (int round = 0; round < ROUNDS; round++) {
            int scales = 2 << next_word() % 2, range = next_word() % 2 == 0 ? 8 : 200;
            int32_t row_scale[4], row_scale_exponent[4], scale[MAX_COLUMNS * 4], scale_exponent[MAX_COLUMNS * 4];
            const int group = 16 << next_word() % 2;
            p.k = 4 * group;
            p.columns = PANEL_COLUMNS * (1 + (int)(next_word() % 3));
            for (int n = 0; n < p.k; n++) p.row[n] = twice[next_word() % 16];
            for (int n = 0; n < p.k * p.columns; n++) p.panels[n] = twice[next_word() % 16];
            for (int n = 0; n < scales; n++) row_scale[n] = (int32_t)(next_word() % 16), row_scale_exponent[n] = (int32_t)(next_word() % (unsigned)range) - range / 2;
            for (int n = 0; n < scales * p.columns; n++) scale[n] = (int32_t)(next_word() % 16), scale_exponent[n] = (int32_t)(next_word() % (unsigned)range) - range / 2;
            for (int j = 0; j < p.columns; j++) p.c[j] = p.result[j] = random_c((int)(next_word() % 2));
            const panel_sum sum = {.k = p.k, .columns = p.columns, .whole_row = p.row, .whole_panels = p.panels, .result_bits = 23, .group = group, .scales = scales,
                                   .row_scales = {row_scale, row_scale_exponent}, .panel_scales = {scale, scale_exponent}, .c = p.result};
            isa->packed(&sum);
            for (int j = 0; j < p.columns; j++) {
                int64_t terms[4];
                int exponents[4];
                for (int g = 0; g < 4; g++) {
                    int of = g * scales / 4, at = panel_at(j, scales) + of * PANEL_COLUMNS;
                    int32_t dot = 0;
                    for (int n = g * group; n < (g + 1) * group; n++) dot += p.row[n] * p.panels[panel_at(j, p.k) + n * PANEL_COLUMNS];
                    terms[g] = (int64_t)dot * row_scale[of] * scale[at];
                    exponents[g] = row_scale_exponent[of] + scale_exponent[at];
                }
                uint32_t expected = product_sum_terms(terms, exponents, 4, 8, p.c[j], 35);
                if (p.result[j] != expected) fail_msg("%s: column %d onto 0x%08x: 0x%08x, and one at a time 0x%08x", isa->name, j, p.c[j], p.result[j], expected);
            }
        }
    }
}

static void integers_are_exact(void **context) {
    (void)context;
    static problem p;
    const panel_isa *isa;
    for (int i = 0; (isa = panel_isa_at(i)) != NULL; i++) {
        for (int round = 0; round < ROUNDS; round++) {
            bool saturate = next_word() % 2 == 0;
            p.k = 32;
            p.columns = PANEL_COLUMNS * (1 + (int)(next_word() % 3));
            for (int n = 0; n < p.k; n++) p.row[n] = (int32_t)(next_word() % 384) - 128;
            for (int n = 0; n < p.k * p.columns; n++) p.panels[n] = (int32_t)(next_word() % 384) - 128;
            for (int j = 0; j < p.columns; j++) {
                uint32_t kind = next_word() % 3, near = next_word() % 1000;
                p.c[j] = p.result[j] = kind == 0 ? 0x7fffffffu - near : kind == 1 ? 0x80000000u + near : next_word();
            }
            const panel_sum sum = {.k = p.k, .columns = p.columns, .whole_row = p.row, .whole_panels = p.panels, .saturate = saturate, .c = p.result};
            isa->integers(&sum);
            for (int j = 0; j < p.columns; j++) {
                int64_t expected = (int32_t)p.c[j];
                for (int n = 0; n < p.k; n++) expected += (int64_t)p.row[n] * p.panels[panel_at(j, p.k) + n * PANEL_COLUMNS];
                if (saturate) expected = expected > INT32_MAX ? INT32_MAX : expected < INT32_MIN ? INT32_MIN : expected;
                assert_int_equal(p.result[j], (uint32_t)expected);
            }
        }
    }
}

static void decoding_reads_every_code(void **context) {
    (void)context;
    const panel_isa *isa;
    for (int i = 0; (isa = panel_isa_at(i)) != NULL; i++) {
        for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
            const uint32_t step = formats[f].bits == 32 ? 1u << 13 : 1, count = formats[f].bits == 32 ? 1u << 19 : 1u << formats[f].bits;
            for (uint32_t n = 0; n < count; n += PANEL_COLUMNS) {
                const bool negate = n / PANEL_COLUMNS % 3 == 0;
                uint32_t codes[PANEL_COLUMNS];
                float value[PANEL_COLUMNS];
                int16_t place[PANEL_COLUMNS];
                uint16_t special;
                for (uint32_t j = 0; j < PANEL_COLUMNS; j++) codes[j] = (n + j) * step;
                isa->decode(&formats[f], codes, 1, negate, value, place, &special);
                for (uint32_t j = 0; j < PANEL_COLUMNS; j++) {
                    const product_number expected = product_read(&formats[f], codes[j], negate);
                    assert_int_equal(special >> j & 1, expected.kind != 0);
                    if (expected.kind != 0) continue;
                    assert_true((double)value[j] == ldexp((double)expected.significand, expected.exponent - formats[f].mantissa) && (signbit(value[j]) != 0) == expected.negative);
                    assert_int_equal(place[j], expected.significand == 0 ? PANEL_ZERO : expected.exponent);
                }
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(floats_are_the_sums_one_at_a_time), cmocka_unit_test(packed_are_the_sums_one_at_a_time), cmocka_unit_test(integers_are_exact),
        cmocka_unit_test(decoding_reads_every_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
