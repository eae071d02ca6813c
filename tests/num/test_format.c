/* Element formats: the columns, the codec, the fast conversions against it, packing. Other implementations: test_cuda.c, test_oracle.py. */
#include "support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "num/num.h"
#include "support/samples.h"

static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* ---- names and columns ---- */

static void names_are_found(void **state) {
    (void)state;
    for (int f = 0; f < DW_FORMAT_COUNT; f++) {
        assert_int_equal(dw_format_find(dw_format_name((dw_format)f)), f);
        assert_string_not_equal(num_info((dw_format)f)->doc, "");
    }
    assert_string_equal(dw_format_name(DW_FORMAT_e4m3), "e4m3");
    assert_string_equal(dw_format_name(DW_FORMAT_bool), "bool");
    assert_string_equal(dw_format_name(DW_FORMAT_COUNT), "?");
    assert_string_equal(dw_format_name((dw_format)-1), "?");
    assert_int_equal(dw_format_find("mxfp5"), DW_FORMAT_COUNT);
    assert_int_equal(dw_format_find(NULL), DW_FORMAT_COUNT);
    assert_int_equal(dw_format_bits((dw_format)-1), 0);
}

static void block_formats_are_made_of_elements(void **state) {
    (void)state;
    for (int i = 0; i < DW_FORMAT_COUNT; i++) {
        const num_format *f = num_info((dw_format)i);
        assert_int_equal(dw_format_is_block((dw_format)i), f->class == NUM_BLOCK);
        assert_int_equal(dw_format_bits((dw_format)i), num_info(f->element)->bits);
        if (f->class != NUM_BLOCK) continue;
        assert_int_not_equal(num_info(f->element)->class, NUM_BLOCK);
        assert_true(f->scale == DW_FORMAT_e8m0 || f->scale == DW_FORMAT_e4m3 || f->scale == DW_FORMAT_f32);
        assert_int_equal(f->cols * f->bits % 8, 0);   /* blocks start on a byte */
    }
}

static void max_is_the_largest_finite_code(void **state) {
    (void)state;
    for (int i = 0; i < DW_FORMAT_COUNT; i++) {
        const num_format *f = num_info((dw_format)i);
        if (f->class == NUM_BLOCK || f->bits > 16) continue;
        double largest = 0;
        for (uint64_t code = 0; code < UINT64_C(1) << f->bits; code++) {
            double value = num_decode((dw_format)i, code);
            if (isfinite(value) && value > largest) largest = value;
        }
        assert_true(largest == f->max);
        if (f->class == NUM_FLOAT) assert_int_equal(1 + f->exponent_bits + f->mantissa_bits, f->bits);
    }
    assert_true(num_decode(DW_FORMAT_f32, 0x7f7fffff) == num_info(DW_FORMAT_f32)->max);
    assert_true(num_decode(DW_FORMAT_f64, UINT64_C(0x7fefffffffffffff)) == num_info(DW_FORMAT_f64)->max);
}

/* ---- the codec ---- */

static void every_code_survives_a_round_trip(void **state) {
    (void)state;
    for (int i = 0; i < DW_FORMAT_COUNT; i++) {
        const num_format *f = num_info((dw_format)i);
        if (f->class == NUM_BLOCK || f->bits > 16) continue;
        for (uint64_t code = 0; code < UINT64_C(1) << f->bits; code++) {
            double value = num_decode((dw_format)i, code);
            uint64_t expected = code;
            if (isnan(value)) expected = num_encode((dw_format)i, NAN, true);
            if (f->class == NUM_BOOL) expected = code != 0;
            assert_int_equal(num_encode((dw_format)i, value, false), expected);
        }
    }
}

