/* Plans: their text form, what it refuses, and memory in which values that live at the same time lie apart. */
#include "support/support.h"

#include <string.h>

#include "plan/plan.h"
#include "support/random_graph.h"

static void ok(dw_context *context, dw_status status) {
    if (status != DW_OK) fail_msg("%s", dw_context_error(context));
}

static chip_caps chip_of(dw_context *context, const char *name) {
    chip_caps chip;
    ok(context, chip_find(context, name, 0, &chip));
    return chip;
}

static plan *plan_of(dw_context *context, ir_graph *graph, const chip_caps *chip) {
    plan *made;
    ok(context, plan_compile(graph, &(plan_options){.chip = chip, .precision = "as exported", .dims = NULL}, &made));
    return made;
}

static plan *plan_of_text(dw_context *context, const char *text, const chip_caps *chip) {
    ir_graph *graph;
    ok(context, ir_parse(context, "text", text, strlen(text), NULL, &graph));
    return plan_of(context, graph, chip);
}

/* ---- text ---- */

static void a_plan_survives_its_text(void **state) {
    dw_context *context = *state;
    static const char *const chips[] = {"cpu-portable", "cpu-avx2", "cpu-avx512bf16"};
    for (uint64_t seed = 0; seed < 60; seed++) {
        const chip_caps chip = chip_of(context, chips[seed % COUNT_OF(chips)]);
        ir_graph *graph;
        plan *again;
        text first, second;
        ok(context, random_graph(context, seed, 3, &graph));
        plan *made = plan_of(context, graph, &chip);
        text_init(&first, context);
        text_init(&second, context);
        ok(context, plan_print(made, &first));
        ok(context, plan_parse(context, "plan", text_string(&first), first.length, NULL, &chip, NULL, &again));
        ok(context, plan_print(again, &second));
        assert_string_equal(text_string(&first), text_string(&second));
        assert_int_equal(made->step_count, again->step_count);
        for (int i = 0; i < made->step_count; i++) assert_ptr_equal(made->steps[i].row, again->steps[i].row);
        for (int i = 0; i < made->value_count; i++) {
            assert_int_equal(made->values[i].place, again->values[i].place);
            assert_int_equal(made->values[i].view, again->values[i].view);
            assert_int_equal(made->values[i].first, again->values[i].first);
            assert_int_equal(made->values[i].last, again->values[i].last);
        }
        text_free(&first);
        text_free(&second);
        plan_destroy(again);
        plan_destroy(made);
    }
}

static const char SMALL[] =
    "graph g\n  symbol s 1..8\n  input x f32[s,4]\n  const c f32[4] = 1, 2, 3, 4\n  %1 = exp c\n  %2 = add x, %1\n  %3 = reshape %2 {shape=[4*s]}\n  %4 = neg %3\n"
    "  output y %4\n";

typedef struct refusal { const char *from, *to; dw_status status; const char *message; } refusal;

static void a_wrong_plan_is_refused_with_its_cause(void **state) {
    dw_context *context = *state;
    static const refusal refusals[] = {
        {"plan g", "plam g", DW_SYNTAX, "expected 'plan'"},
        {"pointwise_add", "pointwise_adder", DW_UNSUPPORTED, "kernel pointwise_adder of step"},
        {"pointwise_add", "pointwise_mul", DW_MISMATCH, "it runs another op"},
        {"  run  %2", "  run  %77", DW_CORRUPT, "no step for %2"},
        {"  typical   \"s=1\"", "  typical   \"q=8\"", DW_NOT_FOUND, "no size named q"},
        {"  typical   \"s=1\"", "  typical   \"s=9\"", DW_INVALID, "outside its range 1..8"},
        {"cpu-avx2\" \"", "cpu-avx2\" \"0", DW_MISMATCH, "compile it again for this machine"},
        {"  run  ", "  walk ", DW_SYNTAX, "expected"},
        {"  run  %2", "  load %2", DW_CORRUPT, "step %2 runs each time"},
        {"  load %1", "  run %1", DW_CORRUPT, "step %1 runs at load"},
        {"steps\n", "steps\n  run %99 pointwise_add\n", DW_CORRUPT, "lines for 4 steps, the graph has 3"},
        {"x f32[s,4]", "x f32[s,5]", DW_MISMATCH, "add"},
    };
    const chip_caps chip = chip_of(context, "cpu-avx2");
    plan *made = plan_of_text(context, SMALL, &chip), *none;
    text right;
    text_init(&right, context);
    ok(context, plan_print(made, &right));
    for (size_t i = 0; i < COUNT_OF(refusals); i++) {
        const char *at = strstr(text_string(&right), refusals[i].from);
        if (at == NULL) fail_msg("'%s' is not in:\n%s", refusals[i].from, text_string(&right));
        text wrong;
        text_init(&wrong, context);
        text_add_n(&wrong, text_string(&right), (size_t)(at - text_string(&right)));
        text_add(&wrong, refusals[i].to);
        text_add(&wrong, at + strlen(refusals[i].from));
        test_assert_fails(context, plan_parse(context, "p.plan", text_string(&wrong), wrong.length, NULL, &chip, NULL, &none), refusals[i].status,
                          refusals[i].message);
        assert_null(none);
        text_free(&wrong);
    }
    const chip_caps other = chip_of(context, "cpu-portable");
    test_assert_fails(context, plan_parse(context, "p.plan", text_string(&right), right.length, NULL, &other, NULL, &none), DW_MISMATCH, "p.plan: the plan was made for cpu-avx2");
    text_free(&right);
    plan_destroy(made);
}

static void kernels_that_are_asked_for_are_taken_or_refused(void **state) {
    dw_context *context = *state;
    static const struct { const char *kernels; dw_status status; const char *message; } cases[] = {
        {"neg=reference_neg", DW_OK, NULL},
        {"neg=reference_neg,add=pointwise_add", DW_OK, NULL},
        {"neg=nonsense", DW_NOT_FOUND, "kernel 'nonsense' is not one of its kernels"},
        {"nonsense=reference_neg", DW_NOT_FOUND, "there is no op named nonsense"},
        {"neg", DW_INVALID, "expected op=kernel"},
        {"neg=", DW_INVALID, "expected op=kernel"},
        {",", DW_INVALID, "expected op=kernel"},
    };
    const chip_caps chip = chip_of(context, "cpu-avx2");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        ir_graph *graph;
        plan *made;
        ok(context, ir_parse(context, "text", SMALL, strlen(SMALL), NULL, &graph));
        dw_status status = plan_compile(graph, &(plan_options){.chip = &chip, .kernels = cases[i].kernels}, &made);
        if (cases[i].status != DW_OK) test_assert_fails(context, status, cases[i].status, cases[i].message);
        else ok(context, status);
        for (int k = 0; made != NULL && k < made->step_count; k++)
            if (made->steps[k].node->op == OP_neg) assert_string_equal(made->steps[k].row->name, "reference_neg");
        plan_destroy(made);
    }
}

