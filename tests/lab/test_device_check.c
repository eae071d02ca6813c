/* dw_check_device on the stand-in for the driver (tests/cuda): a device that computes as the CPU does passes, one that does not is found out. */
#include "support/support.h"

#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "support/driver.h"
#include "support/session.h"

static char told[1 << 16];

static void gather(void *user, const char *text, size_t length) {
    (void)user;
    strncat(told, text, length < sizeof told - strlen(told) - 1 ? length : 0);
}

static dw_status check(dw_context *context, const char *file, const char *precision, int json) {
    told[0] = '\0';
    return dw_check_device(context, file, &(dw_model_options){.device = DEVICE_NAME, .precision = precision}, 0, NULL, json, gather, NULL);
}

static void a_device_that_computes_as_the_cpu_passes(void **state) {
    (void)state;
    static const char *const precisions[] = {NULL, "fp32", "bf16", "fp8", "mxfp8", "nvfp4"};
    dw_context *context = context_of();
    for (size_t i = 0; i < COUNT_OF(precisions); i++) {
        assert_ok(context, check(context, TEST_FIXTURES_DIR "/mlp_gated.pt2", precisions[i], 0));
        assert_non_null(strstr(told, "all of it is within what sums in another order explain"));
        assert_null(strstr(told, "<- more than that"));
        assert_non_null(strstr(told, "no text: "));
    }
    assert_int_equal(fake->live, 0);
    dw_context_destroy(context);
}

static void a_device_that_does_not_is_found_out(void **state) {
    (void)state;
    dw_context *context = context_of();
    fake->flip = 1;     /* a last bit, of a value in fp32 far below all bounds: not so in a code of a quantiser */
    dw_status status = check(context, TEST_FIXTURES_DIR "/mlp_gated.pt2", "mxfp8", 0);
    fake->flip = 0;
    assert_int_equal(status, DW_MISMATCH);
    assert_non_null(strstr(dw_context_error(context), "differs from the CPU by more than sums in another order explain"));
    const char *row = strstr(told, "cuda_quantize"), *verdict = strstr(told, "<- more than that"), *product = strstr(told, "cuda_matmul_plain");
    assert_true(row != NULL && verdict != NULL && product != NULL && row < verdict && verdict < product);
    assert_null(strstr(product, "<- more than that"));
    fake->flip = 0x80;
    status = check(context, TEST_FIXTURES_DIR "/mlp_gated.pt2", "fp32", 1);
    fake->flip = 0;
    assert_int_equal(status, DW_OK);    /* still the last byte of fp32 */
    assert_non_null(strstr(told, "\"holds\": true"));
    assert_int_equal(fake->live, 0);
    dw_context_destroy(context);
}

static void the_cpu_is_not_held_beside_itself(void **state) {
    (void)state;
    dw_context *context = context_of();
    told[0] = '\0';
    test_assert_fails(context, dw_check_device(context, TEST_FIXTURES_DIR "/mlp_gated.pt2", &(dw_model_options){0}, 0, NULL, 0, gather, NULL), DW_INVALID,
                      "nothing to hold beside the CPU");
    assert_string_equal(told, "");
    dw_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_that_computes_as_the_cpu_passes),
        cmocka_unit_test(a_device_that_does_not_is_found_out),
        cmocka_unit_test(the_cpu_is_not_held_beside_itself),
    };
    return cmocka_run_group_tests(tests, open_driver, NULL);
}
