/* Text cases of abstract values: a graph in, the formulas of its outputs out, and what is read off those that are masks. Every formula is held
 * against the graph itself, evaluated by the references on random inputs. */
#include "analysis/analysis.h"
#include "support/cases.h"
#include "support/evaluate.h"

#include <math.h>

/* ---- formulas against the graph ------------------------------------------------------------------------------------ */

static dw_status load_bound(void *owner, const ir_value *source, const int64_t *index, double *number) {
    const dw_tensor *tensor = evaluation_value(owner, source);
    *number = value_class_of(tensor->format) == VALUE_REAL ? op_tensor_load(tensor, index) : (double)op_tensor_load_int(tensor, index);
    return DW_OK;
}

static bool next_index(const dw_tensor *tensor, int64_t *index) {
    for (int axis = tensor->rank - 1; axis >= 0; axis--) {
        if (++index[axis] < tensor->dims[axis]) return true;
        index[axis] = 0;
    }
    return false;
}

static dw_status compare(const ir_graph *graph, const value_analysis *analysis, evaluation *evaluation, const ir_value *value) {
    const dw_tensor *tensor = evaluation_value(evaluation, value);
    const value_formula *formula = value_of(analysis, value);
    value_env env = {.symbols = evaluation_symbols(evaluation), .load = load_bound, .owner = evaluation};
    int64_t index[DW_MAX_RANK] = {0};
    do {
        double found, expected = formula->expr->class == VALUE_REAL ? op_tensor_load(tensor, index) : (double)op_tensor_load_int(tensor, index);
        for (int i = 0; i < tensor->rank; i++) env.index[i] = index[i];
        TRY(value_eval(analysis, formula->expr, &env, &found));
        if (found != expected && !(fabs(found - expected) <= 1e-6 * fabs(expected))) {
            return base_fail(graph->context, DW_INTERNAL, "the formula gives %g where the graph gives %g", found, expected);
        }
    } while (next_index(tensor, index));
    return DW_OK;
}

/* ---- what is printed ----------------------------------------------------------------------------------------------- */

static void print_mask(text *text, const value_analysis *analysis, const mask *mask) {
    text_add(text, "  mask:");
    if (mask->causal) text_add(text, " causal");
    if (mask->window != 0) text_printf(text, " window=%lld", (long long)mask->window);
    if (mask->ahead != 0) text_printf(text, " ahead=%lld", (long long)mask->ahead);
    if (mask->never) text_add(text, " never");
    for (int i = 0; i < mask->part_count; i++) {
        text_add(text, " and ");
        value_print(text, analysis, mask->parts[i]);
    }
    if (mask->bias != NULL) {
        text_add(text, " plus ");
        value_print(text, analysis, mask->bias);
    }
    text_add(text, "\n");
}

static dw_status print_output(text *text, value_analysis *analysis, const ir_output *output) {
    const value_formula *formula = value_of(analysis, output->value);
    text_printf(text, "%s: ", output->name);
    if (formula == NULL) {
        const char *reason = "";
        const ir_node *stop = value_stop(analysis, output->value, &reason);
        text_printf(text, "unknown, %s: %s\n", stop == NULL ? "no node" : op_get(stop->op)->name, reason);
        return DW_OK;
    }
    value_print(text, analysis, formula->expr);
    text_add(text, "\n");
    if (output->name[0] != 'm') return DW_OK;
    mask mask;
    bool known;
    TRY(mask_read(analysis, formula->expr, formula->rank, formula->dims, &mask, &known));
    if (known) print_mask(text, analysis, &mask);
    return DW_OK;
}

static dw_status run_graph(ir_graph *graph, value_analysis *analysis, text *output) {
    evaluation *evaluation;
    TRY(evaluation_create(graph, &evaluation));
    dw_status status = evaluation_bind_random(evaluation, 1);
    if (status == DW_OK) status = evaluation_run(evaluation);
    for (size_t i = 0; i < graph->output_count && status == DW_OK; i++) {
        if (value_of(analysis, graph->outputs[i].value) != NULL) status = compare(graph, analysis, evaluation, graph->outputs[i].value);
        if (status == DW_OK) status = print_output(output, analysis, &graph->outputs[i]);
    }
    evaluation_destroy(evaluation);
    return status;
}

static dw_status run_parsed(ir_graph *graph, text *output) {
    value_analysis *analysis;
    TRY(value_analyse(graph, &analysis));
    const dw_status status = run_graph(graph, analysis, output);
    value_analysis_destroy(analysis);
    return status;
}

static dw_status run_case(dw_context *context, const char *name, const char *input, size_t length, text *output) {
    ir_weights weights;
    ir_graph *graph = NULL;
    ir_weights_init(&weights, context);
    dw_status status = ir_parse(context, name, input, length, &weights, &graph);
    if (status == DW_OK) status = run_parsed(graph, output);
    ir_graph_destroy(graph);
    ir_weights_free(&weights);
    return status;
}

int main(int argc, char **argv) { return cases_main(argc, argv, "tests/analysis/value", run_case); }