/* ---- memory ---- */

/* A weight that is transposed at load, on the host, and two products: of many rows or few, and of few alone. */
static const char PRODUCTS[] =
    "graph products\n  symbol m 1..128\n  symbol few 1..16\n  input x bf16[m,64]\n  input y bf16[few,32]\n  param w bf16[32,64]\n  param u bf16[32,32]\n"
    "  %1 = concat u, u {axis=0}\n  %2 = matmul x, w {bt=true}\n  %3 = matmul y, %1 {bt=true}\n  output p %2\n  output q %3\n";

/* A library divides sums by how many rows there are. Where a row's bits may not depend on that, a kernel of ours takes the product, or, where the library was asked for by name, the error names the op. */
static void an_invariant_plan_takes_no_library(void **state) {
    dw_context *context = *state;
    chip_caps chip = chip_of(context, "h200");
    chip.features |= UINT64_C(1) << CHIP_cublaslt;
    for (int i = 0; i < 3; i++) {
        const bool is_invariant = i > 0, is_asked = i != 1;
        ir_graph *graph;
        plan *made;
        ok(context, ir_parse(context, "text", PRODUCTS, strlen(PRODUCTS), NULL, &graph));
        dw_status status = plan_compile(graph, &(plan_options){.chip = &chip, .invariant = is_invariant, .kernels = is_asked ? "matmul=cuda_matmul_cublaslt" : NULL}, &made);
        if (is_invariant && is_asked) {
            test_assert_fails(context, status, DW_UNSUPPORTED, "matmul: kernel 'cuda_matmul_cublaslt' cannot run this: how it divides a row's sums follows from how many rows there are, and the plan is invariant (op %");
            continue;
        }
        ok(context, status);
        for (int k = made->load_count; k < made->step_count; k++)
            if (made->steps[k].node->op == OP_matmul) assert_int_equal(strcmp(made->steps[k].picked->name, "cuda_matmul_cublaslt") == 0, is_asked);
        plan_destroy(made);
    }
}

