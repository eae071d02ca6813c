/* Whole graphs and their gradients: what comes out, what is put together, what is made again, what is refused by name, and random ones. Rules are held to central differences in test_gradient.c. */
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "pass/gradient/gradient.h"
#include "support/evaluate.h"
#include "support/random_graph.h"

static dw_status parse(dw_context *context, const char *text, dw_graph **graph) { return dw_graph_parse(context, "graph", text, strlen(text), graph); }

static void fails(const char *text, const dw_gradient_options *options, dw_status expected, const char *part) {
    dw_context *context;
    dw_graph *graph, *gradients = NULL;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    if (parse(context, text, &graph) != DW_OK) fail_msg("%s", dw_context_error(context));
    test_assert_fails(context, dw_graph_gradient(graph, options, &gradients), expected, part);
    assert_null(gradients);
    dw_graph_destroy(graph);
    dw_context_destroy(context);
}

static const char mlp[] =
    "graph mlp\n  symbol s 1..\n  input x f32[s,4]\n  param up f32[8,4]\n  param bias f32[8]\n  param table f32[5,2]\n"
    "  %1 = matmul x, up {bt=true} at \"mlp.up\" type \"Linear\" name \"linear\" role mlp\n  %2 = add %1, bias at \"mlp.up\"\n  %3 = gelu %2 at \"mlp.act\"\n"
    "  %4 = mean %3 {axes=[0,1]}\n  output hidden %3\n  output loss %4\n";

static void a_graph_gives_its_outputs_and_gradients(void **state) {
    dw_context *context;
    dw_graph *graph = NULL, *gradients = NULL;
    text words;
    (void)state;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    assert_int_equal(parse(context, mlp, &graph), DW_OK);
    if (dw_graph_gradient(graph, NULL, &gradients) != DW_OK) fail_msg("%s", dw_context_error(context));
    assert_int_equal(gradients->output_count, 5);
    static const char *const names[] = {"hidden", "loss", "grad.up", "grad.bias", "grad.table"};
    for (int i = 0; i < 5; i++) assert_string_equal(gradients->outputs[i].name, names[i]);
    text_init(&words, context);
    assert_int_equal(ir_print(gradients, &words), DW_OK);
    static const char *const lines[] = {"state  up f32[8,4] trained", "{at=true} at \"mlp.up\" type \"Linear\" name \"linear\" role mlp phase wgrad", "at \"mlp.act\" phase dgrad"};
    for (size_t i = 0; i < COUNT_OF(lines); i++) {
        if (strstr(text_string(&words), lines[i]) == NULL) fail_msg("no line '%s' in\n%s", lines[i], text_string(&words));
    }
    if (strstr(text_string(&words), "matmul x, up {bt=true}") == NULL) fail_msg("the forward graph is another one:\n%s", text_string(&words));
    text_free(&words);
    dw_graph_destroy(gradients);
    const dw_gradient_options some = {.loss = "loss", .trained = "b?as,nothing*,u*"};
    test_assert_fails(context, dw_graph_gradient(graph, &some, &gradients), DW_NOT_FOUND, "'nothing*'");
    const dw_gradient_options one = {.loss = "loss", .trained = "b?as"};
    assert_int_equal(dw_graph_gradient(graph, &one, &gradients), DW_OK);
    assert_int_equal(gradients->output_count, 3);
    for (const ir_node *node = gradients->first; node != NULL; node = node->next) {
        if (node->op == OP_matmul && node->origin.phase != NULL) fail_msg("a product is computed for a parameter that is not trained");
    }
    dw_graph *twice;
    test_assert_fails(context, dw_graph_gradient(gradients, &one, &twice), DW_UNSUPPORTED, "gradients of gradients");
    dw_graph_destroy(gradients);
    dw_graph_destroy(graph);
    dw_context_destroy(context);
}

