/* Plans: their text form, what it refuses, the sizes that they are made for, and memory in which values that live at the same time lie apart. */
#include "support/support.h"

#include <string.h>

#include "plan/plan.h"
#include "support/plans.h"
#include "support/random_graph.h"

static plan *plan_of(dw_context *context, ir_graph *graph, const chip_caps *chip) {
    plan *made;
    plans_ok(context, plan_compile(graph, &(plan_options){.chip = chip, .precision = "as exported", .dims = NULL}, &made));
    return made;
}

static plan *plan_of_text(dw_context *context, const char *text, const chip_caps *chip) {
    ir_graph *graph;
    plans_ok(context, ir_parse(context, "text", text, strlen(text), NULL, &graph));
    return plan_of(context, graph, chip);
}

/* ---- text ---- */

static void a_plan_survives_its_text(void **state) {
    dw_context *context = *state;
    static const char *const chips[] = {"cpu-portable", "cpu-avx2", "cpu-avx512bf16"};
    for (uint64_t seed = 0; seed < 60; seed++) {
        const chip_caps chip = plans_chip(context, chips[seed % COUNT_OF(chips)]);
        ir_graph *graph;
        plan *again;
        text first, second;
        plans_ok(context, random_graph(context, seed, 3, &graph));
        plan *made = plan_of(context, graph, &chip);
        text_init(&first, context);
        text_init(&second, context);
        plans_ok(context, plan_print(made, &first));
        plans_ok(context, plan_parse(context, "plan", text_string(&first), first.length, NULL, &chip, NULL, &again));
        plans_ok(context, plan_print(again, &second));
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
    const chip_caps chip = plans_chip(context, "cpu-avx2");
    plan *made = plan_of_text(context, SMALL, &chip), *none;
    text right;
    text_init(&right, context);
    plans_ok(context, plan_print(made, &right));
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
    const chip_caps other = plans_chip(context, "cpu-portable");
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
    const chip_caps chip = plans_chip(context, "cpu-avx2");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        ir_graph *graph;
        plan *made;
        plans_ok(context, ir_parse(context, "text", SMALL, strlen(SMALL), NULL, &graph));
        dw_status status = plan_compile(graph, &(plan_options){.chip = &chip, .kernels = cases[i].kernels}, &made);
        if (cases[i].status != DW_OK) test_assert_fails(context, status, cases[i].status, cases[i].message);
        else plans_ok(context, status);
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
    chip_caps chip = plans_chip(context, "h200");
    chip.features |= UINT64_C(1) << CHIP_cublaslt;
    for (int i = 0; i < 3; i++) {
        const bool is_invariant = i > 0, is_asked = i != 1;
        ir_graph *graph;
        plan *made;
        plans_ok(context, ir_parse(context, "text", PRODUCTS, strlen(PRODUCTS), NULL, &graph));
        dw_status status = plan_compile(graph, &(plan_options){.chip = &chip, .invariant = is_invariant, .kernels = is_asked ? "matmul=cuda_matmul_cublaslt" : NULL}, &made);
        if (is_invariant && is_asked) {
            test_assert_fails(context, status, DW_UNSUPPORTED, "matmul: kernel 'cuda_matmul_cublaslt' cannot run this: how it divides a row's sums follows from how many rows there are, and the plan is invariant (op %");
            continue;
        }
        plans_ok(context, status);
        for (int k = made->load_count; k < made->step_count; k++)
            if (made->steps[k].node->op == OP_matmul) assert_int_equal(strcmp(made->steps[k].picked->name, "cuda_matmul_cublaslt") == 0, is_asked);
        plan_destroy(made);
    }
}

/* On a GPU rows may leave sizes to the kernels of others; one that was asked for by name does not, and the plan's text says so. */
static void a_kernel_by_name_runs_at_all_sizes_or_is_refused(void **state) {
    dw_context *context = *state;
    const chip_caps chip = plans_chip(context, "h200");
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
        plans_ok(context, ir_parse(context, "text", PRODUCTS, strlen(PRODUCTS), NULL, &graph));
        dw_status status = plan_compile(graph, &(plan_options){.chip = &chip, .kernels = cases[i].kernels}, &made);
        if (cases[i].error != NULL) {
            assert_int_not_equal(status, DW_OK);
            if (strstr(dw_context_error(context), cases[i].error) == NULL) fail_msg("%s", dw_context_error(context));
            continue;
        }
        plans_ok(context, status);
        text_init(&first, context);
        text_init(&second, context);
        plans_ok(context, plan_print(made, &first));
        assert_non_null(strstr(text_string(&first), " way cuda_matmul_"));
        plans_ok(context, plan_parse(context, "plan", text_string(&first), first.length, NULL, &chip, NULL, &again));
        plans_ok(context, plan_print(again, &second));
        assert_string_equal(text_string(&first), text_string(&second));
        plan_binding binding;
        plans_ok(context, plan_binding_create(context, again, &binding));
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
    plans_ok(context, plan_binding_create(context, plan, &binding));
    plans_ok(context, plan_bind(&binding, symbols));
    const dw_status status = kernel_pick(step->row, &binding.calls[plan->step_count - 1].run, &way);
    plan_binding_destroy(&binding);
    return status == DW_OK ? way->name : dw_context_error(context);
}

/* One plan serves all sizes; which kernel runs is picked when they are known. The decoding attention multiplies by mma.sync, which Blackwell has, too. */
static void a_way_is_picked_when_sizes_are_known(void **state) {
    dw_context *context = *state;
    static const char attend[] =
        "graph a\n  symbol s 1..512\n  symbol t 1..8192\n  input q bf16[1,8,s,64]\n  input k bf16[1,2,t,64]\n  %1 = attention q, k, k {scale=0.125}\n  output y %1\n";
    static const char latent[] =
        "graph l\n  symbol s 1..512\n  symbol t 1..8192\n  input q bf16[1,128,s,576]\n  input k bf16[1,1,t,576]\n  %1 = slice k {axis=3,start=0,end=512,step=1}\n  %2 = attention q, k, %1 {scale=0.04}\n  output y %2\n";
    static const char multiply[] = "graph m\n  symbol m 1..8192\n  symbol u 1..2\n  input x bf16[m,4096]\n  input z f32[u]\n  param w bf16[4096,4096]\n  %1 = matmul x, w {bt=true}\n  output y %1\n";
    static const struct { const char *graph, *chip; int64_t sizes[2]; const char *kernels, *runs; } cases[] = {
        {attend, "h200", {1, 8192}, NULL, "cuda_attention_decode"},
        {attend, "h200", {512, 512}, NULL, "cuda_attention_wgmma"},
        {attend, "h200", {1, 8192}, "attention=cuda_attention_wgmma", "cuda_attention_wgmma"},
        {attend, "h200", {512, 512}, "attention=cuda_attention_decode", "cuda_attention_decode"},
        {attend, "b200", {1, 8192}, NULL, "cuda_attention_decode"},
        {attend, "b200", {512, 512}, NULL, "cuda_attention_tcgen05"},
        {attend, "rtx5090", {1, 8192}, NULL, "cuda_attention_decode"},       /* by a ring of its own, as there are 99 KB */
        {latent, "h200", {1, 8192}, NULL, "cuda_attention_latent"},          /* one step: the slice is a view */
        {latent, "h200", {512, 512}, NULL, "cuda_attention_latent"},
        {latent, "b200", {1, 8192}, NULL, "cuda_attention_latent"},
        {latent, "rtx5090", {1, 8192}, NULL, "cuda_attention_latent"},
        {latent, "h200", {1, 8192}, "attention=cuda_attention_plain", "cuda_attention_plain"},
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
        const chip_caps chip = plans_chip(context, cases[i].chip);
        plan *made = plans_compile(context, cases[i].graph, &chip, cases[i].kernels);
        const char *runs = runs_as(context, made, cases[i].sizes);
        if (strstr(runs, cases[i].runs) == NULL) fail_msg("case %zu: %s", i, runs);
        plan_destroy(made);
    }
}

/* What a smaller number of rows takes behind its kernel has room in what the largest reserve, and a kernel that writes blocks itself needs none for more rows. */
static void workspace_of_the_largest_sizes_serves_smaller_ones(void **state) {
    dw_context *context = *state;
    static const char words[] = "graph m\n  symbol m 1..8192\n  input x fp8_1x128[m,4096]\n  param w fp8_128x128[4096,4096]\n  %1 = matmul x, w {bt=true,to=fp8_1x128}\n  output y %1\n";
    const chip_caps chip = plans_chip(context, "h200");
    plan *made = plans_compile(context, words, &chip, NULL);
    plan_binding binding;
    size_t most = 0;
    plans_ok(context, plan_binding_create(context, made, &binding));
    for (int64_t m = 1; m <= 8192; m = m < 700 ? m + 37 : 2 * m) {
        plans_ok(context, plan_bind(&binding, &m));
        plan_size_scratch(&binding, NULL, NULL);
        if (binding.scratch_bytes > most) most = binding.scratch_bytes;
    }
    const int64_t largest = 8192;
    plans_ok(context, plan_bind(&binding, &largest));
    plan_size_scratch(&binding, NULL, NULL);
    assert_int_equal(binding.scratch_bytes, most);
    assert_true(most > 0 && most <= (size_t)132 * 128 * 128 * 4 + 64 * 4096 * 4 + 4096);   /* parts of 64 rows by all multiprocessors, and their plain result */
    plan_binding_destroy(&binding);
    plan_destroy(made);
}

/* The same of columns: k is divided among blocks where they are few. */
static void workspace_of_the_most_columns_serves_fewer(void **state) {
    dw_context *context = *state;
    static const char words[] = "graph m\n  symbol n 1..40000\n  input x fp8_row[32,4096]\n  input w fp8_row[n,4096]\n  %1 = matmul x, w {bt=true,to=bf16}\n  output y %1\n";
    const chip_caps chip = plans_chip(context, "h200");
    plan *made = plans_compile(context, words, &chip, NULL);
    plan_binding binding;
    size_t at_ends = 0;
    static const int64_t ends[] = {1, 40000};
    plans_ok(context, plan_binding_create(context, made, &binding));
    for (size_t i = 0; i < COUNT_OF(ends); i++) {
        plans_ok(context, plan_bind(&binding, &ends[i]));
        plan_size_scratch(&binding, NULL, NULL);
        if (binding.scratch_bytes > at_ends) at_ends = binding.scratch_bytes;
    }
    for (int64_t n = 1; n <= 40000; n += n < 2000 ? 111 : 3001) {
        plans_ok(context, plan_bind(&binding, &n));
        plan_size_scratch(&binding, NULL, NULL);
        if (binding.scratch_bytes > at_ends) fail_msg("n = %lld takes %zu bytes, and the ends of its range %zu", (long long)n, binding.scratch_bytes, at_ends);
    }
    plan_binding_destroy(&binding);
    plan_destroy(made);
}

static const char GATED[] =
    "graph gated\n  symbol m 1..128\n  input x bf16[m,64]\n  param w bf16[64,64]\n  param b bf16[64]\n"
    "  %1 = matmul x, w, b {bt=true,post=\"bias,swiglu\"} at \"mlp.gate\"\n  output y %1\n";

/* cuBLASLt has no gates: asked for by name it runs the product, and one chain behind it the rest. By estimate nothing is split. */
static void post_steps_that_a_named_kernel_lacks_run_behind_it(void **state) {
    dw_context *context = *state;
    static const char *const asked[] = {"matmul=cuda_matmul_cublaslt", "matmul=cuda_matmul_wgmma", NULL};
    chip_caps chip = plans_chip(context, "h200");
    chip.features |= CHIP_LIBRARIES;
    for (size_t i = 0; i < COUNT_OF(asked); i++) {
        ir_graph *graph;
        plan *made;
        plans_ok(context, ir_parse(context, "text", GATED, strlen(GATED), NULL, &graph));
        plans_ok(context, plan_compile(graph, &(plan_options){.chip = &chip, .kernels = asked[i]}, &made));
        plans_ok(context, ir_check(made->graph));
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

/* Every value is made before it is read, and its memory is alive from the one to the other, views and takeovers included. */
static void assert_alive(const plan *plan) {
    for (int i = plan->load_count; i < plan->step_count; i++) {
        const ir_node *node = plan->steps[i].node;
        for (int k = 0; k < node->n_in; k++) {
            const plan_value *v = node->in[k].value ? plan_value_of(node->in[k].value) : NULL;
            while (v != NULL && v->base != NULL) v = v->base;
            if (v != NULL && plans_has_place(v)) assert_true(v->first < i && v->last >= i);
        }
    }
}

static void values_that_are_alive_together_lie_apart(void **state) {
    dw_context *context = *state;
    const chip_caps chip = plans_chip(context, "cpu-avx2");
    for (uint64_t seed = 100; seed < 160; seed++) {
        ir_graph *graph;
        plan_binding binding;
        plan_layout layout;
        arena arena;
        plans_ok(context, random_graph(context, seed, 3, &graph));
        plan *made = plan_of(context, graph, &chip);
        arena_init(&arena, context);
        assert_alive(made);
        plans_ok(context, plan_binding_create(context, made, &binding));
        for (int64_t s = 8; s >= 1; s -= 3) {
            plans_ok(context, plan_bind(&binding, &s));
            plans_assert_apart(&binding, seed);
        }
        plans_ok(context, plan_layout_create(made, &arena, &layout));
        plans_ok(context, plan_layout_widen_up_to(&layout, &(int64_t){8}));
        plans_ok(context, plan_layout_place(&layout));
        binding.layout = &layout;
        for (int64_t s = 1; s <= 8; s++) {
            plans_ok(context, plan_bind(&binding, &s));
            plans_assert_apart(&binding, seed);
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
    const chip_caps chip = plans_chip(context, "cpu-portable");
    plan_binding binding;
    text words;
    text_init(&words, context);
    text_add(&words, "graph g\n  input x f32[64,64]\n  %1 = cumsum x {axis=0}\n");
    for (int i = 2; i < 20; i++) text_printf(&words, "  %%%d = cumsum %%%d {axis=0}\n", i, i - 1);
    text_add(&words, "  output y %19\n");
    plan *made = plan_of_text(context, text_string(&words), &chip);
    plans_ok(context, plan_binding_create(context, made, &binding));
    plans_ok(context, plan_bind(&binding, &(int64_t){0}));
    assert_int_equal(binding.value_bytes, 2 * 64 * 64 * sizeof(float));
    plan_binding_destroy(&binding);
    plan_destroy(made);
    text_free(&words);
}

/* Sizes that go down where others go up: room is reserved for the largest each may be. */
static void a_value_that_shrinks_as_its_symbol_grows_has_room(void **state) {
    dw_context *context = *state;
    const chip_caps chip = plans_chip(context, "cpu-portable");
    plan_binding binding;
    plan_layout layout;
    arena arena;
    plan *made = plan_of_text(context,
                              "graph g\n  symbol s 1..16\n  input x f32[s,64]\n  %1 = iota {start=0,step=1,length=16-s,to=i64}\n  %2 = cumsum %1 {axis=0}\n"
                              "  %3 = cumsum %2 {axis=0}\n  %4 = cumsum x {axis=0}\n  %5 = cumsum %4 {axis=0}\n  output y %5\n  output z %3\n",
                              &chip);
    arena_init(&arena, context);
    plans_ok(context, plan_layout_create(made, &arena, &layout));
    plans_ok(context, plan_layout_widen_up_to(&layout, &(int64_t){12}));
    plans_ok(context, plan_layout_place(&layout));
    plans_ok(context, plan_binding_create(context, made, &binding));
    binding.layout = &layout;
    for (int64_t s = 1; s <= 12; s++) {
        plans_ok(context, plan_bind(&binding, &s));
        plans_assert_apart(&binding, 0);
        assert_int_equal(binding.value_bytes, layout.value_bytes);
    }
    plan_binding_destroy(&binding);
    arena_free(&arena);
    plan_destroy(made);
}

/* ---- typical sizes ---- */

#define TEXTS "  symbol b 1..\n  symbol s 1..4096\n  input x f32[b,s,4]\n  %1 = exp x\n  output y %1\n"
#define SQUARE "  symbol b 1..\n  symbol s 1..\n  input x f32[b,s,4]\n  input m f32[s,s]\n  %1 = exp x\n  %2 = exp m\n  output y %1\n  output z %2\n"
#define LABELS "  symbol b 1..\n  symbol s 1..\n  input x f32[b,s,4]\n  input m f32[b]\n  %1 = exp x\n  %2 = exp m\n  output y %1\n  output z %2\n"
#define SOUND "  symbol b 1..\n  symbol s 1..\n  input m f32[s]\n  input x f32[b,3]\n  %1 = exp x\n  %2 = exp m\n  output y %1\n  output z %2\n"
#define EIGHTS "  symbol b 1..\n  symbol s 1..\n  input x f32[b,8*s,4]\n  %1 = exp x\n  output y %1\n"
#define STEP "  symbol s 1..\n  symbol e 1..\n  symbol cache_max 1..\n  input step.row i64[s]\n  input given.0 f32[2,e,4]\n  input k f32[2,cache_max,4]\n  %1 = exp given.0\n  %2 = exp k\n  %3 = neg step.row\n  output y %1\n  output z %2\n  output w %3\n"

static void plans_are_for_the_size_of_a_long_example(void **state) {
    dw_context *context = *state;
    const chip_caps chip = plans_chip(context, "cpu-portable");
    static const struct { const char *note, *graph, *dims, *typical; } cases[] = {
        {NULL, TEXTS, NULL, "b=1,s=128"},
        {"b=300,s=512", TEXTS, NULL, "b=1,s=512"},
        {"b=300,s=512", TEXTS, "b=2,s=7", "b=2,s=7"},
        {"b=300,s=512", TEXTS, "b=2", "b=2,s=512"},
        {"s=21", TEXTS, NULL, "b=1,s=128"},         /* a short one says nothing of what comes */
        {"s=128", TEXTS, NULL, "b=1,s=128"},
        {"s=129", TEXTS, NULL, "b=1,s=129"},
        {"s=100000", TEXTS, NULL, "b=1,s=4096"},
        {"t=700,ss=700,s0=700,s=512", TEXTS, NULL, "b=1,s=512"},
        {"t=700", TEXTS, NULL, "b=1,s=128"},
        {",,=3,s=512", TEXTS, NULL, "b=1,s=512"},
        {"s=512,s=700", TEXTS, NULL, "b=1,s=512"},
        {"", TEXTS, NULL, "b=1,s=128"},
        {"s", TEXTS, NULL, "b=1,s=128"},
        {"s=", TEXTS, NULL, "b=1,s=128"},
        {"s=512x", TEXTS, NULL, "b=1,s=128"},
        {"s = 512", TEXTS, NULL, "b=1,s=128"},
        {"s=-512", TEXTS, NULL, "b=1,s=128"},
        {"s=99999999999999999999", TEXTS, NULL, "b=1,s=128"},
        {"s=4611686018427387904", LABELS, NULL, "b=1,s=4611686018427387904"},
        {"b=300,s=512", SQUARE, NULL, "b=1,s=512"},  /* an axis that leads one input and follows in another */
        {NULL, SQUARE, NULL, "b=1,s=1"},
        {"b=300,s=512", LABELS, NULL, "b=1,s=512"},
        {"b=300,s=512", SOUND, NULL, "b=1,s=512"},
        {"b=300,s=512", EIGHTS, NULL, "b=1,s=512"},
        {"s=4096,e=1500,cache_max=9000", STEP, NULL, "s=128,e=1500,cache_max=128"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char source[1024], expected[96];
        ir_graph *graph;
        plan *made;
        text printed;
        const char *note = cases[i].note;
        snprintf(source, sizeof source, "graph g\n%s%s%s%s", note ? "  note example \"" : "", note ? note : "", note ? "\"\n" : "", cases[i].graph);
        plans_ok(context, ir_parse(context, "text", source, strlen(source), NULL, &graph));
        plans_ok(context, plan_compile(graph, &(plan_options){.chip = &chip, .precision = "as exported", .dims = cases[i].dims}, &made));
        text_init(&printed, context);
        plans_ok(context, plan_print(made, &printed));
        snprintf(expected, sizeof expected, "  typical   \"%s\"\n", cases[i].typical);
        if (strstr(text_string(&printed), expected) == NULL) fail_msg("\"%s\": the plan is for\n%s", note ? note : "", text_string(&printed));
        assert_null(strstr(text_string(&printed), "note"));     /* ranks with other examples have the same plan */
        text_free(&printed);
        plan_destroy(made);
    }
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
        cmocka_unit_test_setup_teardown(workspace_of_the_most_columns_serves_fewer, setup, teardown),
        cmocka_unit_test_setup_teardown(a_way_is_picked_when_sizes_are_known, setup, teardown),
        cmocka_unit_test_setup_teardown(values_that_are_alive_together_lie_apart, setup, teardown),
        cmocka_unit_test_setup_teardown(memory_is_used_again, setup, teardown),
        cmocka_unit_test_setup_teardown(a_value_that_shrinks_as_its_symbol_grows_has_room, setup, teardown),
        cmocka_unit_test_setup_teardown(plans_are_for_the_size_of_a_long_example, setup, teardown),
        cmocka_unit_test(every_allocation_of_planning_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
