/* Generation that is added to a model makes of it the one that was opened with it: the same text, and one copy of the weights that runs and generation both read. */
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/session.h"

static const char CARRIED[] = TEST_SOURCE_DIR "/models/kjv.pt2";
enum { PROMPT = 19, NEW = 8 };

static void continue_text(dw_context *context, const dw_model *model, int64_t *made) {
    int64_t ids[PROMPT], count;
    dw_generate_times times;
    dw_session *session;
    for (int i = 0; i < PROMPT; i++) ids[i] = "And God said, Let there be light: and "[i];
    assert_ok(context, dw_session_create(context, model, &(dw_session_options){.max_tokens = PROMPT + NEW}, &session));
    assert_ok(context, dw_session_generate(session, PROMPT, ids, &(dw_generate_options){.tokens = NEW}, made, &count, &times));
    assert_int_equal(count, NEW);
    assert_int_equal(times.cached, model->step.plan != NULL);
    dw_session_destroy(session);
}

static size_t constants_of(const dw_model *model) { return model->constants.by_key.count + model->constants.on_device.count; }

static void check(dw_context *context, const char *file, const char *device, const char *precision) {
    const dw_model_options alone = {.precision = precision, .device = device, .dims = "s=30"}, both = {.precision = precision, .device = device, .dims = "s=30", .flags = DW_MODEL_GENERATE};
    int64_t expected[NEW], found[NEW];
    dw_model *whole, *model;
    const char *reason;
    assert_ok(context, dw_model_open(context, file, &both, &whole));
    continue_text(context, whole, expected);
    assert_ok(context, dw_model_open(context, file, &alone, &model));
    assert_false(dw_model_can_generate(model, &reason));
    assert_string_equal(reason, "no generation was asked for");
    const uint64_t before = dw_model_weight_bytes(model);
    for (int i = 0; i < 2; i++) {      /* the second time there is nothing to do */
        assert_ok(context, dw_model_add_generation(model));
        assert_true(dw_model_can_generate(model, &reason));
        assert_int_equal(constants_of(model), constants_of(whole));
        assert_true(dw_model_weight_bytes(model) == dw_model_weight_bytes(whole));
    }
    assert_true(dw_model_weight_bytes(model) == before);   /* one layout for both */
    continue_text(context, model, found);
    assert_memory_equal(expected, found, sizeof found);
    dw_model_destroy(whole);
    dw_model_destroy(model);
}

static void generation_added_is_the_one_asked_for(void **state) {
    static const char *const precisions[] = {NULL, "bf16", "mxfp8", "nvfp4"};
    for (size_t i = 0; i < COUNT_OF(precisions); i++) check(*state, CARRIED, "cpu", precisions[i]);
}

static void a_device_has_the_weights_once(void **state) {
    if (kernel_lacks_images() != NULL) skip();
    check(*state, CARRIED, "sim:h200", "mxfp8");
}

static void a_package_gets_it_from_its_file(void **state) {
    char path[512];
    dw_model *model;
    const char *reason;
    snprintf(path, sizeof path, "%s/tests/add-generation-%ld.dw", TEST_BUILD_DIR, (long)getpid());
    assert_ok(*state, dw_model_open(*state, CARRIED, &(dw_model_options){.precision = "bf16", .flags = DW_MODEL_GENERATE}, &model));
    assert_ok(*state, dw_model_save(model, path));
    dw_model_destroy(model);
    check(*state, path, NULL, NULL);
    assert_ok(*state, dw_model_open(*state, CARRIED, &(dw_model_options){.precision = "bf16"}, &model));
    assert_ok(*state, dw_model_save(model, path));
    dw_model_destroy(model);
    assert_ok(*state, dw_model_open(*state, path, NULL, &model));      /* made without: there is nothing to add */
    assert_ok(*state, dw_model_add_generation(model));
    assert_false(dw_model_can_generate(model, &reason));
    assert_string_equal(reason, "no generation was asked for");
    dw_model_destroy(model);
    unlink(path);
}