/* What reads x rounded, by a product too, gives it the gradient of what it read; that of the other operand is by what was read. */
static void quantisers_are_passed_straight(void **state) {
    static const char text[] =
        "graph rounded\n  param x f32[2,32]\n  param w f32[1,32]\n  %1 = quantize x {to=mxfp8}\n  %2 = tile_scales %1\n  %3 = quantize w {to=mxfp8}\n  %4 = matmul %2, %3 {bt=true}\n  %5 = dequantize %1 {to=f32}\n"
        "  %6 = mul %5, w\n  %7 = sum %4 {axes=[0,1]}\n  %8 = sum %6 {axes=[0,1]}\n  %9 = add %7, %8\n  output loss %9\n";
    dw_context *context;
    dw_graph *graph = NULL, *gradients = NULL;
    evaluation *run;
    float x[64], w[32];
    (void)state;
    for (int i = 0; i < 64; i++) x[i] = 1.01f + (float)i;          /* all rounded */
    for (int i = 0; i < 32; i++) w[i] = 1.5f;                      /* as it is */
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    if (parse(context, text, &graph) != DW_OK || dw_graph_gradient(graph, NULL, &gradients) != DW_OK) fail_msg("%s", dw_context_error(context));
    dw_tensor of_x, of_w;
    op_tensor_init(&of_x, DW_FORMAT_f32, DW_SCALE_plain, 2, (int64_t[]){2, 32}, x);
    op_tensor_init(&of_w, DW_FORMAT_f32, DW_SCALE_plain, 2, (int64_t[]){1, 32}, w);
    assert_int_equal(evaluation_create(gradients, &run), DW_OK);
    assert_int_equal(evaluation_bind(run, "x", &of_x), DW_OK);
    assert_int_equal(evaluation_bind(run, "w", &of_w), DW_OK);
    if (evaluation_run(run) != DW_OK) fail_msg("%s", dw_context_error(context));
    for (int64_t i = 0; i < 64; i++) assert_float_equal(num_load(DW_FORMAT_f32, evaluation_output(run, "grad.x")->data, i), 3, 0);
    for (int64_t i = 0; i < 32; i++) {
        const double sum = num_load(DW_FORMAT_f32, evaluation_output(run, "grad.w")->data, i), exact = 2 * (double)(x[i] + x[i + 32]);
        assert_true(sum != exact && fabs(sum - exact) < 0.1 * exact);
    }
    evaluation_destroy(run);
    dw_graph_destroy(gradients);
    dw_graph_destroy(graph);
    dw_context_destroy(context);
}

static int count_of(const dw_graph *graph, op_id op, const char *phase) {
    int count = 0;
    for (const ir_node *node = graph->first; node != NULL; node = node->next) count += node->op == op && node->origin.phase != NULL && (phase == NULL || strcmp(phase, node->origin.phase) == 0);
    return count;
}

static evaluation *run_of(dw_context *context, const char *text, const dw_gradient_options *options, dw_graph **gradients) {
    static float x[4] = {1, 2, 3, 4}, w[4] = {3, 3, 3, 3};
    static dw_tensor of_x, of_w;
    evaluation *run;
    dw_graph *graph;
    if (parse(context, text, &graph) != DW_OK || dw_graph_gradient(graph, options, gradients) != DW_OK) fail_msg("%s", dw_context_error(context));
    dw_graph_destroy(graph);
    op_tensor_init(&of_x, DW_FORMAT_f32, DW_SCALE_plain, 1, (int64_t[]){4}, x);
    op_tensor_init(&of_w, DW_FORMAT_f32, DW_SCALE_plain, 1, (int64_t[]){4}, w);
    assert_int_equal(ir_check(*gradients), DW_OK);
    assert_int_equal(evaluation_create(*gradients, &run), DW_OK);
    assert_int_equal(evaluation_bind(run, "x", &of_x), DW_OK);
    assert_int_equal(evaluation_bind(run, "w", &of_w), DW_OK);
    if (evaluation_bind_random(run, 1) != DW_OK || evaluation_run(run) != DW_OK) fail_msg("%s", dw_context_error(context));
    return run;
}

/* Of x w times the same detached: x (x w), half of what it is otherwise. What is made of nothing trained is not cut. */
static void no_gradient_flows_through_what_is_detached(void **state) {
    static const char text[] = "graph g\n  input x f32[4]\n  param w f32[4]\n  %1 = mul x, w\n  %2 = exp %1\n  %3 = log %2\n  %4 = reshape %3 {shape=[4],detached=true}\n  %5 = reshape x {shape=[4],detached=true}\n"
                               "  %6 = mul %1, %4\n  %7 = mul %6, %5\n  %8 = sum %7 {axes=[0]}\n  output loss %8\n";
    dw_context *context;
    dw_graph *gradients;
    (void)state;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    evaluation *run = run_of(context, text, NULL, &gradients);
    assert_int_equal(gradients->input_count, 1);
    assert_int_equal(gradients->output_count, 2);
    for (int i = 0; i < 4; i++) {
        const double x = i + 1, wanted = x * (x * 3) * x, made = num_load(DW_FORMAT_f32, evaluation_output(run, "grad.w")->data, i);
        assert_true(fabs(made - wanted) <= 1e-5 * wanted);
    }
    evaluation_destroy(run);
    dw_graph_destroy(gradients);
    /* the order of nodes is found again where passes have moved them */
    run = run_of(context, text, &(dw_gradient_options){.recompute = "cheap"}, &gradients);
    evaluation_destroy(run);
    dw_graph_destroy(gradients);
    dw_context_destroy(context);
}

