/* What a device computes from weights when a model is loaded has the bits that the host gives it, in every precision. */
#include "support/support.h"

#include <string.h>

#include "support/session.h"

/* How many constants of the program the device made; each is compared with the one of host. */
static int compare(dw_context *context, const dw_model *model, const engine_program *program, const engine_program *host) {
    int made = 0;
    for (int i = 0; i < program->plan->value_count; i++) {
        const plan_value *v = &program->plan->values[i];
        const dw_tensor *want = &host->constants[i];
        engine_constant fetched;
        num_parts parts;
        if (v->key == NULL || v->view || !v->read_plain) continue;
        made += program->constants[i].data == NULL;
        assert_ok(context, engine_constants_fetch(&model->constants, v->key, &fetched));
        assert_true(num_layout(want->format, want->scale_layout, want->rank, want->dims, &parts));
        assert_int_equal(parts.total_bytes, fetched.bytes);
        assert_memory_equal(want->data, fetched.tensor.data, parts.data_bytes);
        if (parts.scale_bytes > 0) assert_memory_equal(want->scales, fetched.tensor.scales, parts.scale_bytes);
        if (parts.second_bytes > 0) assert_memory_equal(want->second, fetched.tensor.second, parts.second_bytes);
        base_release(context, fetched.owned, fetched.owned_bytes, ENGINE_ALIGN);
    }
    return made;
}

static int check_program(dw_context *context, const dw_model *model, const engine_program *program) {
    engine_constants constants;
    engine_program host = {.plan = program->plan};
    pool *pool;
    if (program->plan == NULL) return 0;
    assert_ok(context, base_pool(context, &pool));
    engine_constants_init(&constants, context);
    assert_ok(context, engine_load(&constants, pool, &host));
    const int made = compare(context, model, program, &host);
    engine_constants_free(&constants);
    return made;
}

static int check_model(const char *device, const char *precision) {
    dw_context *context;
    dw_model *model;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    assert_ok(context, dw_model_open(context, TEST_SOURCE_DIR "/models/kjv.pt2", &(dw_model_options){.precision = precision, .device = device, .flags = DW_MODEL_GENERATE}, &model));
    const int made = check_program(context, model, &model->full) + check_program(context, model, &model->step);
    dw_model_destroy(model);
    dw_context_destroy(context);
    return made;
}

static void test_bits(void **state) {
    static const char *const devices[] = {"sim:h200", "sim:b200"}, *const quantised[] = {"fp8", "fp8-row", "mxfp8", "mxfp4", "nvfp4"};
    (void)state;
    if (kernel_lacks_images() != NULL) skip();
    for (size_t d = 0; d < COUNT_OF(devices); d++) {
        check_model(devices[d], "bf16");
        for (size_t i = 0; i < COUNT_OF(quantised); i++)
            if (check_model(devices[d], quantised[i]) == 0) fail_msg("%s on %s: the device made none of the constants", quantised[i], devices[d]);
    }
}

int main(void) { return cmocka_run_group_tests(((const struct CMUnitTest[]){cmocka_unit_test(test_bits)}), NULL, NULL); }
