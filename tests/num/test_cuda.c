/* The codec beside CUDA's own conversions, which the toolkit's headers also define for the host: all codes, and 10 million numbers of each format. The build says
 * where the headers are (HAVE_CUDA_FP8); without them the tests are skipped. They have no conversions of f16 and bf16 in C: test_oracle.py tests those. */
#include "support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "num/num.h"
#include "support/samples.h"

#ifdef HAVE_CUDA_FP8

#include <cuda_fp4.h>
#include <cuda_fp6.h>
#include <cuda_fp8.h>

enum { SAMPLES = 10000000 };

static uint8_t cuda_e4m3(float x, bool saturate) { return __nv_cvt_float_to_fp8(x, saturate ? __NV_SATFINITE : __NV_NOSAT, __NV_E4M3); }
static uint8_t cuda_e5m2(float x, bool saturate) { return __nv_cvt_float_to_fp8(x, saturate ? __NV_SATFINITE : __NV_NOSAT, __NV_E5M2); }
static uint8_t cuda_e8m0(float x, bool saturate) { return __nv_cvt_float_to_e8m0(x, saturate ? __NV_SATFINITE : __NV_NOSAT, cudaRoundPosInf); }

static uint8_t cuda_e3m2(float x, bool saturate) {
    (void)saturate;
    return __nv_cvt_float_to_fp6(x, __NV_E3M2, cudaRoundNearest);
}

static uint8_t cuda_e2m3(float x, bool saturate) {
    (void)saturate;
    return __nv_cvt_float_to_fp6(x, __NV_E2M3, cudaRoundNearest);
}

static uint8_t cuda_e2m1(float x, bool saturate) {
    (void)saturate;
    return __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest);
}

static uint16_t from_e4m3(uint8_t code) { return __nv_cvt_fp8_to_halfraw(code, __NV_E4M3).x; }
static uint16_t from_e5m2(uint8_t code) { return __nv_cvt_fp8_to_halfraw(code, __NV_E5M2).x; }
static uint16_t from_e3m2(uint8_t code) { return __nv_cvt_fp6_to_halfraw(code, __NV_E3M2).x; }
static uint16_t from_e2m3(uint8_t code) { return __nv_cvt_fp6_to_halfraw(code, __NV_E2M3).x; }
static uint16_t from_e2m1(uint8_t code) { return __nv_cvt_fp4_to_halfraw(code, __NV_E2M1).x; }
static uint16_t from_e8m0(uint8_t code) { return __nv_cvt_e8m0_to_bf16raw(code).x; }

/* Excluded: nothing. */
static const struct {
    dw_format format, decoded;   /* decode gives codes of the second */
    uint8_t (*encode)(float x, bool saturate);
    uint16_t (*decode)(uint8_t code);
} rows[] = {
    {DW_FORMAT_e4m3, DW_FORMAT_f16, cuda_e4m3, from_e4m3}, {DW_FORMAT_e5m2, DW_FORMAT_f16, cuda_e5m2, from_e5m2},
    {DW_FORMAT_e3m2, DW_FORMAT_f16, cuda_e3m2, from_e3m2}, {DW_FORMAT_e2m3, DW_FORMAT_f16, cuda_e2m3, from_e2m3},
    {DW_FORMAT_e2m1, DW_FORMAT_f16, cuda_e2m1, from_e2m1}, {DW_FORMAT_e8m0, DW_FORMAT_bf16, cuda_e8m0, from_e8m0},
};

static void every_code_decodes_as_cuda_does(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        for (unsigned code = 0; code < 1u << num_info(rows[i].format)->bits; code++) {
            double expected = num_decode(rows[i].decoded, rows[i].decode((uint8_t)code)), found = num_decode(rows[i].format, code);
            if (isnan(expected)) assert_true(isnan(found));
            else assert_true(found == expected && !signbit(found) == !signbit(expected));
        }
}

static void ten_million_numbers_encode_as_cuda_does(void **state) {
    (void)state;
    float *x = malloc(SAMPLES * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        samples_fill(rows[i].format, x, SAMPLES);
        for (int64_t k = 0; k < SAMPLES; k++)
            for (int saturate = 0; saturate < 2; saturate++) {
                uint64_t expected = rows[i].encode(x[k], saturate), found = num_encode(rows[i].format, (double)x[k], saturate);
                if (found != expected)
                    fail_msg("%s of %a, %s: 0x%02x, CUDA 0x%02x", dw_format_name(rows[i].format), (double)x[k], saturate ? "saturating" : "not saturating",
                             (unsigned)found, (unsigned)expected);
            }
    }
    free(x);
}

#else

static void every_code_decodes_as_cuda_does(void **state) {
    (void)state;
    print_message("skipped: cuda_fp8.h was not found when this was built (CUDA toolkit 12.8 or later)\n");
    skip();
}

static void ten_million_numbers_encode_as_cuda_does(void **state) { every_code_decodes_as_cuda_does(state); }

#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_decodes_as_cuda_does),
        cmocka_unit_test(ten_million_numbers_encode_as_cuda_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