static void inputs_have_gradients_by_name(void **state) {
    static const char text[] = "graph g\n  input x f32[4]\n  input n i64[4]\n  param w f32[4]\n  %1 = mul x, w\n  %2 = mul %1, x\n  %3 = sum %2 {axes=[0]}\n  output loss %3\n  output ids n\n";
    static const struct { dw_gradient_options options; int outputs; bool of_w; } cases[] = {{{.inputs = "x"}, 3, false}, {{.inputs = "x", .trained = "w"}, 4, true}};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        dw_context *context;
        dw_graph *gradients;
        assert_int_equal(dw_context_create(NULL, &context), DW_OK);
        evaluation *run = run_of(context, text, &cases[i].options, &gradients);
        assert_int_equal(gradients->output_count, cases[i].outputs);
        for (int k = 0; k < 4; k++) {
            const double x = k + 1;
            assert_float_equal(num_load(DW_FORMAT_f32, evaluation_output(run, "grad.x")->data, k), 2 * 3 * x, 0);
            if (cases[i].of_w) assert_float_equal(num_load(DW_FORMAT_f32, evaluation_output(run, "grad.w")->data, k), x * x, 0);
        }
        evaluation_destroy(run);
        dw_graph_destroy(gradients);
        dw_context_destroy(context);
    }
    fails(text, &(dw_gradient_options){.inputs = "y"}, DW_NOT_FOUND, "no floating-point input that the pattern 'y' matches");
    fails(text, &(dw_gradient_options){.inputs = "x,n"}, DW_NOT_FOUND, "'n'");
    fails(text, &(dw_gradient_options){.inputs = ""}, DW_NOT_FOUND, "''");
}

/* %1 [s,8] split along an axis: in three parts, all of it; in two that leave a gap; in two that overlap. */
static void pieces_are_put_together(void **state) {
    static const struct { const char *text; int concats; } cases[] = {
        {"  %2 = slice %1 {axis=1,start=0,end=2,step=1}\n  %3 = slice %1 {axis=1,start=5,end=8,step=1}\n  %4 = slice %1 {axis=1,start=2,end=5,step=1}\n"
         "  %5 = exp %2\n  %6 = exp %3\n  %7 = exp %4\n  %8 = sum %5 {axes=[0,1]}\n  %9 = sum %6 {axes=[0,1]}\n  %10 = sum %7 {axes=[0,1]}\n  %11 = add %8, %9\n  %12 = add %11, %10\n", 1},
        {"  %2 = slice %1 {axis=1,start=0,end=2,step=1}\n  %3 = slice %1 {axis=1,start=3,end=8,step=1}\n  %5 = exp %2\n  %6 = exp %3\n"
         "  %8 = sum %5 {axes=[0,1]}\n  %9 = sum %6 {axes=[0,1]}\n  %12 = add %8, %9\n", 0},
        {"  %2 = slice %1 {axis=1,start=0,end=4,step=1}\n  %3 = slice %1 {axis=1,start=3,end=8,step=1}\n  %5 = exp %2\n  %6 = exp %3\n"
         "  %8 = sum %5 {axes=[0,1]}\n  %9 = sum %6 {axes=[0,1]}\n  %12 = add %8, %9\n", 0},
        {"  %2 = slice %1 {axis=0,start=0,end=s/2,step=1}\n  %3 = slice %1 {axis=0,start=s/2,end=s,step=1}\n  %5 = exp %2\n  %6 = exp %3\n"
         "  %8 = sum %5 {axes=[0,1]}\n  %9 = sum %6 {axes=[0,1]}\n  %12 = add %8, %9\n", 1},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        dw_context *context;
        dw_graph *graph, *gradients = NULL;
        char words[1024];
        snprintf(words, sizeof words, "graph g\n  symbol s 2..\n  input x f32[s,4]\n  param w f32[8,4]\n  %%1 = matmul x, w {bt=true}\n%s  output y %%12\n", cases[i].text);
        assert_int_equal(dw_context_create(NULL, &context), DW_OK);
        if (parse(context, words, &graph) != DW_OK || dw_graph_gradient(graph, NULL, &gradients) != DW_OK) fail_msg("%s", dw_context_error(context));
        assert_int_equal(count_of(gradients, OP_concat, NULL), cases[i].concats);
        assert_int_equal(count_of(gradients, OP_pad, NULL) == 0, cases[i].concats == 1);
        dw_graph_destroy(gradients);
        dw_graph_destroy(graph);
        dw_context_destroy(context);
    }
}

