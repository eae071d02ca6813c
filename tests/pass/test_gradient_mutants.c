/* What the derivation does to whole graphs beside its rules is broken on purpose, one node at a time (support/mutate.h): rows of logits that are longer than there are classes, projections of one
 * attention that are one product, logits in parts, and gradients that stay in bf16. Each graph is held to the plain one, whose rules test_gradient.c holds; of its mutants 95 in a hundred must be noticed. */
#include "support/support.h"

#include <math.h>
#include <string.h>

#include "pass/gradient/gradient.h"
#include "support/evaluate.h"
#include "support/mutate.h"

enum { SEED = 7, MOST_OUTPUTS = 32 };

typedef struct subject {
    const char *name, *text, *precision;       /* precision NULL: as derived */
    dw_gradient_options plain, made;
    double bound;                              /* of the error of an output; what a mutant must be off by */
    int least;                                 /* mutants that there must be */
} subject;

/* ---- running ---- */

static dw_status run(const ir_graph *graph, evaluation **made) {
    static int64_t labels[] = {8, 0, 3, 5, 5, 1};
    dw_tensor of_labels;
    TRY(evaluation_create(graph, made));
    op_tensor_init(&of_labels, DW_FORMAT_i64, DW_SCALE_plain, 1, (int64_t[]){6}, labels);
    for (size_t i = 0; i < graph->input_count; i++)
        if (strcmp(graph->inputs[i]->name, "labels") == 0) TRY(evaluation_bind(*made, "labels", &of_labels));
    if (graph->input_count == 1) TRY(evaluation_set_symbol(*made, "s", 6));
    TRY(evaluation_bind_random(*made, SEED));
    return evaluation_run(*made);
}

static double norm_of(const dw_tensor *t) {
    double sum = 0;
    for (int64_t i = 0; i < op_tensor_count(t); i++) sum += num_load(t->format, t->data, i) * num_load(t->format, t->data, i);
    return sqrt(sum);
}

/* The largest error of an output. Those that are nothing beside the others, as the gradient of keys' bias, are held to a twentieth of the largest. */
static double error_of(const ir_graph *graph, const evaluation *found, const evaluation *expected) {
    double worst = 0, largest = 0;
    for (size_t i = 0; i < graph->output_count; i++) largest = fmax(largest, norm_of(evaluation_output(expected, graph->outputs[i].name)));
    for (size_t i = 0; i < graph->output_count; i++) {
        const dw_tensor *wanted = evaluation_output(expected, graph->outputs[i].name);
        const double norm = norm_of(wanted), error = tensor_error(evaluation_output(found, graph->outputs[i].name), wanted) * (norm > 0 ? norm / fmax(norm, 0.05 * largest) : 1);
        if (!(error <= worst)) worst = error;
    }
    return worst;
}

static void ok(dw_context *context, const char *name, dw_status status) {
    if (status != DW_OK) fail_msg("%s: %s", name, dw_context_error(context));
}

static ir_graph *derive(dw_context *context, const subject *s, const dw_gradient_options *options) {
    dw_graph *graph, *gradients;
    ok(context, s->name, dw_graph_parse(context, s->name, s->text, strlen(s->text), &graph));
    ok(context, s->name, dw_graph_gradient(graph, options, &gradients));
    dw_graph_destroy(graph);
    return gradients;
}

static void lower(dw_context *context, const subject *s, ir_graph *graph) {
    pass_policy *policy;
    if (s->precision == NULL) return;
    ok(context, s->name, pass_policy_create(context, s->precision, "rules", "", &policy));
    ok(context, s->name, pass_run(graph, PASS_STAGE_PRECISION, &(pass_options){.check = true, .policy = policy}));
    pass_policy_destroy(policy);
    ir_renumber(graph);
}

/* ---- mutants ---- */

static void break_all(dw_context *context, const subject *s, const ir_graph *graph, const evaluation *expected) {
    int caught = 0, count = 0;
    for (const ir_node *node = graph->first; node != NULL; node = node->next) {
        for (int kind = 0; kind < MUTATIONS; kind++) {
            ir_graph *mutant;
            evaluation *found = NULL;
            ok(context, s->name, ir_graph_clone(graph, &mutant));
            if (mutate(mutant, node->order, (mutation)kind)) {
                const bool is_caught = run(mutant, &found) != DW_OK || !(error_of(graph, found, expected) <= s->bound);
                count++;
                caught += is_caught;
                if (!is_caught) print_message("unnoticed: %s: %s, %%%d %s\n", s->name, mutation_name((mutation)kind), ir_out(node)->id, op_get(node->op)->name);
            }
            evaluation_destroy(found);
            ir_graph_destroy(mutant);
        }
    }
    print_message("%s: %d of %d mutants were noticed\n", s->name, caught, count);
    if (count < s->least || caught < 0.95 * count) fail_msg("%s: %d of %d mutants were noticed, and there must be %d", s->name, caught, count, s->least);
}

