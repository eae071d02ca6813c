/* Measured choices: their text, what it refuses, and what plans take from them. */
#include "support/support.h"

#include <string.h>

#include "plan/plan.h"

static const char graph_text[] = "graph g\n  input x bf16[s,64]\n  input w bf16[128,64]\n  input c bf16[128]\n  %1 = matmul x, w, c {bt=true, post=\"bias\"}\n  output y %1\n";
#define HEADER "tuning \"NVIDIA H200\" \"CUDA 13.0\" \"00\"\n"
#define PRODUCT "product \"matmul bf16[*,64] bf16[128,64] bf16[128] bt=true post=bias\"\n"

static void ok(dw_context *context, dw_status status) {
    if (status != DW_OK) fail_msg("%s", dw_context_error(context));
}

static dw_status parse(arena *arena, const char *text, plan_tuning *tuning) { return plan_tuning_parse(arena, "t", text, strlen(text), tuning); }

static dw_status plan_with(dw_context *context, const char *text, const char *dims, plan **made) {
    chip_caps chip;
    arena arena;
    plan_tuning tuning;
    ir_graph *graph;
    *made = NULL;
    ok(context, chip_find(context, "h200", 0, &chip));
    ok(context, ir_parse(context, "text", graph_text, strlen(graph_text), NULL, &graph));
    arena_init(&arena, context);
    ok(context, parse(&arena, text, &tuning));
    dw_status status = plan_compile(graph, &(plan_options){.chip = &chip, .precision = "as exported", .dims = dims, .tuning = &tuning}, made);
    arena_free(&arena);
    return status;
}

static void a_tuning_survives_its_text(void **state) {
    dw_context *context = *state;
    static const char words[] = HEADER PRODUCT "  rows 16 cuda_matmul_sm90 matmul_bf16_m128n64split4\n  rows 2048 cuda_matmul_plain\n";
    arena arena;
    plan_tuning tuning;
    text text;
    arena_init(&arena, context);
    text_init(&text, context);
    ok(context, parse(&arena, words, &tuning));
    ok(context, plan_tuning_print(&tuning, &text));
    assert_string_equal(text_string(&text), words);
    text_free(&text);
    arena_free(&arena);
}