/* A session goes on as it was, and an update reaches what was added. */
static void sessions_and_updates_go_on(void **state) {
    dw_context *context = *state;
    int64_t before[NEW], again[NEW], added[NEW], expected[NEW], ids[PROMPT], count;
    dw_model *model, *other;
    dw_session *session;
    for (int i = 0; i < PROMPT; i++) ids[i] = "And God said, Let there be light: and "[i];
    assert_ok(context, dw_model_open(context, CARRIED, NULL, &model));
    assert_ok(context, dw_session_create(context, model, &(dw_session_options){.max_tokens = PROMPT + NEW}, &session));
    assert_ok(context, dw_session_generate(session, PROMPT, ids, &(dw_generate_options){.tokens = NEW}, before, &count, NULL));
    assert_ok(context, dw_model_add_generation(model));
    assert_ok(context, dw_session_generate(session, PROMPT, ids, &(dw_generate_options){.tokens = NEW}, again, &count, NULL));
    assert_memory_equal(before, again, sizeof again);
    dw_session_destroy(session);

    const ir_weight *weight = NULL;      /* the widest: the first layer's, say */
    for (size_t i = 0; i < model->captured->param_count; i++)
        if (model->captured->params[i]->weight->tensor.rank == 2 && (weight == NULL || op_tensor_count(&model->captured->params[i]->weight->tensor) > op_tensor_count(&weight->tensor)))
            weight = model->captured->params[i]->weight;
    assert_non_null(weight);
    const size_t bytes = (size_t)op_tensor_count(&weight->tensor) * sizeof(float);
    float *turned = malloc(bytes);
    dw_named_tensor given = {.name = weight->name, .tensor = weight->tensor};
    for (size_t i = 0; i < bytes / sizeof(float); i++) turned[i] = -((const float *)weight->tensor.data)[i];
    given.tensor.data = turned;
    assert_ok(context, dw_model_update(model, 1, &given));
    continue_text(context, model, added);
    assert_ok(context, dw_model_open(context, CARRIED, &(dw_model_options){.flags = DW_MODEL_GENERATE}, &other));
    assert_ok(context, dw_model_update(other, 1, &given));
    continue_text(context, other, expected);
    assert_memory_equal(expected, added, sizeof added);
    dw_model_destroy(model);
    dw_model_destroy(other);
    free(turned);
}

/* Memory that runs out at any place leaves the model as it was. */
static void a_failure_leaves_the_model_as_it_was(void **state) {
    int64_t expected[NEW], found[NEW];
    int failures = 0;
    (void)state;
    for (size_t after = 0, step = 1;; after += step, step += step / 2 + 1) {
        test_memory memory = {0};
        dw_context *context = test_context_create(&memory, 1);
        dw_model *model;
        assert_ok(context, dw_model_open(context, CARRIED, NULL, &model));
        continue_text(context, model, expected);
        memory.fail_at = memory.calls + 1 + after;
        const dw_status status = dw_model_add_generation(model);
        memory.fail_at = 0;
        if (status != DW_OK) {
            assert_int_equal(status, DW_NO_MEMORY);
            assert_false(dw_model_can_generate(model, NULL));
            failures++;
        }
        continue_text(context, model, found);
        if (status != DW_OK) assert_memory_equal(expected, found, sizeof found);
        dw_model_destroy(model);
        dw_context_destroy(context);
        assert_int_equal(memory.live_count, 0);
        if (status == DW_OK) break;
    }
    assert_true(failures > 10);
}

static int setup(void **state) {
    return dw_context_create(NULL, (dw_context **)state) == DW_OK ? 0 : -1;
}

static int teardown(void **state) {
    dw_context_destroy(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generation_added_is_the_one_asked_for), cmocka_unit_test(a_device_has_the_weights_once), cmocka_unit_test(a_package_gets_it_from_its_file),
        cmocka_unit_test(sessions_and_updates_go_on), cmocka_unit_test(a_failure_leaves_the_model_as_it_was),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