static void what_cannot_be_derived_is_named(void **state) {
    (void)state;
    fails("graph g\n  input x f32[4]\n  param w f32[4]\n  %1 = mul x, w\n  output y %1\n", NULL, DW_INVALID, "one floating-point number; export the model with its loss: its outputs are y f32[4]");
    fails("graph g\n  input x f32[4]\n  param w f32[4]\n  %1 = mul x, w\n  output y %1\n", &(dw_gradient_options){.loss = "y"}, DW_INVALID, "y f32[4]");
    fails("graph g\n  input x f32[4]\n  param w f32[4]\n  %1 = mul x, w\n  output y %1\n", &(dw_gradient_options){.loss = "z"}, DW_NOT_FOUND, "no output named z");
    fails("graph g\n  input x f32[4]\n  param w f32[4]\n  %1 = mul x, w\n  %2 = sum %1 {axes=[0]}\n  %3 = mean %1 {axes=[0]}\n  output y %2\n  output z %3\n", NULL, DW_INVALID, "y f32[], z f32[]");
    fails("graph g\n  input x f32[4]\n  %1 = sum x {axes=[0]}\n  output y %1\n", NULL, DW_INVALID, "nothing to train");
    fails("graph g\n  input x f32[4]\n  param w f32[4]\n  %1 = mul x, w\n  %2 = floor %1\n  %3 = sum %2 {axes=[0]}\n  output y %3\n", NULL, DW_INVALID, "the loss 'y' depends on no trained parameter");
    fails("graph g\n  input x i32[4]\n  param w i32[4]\n  %1 = mul x, w\n  %2 = cast %1 {to=f32}\n  %3 = sum %2 {axes=[0]}\n  output y %3\n", NULL, DW_INVALID, "nothing to train");
    fails("graph g\n  input x f32[1,1,2,4]\n  input row i32[2]\n  input position i32[2]\n  state c f32[1,1,8,4]\n  param w f32[4]\n  %1 = mul x, w\n"
          "  %2 = cache_write c, %1, row, position at \"block.cache\" name \"write\"\n  %3 = sum %2 {axes=[0,1,2,3]}\n  next c %2\n  output y %3\n",
          NULL, DW_UNSUPPORTED, "op cache_write of module block.cache, exported as write");
}

/* Two layers of two products each; the loss reads a softmax of rows. */
static const char layers[] =
    "graph layers\n  symbol s 1..\n  input x f32[s,4]\n  input labels i64[s]\n  param a f32[8,4]\n  param b f32[4,8]\n  param c f32[8,4]\n  param head f32[9,8]\n"
    "  %1 = matmul x, a {bt=true} at \"layers.0.up\" role mlp\n  %2 = gelu %1 at \"layers.0\"\n  %3 = matmul %2, b {bt=true} at \"layers.0.down\" role mlp\n  %4 = add x, %3 at \"layers.0\"\n"
    "  %5 = matmul %4, c {bt=true} at \"layers.1.up\" role attention\n  %6 = silu %5 at \"layers.1\"\n  %7 = matmul %6, head {bt=true} at \"head\"\n  %8, %9 = cross_entropy %7, labels\n"
    "  %10 = mean %8 {axes=[0]}\n  output loss %10\n";

static int count_again(dw_context *context, const char *recompute, op_id op) {
    dw_graph *graph = NULL, *gradients = NULL;
    if (parse(context, layers, &graph) != DW_OK || dw_graph_gradient(graph, &(dw_gradient_options){.recompute = recompute}, &gradients) != DW_OK) fail_msg("%s", dw_context_error(context));
    const int count = count_of(gradients, op, "again");
    dw_graph_destroy(gradients);
    dw_graph_destroy(graph);
    return count;
}