/* f32 and f64 are the machine's own numbers. */
static void wide_formats_are_the_machines(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 200000; i++) {
        uint64_t bits = num_random(1, i);
        double wide;
        memcpy(&wide, &bits, sizeof wide);
        float narrow = from_bits((uint32_t)bits);
        if (!isnan(wide)) {
            assert_true(num_decode(DW_FORMAT_f64, bits) == wide);
            assert_int_equal(num_encode(DW_FORMAT_f64, wide, false), bits);
        }
        if (!isnan(narrow)) {
            assert_true(num_decode(DW_FORMAT_f32, (uint32_t)bits) == (double)narrow);
            assert_int_equal(num_encode(DW_FORMAT_f32, (double)narrow, false), (uint32_t)bits);
        }
        /* Doubles in the range of fp32, subnormals among them, against the machine's rounding. */
        double in_range = ldexp(1.0 + (double)(bits >> 12) * 0x1p-52, (int)(bits % 280) - 152);
        assert_int_equal(num_encode(DW_FORMAT_f32, in_range, false), to_bits((float)in_range));
    }
    assert_int_equal(num_encode(DW_FORMAT_f32, 1e300, false), 0x7f800000);
    assert_int_equal(num_encode(DW_FORMAT_f32, -1e300, true), 0xff7fffff);
    assert_int_equal(num_encode(DW_FORMAT_f32, INFINITY, true), 0x7f7fffff);
}

typedef struct known {
    dw_format format;
    double value;
    uint64_t saturated, plain;
} known;

/* From the PTX ISA's description of cvt and from CUDA's host conversions. */
static void known_results(void **state) {
    (void)state;
    static const known cases[] = {
        {DW_FORMAT_e4m3, 0.0, 0x00, 0x00},      {DW_FORMAT_e4m3, -0.0, 0x80, 0x80},     {DW_FORMAT_e4m3, 0x1p-10, 0x00, 0x00},
        {DW_FORMAT_e4m3, 0x1.000002p-10, 1, 1}, {DW_FORMAT_e4m3, 448, 0x7e, 0x7e},      {DW_FORMAT_e4m3, 464, 0x7e, 0x7e},
        {DW_FORMAT_e4m3, 464.00003, 0x7e, 0x7f}, {DW_FORMAT_e4m3, 480, 0x7e, 0x7f},     {DW_FORMAT_e4m3, 6, 0x4c, 0x4c},
        {DW_FORMAT_e4m3, INFINITY, 0x7e, 0x7f}, {DW_FORMAT_e4m3, -INFINITY, 0xfe, 0xff}, {DW_FORMAT_e4m3, NAN, 0x7f, 0x7f},
        {DW_FORMAT_e5m2, 61440, 0x7b, 0x7c},    {DW_FORMAT_e5m2, 61439, 0x7b, 0x7b},    {DW_FORMAT_e5m2, -INFINITY, 0xfb, 0xfc},
        {DW_FORMAT_e5m2, NAN, 0x7f, 0x7f},      {DW_FORMAT_e2m1, 0.25, 0, 0},           {DW_FORMAT_e2m1, 0.75, 2, 2},
        {DW_FORMAT_e2m1, 1.25, 2, 2},           {DW_FORMAT_e2m1, 1.75, 4, 4},           {DW_FORMAT_e2m1, 2.5, 4, 4},
        {DW_FORMAT_e2m1, 3.5, 6, 6},            {DW_FORMAT_e2m1, 5, 6, 6},              {DW_FORMAT_e2m1, 7, 7, 7},
        {DW_FORMAT_e2m1, -0.0, 8, 8},           {DW_FORMAT_e2m1, -INFINITY, 15, 15},    {DW_FORMAT_e2m1, NAN, 7, 7},
        {DW_FORMAT_e3m2, NAN, 0x1f, 0x1f},      {DW_FORMAT_e2m3, NAN, 0x1f, 0x1f},      {DW_FORMAT_e2m3, -7.75, 0x3f, 0x3f},
        {DW_FORMAT_e8m0, 0.0, 0x00, 0x00},      {DW_FORMAT_e8m0, 0x1p-149, 0x00, 0x00}, {DW_FORMAT_e8m0, 0x1p-127, 0x00, 0x00},
        {DW_FORMAT_e8m0, 0x1.000004p-127, 1, 1}, {DW_FORMAT_e8m0, 448, 0x88, 0x88},     {DW_FORMAT_e8m0, 6, 0x82, 0x82},
        {DW_FORMAT_e8m0, -6, 0x82, 0x82},       {DW_FORMAT_e8m0, 0x1p127, 0xfe, 0xfe},  {DW_FORMAT_e8m0, 0x1.000002p127, 0xfe, 0xff},
        {DW_FORMAT_e8m0, INFINITY, 0xfe, 0xff}, {DW_FORMAT_e8m0, NAN, 0xff, 0xff},      {DW_FORMAT_f16, 65519, 0x7bff, 0x7bff},
        {DW_FORMAT_f16, 65520, 0x7bff, 0x7c00}, {DW_FORMAT_f16, NAN, 0x7fff, 0x7fff},   {DW_FORMAT_bf16, NAN, 0x7fff, 0x7fff},
        {DW_FORMAT_u8, 254.5, 254, 254},        {DW_FORMAT_u8, 255.5, 255, 255},        {DW_FORMAT_u8, -3, 0, 0},
        {DW_FORMAT_i8, -128.5, 0x80, 0x80},     {DW_FORMAT_i8, 1e9, 0x7f, 0x7f},        {DW_FORMAT_i8, NAN, 0, 0},
        {DW_FORMAT_i8, -1.5, 0xfe, 0xfe},       {DW_FORMAT_i16, -1e9, 0x8000, 0x8000},  {DW_FORMAT_i32, 2147483647.0, 0x7fffffff, 0x7fffffff},
        {DW_FORMAT_i32, -3e9, 0x80000000, 0x80000000}, {DW_FORMAT_i64, 1e30, INT64_MAX, INT64_MAX},
        {DW_FORMAT_i64, -1e30, UINT64_C(1) << 63, UINT64_C(1) << 63}, {DW_FORMAT_i64, -5, (uint64_t)-5, (uint64_t)-5},
        {DW_FORMAT_bool, -0.0, 0, 0},           {DW_FORMAT_bool, 0.1, 1, 1},            {DW_FORMAT_bool, NAN, 1, 1},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_int_equal(num_encode(cases[i].format, cases[i].value, true), cases[i].saturated);
        assert_int_equal(num_encode(cases[i].format, cases[i].value, false), cases[i].plain);
    }
    assert_true(num_decode(DW_FORMAT_e8m0, 0) == 0x1p-127);
    assert_true(isnan(num_decode(DW_FORMAT_e8m0, 0xff)));
    assert_true(num_decode(DW_FORMAT_i64, (uint64_t)-5) == -5.0);
    assert_true(num_decode(DW_FORMAT_i8, 0x80) == -128.0);
}

