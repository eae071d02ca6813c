/* Precisions that a policy leaves open ("fp8 or fp8-weights"): no plan takes longer by estimate than with one of them alone, one answer holds for all runs of a model, and it means what its rules say one by one. */
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/session.h"

static int setup(void **state) { return dw_context_create(NULL, (dw_context **)state) == DW_OK ? 0 : -1; }

static int teardown(void **state) {
    dw_context_destroy(*state);
    return 0;
}

static dw_model *open_with(dw_context *context, const char *precision, const char *policy, const char *chip, const char *dims, unsigned flags) {
    dw_model *model;
    assert_ok(context, dw_model_open(context, "models/kjv.pt2", &(dw_model_options){.precision = precision, .policy = policy, .chip = chip, .dims = dims, .flags = flags}, &model));
    return model;
}

static double seconds_of(const plan *plan) {
    plan_binding binding;
    double seconds = 0;
    assert_int_equal(plan_binding_create(plan->context, plan, &binding), DW_OK);
    assert_int_equal(plan_bind(&binding, plan->typical), DW_OK);
    for (int i = plan->run_first; i < plan->step_count; i++) seconds += plan_call_seconds(&binding, i);
    plan_binding_destroy(&binding);
    return seconds;
}

static double step_seconds(dw_context *context, const char *precision, const char *chip) {
    dw_model *model = open_with(context, precision, NULL, chip, "s=1", DW_MODEL_PLAN_ONLY | DW_MODEL_GENERATE_ONLY);
    const double seconds = seconds_of(model->step.plan);
    dw_model_destroy(model);
    return seconds;
}

/* A decoded token of the carried model, on chips of each kind. */
static void a_step_takes_no_longer_than_in_a_precision_that_was_left_open(void **state) {
    static const char *const chips[] = {"h200", "b200", "rtx5090", "cpu-avx512bf16", "cpu-avx2"}, *const bases[] = {"fp8", "mxfp8", "nvfp4"};
    int mixed = 0;
    for (size_t c = 0; c < COUNT_OF(chips); c++)
        for (size_t b = 0; b < COUNT_OF(bases); b++) {
            char weights[64], open[96];
            snprintf(weights, sizeof weights, "%s-weights", bases[b]);
            snprintf(open, sizeof open, "%s or %s or bf16", bases[b], weights);
            const double own = step_seconds(*state, open, chips[c]), first = step_seconds(*state, bases[b], chips[c]);
            const char *const alone[] = {bases[b], weights, "bf16"};
            for (size_t i = 0; i < COUNT_OF(alone); i++) {
                const double other = step_seconds(*state, alone[i], chips[c]);
                if (own > other * (1 + 1e-9)) fail_msg("%s on %s: %g us, %s %g us", open, chips[c], own * 1e6, alone[i], other * 1e6);
            }
            mixed += own < first * (1 - 1e-9);
        }
    assert_true(mixed > 0);             /* it has had something to choose */
}

/* Whole runs, where no step is: a long product gains by quantised activations what one of few rows loses. */
static void a_run_of_few_rows_and_one_of_many_get_other_answers(void **state) {
    static const char text_of[] = "graph g\n  symbol m 1..8192\n  input x bf16[m,4096]\n  param w bf16[4096,4096]\n  param u bf16[4096,4096]\n  %1 = matmul x, w {bt=true} at \"layers.0.up\"\n"
                                  "  %2 = relu %1\n  %3 = matmul %2, u {bt=true} at \"layers.0.down\"\n  output y %3\n";
    const char *chosen[2];
    dw_model *models[2];
    static const char *const dims[] = {"m=1", "m=8192"};
    for (int i = 0; i < 2; i++) {
        models[i] = model_of_text(*state, text_of, &(dw_model_options){.flags = DW_MODEL_PLAN_ONLY, .chip = "h200", .precision = "fp8 or fp8-weights", .dims = dims[i]});
        chosen[i] = models[i]->policy_report;
    }
    if (strstr(chosen[0], "fp8-weights ") == NULL || strstr(chosen[1], "fp8-weights  ") != NULL) fail_msg("%s%s", chosen[0], chosen[1]);
    assert_non_null(strstr(chosen[0], "; fp8 "));
    assert_non_null(strstr(chosen[0], " us (a whole run)"));
    for (int i = 0; i < 2; i++) dw_model_destroy(models[i]);
}

