/* Sizes from the shapes of given inputs. Everything that does not fit the model is named in one message. */
#include "engine/engine.h"

#include <inttypes.h>
#include <string.h>

static dw_status complain(dw_context *context, dw_status *status, const char *format, ...) BASE_PRINTF(3, 4);

/* The first complaint begins the message, later ones are added to it. */
static dw_status complain(dw_context *context, dw_status *status, const char *format, ...) {
    char problem[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(problem, sizeof problem, format, arguments);
    va_end(arguments);
    *status = *status == DW_OK ? base_fail(context, DW_MISMATCH, "the inputs do not fit the model: %s", problem)
                               : base_fail_at(context, DW_MISMATCH, "%s", problem);
    return *status;
}

typedef struct matching {
    dw_context *context;
    const dim_table *dims;
    int64_t *symbols;
    bool known[ENGINE_MAX_SYMBOLS];
    dw_status status;
} matching;

static void gather(matching *match, const ir_graph *graph, int count, const dw_named_tensor *given, bool all, const dw_tensor **inputs) {
    for (size_t i = 0; i < graph->input_count; i++) {
        inputs[i] = NULL;
        for (int k = 0; k < count; k++) {
            if (strcmp(given[k].name, graph->inputs[i]->name) != 0) continue;
            if (inputs[i] != NULL) complain(match->context, &match->status, "%s is given twice", given[k].name);
            inputs[i] = &given[k].tensor;
        }
        if (inputs[i] == NULL && all) complain(match->context, &match->status, "%s is missing", graph->inputs[i]->name);
    }
    for (int k = 0; k < count; k++) {
        bool known = false;
        for (size_t i = 0; i < graph->input_count; i++) known |= strcmp(given[k].name, graph->inputs[i]->name) == 0;
        if (!known) complain(match->context, &match->status, "%.200s is no input of the model", given[k].name);
    }
}

static void match_axis(matching *match, const ir_value *input, int axis, int64_t size) {
    int symbol;
    int64_t min, max;
    if (!dim_is_symbol(input->type.dims[axis], &symbol)) return;
    const char *name = dim_symbol_name(match->dims, symbol);
    dim_symbol_range(match->dims, symbol, &min, &max);
    if (match->known[symbol] && match->symbols[symbol] != size)
        complain(match->context, &match->status, "axis %d of %s is %" PRId64 ", but %s is %" PRId64 " elsewhere", axis, input->name, size, name,
                 match->symbols[symbol]);
    else if (size < min)
        complain(match->context, &match->status, "axis %d of %s (%s) is %" PRId64 ", it is at least %" PRId64, axis, input->name, name, size, min);
    else if (size > max)
        complain(match->context, &match->status, "axis %d of %s (%s) is %" PRId64 ", it is at most %" PRId64, axis, input->name, name, size, max);
    if (!match->known[symbol]) match->symbols[symbol] = size;
    match->known[symbol] = true;
}

static void match_input(matching *match, const ir_value *input, const dw_tensor *tensor) {
    if (tensor->format != input->type.format)
        complain(match->context, &match->status, "%s is %s, the model takes %s", input->name, dw_format_name(tensor->format),
                 dw_format_name(input->type.format));
    if (tensor->rank != input->type.rank) {
        complain(match->context, &match->status, "%s has rank %d, the model takes %d", input->name, tensor->rank, input->type.rank);
        return;
    }
    for (int i = 0; i < tensor->rank; i++) match_axis(match, input, i, tensor->dims[i]);
}

/* Axes that are numbers or expressions are held against the sizes that the plain symbols gave. */
static dw_status match_expressions(matching *match, const ir_value *input, const dw_tensor *tensor) {
    for (int i = 0; i < tensor->rank && tensor->rank == input->type.rank; i++) {
        int64_t size;
        if (dim_is_symbol(input->type.dims[i], NULL)) continue;
        TRY(dim_eval(match->context, input->type.dims[i], match->symbols, &size));
        if (size != tensor->dims[i])
            complain(match->context, &match->status, "axis %d of %s is %" PRId64 ", the model takes %" PRId64, i, input->name, tensor->dims[i], size);
    }
    return DW_OK;
}

static dw_status match_inputs(dw_context *context, const plan *plan, int count, const dw_named_tensor *given, bool all, const dw_tensor **inputs,
                              int64_t *symbols) {
    const ir_graph *graph = plan->graph;
    matching match = {.context = context, .dims = graph->dims, .symbols = symbols};
    if (graph->input_count > ENGINE_MAX_INPUTS)
        return base_fail(context, DW_LIMIT, "the model has %zu inputs, at most %d can be given", graph->input_count, ENGINE_MAX_INPUTS);
    if (dim_symbol_count(graph->dims) > ENGINE_MAX_SYMBOLS)
        return base_fail(context, DW_LIMIT, "the model has %d symbolic sizes, at most %d can be bound", dim_symbol_count(graph->dims),
                         ENGINE_MAX_SYMBOLS);
    memcpy(symbols, plan->typical, (size_t)dim_symbol_count(graph->dims) * sizeof *symbols);
    gather(&match, graph, count, given, all, inputs);
    for (size_t i = 0; i < graph->input_count; i++)
        if (inputs[i] != NULL) match_input(&match, graph->inputs[i], inputs[i]);
    for (size_t i = 0; i < graph->input_count; i++)
        if (inputs[i] != NULL) TRY(match_expressions(&match, graph->inputs[i], inputs[i]));
    return match.status;
}

dw_status engine_match(dw_context *context, const plan *plan, int count, const dw_named_tensor *given, const dw_tensor **inputs, int64_t *symbols) {
    return match_inputs(context, plan, count, given, true, inputs, symbols);
}

dw_status engine_match_some(dw_context *context, const plan *plan, int count, const dw_named_tensor *given, const dw_tensor **inputs, int64_t *symbols) {
    return match_inputs(context, plan, count, given, false, inputs, symbols);
}

dw_status dw_model_sizes(const dw_model *model, int input_count, const dw_named_tensor *inputs, char *dims, size_t size) {
    const dw_tensor *ordered[ENGINE_MAX_INPUTS];
    int64_t symbols[ENGINE_MAX_SYMBOLS];
    const plan *plan = model->full.plan ? model->full.plan : model->prelude.plan ? model->prelude.plan : model->step.plan;
    text words;
    const bool generates = (model->flags & DW_MODEL_GENERATE_ONLY) != 0;
    TRY((generates && model->full.plan != NULL ? engine_match_some : engine_match)(model->context, plan, input_count, inputs, ordered, symbols));
    text_init(&words, model->context);
    for (int i = 0, sizes = 0; i < dim_symbol_count(plan->graph->dims); i++) {
        const char *name = dim_symbol_name(plan->graph->dims, i);
        if (strncmp(name, DIM_RANK, strlen(DIM_RANK)) != 0) text_printf(&words, "%s%s=%" PRId64, sizes++ ? "," : "", name, symbols[i]);
    }
    dw_status status = text_status(&words);
    if (status == DW_OK && words.length >= size)
        status = base_fail(model->context, DW_LIMIT, "the sizes need %zu bytes, there are %zu", words.length + 1, size);
    if (status == DW_OK) memcpy(dims, text_string(&words), words.length + 1);
    text_free(&words);
    return status;
}
