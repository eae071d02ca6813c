/* Measured choices: their text, what it refuses, and what plans take from them. */
#include "support/support.h"

#include <stdio.h>
#include <string.h>

#include "plan/plan.h"

static const char graph_text[] = "graph g\n  input x bf16[s,64]\n  input w bf16[128,64]\n  input c bf16[128]\n  %1 = matmul x, w, c {bt=true, post=\"bias\"}\n  output y %1\n";
#define HEADER "tuning \"NVIDIA H200\" \"CUDA 13.0\" \"00\"\n"
#define PRODUCT "product \"matmul bf16[*,64] bf16[128,64] bf16[128] bt=true post=bias\"\n"

static void ok(dw_context *context, dw_status status) {
    if (status != DW_OK) fail_msg("%s", dw_context_error(context));
}

static int count_of(const char *text, const char *word) {
    int count = 0;
    for (const char *at = text; (at = strstr(at, word)) != NULL; at++) count++;
    return count;
}

/* The text with its end, which says how many lines there are. */
static dw_status parse(arena *arena, const char *text, plan_tuning *tuning) {
    char whole[4096];
    int length = snprintf(whole, sizeof whole, "%send %d\n", text, count_of(text, "\nproduct ") + count_of(text, "\ncase "));
    assert_in_range(length, 1, (int)sizeof whole - 1);
    return plan_tuning_parse(arena, "t", whole, (size_t)length, tuning);
}

static dw_status plan_of(dw_context *context, const char *graph_text, const char *text, const char *dims, const kernel_registry *registry, plan **made) {
    chip_caps chip;
    arena arena;
    plan_tuning tuning;
    ir_graph *graph;
    *made = NULL;
    ok(context, chip_find(context, "h200", 0, &chip));
    ok(context, ir_parse(context, "text", graph_text, strlen(graph_text), NULL, &graph));
    arena_init(&arena, context);
    ok(context, parse(&arena, text, &tuning));
    dw_status status = plan_compile(graph, &(plan_options){.chip = &chip, .precision = "as exported", .dims = dims, .registry = registry, .tuning = &tuning}, made);
    arena_free(&arena);
    return status;
}

static dw_status plan_with(dw_context *context, const char *text, const char *dims, plan **made) { return plan_of(context, graph_text, text, dims, NULL, made); }

static void a_tuning_survives_its_text(void **state) {
    dw_context *context = *state;
    static const char words[] = HEADER PRODUCT "  rows 16 cuda_matmul_wgmma matmul_bf16_m128n64split4\n  rows 2048 cuda_matmul_plain\n"
                                "case \"softmax f32[3,5]\"\n  kernel cuda_softmax\ncase \"conv f32[1,2,3] f32[2,2,1]\"\n  kernel a b\n";
    arena arena;
    plan_tuning tuning;
    text text;
    arena_init(&arena, context);
    text_init(&text, context);
    ok(context, parse(&arena, words, &tuning));
    ok(context, plan_tuning_print(&tuning, &text));
    assert_memory_equal(text_string(&text), words, sizeof words - 1);
    assert_string_equal(text_string(&text) + sizeof words - 1, "end 3\n");
    text_free(&text);
    arena_free(&arena);
}

static void a_cut_tuning_is_refused(void **state) {
    dw_context *context = *state;
    static const char whole[] = HEADER PRODUCT "  rows 1 k\n  rows 16 k\ncase \"a\"\n  kernel k\nend 2\n";
    static const struct { const char *text, *words; } others[] = {
        {HEADER "case \"a\"\n  kernel k\nend 2\n", "2 products and cases are announced, and 1 are here"},
        {HEADER "end 0\ncase \"a\"\n  kernel k\n", "there is more behind its end"},
        {HEADER "end\n", "t:2"},
    };
    arena arena;
    plan_tuning tuning;
    arena_init(&arena, context);
    ok(context, plan_tuning_parse(&arena, "t", whole, sizeof whole - 1, &tuning));
    for (size_t length = 0; length < sizeof whole - 1; length++) {
        char cut[sizeof whole];
        memcpy(cut, whole, length);
        cut[length] = '\0';
        test_assert_fails(context, plan_tuning_parse(&arena, "t", cut, length, &tuning), DW_SYNTAX, "t");
    }
    for (size_t i = 0; i < COUNT_OF(others); i++)
        test_assert_fails(context, plan_tuning_parse(&arena, "t", others[i].text, strlen(others[i].text), &tuning), DW_SYNTAX, others[i].words);
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
        {HEADER "case \"a\"\n  kernel k\ncase \"a\"\n  kernel k\n", "this case is there twice"},
        {HEADER "case \"a\"\n", "t:"},
        {HEADER "case \"a\"\n  rows 1 k\n", "t:3"},
        {HEADER "case \"a\"\n  kernel k v w\n", "t:3"},
        {HEADER PRODUCT "  kernel k\n", "a product has lines of rows behind it"},
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
    ok(context, kernel_shape(plan->steps[plan->load_count].row, &binding.calls[plan->load_count].run, &seen.launcher));
    plan_binding_destroy(&binding);
    return seen.entry;
}

