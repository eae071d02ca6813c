/* Tokens of a run: what is asked for row by row is what one call of the op gives; tables are there once somebody wants them; a row without a token says why. */
#include "support/support.h"

#include <math.h>
#include <string.h>

#include "engine/sampler.h"

enum { VOCABULARY = 70, ROWS = 3, TEXTS = 4 };

static int setup(void **state) {
    dw_context *context;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    *state = context;
    return 0;
}

static int teardown(void **state) {
    dw_context_destroy(*state);
    return 0;
}

static void assert_ok(dw_context *context, dw_status status) {
    if (status != DW_OK) fail_msg("%s", dw_context_error(context));
}

static void fill(float *logits) {
    for (int i = 0; i < ROWS * VOCABULARY; i++) logits[i] = num_random_normal(1, (uint64_t)i);
}

static engine_sampler *sampler_of(dw_context *context) {
    engine_sampler *sampler;
    assert_ok(context, engine_sampler_create(context, NULL, VOCABULARY, DW_FORMAT_f32, ROWS, TEXTS, &sampler));
    return sampler;
}

static int64_t likeliest(const float *logits) {
    int64_t best = 0;
    for (int64_t i = 1; i < VOCABULARY; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

static void rows_are_what_they_ask_for(void **state) {
    dw_context *context = *state;
    float logits[ROWS * VOCABULARY], settings[ROWS * SAMPLING_SETTINGS] = {0}, logs[ROWS];
    int64_t draws[ROWS * 2], ids[ROWS], made = 0;
    engine_sampler *sampler = sampler_of(context);
    fill(logits);
    for (int row = 0; row < ROWS; row++) {
        const sampling_settings asked = engine_sampler_settings(row * 0.8, row * 10, row == 2 ? 0.9 : 0);
        engine_sampler_ask(sampler, row, &asked, (uint64_t)row + 5, 7, -1);
        settings[row * SAMPLING_SETTINGS + SAMPLING_TEMPERATURE] = (float)(row * 0.8);
        settings[row * SAMPLING_SETTINGS + SAMPLING_TOP_K] = (float)row * 10;
        settings[row * SAMPLING_SETTINGS + SAMPLING_TOP_P] = row == 2 ? 0.9f : 0;
        settings[row * SAMPLING_SETTINGS + SAMPLING_REPETITION] = 1;
        draws[2 * row] = row + 5;
        draws[2 * row + 1] = 7;
    }
    assert_ok(context, engine_sampler_run(sampler, logits, ROWS));
    dw_tensor in[3], out[2];
    const dw_tensor *ins[] = {&in[0], &in[1], &in[2]}, *outs[] = {&out[0], &out[1]};
    assert_true(op_tensor_init(&in[0], DW_FORMAT_f32, DW_SCALE_plain, 2, (int64_t[]){ROWS, VOCABULARY}, logits));
    assert_true(op_tensor_init(&in[1], DW_FORMAT_f32, DW_SCALE_plain, 2, (int64_t[]){ROWS, SAMPLING_SETTINGS}, settings));
    assert_true(op_tensor_init(&in[2], DW_FORMAT_i64, DW_SCALE_plain, 2, (int64_t[]){ROWS, 2}, draws));
    assert_true(op_tensor_init(&out[0], DW_FORMAT_i64, DW_SCALE_plain, 1, (int64_t[]){ROWS}, ids));
    assert_true(op_tensor_init(&out[1], DW_FORMAT_f32, DW_SCALE_plain, 1, (int64_t[]){ROWS}, logs));
    const op_call call = {.context = context, .op = op_get(OP_sample), .attrs = &(op_attrs){0}, .n_in = 3, .in = ins, .n_out = 2, .out = outs};
    assert_ok(context, call.op->reference(&call));
    for (int row = 0; row < ROWS; row++) {
        assert_int_equal(sampler->ids[row], ids[row]);
        assert_true(fabsf(sampler->logs[row] - logs[row]) < 1e-5f);
        made += ids[row];
    }
    assert_int_equal(sampler->ids[0], likeliest(logits));
    assert_true(made > 0);
    engine_sampler_destroy(sampler);
}

static void tables_are_read_where_a_text_is_named(void **state) {
    dw_context *context = *state;
    float logits[ROWS * VOCABULARY];
    engine_sampler *sampler = sampler_of(context);
    sampling_settings greedy = engine_sampler_settings(0, 0, 0);
    fill(logits);
    const uint64_t before = engine_sampler_bytes(sampler);
    for (int table = 0; table < SAMPLER_TABLES; table++) assert_ok(context, engine_sampler_use(sampler, (sampler_table)table));
    assert_true(engine_sampler_bytes(sampler) > before + 2 * TEXTS * VOCABULARY * 4);
    greedy.repetition = 100;
    ((int32_t *)sampler->tables[SAMPLER_COUNTS])[2 * VOCABULARY + likeliest(logits)] = 1;
    ((float *)sampler->tables[SAMPLER_BIAS])[3 * VOCABULARY + 69] = 50;
    ((uint32_t *)sampler->tables[SAMPLER_MASK])[0] = 1u << 9;
    ((uint32_t *)sampler->tables[SAMPLER_MASK])[1] = ((uint32_t *)sampler->tables[SAMPLER_MASK])[2] = 0;
    static const int64_t texts[] = {2, 3, 0, -1};
    for (int i = 0; i < 4; i++) {
        engine_sampler_ask(sampler, 0, &greedy, 0, 0, texts[i]);
        assert_ok(context, engine_sampler_run(sampler, logits, 1));
        if (i == 0) assert_int_not_equal(sampler->ids[0], likeliest(logits));
        else assert_int_equal(sampler->ids[0], i == 1 ? 69 : i == 2 ? 9 : likeliest(logits));
    }
    assert_ok(context, engine_sampler_tell(sampler, 2));
    engine_sampler_ask(sampler, 0, &greedy, 0, 0, 0);
    assert_ok(context, engine_sampler_run(sampler, logits, 1));
    assert_int_equal(sampler->best_ids[0], likeliest(logits));   /* of the logits as they come */
    assert_true(sampler->best_logs[0] > sampler->best_logs[1]);
    test_assert_fails(context, engine_sampler_tell(sampler, VOCABULARY + 1), DW_INVALID, "71 of the likeliest tokens are asked for; the vocabulary has 70");
    engine_sampler_destroy(sampler);
}

static void rows_without_a_token_say_why(void **state) {
    dw_context *context = *state;
    float logits[ROWS * VOCABULARY];
    engine_sampler *sampler = sampler_of(context);
    sampling_settings warm = engine_sampler_settings(1, 0, 0), bad = warm;
    bad.min_p = 2;
    fill(logits);
    logits[5] = NAN;
    for (int i = 0; i < VOCABULARY; i++) logits[VOCABULARY + i] = -INFINITY;
    for (int row = 0; row < ROWS; row++) engine_sampler_ask(sampler, row, row == 2 ? &bad : &warm, 0, 0, -1);
    assert_ok(context, engine_sampler_run(sampler, logits, ROWS));
    test_assert_fails(context, engine_sampler_check(context, sampler->ids[0]), DW_INVALID, "a logit is NaN or infinite");
    test_assert_fails(context, engine_sampler_check(context, sampler->ids[1]), DW_INVALID, "no id is left");
    test_assert_fails(context, engine_sampler_check(context, sampler->ids[2]), DW_INVALID, "out of range");
    engine_sampler_destroy(sampler);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(rows_are_what_they_ask_for, setup, teardown),
        cmocka_unit_test_setup_teardown(tables_are_read_where_a_text_is_named, setup, teardown),
        cmocka_unit_test_setup_teardown(rows_without_a_token_say_why, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