static void a_broken_tuning_is_refused_with_its_place(void **state) {
    dw_context *context = *state;
    static const struct { const char *text, *words; } cases[] = {
        {"", "t:1"},
        {"tuning \"a\" \"b\"\n", "t:1"},
        {HEADER "matmul\n", "t:2"},
        {HEADER PRODUCT, "a product has lines of rows behind it"},
        {HEADER PRODUCT "  rows 0 k\n", "t:3"},
        {HEADER PRODUCT "  rows 16 k\n  rows 16 k\n", "numbers of rows ascend from 1"},
        {HEADER PRODUCT "  rows 16\n", "t:3"},
        {HEADER PRODUCT "  rows 16 k v w\n", "t:3"},
        {HEADER PRODUCT "  rows 1 k\n" PRODUCT "  rows 1 k\n", "this product is there twice"},
        {HEADER PRODUCT "  rows 1 k\n  rows 2 k\n  rows 3 k\n  rows 4 k\n  rows 5 k\n  rows 6 k\n  rows 7 k\n  rows 8 k\n  rows 9 k\n", "at most 8"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        arena arena;
        plan_tuning tuning;
        arena_init(&arena, context);
        test_assert_fails(context, parse(&arena, cases[i].text, &tuning), DW_SYNTAX, cases[i].words);
        arena_free(&arena);
    }
}

typedef struct seen { kernel_launcher launcher; const char *entry; } seen;

static dw_status see(kernel_launcher *launcher, const kernel_launch *launch) {
    ((seen *)launcher)->entry = launch->entry;
    return DW_OK;
}

/* The entry that a run of so many rows launches. */
static const char *entry_of(dw_context *context, const plan *plan, int64_t rows) {
    plan_binding binding;
    seen seen = {{see}, NULL};
    ok(context, plan_binding_create(context, plan, &binding));
    ok(context, plan_bind(&binding, &rows));
    ok(context, plan->steps[plan->load_count].row->shape(&binding.calls[plan->load_count].run, &seen.launcher));
    plan_binding_destroy(&binding);
    return seen.entry;
}

static void a_plan_launches_what_was_measured(void **state) {
    dw_context *context = *state;
    static const char words[] = HEADER PRODUCT "  rows 16 cuda_matmul_sm90 matmul_bf16_m128n256pair\n  rows 128 cuda_matmul_plain\n  rows 512 cuda_matmul_sm90 matmul_bf16_m128n64split2\n";
    chip_caps chip;
    plan *made, *again;
    text text;
    ok(context, chip_find(context, "h200", 0, &chip));
    ok(context, plan_with(context, words, "s=10", &made));
    const plan_step *step = &made->steps[made->load_count];
    assert_string_equal(step->row->name, "cuda_matmul_sm90");
    assert_string_equal(entry_of(context, made, 1), "matmul_bf16_m128n256pair");
    assert_string_equal(entry_of(context, made, 16), "matmul_bf16_m128n256pair");
    assert_string_equal(entry_of(context, made, 300), "matmul_bf16_m128n64split2");
    assert_string_equal(entry_of(context, made, 100000), "matmul_bf16_m128n64split2");
    assert_string_not_equal(entry_of(context, made, 100), "matmul_bf16_m128n256pair");   /* another kernel was faster: this one goes by its estimate */
    text_init(&text, context);
    ok(context, plan_print(made, &text));
    assert_non_null(strstr(text_string(&text), "cuda_matmul_sm90 tuned \"16:matmul_bf16_m128n256pair,128:,512:matmul_bf16_m128n64split2\""));
    ok(context, plan_parse(context, "plan", text_string(&text), text.length, NULL, &chip, NULL, &again));
    assert_string_equal(entry_of(context, again, 300), "matmul_bf16_m128n64split2");
    plan_destroy(again);
    plan_destroy(made);
    ok(context, plan_with(context, words, "s=100", &made));
    assert_string_equal(made->steps[made->load_count].row->name, "cuda_matmul_plain");
    plan_destroy(made);
    char *at = strstr(text_string(&text), "m128n64split2");
    memcpy(at, "m999", 4);
    test_assert_fails(context, plan_parse(context, "plan", text_string(&text), text.length, NULL, &chip, NULL, &again), DW_INVALID, "of its own variants");
    text_free(&text);
}

static void what_is_not_in_this_build_is_an_error(void **state) {
    dw_context *context = *state;
    plan *made;
    test_assert_fails(context, plan_with(context, HEADER PRODUCT "  rows 16 cuda_matmul_sm91\n", NULL, &made), DW_NOT_FOUND, "there is no kernel cuda_matmul_sm91");
    test_assert_fails(context, plan_with(context, HEADER PRODUCT "  rows 16 cuda_matmul_sm90 matmul_f16_m128n64\n", NULL, &made), DW_NOT_FOUND, "has no variant matmul_f16_m128n64");
    ok(context, plan_with(context, HEADER "product \"another\"\n  rows 16 cuda_matmul_sm91\n", NULL, &made));
    assert_null(made->steps[made->load_count].tuned);
    plan_destroy(made);
}

static int setup(void **state) { return dw_context_create(NULL, (dw_context **)state) == DW_OK ? 0 : -1; }

static int teardown(void **state) {
    dw_context_destroy(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_tuning_survives_its_text, setup, teardown),
        cmocka_unit_test_setup_teardown(a_broken_tuning_is_refused_with_its_place, setup, teardown),
        cmocka_unit_test_setup_teardown(a_plan_launches_what_was_measured, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_not_in_this_build_is_an_error, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
