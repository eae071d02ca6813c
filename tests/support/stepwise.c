/* A causal graph run whole and in chunks by its step graph, both by the references. */
#include "support/stepwise.h"

#include <string.h>

#include "pass/incremental.h"
#include "support/evaluate.h"

/* ---- slices of tensors ------------------------------------------------------------------------------------------------ */

/* The part of x from begin on along axis, size long. */
static dw_tensor part(const dw_tensor *x, int axis, int64_t begin, int64_t size) {
    dw_tensor slice = *x;
    if (axis < 0) return slice;
    slice.dims[axis] = size;
    slice.data = (char *)x->data + (size_t)(begin * x->strides[axis]) * (size_t)dw_format_bits(x->format) / 8;
    return slice;
}

/* The axis whose size is the symbol; -1: none. */
static int axis_of(const ir_graph *graph, const ir_value *value, const char *symbol) {
    for (int i = 0; i < value->type.rank; i++) {
        int index;
        if (dim_is_symbol(value->type.dims[i], &index) && strcmp(dim_symbol_name(graph->dims, index), symbol) == 0) return i;
    }
    return -1;
}

/* ---- whole and in chunks ------------------------------------------------------------------------------------------------ */

typedef struct comparison {
    const ir_graph *whole, *step, *prelude;
    evaluation *all, *parts, *given;
    const char *length;          /* the symbol */
    int count;
    const int64_t *chunks;
    double *error;
    int compared;                /* outputs, over all chunks */
} comparison;

static dw_status run_whole(comparison *comparison) {
    int64_t total = 0;
    for (int i = 0; i < comparison->count; i++) total += comparison->chunks[i];
    TRY(evaluation_set_symbol(comparison->all, comparison->length, total));
    if (dim_symbol_find(comparison->whole->dims, "b") >= 0) TRY(evaluation_set_symbol(comparison->all, "b", STEPWISE_BATCH));
    TRY(evaluation_bind_random(comparison->all, 5));
    return evaluation_run(comparison->all);
}

/* Params that came without data have the data of the whole run. */
static dw_status bind_params(comparison *comparison, const ir_graph *graph, evaluation *evaluation) {
    const ir_graph *whole = comparison->whole;
    for (size_t i = 0; i < whole->param_count; i++) {
        const ir_value *param = whole->params[i];
        if (map_find(&graph->names, param->name) == NULL || param->weight != NULL) continue;
        TRY(evaluation_bind(evaluation, param->name, evaluation_value(comparison->all, param)));
    }
    return DW_OK;
}

/* Runs the prelude; its outputs are inputs of the step. */
static dw_status run_prelude(comparison *comparison) {
    const ir_graph *prelude = comparison->prelude;
    for (size_t i = 0; i < prelude->input_count; i++) {
        const ir_value *input = map_find(&comparison->whole->names, prelude->inputs[i]->name);
        TRY(evaluation_bind(comparison->given, input->name, evaluation_value(comparison->all, input)));
    }
    for (int i = 0; i < dim_symbol_count(prelude->dims); i++) {
        TRY(evaluation_set_symbol(comparison->given, dim_symbol_name(prelude->dims, i), evaluation_symbols(comparison->all)[i]));
    }
    TRY(bind_params(comparison, prelude, comparison->given));
    TRY(evaluation_run(comparison->given));
    for (size_t i = 0; i < prelude->output_count; i++) {
        const char *name = prelude->outputs[i].name;
        TRY(evaluation_bind(comparison->parts, name, evaluation_output(comparison->given, name)));
    }
    return DW_OK;
}

static dw_status bind_chunk(comparison *comparison, int64_t past, int64_t count) {
    const ir_graph *whole = comparison->whole;
    const ir_value *tokens = incremental_find_tokens(whole);
    for (size_t i = 0; i < whole->input_count; i++) {
        const ir_value *input = whole->inputs[i];
        if (map_find(&comparison->step->names, input->name) == NULL) continue;
        const int axis = axis_of(whole, input, comparison->length);
        const bool fresh = input == tokens;
        const dw_tensor given = part(evaluation_value(comparison->all, input), axis, fresh ? past : 0, fresh ? count : past + count);
        TRY(evaluation_bind(comparison->parts, input->name, &given));
    }
    return bind_params(comparison, comparison->step, comparison->parts);
}

static dw_status run_chunk(comparison *comparison, int64_t past, int64_t count, bool is_last) {
    const ir_graph *whole = comparison->whole;
    TRY(evaluation_set_symbol(comparison->parts, "past", past));
    TRY(bind_chunk(comparison, past, count));
    TRY(evaluation_run(comparison->parts));
    for (size_t i = 0; i < whole->output_count; i++) {
        const ir_output *output = &whole->outputs[i];
        const int axis = axis_of(whole, output->value, comparison->length);
        if (axis < 0 && !is_last) continue;    /* of the last token: not there in the middle of a whole run */
        const dw_tensor *made = evaluation_output(comparison->parts, output->name);
        if (made == NULL && comparison->prelude != NULL) continue;    /* given, no result of a step */
        const int64_t made_count = axis < 0 ? 0 : made->dims[axis];     /* 1 where the step gives the last token alone */
        const dw_tensor expected = part(evaluation_value(comparison->all, output->value), axis, past + count - made_count, made_count);
        const double error = tensor_error(made, &expected);
        if (!(error <= *comparison->error)) *comparison->error = error;
        comparison->compared++;
    }
    return DW_OK;
}

static dw_status run_chunks(comparison *comparison) {
    int64_t past = 0;
    TRY(evaluation_set_symbol(comparison->parts, "max", STEPWISE_ROOM));
    for (int i = 0; i < comparison->count; i++) {
        TRY(run_chunk(comparison, past, comparison->chunks[i], i + 1 == comparison->count));
        past += comparison->chunks[i];
    }
    return DW_OK;
}

dw_status stepwise_compare(const ir_graph *whole, const ir_graph *step, const ir_graph *prelude, int count, const int64_t *chunks, double *error) {
    const ir_value *tokens = incremental_find_tokens(whole);
    int symbol;
    dim_is_symbol(tokens->type.dims[tokens->type.rank - 1], &symbol);
    comparison comparison = {.whole = whole, .step = step, .prelude = prelude, .length = dim_symbol_name(whole->dims, symbol),
                             .count = count, .chunks = chunks, .error = error};
    *error = 0;
    dw_status status = evaluation_create(whole, &comparison.all);
    if (status == DW_OK) status = evaluation_create(step, &comparison.parts);
    if (status == DW_OK && prelude != NULL) status = evaluation_create(prelude, &comparison.given);
    if (status == DW_OK) status = run_whole(&comparison);
    if (status == DW_OK && prelude != NULL) status = run_prelude(&comparison);
    if (status == DW_OK) status = run_chunks(&comparison);
    if (status == DW_OK && comparison.compared == 0) {
        status = base_fail(whole->context, DW_INTERNAL, "no output was compared");
    }
    evaluation_destroy(comparison.parts);
    evaluation_destroy(comparison.given);
    evaluation_destroy(comparison.all);
    return status;
}