static void levels_say_what_is_made_again(void **state) {
    static const struct { const char *recompute; int products, gelus, silus, sums; } cases[] = {
        {NULL, 0, 0, 0, 0},
        {"none", 0, 0, 0, 0},
        {"cheap", 0, 1, 1, 0},
        {"attention", 1, 1, 1, 0},
        {"block", 2, 1, 1, 0},
        {"layers.0* = none, block", 1, 0, 1, 0},
        {"role:attention=none, block", 1, 1, 1, 0},
        {"*.0 = cheap", 0, 1, 0, 0},
    };
    dw_context *context;
    (void)state;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const int made[] = {count_again(context, cases[i].recompute, OP_matmul), count_again(context, cases[i].recompute, OP_gelu), count_again(context, cases[i].recompute, OP_silu), count_again(context, cases[i].recompute, OP_add)};
        const int wanted[] = {cases[i].products, cases[i].gelus, cases[i].silus, cases[i].sums};
        for (int k = 0; k < 4; k++)
            if (made[k] != wanted[k]) fail_msg("recompute %s: of kind %d there are %d again, not %d", cases[i].recompute != NULL ? cases[i].recompute : "-", k, made[k], wanted[k]);
    }
    dw_context_destroy(context);
}

/* Of every part the gradient of its logits stands in front of the next part's product. */
static void parts_of_logits_come_one_after_the_other(void **state) {
    dw_context *context;
    dw_graph *graph = NULL, *gradients = NULL;
    int losses = 0, backward = 0, pads = 0;
    (void)state;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    if (parse(context, layers, &graph) != DW_OK || dw_graph_gradient(graph, &(dw_gradient_options){.chunks = 5}, &gradients) != DW_OK) fail_msg("%s", dw_context_error(context));
    for (const ir_node *node = gradients->first; node != NULL; node = node->next) {
        if (node->op == OP_cross_entropy) assert_int_equal(losses++, backward);
        if (node->op == OP_cross_entropy_backward) assert_int_equal(losses, ++backward);
        pads += node->op == OP_pad;
    }
    assert_int_equal(losses, 5);
    assert_int_equal(backward, 5);
    assert_int_equal(pads, 0);          /* their gradients of x are put together */
    dw_graph_destroy(gradients);
    dw_graph_destroy(graph);
    dw_context_destroy(context);
}

static evaluation *run_with(dw_context *context, const char *text, const dw_gradient_options *options, int64_t *labels, dw_graph **gradients, dw_status *status) {
    dw_tensor of_labels;
    dw_graph *graph;
    evaluation *run;
    if (parse(context, text, &graph) != DW_OK || dw_graph_gradient(graph, options, gradients) != DW_OK) fail_msg("%s", dw_context_error(context));
    dw_graph_destroy(graph);
    op_tensor_init(&of_labels, DW_FORMAT_i64, DW_SCALE_plain, 1, (int64_t[]){5}, labels);
    assert_int_equal(evaluation_create(*gradients, &run), DW_OK);
    assert_int_equal(evaluation_bind(run, "labels", &of_labels), DW_OK);
    assert_int_equal(evaluation_bind_random(run, 7), DW_OK);
    *status = evaluation_run(run);
    return run;
}

static evaluation *run_layers(dw_context *context, const char *text, const dw_gradient_options *options, dw_graph **gradients) {
    static int64_t labels[] = {8, 0, 3, -1, 5};
    dw_status status;
    evaluation *run = run_with(context, text, options, labels, gradients, &status);
    if (status != DW_OK) fail_msg("%s", dw_context_error(context));
    return run;
}

/* Where rows of logits are longer than there are classes, too. */
static void labels_behind_the_classes_are_named(void **state) {
    (void)state;
    for (int columns = 0; columns <= 16; columns += 16) {
        dw_context *context;
        dw_graph *gradients;
        dw_status status;
        assert_int_equal(dw_context_create(NULL, &context), DW_OK);
        evaluation *run = run_with(context, layers, &(dw_gradient_options){.columns = columns}, (int64_t[]){8, 0, 9, 1, 5}, &gradients, &status);
        assert_int_equal(status, DW_INVALID);
        assert_non_null(strstr(dw_context_error(context), "a label is 9, it must be from 0 to 8"));
        evaluation_destroy(run);
        dw_graph_destroy(gradients);
        dw_context_destroy(context);
    }
}