/* On a GPU rows may leave sizes to the kernels of others; one that was asked for by name does not, and the plan's text says so. */
static void a_kernel_by_name_runs_at_all_sizes_or_is_refused(void **state) {
    dw_context *context = *state;
    const chip_caps chip = chip_of(context, "h200");
    static const struct { const char *kernels, *error; } cases[] = {
        {"matmul=cuda_matmul_wgmma", NULL},
        {"matmul=cuda_matmul_plain,concat=cuda_concat", NULL},
        {"matmul=cuda_matmul_tcgen05", "kernel 'cuda_matmul_tcgen05' cannot run this: needs tcgen05, which h200 does not have"},
        {"matmul=cuda_matmul_cublaslt", "kernel 'cuda_matmul_cublaslt' cannot run this: needs the library cublaslt"},
        {"matmul=matmul_f32_portable", "is not one of its kernels on h200"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        ir_graph *graph;
        plan *made, *again;
        text first, second;
        ok(context, ir_parse(context, "text", PRODUCTS, strlen(PRODUCTS), NULL, &graph));
        dw_status status = plan_compile(graph, &(plan_options){.chip = &chip, .kernels = cases[i].kernels}, &made);
        if (cases[i].error != NULL) {
            assert_int_not_equal(status, DW_OK);
            if (strstr(dw_context_error(context), cases[i].error) == NULL) fail_msg("%s", dw_context_error(context));
            continue;
        }
        ok(context, status);
        text_init(&first, context);
        text_init(&second, context);
        ok(context, plan_print(made, &first));
        assert_non_null(strstr(text_string(&first), " way cuda_matmul_"));
        ok(context, plan_parse(context, "plan", text_string(&first), first.length, NULL, &chip, NULL, &again));
        ok(context, plan_print(again, &second));
        assert_string_equal(text_string(&first), text_string(&second));
        plan_binding binding;
        ok(context, plan_binding_create(context, again, &binding));
        for (int k = again->load_count; k < again->step_count; k++) {
            const bool is_product = again->steps[k].node->op == OP_matmul;
            const uint32_t ways = binding.calls[k].run.ways;
            assert_int_equal(again->steps[k].way != NULL, is_product);
            assert_int_equal(ways != 0 && (ways & (ways - 1)) == 0, is_product);
        }
        plan_binding_destroy(&binding);
        text_free(&first);
        text_free(&second);
        plan_destroy(again);
        plan_destroy(made);
    }
}

/* The name of what runs the last step at these sizes, or the error. */
static const char *runs_as(dw_context *context, const plan *plan, const int64_t *symbols) {
    plan_binding binding;
    const plan_step *step = &plan->steps[plan->step_count - 1];
    const kernel_way *way;
    ok(context, plan_binding_create(context, plan, &binding));
    ok(context, plan_bind(&binding, symbols));
    const dw_status status = kernel_pick(step->row, &binding.calls[plan->step_count - 1].run, &way);
    plan_binding_destroy(&binding);
    return status == DW_OK ? way->name : dw_context_error(context);
}

static plan *plan_for_chip(dw_context *context, const char *words, const chip_caps *chip, const char *kernels) {
    ir_graph *graph;
    plan *made;
    ok(context, ir_parse(context, "text", words, strlen(words), NULL, &graph));
    ok(context, plan_compile(graph, &(plan_options){.chip = chip, .kernels = kernels}, &made));
    return made;
}

/* One plan serves all sizes; which kernel runs is picked when they are known. The decoding attention multiplies by mma.sync, which Blackwell has, too. */
static void a_way_is_picked_when_sizes_are_known(void **state) {
    dw_context *context = *state;
    static const char attend[] =
        "graph a\n  symbol s 1..512\n  symbol t 1..8192\n  input q bf16[1,8,s,64]\n  input k bf16[1,2,t,64]\n  %1 = attention q, k, k {scale=0.125}\n  output y %1\n";
    static const char multiply[] = "graph m\n  symbol m 1..8192\n  symbol u 1..2\n  input x bf16[m,4096]\n  input z f32[u]\n  param w bf16[4096,4096]\n  %1 = matmul x, w {bt=true}\n  output y %1\n";
    static const struct { const char *graph, *chip; int64_t sizes[2]; const char *kernels, *runs; } cases[] = {
        {attend, "h200", {1, 8192}, NULL, "cuda_attention_decode"},
        {attend, "h200", {512, 512}, NULL, "cuda_attention_wgmma"},
        {attend, "h200", {1, 8192}, "attention=cuda_attention_wgmma", "cuda_attention_wgmma"},
        {attend, "h200", {512, 512}, "attention=cuda_attention_decode", "cuda_attention_decode"},
        {attend, "b200", {1, 8192}, NULL, "cuda_attention_decode"},
        {attend, "b200", {512, 512}, NULL, "cuda_attention_tcgen05"},
        {attend, "rtx5090", {1, 8192}, NULL, "cuda_attention_decode"},       /* by a ring of its own, as there are 99 KB */
        {multiply, "h200", {1, 1}, NULL, "cuda_matmul_skinny"},
        {multiply, "h200", {4096, 1}, NULL, "cuda_matmul_wgmma"},
        {multiply, "h200", {1, 1}, "matmul=cuda_matmul_wgmma", "cuda_matmul_wgmma"},
        {multiply, "h200", {64, 1}, "matmul=cuda_matmul_skinny", "cuda_matmul_skinny"},
        {multiply, "h200", {65, 1}, "matmul=cuda_matmul_skinny", "cuda_matmul_skinny: it takes up to 64 rows of bf16 times bf16, and there are 65"},
        {multiply, "b200", {1, 1}, NULL, "cuda_matmul_skinny"},
        {multiply, "b200", {4096, 1}, NULL, "cuda_matmul_tcgen05"},
        {multiply, "rtx5090", {4096, 1}, NULL, "cuda_matmul_fp32"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const chip_caps chip = chip_of(context, cases[i].chip);
        plan *made = plan_for_chip(context, cases[i].graph, &chip, cases[i].kernels);
        const char *runs = runs_as(context, made, cases[i].sizes);
        if (strstr(runs, cases[i].runs) == NULL) fail_msg("case %zu: %s", i, runs);
        plan_destroy(made);
    }
}

/* What a smaller number of rows takes behind its kernel has room in what the largest reserve, and a kernel that writes blocks itself needs none for more rows. */
static void workspace_of_the_largest_sizes_serves_smaller_ones(void **state) {
    dw_context *context = *state;
    static const char words[] = "graph m\n  symbol m 1..8192\n  input x fp8_1x128[m,4096]\n  param w fp8_128x128[4096,4096]\n  %1 = matmul x, w {bt=true,to=fp8_1x128}\n  output y %1\n";
    const chip_caps chip = chip_of(context, "h200");
    plan *made = plan_for_chip(context, words, &chip, NULL);
    plan_binding binding;
    size_t most = 0;
    ok(context, plan_binding_create(context, made, &binding));
    for (int64_t m = 1; m <= 8192; m = m < 700 ? m + 37 : 2 * m) {
        ok(context, plan_bind(&binding, &m));
        plan_size_scratch(&binding, NULL, NULL);
        if (binding.scratch_bytes > most) most = binding.scratch_bytes;
    }
    const int64_t largest = 8192;
    ok(context, plan_bind(&binding, &largest));
    plan_size_scratch(&binding, NULL, NULL);
    assert_int_equal(binding.scratch_bytes, most);
    assert_true(most > 0 && most <= (size_t)512 * 4096 * 4 + 4096);
    plan_binding_destroy(&binding);
    plan_destroy(made);
}

static bool has_place(const plan_value *v) { return v->place == PLAN_WORKSPACE && v->base == NULL && v->first >= 0; }

static void assert_apart(const plan_binding *binding, uint64_t seed) {
    const plan *plan = binding->plan;
    for (int i = 0; i < plan->value_count; i++) {
        const plan_value *a = &plan->values[i];
        if (!has_place(a)) continue;
        assert_true(binding->offsets[i] % 64 == 0 && binding->offsets[i] + binding->bytes[i] <= binding->value_bytes);
        for (int k = 0; k < i; k++) {
            const plan_value *b = &plan->values[k];
            if (!has_place(b) || a->last < b->first || b->last < a->first) continue;
            bool apart = binding->offsets[i] + binding->bytes[i] <= binding->offsets[k] || binding->offsets[k] + binding->bytes[k] <= binding->offsets[i];
            if (!apart) fail_msg("graph %llu: %%%d and %%%d are alive together and overlap", (unsigned long long)seed, a->value->id, b->value->id);
        }
    }
}

/* Every value is made before it is read, and its memory is alive from the one to the other, views and takeovers included. */
typedef struct counter { kernel_launcher launcher; int count; } counter;

static dw_status count_launch(kernel_launcher *launcher, const kernel_launch *launch) {
    (void)launch;
    ((counter *)launcher)->count++;
    return DW_OK;
}

static int launches_of(dw_context *context, const plan *plan, const plan_binding *binding) {
    counter counter = {{count_launch}, 0};
    for (int i = plan->load_count; i < plan->step_count; i++) ok(context, kernel_shape(plan->steps[i].row, &binding->calls[i].run, &counter.launcher));
    return counter.count;
}

/* With few rows a product quantises its operand itself, and nothing is launched for it. With more, or where something else reads the value, a launch does it. */
static void few_rows_are_quantised_by_the_product(void **state) {
    dw_context *context = *state;
    static const char behind[] =
        "graph b\n  symbol m 1..4096\n  input x fp8_1x128[m,4096]\n  param w fp8_128x128[16384,4096]\n  param d fp8_128x128[4096,8192]\n"
        "  %1 = matmul x, w {bt=true,post=\"swiglu\",to=fp8_1x128,via=bf16}\n  %2 = matmul %1, d {bt=true,to=bf16}\n  output y %2\n";
    static const char alone[] = "graph a\n  symbol m 1..4096\n  input x bf16[m,4096]\n  param w fp8_row[4096,4096]\n  %1 = neg x\n  %2 = quantize %1 {to=fp8_row}\n"
                                "  %3 = exp %1\n  %4 = matmul %2, w {bt=true,to=bf16}\n  output y %4\n  output z %3\n";
    static const char twice[] = "graph t\n  symbol m 1..4096\n  input x bf16[m,4096]\n  param w fp8_row[4096,4096]\n  param v fp8_row[4096,4096]\n  %1 = quantize x {to=fp8_row}\n"
                                "  %2 = matmul %1, w {bt=true,to=bf16}\n  %3 = matmul %1, v {bt=true,to=bf16}\n  output y %2\n  output z %3\n";
    static const struct { const char *graph, *chip; int64_t rows; int launches, quantising; } cases[] = {
        {behind, "h200", 1, 2, 1},  {behind, "h200", 2, 2, 1}, {behind, "h200", 64, 3, 0}, {behind, "h200", 4096, 2, 0}, {behind, "b200", 2, 2, 1},
        {alone, "h200", 1, 3, 1},   {alone, "h200", 64, 4, 0}, {twice, "h200", 1, 3, 0},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const chip_caps chip = chip_of(context, cases[i].chip);
        plan *made = plan_for_chip(context, cases[i].graph, &chip, NULL);
        plan_binding binding;
        plan_layout layout;
        const int64_t most = 4096;
        int quantising = 0;
        arena arena;
        arena_init(&arena, context);
        ok(context, plan_layout_create(made, &arena, &layout));
        ok(context, plan_layout_widen_up_to(&layout, &most));
        ok(context, plan_layout_place(&layout));
        ok(context, plan_binding_create(context, made, &binding));
        binding.layout = &layout;
        ok(context, plan_bind(&binding, &most));             /* what other sizes leave behind does not count */
        ok(context, plan_bind(&binding, &cases[i].rows));
        for (int k = made->load_count; k < made->step_count; k++) quantising += binding.calls[k].run.quantises;
        if (launches_of(context, made, &binding) != cases[i].launches || quantising != cases[i].quantising)
            fail_msg("case %zu: %d launches, %d products that quantise", i, launches_of(context, made, &binding), quantising);
        assert_int_equal(binding.value_bytes, layout.value_bytes);   /* what the largest sizes reserve serves these */
        assert_apart(&binding, i);
        plan_binding_destroy(&binding);
        arena_free(&arena);
        plan_destroy(made);
    }
}

/* One row's product does the norm in front of it, and what quantises that, too, and so do those of few rows by weights of MX formats; with few rows by weights of 16 bits and of fp8 with scales in fp32, where that takes longer than a launch, with more rows, where something else reads the norm's result, or where it has another kernel, a launch does it. */
static void few_rows_are_normalised_by_the_product(void **state) {
    dw_context *context = *state;
    static const char plain[] = "graph p\n  symbol m 1..4096\n  input x bf16[m,2048]\n  param s bf16[2048]\n  param w bf16[3072,2048]\n  %1 = neg x\n  %2 = rms_norm %1, s {eps=1e-5}\n"
                                "  %3 = matmul %2, w {bt=true}\n  output y %3\n";
    static const char blocks[] = "graph b\n  symbol m 1..4096\n  input x bf16[m,2048]\n  param s bf16[2048]\n  param t bf16[2048]\n  param w mxfp8[16384,2048]\n"
                                 "  %1 = layer_norm x, s, t {eps=1e-5,to=mxfp8}\n  %2 = matmul %1, w {bt=true,post=\"swiglu\",to=bf16}\n  output y %2\n";
    static const char floats[] = "graph f\n  symbol m 1..4096\n  input x bf16[m,2048]\n  param s bf16[2048]\n  param w fp8_128x128[2048,2048]\n  %1 = rms_norm x, s {eps=1e-5,to=fp8_1x128}\n"
                                 "  %2 = matmul %1, w {bt=true,to=bf16}\n  output y %2\n";
    static const char twice[] = "graph t\n  symbol m 1..4096\n  input x bf16[m,2048]\n  param s bf16[2048]\n  param w bf16[3072,2048]\n  param v bf16[3072,2048]\n"
                                "  %1 = rms_norm x, s {eps=1e-5}\n  %2 = matmul %1, w {bt=true}\n  %3 = matmul %1, v {bt=true}\n  output y %2\n  output z %3\n";
    static const char residual[] = "graph r\n  symbol m 1..4096\n  input x bf16[m,2048]\n  input r bf16[m,2048]\n  param s bf16[2048]\n  param w bf16[3072,2048]\n"
                                   "  %1, %2 = rms_norm x, s, r {eps=1e-5}\n  %3 = matmul %1, w {bt=true}\n  output y %3\n  output z %2\n";
    static const struct { const char *graph, *chip, *kernels; int64_t rows; int launches, norms; } cases[] = {
        {plain, "h200", NULL, 1, 2, 1},    {plain, "h200", NULL, 64, 3, 0},    {plain, "h200", "rms_norm=cuda_rms_norm", 1, 3, 0},    {blocks, "h200", NULL, 1, 1, 1},
        {blocks, "h200", NULL, 64, 3, 0}, {floats, "b200", NULL, 1, 1, 1}, {twice, "h200", NULL, 1, 3, 0}, {residual, "h200", NULL, 1, 2, 0}, {floats, "h200", NULL, 1, 1, 1}, {floats, "h200", NULL, 4, 2, 0},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const chip_caps chip = chip_of(context, cases[i].chip);
        plan *made = plan_for_chip(context, cases[i].graph, &chip, cases[i].kernels);
        plan_binding binding;
        int norms = 0;
        ok(context, plan_binding_create(context, made, &binding));
        ok(context, plan_bind(&binding, &(int64_t){4096}));
        ok(context, plan_bind(&binding, &cases[i].rows));
        for (int k = made->load_count; k < made->step_count; k++) norms += binding.calls[k].run.norm != NULL;
        if (launches_of(context, made, &binding) != cases[i].launches || norms != cases[i].norms)
            fail_msg("case %zu: %d launches, %d products that normalise", i, launches_of(context, made, &binding), norms);
        assert_apart(&binding, i);
        binding.holds_values = true;             /* who looks at every value finds the norm's */
        ok(context, plan_bind(&binding, &cases[i].rows));
        for (int k = made->load_count; k < made->step_count; k++) assert_true(binding.calls[k].run.norm == NULL && !binding.calls[k].run.passes);
        plan_binding_destroy(&binding);
        plan_destroy(made);
    }
}

/* Sessions reserve scratch for the fewest and the most rows: no number between them takes more, also where few rows are normalised or quantised by the product, and more of them by other kernels. */
static void scratch_is_largest_at_an_end(void **state) {
    dw_context *context = *state;
    static const char *const graphs[] = {
        "graph f\n  symbol m 1..4096\n  input x bf16[m,4096]\n  param w fp8_128x128[28672,4096]\n  param v fp8_128x128[4096,14336]\n  %1 = quantize x {to=fp8_1x128}\n"
        "  %2 = matmul %1, w {bt=true,post=\"swiglu\",to=fp8_1x128}\n  %3 = matmul %2, v {bt=true,to=bf16}\n  output y %3\n",
        "graph x\n  symbol m 1..4096\n  input x bf16[m,2048]\n  param s bf16[2048]\n  param w mxfp8[4096,2048]\n  param v mxfp8[2048,2048]\n  %1 = rms_norm x, s {eps=1e-5,to=mxfp8}\n"
        "  %2 = matmul %1, w {bt=true,post=\"swiglu\",to=mxfp8}\n  %3 = matmul %2, v {bt=true,to=bf16}\n  output y %3\n",
        "graph b\n  symbol m 1..4096\n  input x bf16[m,2048]\n  param s bf16[2048]\n  param w bf16[4096,2048]\n  %1 = rms_norm x, s {eps=1e-5}\n  %2 = matmul %1, w {bt=true,post=\"swiglu\"}\n  output y %2\n",
    };
    static const int64_t rows[] = {1, 4096, 2, 3, 4, 7, 8, 9, 31, 64, 127, 128, 129, 255, 256, 257, 1000, 2047};
    static const char *const chips[] = {"h200", "b200", "rtx5090"};
    for (size_t i = 0; i < COUNT_OF(graphs) * COUNT_OF(chips); i++) {
        const chip_caps chip = chip_of(context, chips[i % COUNT_OF(chips)]);
        plan *made = plan_for_chip(context, graphs[i / COUNT_OF(chips)], &chip, NULL);
        plan_binding binding;
        size_t most = 0;
        ok(context, plan_binding_create(context, made, &binding));
        for (size_t k = 0; k < COUNT_OF(rows); k++) {
            ok(context, plan_bind(&binding, &rows[k]));
            plan_size_scratch(&binding, NULL, NULL);
            if (k < 2 && binding.scratch_bytes > most) most = binding.scratch_bytes;
            if (binding.scratch_bytes > most) fail_msg("graph %zu, %s: %lld rows take %zu bytes, the ends %zu", i / COUNT_OF(chips), chips[i % COUNT_OF(chips)], (long long)rows[k], binding.scratch_bytes, most);
        }
        plan_binding_destroy(&binding);
        plan_destroy(made);
    }
}

/* What the write of caches reads has a norm's rows side by side only where no view between has cut them or has put another axis in their place. */
static void norms_whose_rows_are_cut_keep_their_launch(void **state) {
    dw_context *context = *state;
    static const char cut[] = "graph c\n  symbol s 1..64\n  input x bf16[1,s,256]\n  input row i64[s]\n  input position i64[s]\n  param n bf16[64]\n  state keys bf16[2,3,32,64]\n  state values bf16[2,3,32,64]\n"
                              "  %1 = neg x\n  %2 = reshape %1 {shape=[1,s,4,64]}\n  %3 = rms_norm %2, n {eps=1e-6}\n  %4 = reshape %3 {shape=[1,s,256]}\n  %5 = slice %4 {axis=2,start=32,end=224,step=1}\n"
                              "  %6 = reshape %5 {shape=[1,s,3,64]}\n  %7 = transpose %6 {order=[0,2,1,3]}\n  %8 = slice %1 {axis=2,start=0,end=192,step=1}\n  %9 = reshape %8 {shape=[1,s,3,64]}\n"
                              "  %10 = transpose %9 {order=[0,2,1,3]}\n  %11, %12 = cache_update keys, values, %7, %10, row, position\n"
                              "  %13 = attention %10, %11, %12, -, -, -, row, position {scale=0.125,causal=true}\n  next keys %11\n  next values %12\n  output y %13\n";
    static const char across[] = "graph a\n  symbol s 1..64\n  input x bf16[1,s,64,64]\n  input row i64[s]\n  input position i64[s]\n  param n bf16[64]\n  state keys bf16[2,64,32,64]\n  state values bf16[2,64,32,64]\n"
                                 "  %1 = neg x\n  %2 = transpose %1 {order=[0,1,3,2]}\n  %3 = rms_norm %2, n {eps=1e-6}\n  %4 = transpose %3 {order=[0,3,1,2]}\n  %5 = transpose %1 {order=[0,2,1,3]}\n"
                                 "  %6, %7 = cache_update keys, values, %4, %5, row, position\n  %8 = attention %5, %6, %7, -, -, -, row, position {scale=0.125,causal=true}\n"
                                 "  next keys %6\n  next values %7\n  output y %8\n";
    static const char *const graphs[] = {cut, across};
    for (size_t i = 0; i < COUNT_OF(graphs); i++) {
        const chip_caps chip = chip_of(context, "h200");
        plan *made = plan_for_chip(context, graphs[i], &chip, NULL);
        plan_binding binding;
        ok(context, plan_binding_create(context, made, &binding));
        for (int64_t tokens = 1; tokens < 64; tokens += 39) {
            ok(context, plan_bind(&binding, &tokens));
            for (int k = made->load_count; k < made->step_count; k++)
                if (binding.calls[k].run.heads[0] != NULL || binding.calls[k].run.heads[1] != NULL) fail_msg("graph %zu, %lld tokens: step %d does the norm", i, (long long)tokens, k);
        }
        plan_binding_destroy(&binding);
        plan_destroy(made);
    }
}

/* The write of caches does the norms of keys and queries in front of it, and reads what they read, of one token and of many; not where rows have no power of two of pieces, where something else reads the
 * norm's result, where a caller's memory may begin anywhere, or where the norm has another kernel. */
static void norms_of_heads_are_done_by_the_write_of_caches(void **state) {
    dw_context *context = *state;
    static const char of_model[] = "graph h\n  symbol s 1..64\n  input x bf16[1,s,256]\n  input row i64[s]\n  input position i64[s]\n  input angle f32[s,32]\n  param w bf16[ALL,256]\n  param n bf16[WIDE]\n"
                                   "  state keys bf16[2,2,32,WIDE]\n  state values bf16[2,2,32,WIDE]\n  %1 = cos angle\n  %2 = sin angle\n  %3 = matmul x, w {bt=true}\n"
                                   "  %4 = slice %3 {axis=2,start=0,end=HALF,step=1}\n  %5 = reshape %4 {shape=[1,s,4,WIDE]}\n  %6 = rms_norm %5, n {eps=1e-6}\n  %7 = transpose %6 {order=[0,2,1,3]}\n"
                                   "  %8 = slice %3 {axis=2,start=HALF,end=NEXT,step=1}\n  %9 = reshape %8 {shape=[1,s,2,WIDE]}\n  %10 = rms_norm %9, n {eps=1e-6}\n  %11 = transpose %10 {order=[0,2,1,3]}\n"
                                   "  %12 = slice %3 {axis=2,start=NEXT,end=ALL,step=1}\n  %13 = reshape %12 {shape=[1,s,2,WIDE]}\n  %14 = transpose %13 {order=[0,2,1,3]}\n"
                                   "  %15, %16, %17 = cache_update keys, values, %11, %14, row, position, %1, %2, %7 {width=32}\n"
                                   "  %18 = attention %17, %15, %16, -, -, -, row, position {scale=0.125,causal=true}\n  next keys %15\n  next values %16\n  output y %18\n";
    static const struct { int wide; const char *more, *kernels; int64_t tokens; int launches, heads; } cases[] = {
        {64, "", NULL, 1, 7, 2}, {64, "", NULL, 40, 7, 2}, {48, "", NULL, 1, 9, 0}, {64, "  %19 = neg %6\n  output z %19\n", NULL, 1, 9, 1}, {64, "  output z %6\n", NULL, 1, 9, 0}, {64, "", "rms_norm=cuda_rms_norm", 1, 9, 0},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const chip_caps chip = chip_of(context, "h200");
        char graph[4096], *to = graph;
        const int wide = cases[i].wide;
        for (const char *from = of_model; *from != '\0';) {
            static const char *const names[] = {"WIDE", "HALF", "NEXT", "ALL"};
            const int numbers[] = {wide, 4 * wide, 6 * wide, 8 * wide};
            int k = 0;
            while (k < 4 && strncmp(from, names[k], strlen(names[k])) != 0) k++;
            if (k == 4) *to++ = *from++;
            else to += sprintf(to, "%d", numbers[k]), from += strlen(names[k]);
        }
        strcpy(to, cases[i].more);
        plan *made = plan_for_chip(context, graph, &chip, cases[i].kernels);
        plan_binding binding;
        int heads = 0;
        uint8_t *memory = (uint8_t *)(uintptr_t)4096;
        void *inputs[] = {memory, memory, memory, memory}, *outputs[] = {memory, memory}, *states[] = {memory, memory};
        ok(context, plan_binding_create(context, made, &binding));
        dw_tensor *constants = arena_new(&binding.arena, (size_t)made->value_count, sizeof *constants);
        assert_non_null(constants);
        ok(context, plan_bind(&binding, &(int64_t){64}));
        ok(context, plan_bind(&binding, &cases[i].tokens));
        const int launches = launches_of(context, made, &binding);
        plan_attach(&binding, &(plan_bases){.workspace = memory, .inputs = inputs, .outputs = outputs, .states = states, .constants = constants});
        for (int k = made->load_count; k < made->step_count; k++) {
            const kernel_run *run = &binding.calls[k].run;
            for (int which = 0; which < 2; which++) {
                if (run->heads[which] == NULL) continue;
                const dw_tensor *x = run->call.in[which == 0 ? UPDATE_KEYS : UPDATE_QUERIES];
                const plan_value *all = plan_value_of(ir_in(made->steps[k].node, UPDATE_VALUES))->root;
                heads++;
                assert_ptr_equal(x->data, (uint8_t *)binding.tensors[all->index].data + (which == 0 ? 4 * wide * 2 : 0));
                if (cases[i].tokens > 1) assert_int_equal(x->strides[2], 8 * wide);
                assert_int_equal(x->strides[1], wide);
                assert_true(all->last >= k);
            }
        }
        if (launches != cases[i].launches || heads != cases[i].heads) fail_msg("case %zu: %d launches, %d norms of heads", i, launches, heads);
        assert_apart(&binding, i);
        binding.holds_values = true;
        ok(context, plan_bind(&binding, &cases[i].tokens));
        for (int k = made->load_count; k < made->step_count; k++) assert_true(binding.calls[k].run.heads[0] == NULL && binding.calls[k].run.heads[1] == NULL && !binding.calls[k].run.passes);
        plan_binding_destroy(&binding);
        plan_destroy(made);
    }
}

/* Where outputs are wanted of all tokens that there are, nothing is launched to take them: who reads what is taken reads what it is taken of, which stays what it is for so long. */
static void what_is_taken_of_all_tokens_is_not_moved(void **state) {
    dw_context *context = *state;
    static const char graph[] = "graph t\n  symbol s 1..64\n  symbol e 1..64\n  input q bf16[1,2,s,64]\n  input r bf16[1,s,128]\n  input step.last i64[e]\n  input other i64[e]\n"
                                "  param w bf16[128,128]\n  %1 = neg r\n  %2 = attention q, q, q {scale=0.125,causal=true}\n  %3 = take %2, step.last {axis=2}\n"
                                "  %4 = transpose %3 {order=[0,2,1,3]}\n  %5 = reshape %4 {shape=[1,e,128]}\n  %6 = take %1, step.last {axis=1}\n  %7 = matmul %5, w, %6 {bt=true,post=\"add\"}\n"
                                "  %8 = exp %6\n  %9 = add %7, %8\n  %10 = take %1, other {axis=1}\n  %11 = add %9, %10\n  output y %11\n";
    static const struct { int64_t sizes[2]; int launches, taken; } cases[] = {{{4, 4}, 7, 2}, {{1, 1}, 7, 2}, {{8, 4}, 9, 0}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const chip_caps chip = chip_of(context, "h200");
        plan *made = plan_for_chip(context, graph, &chip, NULL);
        plan_binding binding;
        int taken = 0;
        uint8_t *memory = (uint8_t *)(uintptr_t)4096;
        void *inputs[] = {memory, memory, memory, memory}, *outputs[] = {memory};
        dw_tensor *constants;
        ok(context, plan_binding_create(context, made, &binding));
        constants = arena_new(&binding.arena, (size_t)made->value_count, sizeof *constants);
        assert_non_null(constants);
        ok(context, plan_bind(&binding, cases[i].sizes));
        const int launches = launches_of(context, made, &binding);
        plan_attach(&binding, &(plan_bases){.workspace = memory, .inputs = inputs, .outputs = outputs, .constants = constants});
        for (int k = made->load_count; k < made->step_count; k++) {
            if (!binding.calls[k].run.passes) continue;
            const ir_node *node = made->steps[k].node;
            const plan_value *source = plan_value_of(ir_in(node, 0)), *value = plan_value_of(ir_out(node));
            taken++;
            assert_ptr_equal(binding.tensors[value->index].data, binding.tensors[source->index].data);
            for (int j = k; j < made->step_count; j++)
                for (int n = 0; n < made->steps[j].node->n_in; n++) {
                    const plan_value *read = plan_value_of(ir_in(made->steps[j].node, n));
                    while (read->view) read = read->base;
                    if (read == value) assert_true(source->root->last >= j);
                    assert_true(made->steps[j].node->n_out == 0 || plan_value_of(ir_out(made->steps[j].node))->base != value);
                }
        }
        if (launches != cases[i].launches || taken != cases[i].taken) fail_msg("case %zu: %d launches, %d are taken", i, launches, taken);
        assert_apart(&binding, i);
        binding.holds_values = true;
        ok(context, plan_bind(&binding, cases[i].sizes));
        for (int k = made->load_count; k < made->step_count; k++) assert_false(binding.calls[k].run.passes);
        plan_binding_destroy(&binding);
        plan_destroy(made);
    }
}

/* A norm whose result is read in blocks and plain writes both, and its quantize launches nothing; with few rows the product quantises for itself, and where all values are looked at it launches. */
static void a_norm_writes_its_result_in_blocks_besides(void **state) {
    dw_context *context = *state;
    static const char graph[] = "graph n\n  symbol m 1..4096\n  input x bf16[m,1024]\n  param s bf16[1024]\n  param t bf16[1024]\n  param w fp8_128x128[1024,1024]\n"
                                "  %1 = layer_norm x, s, t {eps=1e-5}\n  %2 = quantize %1 {to=fp8_1x128}\n  %3 = matmul %2, w, %1 {bt=true,post=\"add\",to=bf16}\n  output y %3\n";
    static const struct { int64_t rows; int launches, both; } cases[] = {{1, 2, 0}, {128, 2, 1}, {4096, 2, 1}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const chip_caps chip = chip_of(context, "h200");
        plan *made = plan_for_chip(context, graph, &chip, NULL);
        plan_binding binding;
        int both = 0;
        ok(context, plan_binding_create(context, made, &binding));
        ok(context, plan_bind(&binding, &(int64_t){128}));
        ok(context, plan_bind(&binding, &cases[i].rows));
        for (int k = made->load_count; k < made->step_count; k++) both += binding.calls[k].run.quantises_beside && !binding.calls[k].run.passes;
        if (launches_of(context, made, &binding) != cases[i].launches || both != cases[i].both) fail_msg("%d rows: %d launches, %d norms that write both", (int)cases[i].rows, launches_of(context, made, &binding), both);
        uint8_t *memory = (uint8_t *)(uintptr_t)4096;
        void *inputs[] = {memory}, *outputs[] = {memory};
        dw_tensor *constants = arena_new(&binding.arena, (size_t)made->value_count, sizeof *constants);
        assert_non_null(constants);
        plan_attach(&binding, &(plan_bases){.workspace = memory, .inputs = inputs, .outputs = outputs, .constants = constants});
        for (int k = made->load_count; k < made->step_count; k++)
            if (cases[i].both && binding.calls[k].run.quantises_beside && !binding.calls[k].run.passes) assert_ptr_not_equal(binding.calls[k].out[0]->data, binding.calls[k].out[1]->data);
        for (int k = made->load_count; k < made->step_count; k++)
            if (made->steps[k].node->op == OP_quantize) assert_int_equal(plan_value_of(ir_out(made->steps[k].node))->first, made->load_count);
        assert_apart(&binding, i);
        binding.holds_values = true;
        ok(context, plan_bind(&binding, &cases[i].rows));
        assert_int_equal(launches_of(context, made, &binding), 3);
        plan_binding_destroy(&binding);
        plan_destroy(made);
    }
}

static const char GATED[] =
    "graph gated\n  symbol m 1..128\n  input x bf16[m,64]\n  param w bf16[64,64]\n  param b bf16[64]\n"
    "  %1 = matmul x, w, b {bt=true,post=\"bias,swiglu\"} at \"mlp.gate\"\n  output y %1\n";

/* cuBLASLt has no gates: asked for by name it runs the product, and one chain behind it the rest. By estimate nothing is split. */
static void post_steps_that_a_named_kernel_lacks_run_behind_it(void **state) {
    dw_context *context = *state;
    static const char *const asked[] = {"matmul=cuda_matmul_cublaslt", "matmul=cuda_matmul_wgmma", NULL};
    chip_caps chip = chip_of(context, "h200");
    chip.features |= CHIP_LIBRARIES;
    for (size_t i = 0; i < COUNT_OF(asked); i++) {
        ir_graph *graph;
        plan *made;
        ok(context, ir_parse(context, "text", GATED, strlen(GATED), NULL, &graph));
        ok(context, plan_compile(graph, &(plan_options){.chip = &chip, .kernels = asked[i]}, &made));
        ok(context, ir_check(made->graph));
        if (i == 0) {
            assert_string_equal(made->split, "  mlp.gate: post list \"swiglu\" runs behind cuda_matmul_cublaslt: of post lists it has bias, and behind it add, relu or gelu_tanh\n");
            assert_true(made->step_count > 1);
            assert_string_equal(made->steps[made->load_count].way->name, "cuda_matmul_cublaslt");
            assert_int_equal(made->steps[made->load_count].post.count, 1);    /* the bias */
            assert_int_equal(made->steps[made->step_count - 1].node->op, OP_chain);
        } else {
            assert_null(made->split);
            assert_int_equal(made->step_count, 1);
        }
        plan_destroy(made);
    }
}

static void assert_alive(const plan *plan) {
    for (int i = plan->load_count; i < plan->step_count; i++) {
        const ir_node *node = plan->steps[i].node;
        for (int k = 0; k < node->n_in; k++) {
            const plan_value *v = node->in[k].value ? plan_value_of(node->in[k].value) : NULL;
            while (v != NULL && v->base != NULL) v = v->base;
            if (v != NULL && has_place(v)) assert_true(v->first < i && v->last >= i);
        }
    }
}

static void values_that_are_alive_together_lie_apart(void **state) {
    dw_context *context = *state;
    const chip_caps chip = chip_of(context, "cpu-avx2");
    for (uint64_t seed = 100; seed < 160; seed++) {
        ir_graph *graph;
        plan_binding binding;
        plan_layout layout;
        arena arena;
        ok(context, random_graph(context, seed, 3, &graph));
        plan *made = plan_of(context, graph, &chip);
        arena_init(&arena, context);
        assert_alive(made);
        ok(context, plan_binding_create(context, made, &binding));
        for (int64_t s = 8; s >= 1; s -= 3) {
            ok(context, plan_bind(&binding, &s));
            assert_apart(&binding, seed);
        }
        ok(context, plan_layout_create(made, &arena, &layout));
        ok(context, plan_layout_widen_up_to(&layout, &(int64_t){8}));
        ok(context, plan_layout_place(&layout));
        binding.layout = &layout;
        for (int64_t s = 1; s <= 8; s++) {
            ok(context, plan_bind(&binding, &s));
            assert_apart(&binding, seed);
            assert_int_equal(binding.value_bytes, layout.value_bytes);   /* no size needs more than what is reserved */
        }
        plan_binding_destroy(&binding);
        arena_free(&arena);
        plan_destroy(made);
    }
}

/* A chain of n equal values needs two places, not n. */
static void memory_is_used_again(void **state) {
    dw_context *context = *state;
    const chip_caps chip = chip_of(context, "cpu-portable");
    plan_binding binding;
    text words;
    text_init(&words, context);
    text_add(&words, "graph g\n  input x f32[64,64]\n  %1 = cumsum x {axis=0}\n");
    for (int i = 2; i < 20; i++) text_printf(&words, "  %%%d = cumsum %%%d {axis=0}\n", i, i - 1);
    text_add(&words, "  output y %19\n");
    plan *made = plan_of_text(context, text_string(&words), &chip);
    ok(context, plan_binding_create(context, made, &binding));
    ok(context, plan_bind(&binding, &(int64_t){0}));
    assert_int_equal(binding.value_bytes, 2 * 64 * 64 * sizeof(float));
    plan_binding_destroy(&binding);
    plan_destroy(made);
    text_free(&words);
}

/* Sizes that go down where others go up: room is reserved for the largest each may be. */
static void a_value_that_shrinks_as_its_symbol_grows_has_room(void **state) {
    dw_context *context = *state;
    const chip_caps chip = chip_of(context, "cpu-portable");
    plan_binding binding;
    plan_layout layout;
    arena arena;
    plan *made = plan_of_text(context,
                              "graph g\n  symbol s 1..16\n  input x f32[s,64]\n  %1 = iota {start=0,step=1,length=16-s,to=i64}\n  %2 = cumsum %1 {axis=0}\n"
                              "  %3 = cumsum %2 {axis=0}\n  %4 = cumsum x {axis=0}\n  %5 = cumsum %4 {axis=0}\n  output y %5\n  output z %3\n",
                              &chip);
    arena_init(&arena, context);
    ok(context, plan_layout_create(made, &arena, &layout));
    ok(context, plan_layout_widen_up_to(&layout, &(int64_t){12}));
    ok(context, plan_layout_place(&layout));
    ok(context, plan_binding_create(context, made, &binding));
    binding.layout = &layout;
    for (int64_t s = 1; s <= 12; s++) {
        ok(context, plan_bind(&binding, &s));
        assert_apart(&binding, 0);
        assert_int_equal(binding.value_bytes, layout.value_bytes);
    }
    plan_binding_destroy(&binding);
    arena_free(&arena);
    plan_destroy(made);
}

static dw_status compile_and_bind(dw_context *context, void *argument) {
    chip_caps chip;
    ir_graph *graph;
    plan *made;
    plan_binding binding;
    TRY(chip_find(context, argument, 0, &chip));
    TRY(ir_parse(context, "text", SMALL, strlen(SMALL), NULL, &graph));
    TRY(plan_compile(graph, &(plan_options){.chip = &chip, .dims = "s=3"}, &made));
    dw_status status = plan_binding_create(context, made, &binding);
    if (status == DW_OK) {
        status = plan_bind(&binding, made->typical);
        plan_binding_destroy(&binding);
    }
    plan_destroy(made);
    return status;
}

static void every_allocation_of_planning_may_fail(void **state) {
    (void)state;
    test_every_allocation(compile_and_bind, "cpu-avx2");
}

static int setup(void **state) { return dw_context_create(NULL, (dw_context **)state) == DW_OK ? 0 : -1; }

static int teardown(void **state) {
    dw_context_destroy(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_plan_survives_its_text, setup, teardown),
        cmocka_unit_test_setup_teardown(a_wrong_plan_is_refused_with_its_cause, setup, teardown),
        cmocka_unit_test_setup_teardown(kernels_that_are_asked_for_are_taken_or_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_kernel_by_name_runs_at_all_sizes_or_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(an_invariant_plan_takes_no_library, setup, teardown),
        cmocka_unit_test_setup_teardown(post_steps_that_a_named_kernel_lacks_run_behind_it, setup, teardown),
        cmocka_unit_test_setup_teardown(workspace_of_the_largest_sizes_serves_smaller_ones, setup, teardown),
        cmocka_unit_test_setup_teardown(a_way_is_picked_when_sizes_are_known, setup, teardown),
        cmocka_unit_test_setup_teardown(few_rows_are_quantised_by_the_product, setup, teardown),
        cmocka_unit_test_setup_teardown(few_rows_are_normalised_by_the_product, setup, teardown),
        cmocka_unit_test_setup_teardown(norms_of_heads_are_done_by_the_write_of_caches, setup, teardown),
        cmocka_unit_test_setup_teardown(norms_whose_rows_are_cut_keep_their_launch, setup, teardown),
        cmocka_unit_test_setup_teardown(scratch_is_largest_at_an_end, setup, teardown),
        cmocka_unit_test_setup_teardown(a_norm_writes_its_result_in_blocks_besides, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_taken_of_all_tokens_is_not_moved, setup, teardown),
        cmocka_unit_test_setup_teardown(values_that_are_alive_together_lie_apart, setup, teardown),
        cmocka_unit_test_setup_teardown(memory_is_used_again, setup, teardown),
        cmocka_unit_test_setup_teardown(a_value_that_shrinks_as_its_symbol_grows_has_room, setup, teardown),
        cmocka_unit_test(every_allocation_of_planning_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