static void hold(const subject *s) {
    dw_context *context;
    evaluation *expected = NULL, *found = NULL;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    ir_graph *plain = derive(context, s, &s->plain), *made = derive(context, s, &s->made);
    lower(context, s, made);
    ok(context, s->name, run(plain, &expected));
    ok(context, s->name, run(made, &found));
    assert_int_equal(plain->output_count, made->output_count);
    const double error = error_of(plain, found, expected);
    if (!(error <= s->bound)) fail_msg("%s: an output is %g off before anything is broken", s->name, error);
    break_all(context, s, made, expected);
    evaluation_destroy(expected);
    evaluation_destroy(found);
    ir_graph_destroy(plain);
    ir_graph_destroy(made);
    dw_context_destroy(context);
}

/* ---- claims ---- */

static const char head[] =
    "graph head\n  symbol s 1..\n  input x f32[s,4]\n  input labels i64[s]\n  param a f32[8,4]\n  param w f32[9,8]\n"
    "  %1 = matmul x, a {bt=true} at \"up\" role mlp\n  %2 = gelu %1 at \"up\"\n  %3 = matmul %2, w {bt=true} at \"head\" role lm_head\n"
    "  %4, %5 = cross_entropy %3, labels {ignore=5,smoothing=0.1}\n  %6 = mean %4 {axes=[0]}\n  output loss %6\n";

/* Heads of a width of 4; a key has the width of two of them. */
static const char attention[] =
    "graph attention\n  symbol s 1..\n  input x f32[1,s,6]\n  param wq f32[8,6]\n  param bq f32[8]\n  param wk f32[4,6]\n  param bk f32[4]\n  param wv f32[4,6]\n  param bv f32[4]\n"
    "  %1 = matmul x, wq {bt=true} at \"a.attn.q\" role attention\n  %2 = add %1, bq at \"a.attn.q\" role attention\n"
    "  %3 = matmul x, wk {bt=true} at \"a.attn.k\" role attention\n  %4 = add %3, bk at \"a.attn.k\" role attention\n"
    "  %5 = matmul x, wv {bt=true} at \"a.attn.v\" role attention\n  %6 = add %5, bv at \"a.attn.v\" role attention\n"
    "  %7 = reshape %2 {shape=[1,s,2,4]}\n  %8 = transpose %7 {order=[0,2,1,3]}\n  %9 = reshape %4 {shape=[1,1,s,4]}\n  %10 = reshape %6 {shape=[1,1,s,4]}\n"
    "  %11 = attention %8, %9, %10 {scale=0.5,causal=true}\n  %12 = mul %11, %11\n  %13 = sum %12 {axes=[0,1,2,3]}\n  output loss %13\n";

static void broken_longer_rows_of_logits_are_noticed(void **state) {
    (void)state;
    hold(&(subject){.name = "columns", .text = head, .made = {.columns = 16}, .bound = 1e-5, .least = 40});
}

static void broken_parts_of_logits_are_noticed(void **state) {
    (void)state;
    hold(&(subject){.name = "chunks", .text = head, .made = {.columns = 16, .chunks = 2}, .bound = 1e-5, .least = 60});
}

static void broken_merged_projections_are_noticed(void **state) {
    (void)state;
    hold(&(subject){.name = "merged", .text = attention, .plain = {.inputs = "x", .trained = "*"}, .made = {.inputs = "x", .trained = "*", .merged = 1}, .bound = 1e-4, .least = 60});
}

/* Roundings to bf16 are within 3 in a hundred of an output; in front of a softmax, within 10. */
static void broken_narrow_gradients_are_noticed(void **state) {
    (void)state;
    hold(&(subject){.name = "narrow", .text = head, .precision = "bf16", .made = {.columns = 16}, .bound = 0.03, .least = 50});
    hold(&(subject){.name = "narrow attention", .text = attention, .precision = "bf16", .plain = {.inputs = "x", .trained = "*"}, .made = {.inputs = "x", .trained = "*", .merged = 1}, .bound = 0.1, .least = 60});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(broken_longer_rows_of_logits_are_noticed),
        cmocka_unit_test(broken_parts_of_logits_are_noticed),
        cmocka_unit_test(broken_merged_projections_are_noticed),
        cmocka_unit_test(broken_narrow_gradients_are_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