/* What quantised activations save in prompts outweighs what bf16 saves in steps only where prompts are long. */
static void long_prompts_outweigh_what_steps_save(void **state) {
    static const char *const dims[] = {"b=8,s=1", "b=8,s=1024", "b=8,s=1048576"}, *const chosen[] = {"bf16", "bf16", "fp8"};
    for (size_t i = 0; i < COUNT_OF(dims); i++) {
        char layer[256], precision[64];
        dw_model *model = open_with(*state, "fp8 or bf16", NULL, "h200", dims[i], DW_MODEL_PLAN_ONLY);
        assert_int_equal(sscanf(model->policy_report, "%255s %63s", layer, precision), 2);
        if (strcmp(precision, chosen[i]) != 0) fail_msg("%s: %s", dims[i], model->policy_report);
        dw_model_destroy(model);
    }
}

/* By the cached step and its prompts, whatever the model was opened for; and generation that is added later has it, too. */
static void a_model_has_one_answer(void **state) {
    static const unsigned flags[] = {0, DW_MODEL_GENERATE, DW_MODEL_GENERATE_ONLY};
    dw_model *models[COUNT_OF(flags)];
    for (size_t i = 0; i < COUNT_OF(flags); i++) models[i] = open_with(*state, "nvfp4 or nvfp4-weights", NULL, "h200", NULL, DW_MODEL_PLAN_ONLY | flags[i]);
    for (size_t i = 1; i < COUNT_OF(flags); i++) assert_string_equal(models[0]->policy_report, models[i]->policy_report);
    assert_non_null(strstr(models[0]->policy_report, "nvfp4-weights  "));
    assert_non_null(strstr(models[0]->policy_report, " us (prompts and 128 decoded tokens of each"));
    assert_string_equal(models[0]->no_step, ENGINE_NOT_ASKED);
    assert_ok(*state, dw_model_add_generation(models[0]));
    text first, added;
    text_init(&first, *state);
    text_init(&added, *state);
    assert_int_equal(plan_print(models[0]->step.plan, &added), DW_OK);
    assert_int_equal(plan_print(models[1]->step.plan, &first), DW_OK);
    assert_string_equal(text_string(&first), text_string(&added));
    text_free(&first);
    text_free(&added);
    for (size_t i = 0; i < COUNT_OF(flags); i++) dw_model_destroy(models[i]);
}

/* "layer = precision" of each line of a report. */
static void write_rules(const char *report, char *rules, size_t room) {
    char layer[256], precision[64];
    rules[0] = '\0';
    for (const char *at = report; *at != '\0'; at += strcspn(at, "\n"), at += *at == '\n')
        if (sscanf(at, "%255s %63s", layer, precision) == 2) snprintf(rules + strlen(rules), room - strlen(rules), "%s = %s\n", layer, precision);
}

static float *logits_of(dw_context *context, const dw_model *model, size_t *count) {
    enum { TOKENS = 24 };
    const int64_t sizes[] = {1, TOKENS};
    run_io io;
    dw_session *session = session_of(context, model, "b=1,s=24");
    run_io_create(&io, model->full.plan->graph, sizes, RUN_SMALL_INTEGERS, 7);
    for (int i = 0; i < TOKENS; i++) ((int64_t *)io.inputs[0].tensor.data)[i] = 32 + i;
    run_io_add_outputs(&io, session);
    assert_ok(context, dw_session_run(session, io.input_count, io.inputs, io.output_count, io.outputs));
    *count = (size_t)op_tensor_count(&io.outputs[0].tensor);
    float *copy = malloc(*count * sizeof *copy);
    memcpy(copy, io.outputs[0].tensor.data, *count * sizeof *copy);
    run_io_free(&io);
    dw_session_destroy(session);
    return copy;
}

static void an_answer_means_what_its_rules_mean_one_by_one(void **state) {
    static const char open[] = "*.down = mxfp8 or bf16\n* = nvfp4 or mxfp4-weights\n";
    char rules[8192];
    size_t count, other;
    dw_model *settled = open_with(*state, NULL, open, NULL, NULL, 0);
    write_rules(settled->policy_report, rules, sizeof rules);
    dw_model *said = open_with(*state, NULL, rules, NULL, NULL, 0);
    float *a = logits_of(*state, settled, &count), *b = logits_of(*state, said, &other);
    assert_int_equal(count, other);
    assert_memory_equal(a, b, count * sizeof *a);
    free(a);
    free(b);
    dw_model_destroy(settled);
    dw_model_destroy(said);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_step_takes_no_longer_than_in_a_precision_that_was_left_open, setup, teardown),
        cmocka_unit_test_setup_teardown(a_run_of_few_rows_and_one_of_many_get_other_answers, setup, teardown),
        cmocka_unit_test_setup_teardown(long_prompts_outweigh_what_steps_save, setup, teardown),
        cmocka_unit_test_setup_teardown(a_model_has_one_answer, setup, teardown),
        cmocka_unit_test_setup_teardown(an_answer_means_what_its_rules_mean_one_by_one, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