static void a_plan_launches_what_was_measured(void **state) {
    dw_context *context = *state;
    static const char words[] = HEADER PRODUCT "  rows 16 cuda_matmul_wgmma matmul_bf16_m128n256pair\n  rows 128 cuda_matmul_plain\n  rows 512 cuda_matmul_wgmma matmul_bf16_m128n64split2\n";
    chip_caps chip;
    plan *made, *again;
    text text;
    ok(context, chip_find(context, "h200", 0, &chip));
    ok(context, plan_with(context, words, "s=10", &made));
    const plan_step *step = &made->steps[made->load_count];
    assert_string_equal(step->row->name, "cuda_matmul");
    assert_string_equal(step->picked->name, "cuda_matmul_wgmma");
    assert_string_equal(entry_of(context, made, 1), "matmul_bf16_m128n256pair");
    assert_string_equal(entry_of(context, made, 16), "matmul_bf16_m128n256pair");
    assert_string_equal(entry_of(context, made, 300), "matmul_bf16_m128n64split2");
    assert_string_equal(entry_of(context, made, 100000), "matmul_bf16_m128n64split2");
    assert_string_equal(entry_of(context, made, 100), "matmul_tiles");   /* another kernel was faster, of the same row */
    text_init(&text, context);
    ok(context, plan_print(made, &text));
    assert_non_null(strstr(text_string(&text), "cuda_matmul tuned \"16:cuda_matmul_wgmma/matmul_bf16_m128n256pair,128:cuda_matmul_plain,512:cuda_matmul_wgmma/matmul_bf16_m128n64split2\""));
    ok(context, plan_parse(context, "plan", text_string(&text), text.length, NULL, &chip, NULL, &again));
    assert_string_equal(entry_of(context, again, 300), "matmul_bf16_m128n64split2");
    plan_destroy(again);
    plan_destroy(made);
    ok(context, plan_with(context, words, "s=100", &made));
    assert_string_equal(made->steps[made->load_count].picked->name, "cuda_matmul_plain");
    plan_destroy(made);
    char *at = strstr(text_string(&text), "m128n64split2");
    memcpy(at, "m999", 4);
    test_assert_fails(context, plan_parse(context, "plan", text_string(&text), text.length, NULL, &chip, NULL, &again), DW_INVALID, "of its own ways");
    text_free(&text);
}

static void what_is_not_in_this_build_is_an_error(void **state) {
    dw_context *context = *state;
    plan *made;
    test_assert_fails(context, plan_with(context, HEADER PRODUCT "  rows 16 cuda_matmul_sm91\n", NULL, &made), DW_NOT_FOUND, "there is no kernel cuda_matmul_sm91");
    test_assert_fails(context, plan_with(context, HEADER PRODUCT "  rows 16 cuda_matmul_wgmma matmul_f16_m128n64\n", NULL, &made), DW_NOT_FOUND, "has no variant matmul_f16_m128n64");
    ok(context, plan_with(context, HEADER "product \"another\"\n  rows 16 cuda_matmul_sm91\n", NULL, &made));
    assert_null(made->steps[made->load_count].tuned);
    plan_destroy(made);
}

static const char norm_text[] = "graph g\n  input x bf16[s,64]\n  input w bf16[64]\n  %1 = rms_norm x, w {eps=1e-05}\n  output y %1\n";

/* At the sizes that were measured, and no others. */
static void a_case_decides_at_its_sizes(void **state) {
    dw_context *context = *state;
    static const char words[] = HEADER "case \"rms_norm bf16[7,64] bf16[64] eps=1e-05\"\n  kernel cuda_rms_norm\n";
    plan *made;
    ok(context, plan_of(context, norm_text, words, "s=7", NULL, &made));
    assert_string_equal(made->steps[made->load_count].row->name, "cuda_rms_norm");
    assert_string_equal(made->steps[made->load_count].because, "measured");
    plan_destroy(made);
    ok(context, plan_of(context, norm_text, words, "s=8", NULL, &made));
    assert_string_equal(made->steps[made->load_count].row->name, "cuda_rms_norm_rows");
    assert_null(made->steps[made->load_count].because);
    plan_destroy(made);
}

/* What was measured where all sizes are known is not taken where it refuses a step, and explained. */
static void a_kernel_that_refuses_is_told(void **state) {
    dw_context *context = *state;
    plan *made;
    ok(context, plan_with(context, HEADER PRODUCT "  rows 16 cuda_matmul_tcgen05\n", NULL, &made));
    assert_string_equal(made->steps[made->load_count].because, "by estimate, since cuda_matmul_tcgen05, the fastest of those measured, refuses it: needs tcgen05, which h200 does not have");
    plan_destroy(made);
    test_assert_fails(context, plan_of(context, norm_text, HEADER "case \"rms_norm bf16[7,64] bf16[64] eps=1e-05\"\n  kernel cuda_matmul_wgmma\n", "s=7", NULL, &made), DW_NOT_FOUND,
                      "there is no kernel cuda_matmul_wgmma for rms_norm in this build");
}