/* What is behind the classes is no part of any sum. Where something stands between that has other slopes at 0 than numbers, or a row of its own, rows stay as they are. */
static void longer_rows_of_logits_change_no_number(void **state) {
    static const struct { const char *from, *to; int pads; } cases[] = {
        {"cross_entropy %7, labels", "cross_entropy %7, labels {ignore=-1}", 1},
        {"cross_entropy %7, labels", "cross_entropy %7, labels {ignore=-1,smoothing=0.1}", 1},
        {"%8, %9 = cross_entropy %7, labels", "%17 = tanh %7\n  %8, %9 = cross_entropy %17, labels {ignore=-1}", 1},
        {"%8, %9 = cross_entropy %7, labels", "%17 = exp %7\n  %8, %9 = cross_entropy %17, labels {ignore=-1}", 0},
        {"%8, %9 = cross_entropy %7, labels", "%17 = cast %7 {to=f64}\n  %18 = cast %17 {to=f32}\n  %8, %9 = cross_entropy %18, labels {ignore=-1}", 1},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char text[2048];
        const char *at = strstr(layers, cases[i].from);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - layers), layers, cases[i].to, at + strlen(cases[i].from));
        for (int chunks = 0; chunks <= 3; chunks += 3) {
            dw_context *context;
            dw_graph *plain, *longer;
            int pads = 0;
            assert_int_equal(dw_context_create(NULL, &context), DW_OK);
            evaluation *first = run_layers(context, text, &(dw_gradient_options){.chunks = chunks}, &plain);
            evaluation *second = run_layers(context, text, &(dw_gradient_options){.chunks = chunks, .columns = 16}, &longer);
            for (const ir_node *node = longer->first; node != NULL; node = node->next) pads += node->op == OP_pad;
            assert_int_equal(pads, cases[i].pads);
            for (size_t k = 0; k < plain->output_count; k++) {
                const char *name = plain->outputs[k].name;
                if (!tensor_is_same(evaluation_output(first, name), evaluation_output(second, name))) fail_msg("case %d, %d parts: output %s has other bits", (int)i, chunks, name);
            }
            evaluation_destroy(first);
            evaluation_destroy(second);
            dw_graph_destroy(plain);
            dw_graph_destroy(longer);
            dw_context_destroy(context);
        }
    }
    fails(layers, &(dw_gradient_options){.columns = 2000}, DW_INVALID, "columns is 2000");
}

/* One attention of two heads of queries on one of keys and values. */
#define PROJECTED(q, k, bias)                                                                                                                                                                       \
    "graph attention\n  symbol s 1..\n  input x f32[1,s,8]\n  param wq f32[8,8]\n  param wk f32[4,8]\n  param wv f32[4,8]\n  param bq f32[8]\n  param bk f32[4]\n  param bv f32[4]\n"                     \
    "  %1 = matmul x, wq {bt=true} at \"" q "\" role attention\n  %2 = add %1, bq\n  %3 = matmul x, wk {bt=true} at \"" k "\" role attention\n" bias                                                          \
    "  %5 = matmul x, wv {bt=true} at \"a.attn.v\" role attention\n  %6 = add %5, bv\n  %7 = reshape %2 {shape=[1,s,2,4]}\n  %8 = transpose %7 {order=[0,2,1,3]}\n"                                        \
    "  %9 = reshape %4 {shape=[1,1,s,4]}\n  %10 = reshape %6 {shape=[1,1,s,4]}\n  %11 = attention %8, %9, %10 {scale=0.5,causal=true}\n  %12 = mul %11, %11\n  %13 = sum %12 {axes=[0,1,2,3]}\n  output loss %13\n"

