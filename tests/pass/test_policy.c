/* Policies: patterns, the order of rules, defaults, words and warnings. What the pass makes of them is in cases/precision. */
#include "support/support.h"

#include <string.h>

#include "pass/pass.h"

static int setup(void **state) { return dw_context_create(NULL, (dw_context **)state) == DW_OK ? 0 : -1; }

static int teardown(void **state) {
    dw_context_destroy(*state);
    return 0;
}

static pass_policy *create(dw_context *context, const char *defaults, const char *rules) {
    pass_policy *policy;
    if (pass_policy_create(context, defaults, "rules", rules, &policy) != DW_OK) fail_msg("%s", dw_context_error(context));
    return policy;
}

static void assert_choice(pass_policy *policy, const char *layer, const char *role, const char *precision) {
    const char *rule;
    const pass_precision_row *row;
    assert_int_equal(pass_policy_choose(policy, layer, role, NULL, &row, &rule), DW_OK);
    assert_string_equal(row->name, precision);
    assert_true(strlen(rule) > 0);
}

static void patterns_match_whole_names(void **state) {
    static const struct { const char *pattern, *layer; bool matches; } rows[] = {
        {"a.b", "a.b", true},          {"a.b", "a.bc", false},       {"a.b", "xa.b", false},       {"*", "a.b.c", true},
        {"*.fc1", "h.0.mlp.fc1", true}, {"*.fc1", "fc1", false},      {"*fc1", "fc1", true},        {"h.?.x", "h.3.x", true},
        {"h.?.x", "h.13.x", false},    {"h.*.x", "h.13.x", true},    {"*.1.*", "h.1.mlp", true},   {"*.1.*", "h.11.mlp", false},
        {"*a*b*", "xxaxxbxx", true},   {"*ab*ab", "abxab", true},    {"*ab*ab", "ab", false},      {"a**", "a", true},
        {"", "a", false},              {"?", "", false},             {"*?", "", false},            {"a.b*", "a.b", true},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char rules[64];
        if (rows[i].pattern[0] == '\0') continue;
        snprintf(rules, sizeof rules, "%s = mxfp8\n", rows[i].pattern);
        pass_policy *policy = create(*state, "bf16", rules);
        assert_choice(policy, rows[i].layer, NULL, rows[i].matches ? "mxfp8" : "bf16");
        pass_policy_destroy(policy);
    }
}

static void long_patterns_take_no_long_time(void **state) {
    char rules[256] = "", layer[2048];
    for (int i = 0; i < 40; i++) strcat(rules, "*a");
    strcat(rules, "b = mxfp8");
    memset(layer, 'a', sizeof layer);
    layer[sizeof layer - 1] = '\0';
    pass_policy *policy = create(*state, "bf16", rules);
    assert_choice(policy, layer, NULL, "bf16");
    pass_policy_destroy(policy);
}

static void the_first_rule_wins_and_those_of_the_text_come_first(void **state) {
    pass_policy *policy = create(*state, "h.1.* = fp8 , mxfp8", "# comment\r\n\r\n  h.0.*\t=  nvfp4 # of the first\r\nrole:mlp=mxfp4-weights");
    assert_choice(policy, "h.0.mlp.up", "mlp", "nvfp4");
    assert_choice(policy, "h.1.mlp.up", "mlp", "mxfp4-weights");
    assert_choice(policy, "h.1.attn.q", "attention", "fp8");
    assert_choice(policy, "h.2.attn.q", NULL, "mxfp8");
    assert_string_equal(pass_policy_words(policy), "h.0.* = nvfp4, role:mlp = mxfp4-weights, h.1.* = fp8, mxfp8");
    pass_policy_destroy(policy);
}

