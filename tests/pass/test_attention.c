/* Text cases of fuse_attention: a graph in, the graph after it out. Before and after are evaluated by the references on the same random
 * inputs and must agree to the order of sums. */
#include "pass/pass.h"
#include "support/cases.h"
#include "support/evaluate.h"

#include <string.h>

/* The reference computes in double and rounds once per node, so a fused node differs by the roundings that it leaves out. */
#define TOLERANCE 2e-6

static dw_status evaluate(const ir_graph *graph, evaluation **made) {
    TRY(evaluation_create(graph, made));
    TRY(evaluation_bind_random(*made, 7));
    return evaluation_run(*made);
}

static dw_status compare(const ir_graph *graph, const evaluation *before, const evaluation *after) {
    for (size_t i = 0; i < graph->output_count; i++) {
        const char *name = graph->outputs[i].name;
        const double error = tensor_error(evaluation_output(after, name), evaluation_output(before, name));
        if (!(error <= TOLERANCE)) return base_fail(graph->context, DW_INTERNAL, "output %s differs by %g of its norm", name, error);
    }
    return DW_OK;
}

static dw_status run_passes(ir_graph *graph) {
    static const char *const names[] = {"fuse_attention", "cse", "dead", "fuse_attention"};
    const pass_options options = {.check = true};
    bool changed;
    for (size_t i = 0; i < COUNT_OF(names); i++) TRY(pass_run_one(graph, pass_find(names[i]), &options, &changed));
    if (changed) return base_fail(graph->context, DW_INTERNAL, "fuse_attention changes its own result");
    return DW_OK;
}

static dw_status run_graphs(ir_graph *before, ir_graph *after, text *output) {
    evaluation *first = NULL, *second = NULL;
    dw_status status = run_passes(after);
    if (status == DW_OK) status = evaluate(before, &first);
    if (status == DW_OK) status = evaluate(after, &second);
    if (status == DW_OK) status = compare(before, first, second);
    if (status == DW_OK) status = ir_print(after, output);
    evaluation_destroy(second);
    evaluation_destroy(first);
    return status;
}

static dw_status run_case(dw_context *context, const char *name, const char *input, size_t length, text *output) {
    ir_weights weights, others;
    ir_graph *before = NULL, *after = NULL;
    ir_weights_init(&weights, context);
    ir_weights_init(&others, context);
    dw_status status = ir_parse(context, name, input, length, &weights, &before);
    if (status == DW_OK) status = ir_parse(context, name, input, length, &others, &after);
    if (status == DW_OK) status = run_graphs(before, after, output);
    ir_graph_destroy(after);
    ir_graph_destroy(before);
    ir_weights_free(&others);
    ir_weights_free(&weights);
    return status;
}

int main(int argc, char **argv) { return cases_main(argc, argv, "tests/pass/attention", run_case); }