/* ---- the fast conversions ---- */

typedef struct fast {
    dw_format format;
    bool saturate;
    uint64_t (*encode)(float value);
    float (*decode)(uint64_t code);
} fast;

static uint64_t encode_bf16(float value) { return num_f32_to_bf16(value); }
static uint64_t encode_f16(float value) { return num_f32_to_f16(value); }
static uint64_t encode_e4m3(float value) { return num_f32_to_e4m3(value); }
static uint64_t encode_e5m2(float value) { return num_f32_to_e5m2(value); }
static uint64_t encode_e3m2(float value) { return num_f32_to_e3m2(value); }
static uint64_t encode_e2m3(float value) { return num_f32_to_e2m3(value); }
static uint64_t encode_e2m1(float value) { return num_f32_to_e2m1(value); }
static float decode_bf16(uint64_t code) { return num_bf16_to_f32((uint16_t)code); }
static float decode_f16(uint64_t code) { return num_f16_to_f32((uint16_t)code); }
static float decode_e4m3(uint64_t code) { return num_e4m3_to_f32((uint8_t)code); }
static float decode_e5m2(uint64_t code) { return num_e5m2_to_f32((uint8_t)code); }
static float decode_e3m2(uint64_t code) { return num_e3m2_to_f32((uint8_t)code); }
static float decode_e2m3(uint64_t code) { return num_e2m3_to_f32((uint8_t)code); }
static float decode_e2m1(uint64_t code) { return num_e2m1_to_f32((uint8_t)code); }
static float decode_e8m0(uint64_t code) { return num_e8m0_to_f32((uint8_t)code); }

static const fast conversions[] = {
    {DW_FORMAT_bf16, false, encode_bf16, decode_bf16}, {DW_FORMAT_f16, false, encode_f16, decode_f16}, {DW_FORMAT_e4m3, true, encode_e4m3, decode_e4m3},
    {DW_FORMAT_e5m2, true, encode_e5m2, decode_e5m2},  {DW_FORMAT_e3m2, true, encode_e3m2, decode_e3m2}, {DW_FORMAT_e2m3, true, encode_e2m3, decode_e2m3},
    {DW_FORMAT_e2m1, true, encode_e2m1, decode_e2m1},  {DW_FORMAT_e8m0, true, NULL, decode_e8m0},
};