static void heads_and_routers_stay_high_unless_a_rule_names_them(void **state) {
    static const struct { const char *defaults, *rules, *head, *router; } rows[] = {
        {"mxfp4", NULL, "bf16", "fp32"},         {"nvfp4", NULL, "bf16", "fp32"},    {"nvfp4-weights", NULL, "bf16", "fp32"},
        {"mxfp8", NULL, "mxfp8", "fp32"},        {"fp8-row", NULL, "fp8-row", "fp32"}, {"mxfp8-weights", NULL, "mxfp8-weights", "fp32"},
        {"bf16", NULL, "bf16", "fp32"},          {"fp32", NULL, "fp32", "fp32"},     {NULL, NULL, "fp32", "fp32"},
        {"nvfp4", "* = nvfp4", "nvfp4", "nvfp4"}, {NULL, "lm_head = mxfp8", "mxfp8", "fp32"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        pass_policy *policy = create(*state, rows[i].defaults, rows[i].rules);
        assert_choice(policy, "lm_head", "lm_head", rows[i].head);
        assert_choice(policy, "mlp.gate", "router", rows[i].router);
        pass_policy_destroy(policy);
    }
}

static void every_row_is_found_by_its_name_and_in_policies(void **state) {
    const pass_precision_row *row;
    int count = 0;
    for (; (row = pass_precision_get(count)) != NULL; count++) {
        assert_ptr_equal(pass_precision_find(row->name), row);
        assert_non_null(pass_precision_find(row->head));
        pass_policy *policy = create(*state, row->name, NULL);
        assert_choice(policy, "layer", NULL, row->name);
        pass_policy_destroy(policy);
    }
    assert_true(count > 12);
    assert_null(pass_precision_find("bf16-weights"));
    assert_null(pass_precision_find("fp32-weights"));
    assert_null(pass_precision_find(""));
}

static void a_rule_may_leave_precisions_open(void **state) {
    static const pass_settled settled[] = {{.weight = "h.0.up.weight", .because = "a whole run", .choice = 1, .seconds = {3e-6, 2e-6}}, {.weight = "h.1.up.weight", .because = "a whole run", .choice = 2, .seconds = {3e-6, 2e-6, 1e-6}}};
    static const struct { const char *layer, *weight, *precision, *rule; } choices[] = {
        {"h.0.up", "h.0.up.weight", "nvfp4-weights", "* = nvfp4 or nvfp4-weights (default); nvfp4 3.0 us, nvfp4-weights 2.0 us (a whole run)"},
        {"h.1.up", "h.1.up.weight", "bf16", "h.1.* = fp8 or fp8-weights or bf16 (rules:1); fp8 3.0 us, fp8-weights 2.0 us, bf16 1.0 us (a whole run)"},
        {"h.1.down", "h.1.down.weight", "fp8", "h.1.* = fp8 or fp8-weights or bf16 (rules:1)"},
        {"h.2.up", "h.0.up.weight", "mxfp8", "h.2.* = mxfp8 (rules:2)"},
    };
    pass_policy *policy = create(*state, "nvfp4 or  nvfp4-weights", "h.1.* = fp8\tor fp8-weights or bf16\nh.2.* = mxfp8");
    assert_string_equal(pass_policy_words(policy), "h.1.* = fp8 or fp8-weights or bf16, h.2.* = mxfp8, nvfp4 or nvfp4-weights");
    assert_int_equal(pass_policy_open(policy), 3);
    assert_choice(policy, "h.0.up", NULL, "nvfp4");
    pass_policy_try(policy, 2);
    assert_choice(policy, "h.0.up", NULL, "nvfp4-weights");     /* the last that it has */
    assert_choice(policy, "h.1.up", NULL, "bf16");
    assert_choice(policy, "h.2.up", NULL, "mxfp8");
    assert_choice(policy, "lm_head", "lm_head", "bf16");
    assert_choice(policy, "gate", "router", "fp32");
    pass_policy_try(policy, 0);
    assert_int_equal(pass_policy_settle(policy, COUNT_OF(settled), settled), DW_OK);
    for (size_t i = 0; i < COUNT_OF(choices); i++) {
        const pass_precision_row *row;
        const char *rule;
        assert_int_equal(pass_policy_choose(policy, choices[i].layer, NULL, choices[i].weight, &row, &rule), DW_OK);
        assert_string_equal(row->name, choices[i].precision);
        assert_string_equal(rule, choices[i].rule);
    }
    pass_policy_destroy(policy);
}

static void broken_rules_are_told_with_their_line(void **state) {
    static const struct { const char *defaults, *rules; dw_status status; const char *message; } rows[] = {
        {NULL, "a = mxfp8\nb mxfp8\n", DW_SYNTAX, "rules:2: a rule is 'pattern = precision', found 'b mxfp8'"},
        {NULL, "= mxfp8", DW_SYNTAX, "rules:1:"},
        {NULL, "a =", DW_SYNTAX, "rules:1:"},
        {NULL, "a b = mxfp8", DW_SYNTAX, "rules:1:"},
        {NULL, "\n\na = mxfp9", DW_NOT_FOUND, "rules:3: there is no precision 'mxfp9'; there are fp32, bf16, "},
        {"mxfp9", NULL, DW_NOT_FOUND, "there is no precision 'mxfp9'"},
        {"mxfp8,bf16", NULL, DW_SYNTAX, "two precisions"},
        {"a=b,bf16", NULL, DW_NOT_FOUND, "there is no precision 'b'"},
        {"", NULL, DW_OK, ""},
        {NULL, "\na = fp8 or", DW_SYNTAX, "rules:2: 'fp8 or' is no precision, and no precisions with 'or' between them"},
        {NULL, "a = fp8 fp8-weights", DW_SYNTAX, "rules:1:"},
        {NULL, "a = fp8 or bf17", DW_NOT_FOUND, "rules:1: there is no precision 'bf17'"},
        {NULL, "a = or", DW_NOT_FOUND, "rules:1: there is no precision 'or'"},
        {"fp8 or fp8", NULL, DW_SYNTAX, "precision: 'fp8 or fp8' has fp8 twice"},
        {"fp8 or nvfp4 or mxfp8 or mxfp4 or bf16", NULL, DW_LIMIT, "more than 4 precisions"},
        {NULL, "role:cache = fp8 or bf16", DW_UNSUPPORTED, "rules:1: 'role:cache = fp8 or bf16 (rules:1)' leaves the precision open; that can be left open of layers alone"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        pass_policy *policy;
        dw_status status = pass_policy_create(*state, rows[i].defaults, "rules", rows[i].rules, &policy);
        if (rows[i].status == DW_OK) assert_int_equal(status, DW_OK);
        else test_assert_fails(*state, status, rows[i].status, rows[i].message);
        if (rows[i].status != DW_OK) assert_null(policy);
        pass_policy_destroy(policy);
    }
}

static void collect_warning(void *user, dw_log_level level, const char *text) {
    assert_int_equal(level, DW_LOG_WARNING);
    strncat(user, text, 200);
}

static void a_pattern_that_matches_nothing_is_warned_of_once(void **state) {
    (void)state;
    static const char source[] = "graph g\n  input x f32[2,32]\n  param w f32[32,32]\n  %1 = matmul x, w at \"mlp.up\"\n  output y %1\n";
    static const char both[] = "the pattern of 'attn.* = bf16 (rules:2)' matches no layer of the modelthe pattern of 'role:head = bf16 (rules:4)' matches no layer of the model";
    char warnings[1024] = "";
    const dw_context_options options = {.log = collect_warning, .log_user = warnings};
    dw_context *context;
    assert_int_equal(dw_context_create(&options, &context), DW_OK);
    pass_policy *policy = create(context, "mxfp8", "mlp.* = fp8\nattn.* = bf16\n*.up = bf16\nrole:head = bf16\n");
    for (int i = 0; i < 2; i++) {
        const pass_options pass = {.policy = policy};
        ir_graph *graph;
        assert_int_equal(ir_parse(context, "source", source, strlen(source), NULL, &graph), DW_OK);
        assert_int_equal(pass_run(graph, PASS_STAGE_PRECISION, &pass), DW_OK);
        assert_string_equal(warnings, i == 0 ? "" : both);
        pass_policy_warn(policy);
        ir_graph_destroy(graph);
    }
    assert_string_equal(warnings, both);
    pass_policy_destroy(policy);
    dw_context_destroy(context);
}

static dw_status create_and_choose(dw_context *context, void *argument) {
    pass_policy *policy;
    const pass_precision_row *row;
    const char *rule;
    (void)argument;
    static const pass_settled settled[] = {{.weight = "d.weight", .because = "a whole run", .choice = 1}};
    TRY(pass_policy_create(context, "h.*=bf16,nvfp4", "rules", "a = mxfp8\nb = mxfp4\nc = fp8\nd = fp8 or bf16\n", &policy));
    dw_status status = pass_policy_choose(policy, "c", NULL, NULL, &row, &rule);
    if (status == DW_OK) status = pass_policy_settle(policy, COUNT_OF(settled), settled);
    if (status == DW_OK) status = pass_policy_choose(policy, "d", NULL, "d.weight", &row, &rule);
    pass_policy_destroy(policy);
    return status;
}

static void every_allocation_of_a_policy_may_fail(void **state) {
    (void)state;
    test_every_allocation(create_and_choose, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(patterns_match_whole_names, setup, teardown),
        cmocka_unit_test_setup_teardown(long_patterns_take_no_long_time, setup, teardown),
        cmocka_unit_test_setup_teardown(the_first_rule_wins_and_those_of_the_text_come_first, setup, teardown),
        cmocka_unit_test_setup_teardown(heads_and_routers_stay_high_unless_a_rule_names_them, setup, teardown),
        cmocka_unit_test_setup_teardown(every_row_is_found_by_its_name_and_in_policies, setup, teardown),
        cmocka_unit_test_setup_teardown(a_rule_may_leave_precisions_open, setup, teardown),
        cmocka_unit_test_setup_teardown(broken_rules_are_told_with_their_line, setup, teardown),
        cmocka_unit_test(a_pattern_that_matches_nothing_is_warned_of_once),
        cmocka_unit_test(every_allocation_of_a_policy_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
