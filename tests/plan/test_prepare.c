/* Plans that prepare: which steps run once after an update of weights, where their values are, what is packed, and their text. */
#include "support/support.h"

#include <string.h>

#include "plan/plan.h"

static void ok(dw_context *context, dw_status status) {
    if (status != DW_OK) fail_msg("%s", dw_context_error(context));
}

/* w is multiplied twice as it lies in bf16, and once turned; what is made of x is made in each run. */
#define GRAPH(next)                                                                                                                                            \
    "graph g\n  input x f32[64,96]\n  state w f32[128,96] trained\n  state s f32[64,128]\n  %1 = cast w {to=bf16}\n  %2 = cast x {to=bf16}\n"                   \
    "  %3 = matmul %2, %1 {bt=true,to=f32}\n  %4 = cast %3 {to=bf16}\n  %5 = matmul %4, %1 {to=f32}\n  %6 = matmul %2, %1 {bt=true,to=f32}\n  %7 = add s, %6\n" \
    "  %8 = neg w\n  %9 = mean %8 {axes=[0,1]}\n  output y %5\n  output z %9\n  next s %7\n" next

static plan *plan_of(dw_context *context, const char *text, const char *name, bool prepares, chip_caps *chip) {
    ir_graph *graph;
    plan *made;
    ok(context, chip_find(context, name, 0, chip));
    ok(context, ir_parse(context, "text", text, strlen(text), NULL, &graph));
    ok(context, plan_compile(graph, &(plan_options){.chip = chip, .precision = "as exported", .prepares = prepares}, &made));
    return made;
}

static int steps_of(const plan *plan, op_id op, bool at_update) {
    int count = 0;
    for (int i = at_update ? plan->load_count : plan->run_first; i < (at_update ? plan->run_first : plan->step_count); i++) count += plan->steps[i].node->op == op && plan->steps[i].at_update == at_update;
    return count;
}

/* Different packed forms that runs read. */
static int packs_of(const plan *plan) {
    int count = 0;
    for (int i = plan->run_first; i < plan->step_count; i++) {
        bool seen = plan->steps[i].pack_key == NULL;
        for (int k = plan->run_first; k < i; k++) seen = seen || (plan->steps[k].pack_key != NULL && strcmp(plan->steps[k].pack_key, plan->steps[i].pack_key) == 0);
        count += !seen;
    }
    return count;
}

static void what_depends_on_weights_alone_is_prepared(void **state) {
    static const char *const chips[] = {"cpu-avx512bf16", "h200"};
    for (size_t i = 0; i < COUNT_OF(chips); i++) {
        chip_caps chip;
        plan *plan = plan_of(*state, GRAPH(""), chips[i], true, &chip);
        assert_int_equal(steps_of(plan, OP_cast, true), 1);
        assert_int_equal(steps_of(plan, OP_neg, true), 1);
        assert_int_equal(steps_of(plan, OP_mean, true), 0);   /* an output is made by each run */
        assert_int_equal(steps_of(plan, OP_cast, false), 2);
        assert_int_equal(steps_of(plan, OP_matmul, false), 3);
        for (int k = plan->run_first; k < plan->step_count; k++) assert_int_equal(plan->steps[k].pack_key != NULL, plan->steps[k].node->op == OP_matmul && chip.kind == CHIP_CPU);
        assert_int_equal(packs_of(plan), chip.kind == CHIP_CPU ? 2 : 0);   /* as it lies, and turned; of each one for all */
        plan_destroy(plan);
    }
}

/* Beside the model's constants, with keys as those have: what runs read as it is. What they read packed is nowhere else, and nothing of it lies in the workspace. */
static void what_is_prepared_is_known_by_its_key(void **state) {
    chip_caps chip;
    plan *plan = plan_of(*state, GRAPH(""), "cpu-avx512bf16", true, &chip);
    int plain = 0, packed = 0;
    for (int i = 0; i < plan->value_count; i++) {
        const plan_value *v = &plan->values[i];
        assert_true(!v->updated || v->key != NULL);
        if (!v->updated || v->value->kind == IR_STATE) continue;
        plain += v->value->node->op == OP_neg && v->read_plain && v->place == PLAN_CONSTANT;
        packed += v->value->node->op == OP_cast && !v->read_plain && v->place == PLAN_NOWHERE;
    }
    assert_int_equal(plain, 1);
    assert_int_equal(packed, 1);
    plan_destroy(plan);
}

static void who_changes_its_parameters_prepares_nothing(void **state) {
    chip_caps chip;
    plan *plan = plan_of(*state, GRAPH("  next w %8\n"), "cpu-avx512bf16", true, &chip);
    assert_false(plan->prepares);
    assert_int_equal(plan->run_first, plan->load_count);
    assert_int_equal(packs_of(plan), 0);
    plan_destroy(plan);
    plan = plan_of(*state, GRAPH(""), "cpu-avx512bf16", false, &chip);
    assert_int_equal(plan->run_first, plan->load_count);
    plan_destroy(plan);
}

static void plans_that_prepare_survive_their_text(void **state) {
    static const char *const chips[] = {"cpu-avx512bf16", "cpu-portable", "h200"};
    for (size_t i = 0; i < COUNT_OF(chips); i++) {
        chip_caps chip;
        plan *made = plan_of(*state, GRAPH(""), chips[i], true, &chip), *again;
        text first, second;
        text_init(&first, *state);
        text_init(&second, *state);
        ok(*state, plan_print(made, &first));
        ok(*state, plan_parse(*state, "plan", text_string(&first), first.length, NULL, &chip, NULL, &again));
        ok(*state, plan_print(again, &second));
        assert_string_equal(text_string(&first), text_string(&second));
        assert_int_equal(made->run_first, again->run_first);
        plan_destroy(again);
        char *line = strstr(first.bytes, "  prepare %");
        assert_non_null(line);
        memcpy(line, "  run     %", 11);   /* a step in another phase than the graph says */
        assert_int_equal(plan_parse(*state, "plan", text_string(&first), first.length, NULL, &chip, NULL, &again), DW_CORRUPT);
        assert_non_null(strstr(dw_context_error(*state), "runs after an update"));
        text_free(&first);
        text_free(&second);
        plan_destroy(made);
    }
}

static int setup(void **state) { return dw_context_create(NULL, (dw_context **)state) == DW_OK ? 0 : -1; }

static int teardown(void **state) {
    dw_context_destroy(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_depends_on_weights_alone_is_prepared, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_prepared_is_known_by_its_key, setup, teardown),
        cmocka_unit_test_setup_teardown(who_changes_its_parameters_prepares_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(plans_that_prepare_survive_their_text, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