static void projections_of_one_attention_become_one_product(void **state) {
    static const struct { const char *text; int forward, wgrad, dgrad; } cases[] = {
        {PROJECTED("a.attn.q", "a.attn.k", "  %4 = add %3, bk\n"), 1, 1, 1},
        {PROJECTED("a.attn.q", "b.attn.k", "  %4 = add %3, bk\n"), 2, 2, 2},        /* another module's */
        {PROJECTED("a.attn.q", "a.attn.k", "  %4 = mul %3, bk\n"), 2, 2, 2},        /* without a bias */
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        dw_context *context;
        dw_graph *graph, *apart = NULL, *merged = NULL;
        evaluation *runs[2];
        int forward = 0;
        assert_int_equal(dw_context_create(NULL, &context), DW_OK);
        if (parse(context, cases[i].text, &graph) != DW_OK || dw_graph_gradient(graph, &(dw_gradient_options){.inputs = "x", .trained = "*"}, &apart) != DW_OK ||
            dw_graph_gradient(graph, &(dw_gradient_options){.inputs = "x", .trained = "*", .merged = 1}, &merged) != DW_OK)
            fail_msg("%s", dw_context_error(context));
        for (const ir_node *node = merged->first; node != NULL; node = node->next) forward += node->op == OP_matmul && node->origin.phase == NULL;
        assert_int_equal(forward, cases[i].forward);
        assert_int_equal(count_of(merged, OP_matmul, "wgrad"), cases[i].wgrad);
        assert_int_equal(count_of(merged, OP_matmul, "dgrad"), cases[i].dgrad);
        for (int k = 0; k < 2; k++) {
            assert_int_equal(evaluation_create(k == 0 ? apart : merged, &runs[k]), DW_OK);
            if (evaluation_bind_random(runs[k], 5) != DW_OK || evaluation_run(runs[k]) != DW_OK) fail_msg("%s", dw_context_error(context));
        }
        for (size_t k = 0; k < apart->output_count; k++) {
            const char *name = apart->outputs[k].name;
            const dw_tensor *a = evaluation_output(runs[0], name), *b = evaluation_output(runs[1], name);
            for (int64_t e = 0; e < op_tensor_count(a); e++) {
                const double x = num_load(DW_FORMAT_f32, a->data, e), y = num_load(DW_FORMAT_f32, b->data, e);
                if (!(fabs(x - y) <= 1e-5 * (1 + fabs(x)))) fail_msg("case %d, %s, element %d: %g, apart %g", (int)i, name, (int)e, y, x);
            }
        }
        for (int k = 0; k < 2; k++) evaluation_destroy(runs[k]);
        dw_graph_destroy(apart);
        dw_graph_destroy(merged);
        dw_graph_destroy(graph);
        dw_context_destroy(context);
    }
}

static dw_status merge_once(dw_context *context, void *argument) {
    dw_graph *graph, *gradients;
    (void)argument;
    dw_status status = parse(context, PROJECTED("a.attn.q", "a.attn.k", "  %4 = add %3, bk\n"), &graph);
    if (status != DW_OK) return status;
    status = dw_graph_gradient(graph, &(dw_gradient_options){.merged = 1}, &gradients);
    dw_graph_destroy(gradients);
    dw_graph_destroy(graph);
    return status;
}

static void logits_that_something_else_reads_stay_whole(void **state) {
    dw_context *context;
    dw_graph *graph = NULL, *gradients = NULL;
    char text[2048];
    (void)state;
    snprintf(text, sizeof text, "%s  output logits %%7\n", layers);
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    if (parse(context, text, &graph) != DW_OK || dw_graph_gradient(graph, &(dw_gradient_options){.chunks = 2}, &gradients) != DW_OK) fail_msg("%s", dw_context_error(context));
    assert_string_equal(map_find(&gradients->notes, GRADIENT_LOGITS_WHOLE), "the logits have another use than the loss");
    dw_graph_destroy(gradients);
    dw_graph_destroy(graph);
    dw_context_destroy(context);
}

static void run_random(dw_context *context, ir_graph *gradients, uint64_t seed, evaluation **run) {
    if (ir_check(gradients) != DW_OK) fail_msg("seed %d: %s", (int)seed, dw_context_error(context));
    if (pass_run(gradients, PASS_STAGE_ALL & ~PASS_STAGE_INCREMENTAL, &(pass_options){.check = true}) != DW_OK) fail_msg("seed %d: %s", (int)seed, dw_context_error(context));
    dw_status ran = evaluation_create(gradients, run);
    if (ran == DW_OK) ran = evaluation_bind_random(*run, seed);
    if (ran == DW_OK) ran = evaluation_run(*run);
    if (ran != DW_OK) fail_msg("seed %d: %s", (int)seed, dw_context_error(context));
}

