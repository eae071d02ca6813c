/* Random numbers and error measures. */
#include "support/support.h"

#include <math.h>

#include "num/num.h"

static void seed_zero_is_the_published_sequence(void **state) {
    (void)state;
    assert_true(num_random(0, 0) == UINT64_C(0xe220a8397b1dcdaf));
    assert_true(num_random(0, 1) == UINT64_C(0x6e789e6aa1b965f4));
    assert_true(num_random(0, 2) == UINT64_C(0x06c45d188009454f));
    assert_true(num_random(1, 0) != num_random(0, 0));
}

static void uniform_numbers_are_uniform(void **state) {
    (void)state;
    enum { COUNT = 200000, BINS = 50 };
    int bins[BINS] = {0};
    for (uint64_t i = 0; i < COUNT; i++) {
        float x = num_random_uniform(7, i);
        assert_true(x >= 0 && x < 1);
        bins[(int)(x * BINS)]++;
    }
    double chi_square = 0;
    for (int i = 0; i < BINS; i++) chi_square += pow(bins[i] - COUNT / (double)BINS, 2) / (COUNT / (double)BINS);
    assert_true(chi_square < 85.4);   /* 49 degrees of freedom: exceeded once in a thousand; the numbers are fixed */
}

static void normal_numbers_are_normal(void **state) {
    (void)state;
    enum { COUNT = 400000 };
    double sums[5] = {0};
    for (uint64_t i = 0; i < COUNT; i++)
        for (int power = 1; power <= 4; power++) sums[power] += pow((double)num_random_normal(3, i), power) / COUNT;
    /* Four standard deviations of each estimate: the variance of x^k is E x^2k - (E x^k)^2. */
    assert_true(fabs(sums[1]) < 4 * sqrt(1.0 / COUNT));
    assert_true(fabs(sums[2] - 1) < 4 * sqrt(2.0 / COUNT));
    assert_true(fabs(sums[3]) < 4 * sqrt(15.0 / COUNT));
    assert_true(fabs(sums[4] - 3) < 4 * sqrt(96.0 / COUNT));
}

/* The distribution function of the result is the uniform number it was made from, in the centre and in both tails. */
static void normal_numbers_invert_the_distribution(void **state) {
    (void)state;
    double least = 1;
    for (uint64_t i = 0; i < 300000; i++) {
        double p = ((double)(num_random(5, i) >> 11) + 0.5) * 0x1p-53, x = (double)num_random_normal(5, i);
        double tail = p < 0.5 ? p : 1 - p, found = 0.5 * erfc(fabs(x) / sqrt(2.0));
        /* fp32 rounding moves x by 2^-25 of itself, and log of the tail by about x + 1 / x times that. */
        assert_true(fabs(found - tail) <= tail * (fabs(x) + 1.5) * fabs(x) * 0x1p-24 + 1e-14);
        assert_true((x < 0) == (p < 0.5));
        if (tail < least) least = tail;
    }
    assert_true(least < 1e-4);   /* the tails were met */
}

static void errors_are_measured(void **state) {
    (void)state;
    const float reference[] = {3, 4, 0, 0}, x[] = {3, 4, 0.5f, 0};
    num_error e;
    num_compare(x, reference, 4, &e);
    assert_true(fabs(e.relative - 0.1) < 1e-15);
    assert_true(fabs(e.sqnr_db - 20) < 1e-12);
    assert_true(e.max_abs == 0.5 && e.max_ref == 4 && e.max_index == 2);
    assert_int_equal(e.count, 4);
    assert_int_equal(e.nan_count + e.inf_count, 0);
}

static void equal_arrays_have_no_error(void **state) {
    (void)state;
    const float x[] = {1, INFINITY, NAN, -0.0f}, zeros[] = {0, -0.0f};
    num_error e;
    num_compare(x, x, 4, &e);
    assert_true(e.relative == 0 && isinf(e.sqnr_db) && e.sqnr_db > 0 && e.max_index == -1);
    assert_int_equal(e.nan_count + e.inf_count, 0);
    num_compare(zeros, zeros, 2, &e);
    assert_true(e.relative == 0);
    num_compare(NULL, NULL, 0, &e);
    assert_true(e.relative == 0 && e.count == 0);
    num_compare(x, zeros, 1, &e);
    assert_true(isinf(e.relative) && e.sqnr_db < 0 && isinf(e.sqnr_db));
}

static void non_finite_values_are_infinite_errors(void **state) {
    (void)state;
    const float reference[] = {1, 2, 3, INFINITY}, x[] = {1, NAN, INFINITY, 3};
    num_error e;
    num_compare(x, reference, 4, &e);
    assert_true(isinf(e.relative) && isinf(e.max_abs) && e.max_index == 1 && e.max_ref == 3);
    assert_int_equal(e.nan_count, 1);
    assert_int_equal(e.inf_count, 1);
}

static void ranges_are_counted(void **state) {
    (void)state;
    const float x[] = {0, -0.0f, 448, -449, INFINITY, NAN, 0x1p-10f, 0x1.000002p-10f, -0x1p-12f, 127.5f, -128.5f, -129.5f};
    int64_t overflow, underflow;
    num_range(DW_FORMAT_e4m3, x, 12, &overflow, &underflow);
    assert_int_equal(overflow, 2);
    assert_int_equal(underflow, 2);   /* 2^-10 is a tie and goes to zero */
    num_range(DW_FORMAT_mxfp8, x, 12, &overflow, &underflow);   /* of its elements */
    assert_int_equal(overflow, 2);
    num_range(DW_FORMAT_i8, x, 12, &overflow, &underflow);
    assert_int_equal(overflow, 6);
    assert_int_equal(underflow, 3);
    num_range(DW_FORMAT_bf16, x, 12, &overflow, &underflow);
    assert_int_equal(overflow, 1);
    assert_int_equal(underflow, 0);
    for (int f = 0; f < DW_FORMAT_COUNT; f++) {   /* underflow is what the codec makes zero of */
        dw_format format = (dw_format)f;
        if (dw_format_is_block(format) || format == DW_FORMAT_bool || format == DW_FORMAT_e8m0) continue;
        for (uint64_t i = 0; i < 3000; i++) {
            float value = ldexpf(num_random_uniform(2, i) - 0.5f, (int)(i % 40) - 30);
            num_range(format, &value, 1, &overflow, &underflow);
            if (value > 0 || num_info(format)->class != NUM_UNSIGNED)
                assert_int_equal(underflow, value != 0 && num_decode(format, num_encode(format, (double)value, true)) == 0);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seed_zero_is_the_published_sequence),
        cmocka_unit_test(uniform_numbers_are_uniform),
        cmocka_unit_test(normal_numbers_are_normal),
        cmocka_unit_test(normal_numbers_invert_the_distribution),
        cmocka_unit_test(errors_are_measured),
        cmocka_unit_test(equal_arrays_have_no_error),
        cmocka_unit_test(non_finite_values_are_infinite_errors),
        cmocka_unit_test(ranges_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