static void fast_decoding_equals_the_codec(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(conversions); i++) {
        dw_format format = conversions[i].format;
        for (uint64_t code = 0; code < UINT64_C(1) << num_info(format)->bits; code++) {
            double expected = num_decode(format, code);
            float found = conversions[i].decode(code);
            if (isnan(expected)) assert_true(isnan(found));
            else assert_true((double)found == expected && !signbit(found) == !signbit(expected));
        }
    }
}

static void fast_encoding_equals_the_codec(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(conversions); i++) {
        if (conversions[i].encode == NULL) continue;
        dw_format format = conversions[i].format;
        int64_t count = samples_fixed_count(format) + 1000000;
        float *x = malloc((size_t)count * sizeof *x);
        assert_non_null(x);
        samples_fill(format, x, count);
        for (int64_t k = 0; k < count; k++)
            if (conversions[i].encode(x[k]) != num_encode(format, (double)x[k], conversions[i].saturate))
                fail_msg("%s of %a (0x%08x): fast 0x%llx, codec 0x%llx", dw_format_name(format), (double)x[k], (unsigned)to_bits(x[k]),
                         (unsigned long long)conversions[i].encode(x[k]), (unsigned long long)num_encode(format, (double)x[k], conversions[i].saturate));
        free(x);
    }
}

/* Nearest, ties to even, from the meaning of the words: no other code is nearer, and at equal distance the even one is taken. */
static void encoding_takes_the_nearest_value(void **state) {
    (void)state;
    static const dw_format formats[] = {DW_FORMAT_e4m3, DW_FORMAT_e5m2, DW_FORMAT_e3m2, DW_FORMAT_e2m3, DW_FORMAT_e2m1};
    for (size_t i = 0; i < COUNT_OF(formats); i++) {
        int64_t count = samples_fixed_count(formats[i]);
        float *x = malloc((size_t)count * sizeof *x);
        assert_non_null(x);
        samples_fill(formats[i], x, count);
        for (int64_t k = 0; k < count; k++) {
            if (!(fabsf(x[k]) <= 2 * (float)num_info(formats[i])->max)) continue;   /* far beyond, distances are equal in double */
            uint64_t code = num_encode(formats[i], (double)x[k], true);
            double distance = fabs(num_decode(formats[i], code) - (double)x[k]);
            for (int step = -1; step <= 1; step += 2) {
                double other = num_decode(formats[i], code + (uint64_t)(int64_t)step);
                if (!isfinite(other)) continue;
                double other_distance = fabs(other - (double)x[k]);
                assert_true(distance < other_distance || (distance == other_distance && code % 2 == 0) || other == num_decode(formats[i], code));
            }
        }
        free(x);
    }
}

static void rows_equal_single_conversions(void **state) {
    (void)state;
    enum { COUNT = 1000 };
    static float x[COUNT], back[COUNT];
    static uint16_t codes[COUNT];
    for (uint64_t i = 0; i < COUNT; i++) x[i] = from_bits((uint32_t)num_random(3, i));
    static const int counts[] = {0, 1, 15, 16, 17, COUNT};
    for (size_t k = 0; k < COUNT_OF(counts); k++) {
        num_f32_to_bf16_row(x, codes, counts[k]);
        num_bf16_to_f32_row(codes, back, counts[k]);
        for (int i = 0; i < counts[k]; i++) {
            assert_int_equal(codes[i], num_f32_to_bf16(x[i]));
            assert_int_equal(to_bits(back[i]), to_bits(num_bf16_to_f32(codes[i])));
        }
        num_f32_to_f16_row(x, codes, counts[k]);
        num_f16_to_f32_row(codes, back, counts[k]);
        for (int i = 0; i < counts[k]; i++) {
            assert_int_equal(codes[i], num_f32_to_f16(x[i]));
            assert_int_equal(to_bits(back[i]), to_bits(num_f16_to_f32(codes[i])));
        }
    }
}

/* ---- elements in memory ---- */

