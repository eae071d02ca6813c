/* A token's result never depends on what comes after it, in any precision: the logits of a prefix are those of the whole text, bit for bit
 * (no scale spans tokens, and kernels give a row the same bits however many rows there are). */
#include "support/support.h"

#include <string.h>

#include "deepwell/deepwell.h"
#include "pass/pass.h"

enum { WHOLE = 96, VOCABULARY = 256 };

static void run_prefix(dw_context *context, const dw_model *model, dw_session *session, int64_t *ids, int64_t count, float *logits) {
    dw_named_tensor in = {dw_model_input(model, 0, NULL), {.format = DW_FORMAT_i64, .rank = 2, .dims = {1, count}, .strides = {count, 1}, .data = ids}}, out;
    assert_int_equal(dw_session_shapes(session, 1, &in, &out), DW_OK);
    assert_int_equal(out.tensor.dims[2], VOCABULARY);
    out.tensor.data = logits;
    if (dw_session_run(session, 1, &in, 1, &out) != DW_OK) fail_msg("%s", dw_context_error(context));
}

static void check_precision(const char *precision) {
    static float whole[WHOLE * VOCABULARY], prefix[WHOLE * VOCABULARY];
    static const int64_t lengths[] = {1, 2, 33, 64, 95};
    int64_t ids[WHOLE];
    dw_context *context;
    dw_model *model;
    dw_session *session;
    for (int i = 0; i < WHOLE; i++) ids[i] = 32 + (int64_t)(num_random(7, (uint64_t)i) % 90);
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    if (dw_model_open(context, TEST_SOURCE_DIR "/models/kjv.pt2", &(dw_model_options){.precision = precision}, &model) != DW_OK)
        fail_msg("%s: %s", precision, dw_context_error(context));
    assert_int_equal(dw_session_create(context, model, &(dw_session_options){.dims = "b=1,s=96"}, &session), DW_OK);
    run_prefix(context, model, session, ids, WHOLE, whole);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        run_prefix(context, model, session, ids, lengths[i], prefix);
        if (memcmp(prefix, whole, (size_t)lengths[i] * VOCABULARY * sizeof *whole) != 0)
            fail_msg("%s: the first %d tokens differ when others follow", precision, (int)lengths[i]);
    }
    dw_session_destroy(session);
    dw_model_destroy(model);
    dw_context_destroy(context);
}

static void later_tokens_change_nothing(void **state) {
    (void)state;
    for (int i = 0; pass_precision_get(i) != NULL; i++) check_precision(pass_precision_get(i)->name);
    check_precision("mxfp8-weights");
    check_precision("nvfp4-weights");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(later_tokens_change_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