static const char *refuse_nothing(const kernel_problem *problem, text *why) {
    (void)problem;
    (void)why;
    return NULL;
}

static void a_kernel_of_the_caller_comes_first(void **state) {
    dw_context *context = *state;
    const kernel_row row = {.name = "mine", .op = OP_rms_norm, .device = CHIP_GPU, .in_place = -1, .packs = -1, .reject = refuse_nothing, .registered = true};
    const kernel_registry registry = {&row, 1};
    plan *made;
    ok(context, plan_of(context, norm_text, HEADER "case \"rms_norm bf16[7,64] bf16[64] eps=1e-05\"\n  kernel cuda_rms_norm\n", "s=7", &registry, &made));
    assert_string_equal(made->steps[made->load_count].row->name, "mine");
    plan_destroy(made);
}

/* The line of a case that was parsed. */
static const char *print_again(dw_context *context, arena *arena, const kernel_case *c) {
    static const int64_t no_symbols[1] = {0};
    const kernel_problem problem = {.context = context, .op = c->op, .attrs = &c->attrs, .n_in = c->n_in, .in = c->in, .n_out = c->n_out, .out = c->out, .constant_in = c->constant, .dims = c->dims,
                                    .symbols = no_symbols};
    text text;
    text_init(&text, context);
    assert_null(kernel_case_print(&problem, &text));
    const char *line = arena_text(arena, text_string(&text));
    text_free(&text);
    return line;
}

/* The line of each step of a graph that has one; a line is read back as it was. */
static void a_step_is_a_line_that_is_read_back(void **state) {
    dw_context *context = *state;
    static const char text[] =
        "graph g\n  input q f16[1,4,s,16]\n  input k f16[3,2,t,16]\n  input row i64[s]\n  input at i64[s]\n  input a f32[s,8]\n  input b f32[5,8,6]\n  input o i32[5]\n"
        "  %1 = attention q, k, k, -, -, -, row, at {scale=0.1, causal=true}\n  %2 = grouped_matmul a, b, o\n  %3 = take a, row {axis=0}\n  %4 = broadcast a {shape=[2,s,8]}\n"
        "  output y %1\n  output z %2\n  output u %3\n  output v %4\n";
    static const char *const lines[] = {
        "attention f16[1,4,9,16] f16[3,2,20,16] f16[3,2,20,16] - - - i64[9] i64[9] causal=true scale=0.1 range=6:0:2 range=7:0:19",
        "grouped_matmul f32[9,8] f32[5,8,6] i32[5] range=2:0:9 ascending=2",
        NULL,
        "broadcast f32[9,8] shape=2,9,8",
    };
    plan *made;
    arena arena;
    arena_init(&arena, context);
    ok(context, plan_of(context, text, HEADER, "s=9,t=20", NULL, &made));
    for (ir_node *node = made->graph->first; node != NULL; node = node->next) {
        const plan_step step = {.node = node};
        const char *line, *why;
        const int index = node->out[0]->id - 1;
        dim_table *dims;
        kernel_case c;
        assert_in_range(index, 0, COUNT_OF(lines) - 1);
        ok(context, plan_case_line(&arena, made, &step, &line, &why));
        if (lines[index] == NULL) {
            assert_null(line);
            assert_non_null(strstr(why, "integers, whose values are not known"));
            continue;
        }
        assert_non_null(line);
        assert_string_equal(line, lines[index]);
        ok(context, dim_table_create(context, &dims));
        ok(context, kernel_case_parse(&arena, dims, "line", 1, line, &c));
        assert_string_equal(print_again(context, &arena, &c), line);
        dim_table_destroy(dims);
    }
    plan_destroy(made);
    arena_free(&arena);
}

static int setup(void **state) { return dw_context_create(NULL, (dw_context **)state) == DW_OK ? 0 : -1; }

static int teardown(void **state) {
    dw_context_destroy(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_tuning_survives_its_text, setup, teardown),
        cmocka_unit_test_setup_teardown(a_cut_tuning_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_broken_tuning_is_refused_with_its_place, setup, teardown),
        cmocka_unit_test_setup_teardown(a_plan_launches_what_was_measured, setup, teardown),
        cmocka_unit_test_setup_teardown(a_case_decides_at_its_sizes, setup, teardown),
        cmocka_unit_test_setup_teardown(a_kernel_that_refuses_is_told, setup, teardown),
        cmocka_unit_test_setup_teardown(a_kernel_of_the_caller_comes_first, setup, teardown),
        cmocka_unit_test_setup_teardown(a_step_is_a_line_that_is_read_back, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_not_in_this_build_is_an_error, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