/* With what is cheap made again, all outputs have the same bits. */
static void check_again(dw_context *context, const ir_graph *graph, const ir_graph *kept, const evaluation *first, uint64_t seed) {
    ir_graph *again;
    evaluation *run;
    if (dw_graph_gradient(graph, &(dw_gradient_options){.loss = "the.loss", .recompute = "cheap"}, &again) != DW_OK) fail_msg("seed %d: %s", (int)seed, dw_context_error(context));
    run_random(context, again, seed, &run);
    for (size_t i = 0; i < kept->output_count; i++) {
        const char *name = kept->outputs[i].name;
        if (!tensor_is_same(evaluation_output(first, name), evaluation_output(run, name))) fail_msg("seed %d: output %s has other bits where what is cheap is made again", (int)seed, name);
    }
    evaluation_destroy(run);
    ir_graph_destroy(again);
}

/* Random graphs, whose loss is the sum of all outputs: what comes out passes its checks before and behind all passes, and runs. */
static void random_graphs_have_gradients(void **state) {
    enum { GRAPHS = 400 };
    int derived = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= GRAPHS; seed++) {
        dw_context *context;
        ir_graph *graph, *gradients;
        ir_value *loss = NULL, *part;
        assert_int_equal(dw_context_create(NULL, &context), DW_OK);
        assert_int_equal(random_graph(context, seed, 0, &graph), DW_OK);
        for (size_t i = 0; i < graph->output_count; i++) {
            static const int64_t axes[] = {0, 1, 2, 3, 4, 5, 6, 7};
            ir_value *y = graph->outputs[i].value;
            const op_attr over = op_set_ints(OP_ATTR_axes, y->type.rank, axes);
            assert_int_equal(ir_emit_cast(graph, y, DW_FORMAT_f64, &part), DW_OK);
            if (y->type.rank > 0) assert_int_equal(ir_emit(graph, OP_sum, 1, (ir_value *[]){part}, 1, &over, &part), DW_OK);
            if (loss != NULL) assert_int_equal(ir_emit_2(graph, OP_add, loss, part, &part), DW_OK);
            loss = part;
        }
        assert_int_equal(ir_add_output(graph, "the.loss", loss), DW_OK);
        const dw_status status = dw_graph_gradient(graph, &(dw_gradient_options){.loss = "the.loss"}, &gradients);
        if (status == DW_INVALID) test_assert_fails(context, status, DW_INVALID, "no");     /* nothing of it is trained */
        else if (status != DW_OK) fail_msg("seed %d: %s", (int)seed, dw_context_error(context));
        if (status == DW_OK) {
            evaluation *run;
            derived++;
            run_random(context, gradients, seed, &run);
            check_again(context, graph, gradients, run, seed);
            evaluation_destroy(run);
        }
        ir_graph_destroy(gradients);
        ir_graph_destroy(graph);
        dw_context_destroy(context);
    }
    print_message("%d of %d graphs have a parameter\n", derived, GRAPHS);
    assert_true(derived > 50);
}

static dw_status derive_once(dw_context *context, void *argument) {
    dw_graph *graph = NULL, *gradients = NULL;
    (void)argument;
    TRY(parse(context, mlp, &graph));
    dw_status status = dw_graph_gradient(graph, NULL, &gradients);
    dw_graph_destroy(gradients);
    dw_graph_destroy(graph);
    if (status == DW_OK) status = parse(context, layers, &graph);
    if (status != DW_OK) return status;
    status = dw_graph_gradient(graph, &(dw_gradient_options){.recompute = "layers.0*=cheap, block", .chunks = 3, .columns = 4}, &gradients);
    dw_graph_destroy(gradients);
    dw_graph_destroy(graph);
    return status;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    test_every_allocation(derive_once, NULL);
    test_every_allocation(merge_once, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_graph_gives_its_outputs_and_gradients),
        cmocka_unit_test(quantisers_are_passed_straight),
        cmocka_unit_test(pieces_are_put_together),
        cmocka_unit_test(no_gradient_flows_through_what_is_detached),
        cmocka_unit_test(inputs_have_gradients_by_name),
        cmocka_unit_test(levels_say_what_is_made_again),
        cmocka_unit_test(parts_of_logits_come_one_after_the_other),
        cmocka_unit_test(longer_rows_of_logits_change_no_number),
        cmocka_unit_test(labels_behind_the_classes_are_named),
        cmocka_unit_test(projections_of_one_attention_become_one_product),
        cmocka_unit_test(logits_that_something_else_reads_stay_whole),
        cmocka_unit_test(what_cannot_be_derived_is_named),
        cmocka_unit_test(random_graphs_have_gradients),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