static void elements_are_stored_and_loaded(void **state) {
    (void)state;
    for (int f = 0; f < DW_FORMAT_COUNT; f++) {
        uint8_t memory[24 * 8 + 1];
        memset(memory, 0xff, sizeof memory);
        size_t bytes = num_row_bytes((dw_format)f, 23);
        assert_int_equal(bytes, (size_t)(23 * dw_format_bits((dw_format)f) + 7) / 8);
        for (int round = 0; round < 2; round++) {   /* twice: a store overwrites what was there */
            for (int64_t i = 22; i >= 0; i--) num_store((dw_format)f, memory, i, (double)((i + round) % 3), true);
            for (int64_t i = 0; i < 23; i++) {
                double expected = (double)((i + round) % 3);
                if ((dw_format)f == DW_FORMAT_bool) expected = expected != 0;
                if ((dw_format)f == DW_FORMAT_e8m0 && expected == 0) expected = 0x1p-127;
                assert_true(num_load((dw_format)f, memory, i) == expected);
            }
        }
        assert_int_equal(memory[bytes], 0xff);
    }
}

/* Random codes, NaN and infinity among them, behind an odd first byte: what a row gives is what the codec makes of each. */
static void rows_are_loaded_as_the_codec_decodes(void **state) {
    (void)state;
    enum { BYTES = 8 * 400 };
    uint8_t memory[BYTES + 1];
    double values[400];
    for (int i = 0; i <= BYTES; i++) memory[i] = (uint8_t)(num_random(11, (uint64_t)i) >> 40);
    for (int f = 0; f < DW_FORMAT_COUNT; f++) {
        const int bits = dw_format_bits((dw_format)f);
        for (int64_t stride = 0; stride < 4; stride++) {
            for (int64_t begin = 0; begin < 3; begin++) {
                const int64_t count = stride > 0 ? (400 - begin + stride - 1) / stride : 400;
                num_load_row((dw_format)f, memory + 1, begin, stride, count, values);
                for (int64_t i = 0; i < count; i++) {
                    uint64_t code = 0;
                    for (int64_t b = 0, at = (begin + i * stride) * bits; b < bits; b++) code |= (uint64_t)(memory[1 + (at + b) / 8] >> (at + b) % 8 & 1) << b;
                    const double expected = num_decode((dw_format)f, code);
                    assert_true(isnan(expected) ? isnan(values[i]) : memcmp(&values[i], &expected, sizeof expected) == 0);
                }
            }
        }
    }
}

static void packing_is_little_endian(void **state) {
    (void)state;
    uint8_t memory[3] = {0};
    num_store(DW_FORMAT_e2m1, memory, 0, 6, true);      /* code 7 */
    num_store(DW_FORMAT_e2m1, memory, 1, -0.5, true);   /* code 9 */
    assert_int_equal(memory[0], 0x97);
    /* Codes 1, 2, 3, 4 of six bits: 000100 000011 000010 000001 in one little-endian number. */
    for (int i = 0; i < 4; i++) num_store(DW_FORMAT_e3m2, memory, i, num_decode(DW_FORMAT_e3m2, (uint64_t)i + 1), true);
    assert_int_equal(memory[0] | memory[1] << 8 | memory[2] << 16, 1 | 2 << 6 | 3 << 12 | 4 << 18);
    uint8_t word[4];
    num_store(DW_FORMAT_i32, word, 0, -2, true);
    assert_int_equal(word[0], 0xfe);
    assert_int_equal(word[3], 0xff);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_found),
        cmocka_unit_test(block_formats_are_made_of_elements),
        cmocka_unit_test(max_is_the_largest_finite_code),
        cmocka_unit_test(every_code_survives_a_round_trip),
        cmocka_unit_test(wide_formats_are_the_machines),
        cmocka_unit_test(known_results),
        cmocka_unit_test(fast_decoding_equals_the_codec),
        cmocka_unit_test(fast_encoding_equals_the_codec),
        cmocka_unit_test(encoding_takes_the_nearest_value),
        cmocka_unit_test(rows_equal_single_conversions),
        cmocka_unit_test(elements_are_stored_and_loaded),
        cmocka_unit_test(rows_are_loaded_as_the_codec_decodes),
        cmocka_unit_test(packing_is_little_endian),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
