/* Values that stay what they are made of (src/plan/plain.c): what products and writes of caches do of the steps in front of them, what is not moved, and what scratch that takes. */
#include "support/support.h"

#include <string.h>

#include "plan/plan.h"
#include "support/plans.h"

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
    static const char narrow[] = "graph n\n  symbol m 1..4096\n  input x bf16[m,2048]\n  param w nvfp4[2048,2048]\n  %1 = neg x\n  %2 = quantize %1 {to=nvfp4_row,search=true}\n  %3 = matmul %2, w {bt=true,to=bf16}\n  output y %3\n";
    static const struct { const char *graph, *chip; int64_t rows; int launches, quantising; } cases[] = {
        {narrow, "h200", 16, 3, 1}, {narrow, "h200", 64, 3, 1}, {narrow, "h200", 65, 5, 0},
        {behind, "h200", 1, 2, 1},  {behind, "h200", 2, 4, 0}, {behind, "h200", 64, 3, 0}, {behind, "h200", 4096, 2, 0}, {behind, "b200", 2, 2, 1},
        {alone, "h200", 1, 3, 1},   {alone, "h200", 64, 4, 0}, {twice, "h200", 1, 3, 0},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const chip_caps chip = plans_chip(context, cases[i].chip);
        plan *made = plans_compile(context, cases[i].graph, &chip, NULL);
        plan_binding binding;
        plan_layout layout;
        const int64_t most = 4096;
        int quantising = 0;
        arena arena;
        arena_init(&arena, context);
        plans_ok(context, plan_layout_create(made, &arena, &layout));
        plans_ok(context, plan_layout_widen_up_to(&layout, &most));
        plans_ok(context, plan_layout_place(&layout));
        plans_ok(context, plan_binding_create(context, made, &binding));
        binding.layout = &layout;
        plans_ok(context, plan_bind(&binding, &most));             /* what other sizes leave behind does not count */
        plans_ok(context, plan_bind(&binding, &cases[i].rows));
        for (int k = made->load_count; k < made->step_count; k++) quantising += binding.calls[k].run.quantises;
        if (plans_launches(context, made, &binding) != cases[i].launches || quantising != cases[i].quantising)
            fail_msg("case %zu: %d launches, %d products that quantise", i, plans_launches(context, made, &binding), quantising);
        assert_int_equal(binding.value_bytes, layout.value_bytes);   /* what the largest sizes reserve serves these */
        plans_assert_apart(&binding, i);
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
    static const char narrow[] = "graph n\n  symbol m 1..4096\n  input x bf16[m,2048]\n  param s bf16[2048]\n  param w nvfp4[3072,2048]\n  %1 = rms_norm x, s {eps=1e-5,to=nvfp4_row,search=true}\n"
                                 "  %2 = matmul %1, w {bt=true,to=bf16}\n  output y %2\n";
    static const struct { const char *graph, *chip, *kernels; int64_t rows; int launches, norms; } cases[] = {
        {narrow, "h200", NULL, 16, 2, 1}, {narrow, "h200", NULL, 64, 2, 1},
        {plain, "h200", NULL, 1, 2, 1},    {plain, "h200", NULL, 64, 3, 0},    {plain, "h200", "rms_norm=cuda_rms_norm", 1, 3, 0},    {blocks, "h200", NULL, 1, 1, 1},
        {blocks, "h200", NULL, 64, 2, 0}, {floats, "b200", NULL, 1, 1, 1}, {twice, "h200", NULL, 1, 3, 0}, {residual, "h200", NULL, 1, 2, 0}, {floats, "h200", NULL, 1, 1, 1}, {floats, "h200", NULL, 4, 3, 0},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const chip_caps chip = plans_chip(context, cases[i].chip);
        plan *made = plans_compile(context, cases[i].graph, &chip, cases[i].kernels);
        plan_binding binding;
        int norms = 0;
        plans_ok(context, plan_binding_create(context, made, &binding));
        plans_ok(context, plan_bind(&binding, &(int64_t){4096}));
        plans_ok(context, plan_bind(&binding, &cases[i].rows));
        for (int k = made->load_count; k < made->step_count; k++) norms += binding.calls[k].run.norm != NULL;
        if (plans_launches(context, made, &binding) != cases[i].launches || norms != cases[i].norms)
            fail_msg("case %zu: %d launches, %d products that normalise", i, plans_launches(context, made, &binding), norms);
        plans_assert_apart(&binding, i);
        binding.holds_values = true;             /* who looks at every value finds the norm's */
        plans_ok(context, plan_bind(&binding, &cases[i].rows));
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
        const chip_caps chip = plans_chip(context, chips[i % COUNT_OF(chips)]);
        plan *made = plans_compile(context, graphs[i / COUNT_OF(chips)], &chip, NULL);
        plan_binding binding;
        size_t most = 0;
        plans_ok(context, plan_binding_create(context, made, &binding));
        for (size_t k = 0; k < COUNT_OF(rows); k++) {
            plans_ok(context, plan_bind(&binding, &rows[k]));
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
        const chip_caps chip = plans_chip(context, "h200");
        plan *made = plans_compile(context, graphs[i], &chip, NULL);
        plan_binding binding;
        plans_ok(context, plan_binding_create(context, made, &binding));
        for (int64_t tokens = 1; tokens < 64; tokens += 39) {
            plans_ok(context, plan_bind(&binding, &tokens));
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
        const chip_caps chip = plans_chip(context, "h200");
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
        plan *made = plans_compile(context, graph, &chip, cases[i].kernels);
        plan_binding binding;
        int heads = 0;
        uint8_t *memory = (uint8_t *)(uintptr_t)4096;
        void *inputs[] = {memory, memory, memory, memory}, *outputs[] = {memory, memory}, *states[] = {memory, memory};
        plans_ok(context, plan_binding_create(context, made, &binding));
        dw_tensor *constants = arena_new(&binding.arena, (size_t)made->value_count, sizeof *constants);
        assert_non_null(constants);
        plans_ok(context, plan_bind(&binding, &(int64_t){64}));
        plans_ok(context, plan_bind(&binding, &cases[i].tokens));
        const int launches = plans_launches(context, made, &binding);
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
        plans_assert_apart(&binding, i);
        binding.holds_values = true;
        plans_ok(context, plan_bind(&binding, &cases[i].tokens));
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
        const chip_caps chip = plans_chip(context, "h200");
        plan *made = plans_compile(context, graph, &chip, NULL);
        plan_binding binding;
        int taken = 0;
        uint8_t *memory = (uint8_t *)(uintptr_t)4096;
        void *inputs[] = {memory, memory, memory, memory}, *outputs[] = {memory};
        dw_tensor *constants;
        plans_ok(context, plan_binding_create(context, made, &binding));
        constants = arena_new(&binding.arena, (size_t)made->value_count, sizeof *constants);
        assert_non_null(constants);
        plans_ok(context, plan_bind(&binding, cases[i].sizes));
        const int launches = plans_launches(context, made, &binding);
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
        plans_assert_apart(&binding, i);
        binding.holds_values = true;
        plans_ok(context, plan_bind(&binding, cases[i].sizes));
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
        const chip_caps chip = plans_chip(context, "h200");
        plan *made = plans_compile(context, graph, &chip, NULL);
        plan_binding binding;
        int both = 0;
        plans_ok(context, plan_binding_create(context, made, &binding));
        plans_ok(context, plan_bind(&binding, &(int64_t){128}));
        plans_ok(context, plan_bind(&binding, &cases[i].rows));
        for (int k = made->load_count; k < made->step_count; k++) both += binding.calls[k].run.quantises_beside && !binding.calls[k].run.passes;
        if (plans_launches(context, made, &binding) != cases[i].launches || both != cases[i].both) fail_msg("%d rows: %d launches, %d norms that write both", (int)cases[i].rows, plans_launches(context, made, &binding), both);
        uint8_t *memory = (uint8_t *)(uintptr_t)4096;
        void *inputs[] = {memory}, *outputs[] = {memory};
        dw_tensor *constants = arena_new(&binding.arena, (size_t)made->value_count, sizeof *constants);
        assert_non_null(constants);
        plan_attach(&binding, &(plan_bases){.workspace = memory, .inputs = inputs, .outputs = outputs, .constants = constants});
        for (int k = made->load_count; k < made->step_count; k++)
            if (cases[i].both && binding.calls[k].run.quantises_beside && !binding.calls[k].run.passes) assert_ptr_not_equal(binding.calls[k].out[0]->data, binding.calls[k].out[1]->data);
        for (int k = made->load_count; k < made->step_count; k++)
            if (made->steps[k].node->op == OP_quantize) assert_int_equal(plan_value_of(ir_out(made->steps[k].node))->first, made->load_count);
        plans_assert_apart(&binding, i);
        binding.holds_values = true;
        plans_ok(context, plan_bind(&binding, &cases[i].rows));
        assert_int_equal(plans_launches(context, made, &binding), 3);
        plan_binding_destroy(&binding);
        plan_destroy(made);
    }
}

/* Attention writes a token alone whose keys, values and queries it alone reads, and what these are made of lives till then; several tokens, more heads to a key than a tile has rows, others' readers and
 * places that are no inputs keep the launch in front. */
static void attention_writes_a_token_alone(void **state) {
    dw_context *context = *state;
    static const char turned[] = "graph t\n  symbol s 1..64\n  input x bf16[1,s,256]\n  input row i64[s]\n  input position i64[s]\n  input angle f32[s,64]\n  param w bf16[512,256]\n  state keys bf16[2,2,2048,64]\n"
                                 "  state values bf16[2,2,2048,64]\n  %1 = cos angle\n  %2 = sin angle\n  %3 = matmul x, w {bt=true}\n  %4 = slice %3 {axis=2,start=0,end=256,step=1}\n  %5 = reshape %4 {shape=[1,s,4,64]}\n"
                                 "  %6 = transpose %5 {order=[0,2,1,3]}\n  %7 = slice %3 {axis=2,start=256,end=384,step=1}\n  %8 = reshape %7 {shape=[1,s,2,64]}\n  %9 = transpose %8 {order=[0,2,1,3]}\n"
                                 "  %10 = slice %3 {axis=2,start=384,end=512,step=1}\n  %11 = reshape %10 {shape=[1,s,2,64]}\n  %12 = transpose %11 {order=[0,2,1,3]}\n"
                                 "  %13, %14, %15 = cache_update keys, values, %9, %12, row, position, %1, %2, %6 {width=64}\n"
                                 "  %16 = attention %15, %13, %14, -, -, -, row, position {scale=0.125,causal=true}\n  next keys %13\n  next values %14\n  output y %16\n";
    static const char many[] = "graph m\n  symbol s 1..64\n  input x bf16[1,s,1280]\n  input row i64[s]\n  input position i64[s]\n  state keys bf16[2,1,2048,64]\n  state values bf16[2,1,2048,64]\n  %1 = neg x\n"
                               "  %2 = reshape %1 {shape=[1,s,20,64]}\n  %3 = transpose %2 {order=[0,2,1,3]}\n  %4 = slice %3 {axis=1,start=0,end=HEADS,step=1}\n  %5 = slice %3 {axis=1,start=18,end=19,step=1}\n"
                               "  %6 = slice %3 {axis=1,start=19,end=20,step=1}\n  %7, %8 = cache_update keys, values, %5, %6, row, PLACE\n  %9 = attention %4, %7, %8, -, -, -, row, PLACE {scale=0.125,causal=true}\n"
                               "  next keys %7\n  next values %8\n  output y %9\n";
    static const char held[] = "graph k\n  symbol s 1..64\n  input x bf16[1,s,256]\n  input row i64[s]\n  input position i64[s]\n  state keys bf16[2,2,2048,64]\n  state values bf16[2,2,2048,64]\n  state held bf16[1,2,s,64]\n"
                               "  %1 = neg x\n  %2 = reshape %1 {shape=[1,s,4,64]}\n  %3 = transpose %2 {order=[0,2,1,3]}\n  %4 = slice %3 {axis=1,start=0,end=2,step=1}\n  %5 = slice %3 {axis=1,start=2,end=4,step=1}\n"
                               "  %7, %8 = cache_update keys, values, %4, held, row, position\n  %12 = abs held\n  %9 = attention %4, %7, %8, -, -, -, row, position {scale=0.125,causal=true}\n"
                               "  next keys %7\n  next values %8\n  output y %9\n";
    static const struct { const char *graph, *more, *heads, *place; int64_t tokens; bool writes; } cases[] = {
        {turned, "", "", "", 1, true}, {turned, "", "", "", 2, false}, {turned, "  %17 = neg %15\n  output z %17\n", "", "", 1, false}, {turned, "  output z %15\n", "", "", 1, false},
        {turned, "  %17 = slice %13 {axis=2,start=0,end=4,step=1}\n  %18 = neg %17\n  output z %18\n", "", "", 1, false},
        {held, "  %10 = abs %5\n  next held %10\n", "", "", 1, false}, {held, "  next held %12\n", "", "", 1, false}, {many, "", "8", "position", 1, true}, {many, "", "12", "position", 1, false}, {many, "", "8", "%10", 1, false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const chip_caps chip = plans_chip(context, "h200");
        char graph[4096], *to = graph;
        for (const char *from = cases[i].graph; *from != '\0';) {
            if (strncmp(from, "HEADS", 5) == 0) to += sprintf(to, "%s", cases[i].heads), from += 5;
            else if (strncmp(from, "PLACE", 5) == 0) to += sprintf(to, "%s", cases[i].place), from += 5;
            else if (strncmp(from, "  %1 = neg x\n", 13) == 0 && cases[i].place[0] == '%') to += sprintf(to, "  %%1 = neg x\n  %%10 = neg position\n"), from += 13;
            else *to++ = *from++;
        }
        strcpy(to, cases[i].more);
        plan *made = plans_compile(context, graph, &chip, NULL);
        plan_binding binding;
        int writes = 0;
        plans_ok(context, plan_binding_create(context, made, &binding));
        plans_ok(context, plan_bind(&binding, &(int64_t){64}));
        plans_ok(context, plan_bind(&binding, &cases[i].tokens));
        for (int k = made->load_count; k < made->step_count; k++) {
            const kernel_run *run = &binding.calls[k].run;
            const ir_node *node = made->steps[k].node;
            if (node->op != OP_attention || run->write == NULL) continue;
            assert_true(run->write->passes && ir_in(node, ATTENTION_K)->node->op == OP_cache_update);
            const ir_node *update = ir_in(node, ATTENTION_K)->node;
            for (int n = UPDATE_KEYS; n < update->n_in; n++)
                if (ir_in(update, n) != NULL && plan_value_of(ir_in(update, n))->root->place == PLAN_WORKSPACE) assert_true(plan_value_of(ir_in(update, n))->root->last >= k);
            writes++;
        }
        if (writes != cases[i].writes) fail_msg("case %zu: %d attentions write their token", i, writes);
        plans_assert_apart(&binding, i);
        binding.holds_values = true;
        plans_ok(context, plan_bind(&binding, &cases[i].tokens));
        for (int k = made->load_count; k < made->step_count; k++) assert_true(binding.calls[k].run.write == NULL && !binding.calls[k].run.passes);
        plan_binding_destroy(&binding);
        plan_destroy(made);
    }
}

/* A product that does the norm of what it adds, or quantises it, has its result beside that: its blocks read all of it. */
static void what_a_product_reads_for_itself_is_not_written_over(void **state) {
    dw_context *context = *state;
    static const struct { const char *graph; bool shares; } cases[] = {
        {"graph n\n  symbol m 1..64\n  input x bf16[m,2048]\n  param s bf16[2048]\n  param w bf16[2048,2048]\n  %1 = neg x\n  %2 = rms_norm %1, s {eps=1e-5}\n  %3 = matmul %2, w, %1 {bt=true,post=\"add\",to=bf16}\n  %4 = neg %3\n  output y %4\n", false},
        {"graph q\n  symbol m 1..64\n  input x bf16[m,2048]\n  param w fp8_128x128[2048,2048]\n  %1 = neg x\n  %2 = quantize %1 {to=fp8_1x128}\n  %3 = matmul %2, w, %1 {bt=true,post=\"add\",to=bf16}\n  %4 = neg %3\n  output y %4\n", false},
        {"graph o\n  symbol m 1..64\n  input x bf16[m,2048]\n  input z bf16[m,2048]\n  param s bf16[2048]\n  param w bf16[2048,2048]\n  %1 = neg x\n  %2 = neg z\n  %3 = rms_norm %2, s {eps=1e-5}\n  %4 = matmul %3, w, %1 {bt=true,post=\"add\",to=bf16}\n  %5 = neg %4\n  output y %5\n", true},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const chip_caps chip = plans_chip(context, "h200");
        plan *made = plans_compile(context, cases[i].graph, &chip, NULL);
        int products = 0;
        for (int k = made->load_count; k < made->step_count; k++) {
            const ir_node *node = made->steps[k].node;
            if (node->op != OP_matmul) continue;
            if ((plan_value_of(ir_out(node))->base == plan_value_of(ir_in(node, 2))) != cases[i].shares) fail_msg("case %zu: the result %s what is added", i, cases[i].shares ? "does not lie over" : "lies over");
            products++;
        }
        assert_int_equal(products, 1);
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
        cmocka_unit_test_setup_teardown(few_rows_are_quantised_by_the_product, setup, teardown),
        cmocka_unit_test_setup_teardown(few_rows_are_normalised_by_the_product, setup, teardown),
        cmocka_unit_test_setup_teardown(scratch_is_largest_at_an_end, setup, teardown),
        cmocka_unit_test_setup_teardown(norms_whose_rows_are_cut_keep_their_launch, setup, teardown),
        cmocka_unit_test_setup_teardown(norms_of_heads_are_done_by_the_write_of_caches, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_taken_of_all_tokens_is_not_moved, setup, teardown),
        cmocka_unit_test_setup_teardown(a_norm_writes_its_result_in_blocks_besides, setup, teardown),
        cmocka_unit_test_setup_teardown(attention_writes_a_token_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(what_a_product_reads_for_itself_is_not_written_over, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
