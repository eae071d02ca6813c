/* Text cases of the cached step: a graph in, its step graph or the refusal out. Where there is a step, a sequence is run whole and in chunks,
 * both by the references, and the outputs must agree to the order of sums. */
#include "pass/incremental.h"

#include <stdlib.h>
#include <string.h>

#include "pass/pass.h"
#include "support/cases.h"
#include "support/evaluate.h"

/* The references round each result once, so the two differ only where keys that a whole run hides are not there at all in a step. */
#define TOLERANCE 1e-6

enum { BATCH = 2 };
static const int64_t chunks[] = {4, 1, 1, 3, 1};

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
    const ir_graph *whole, *step;
    evaluation *all, *parts;
    const char *length;          /* the symbol */
} comparison;

static dw_status run_whole(comparison *comparison) {
    int64_t total = 0;
    for (size_t i = 0; i < COUNT_OF(chunks); i++) total += chunks[i];
    TRY(evaluation_set_symbol(comparison->all, comparison->length, total));
    if (dim_symbol_find(comparison->whole->dims, "b") >= 0) TRY(evaluation_set_symbol(comparison->all, "b", BATCH));
    TRY(evaluation_bind_random(comparison->all, 5));
    return evaluation_run(comparison->all);
}

static dw_status bind_chunk(comparison *comparison, int64_t past, int64_t count) {
    const ir_graph *whole = comparison->whole;
    const ir_value *tokens = incremental_find_tokens(whole);
    for (size_t i = 0; i < whole->input_count; i++) {
        const ir_value *input = whole->inputs[i];
        const int axis = axis_of(whole, input, comparison->length);
        const bool fresh = input == tokens;
        const dw_tensor given = part(evaluation_value(comparison->all, input), axis, fresh ? past : 0, fresh ? count : past + count);
        TRY(evaluation_bind(comparison->parts, input->name, &given));
    }
    for (size_t i = 0; i < whole->param_count; i++) {
        const ir_value *param = whole->params[i];
        if (map_find(&comparison->step->names, param->name) == NULL || param->weight != NULL) continue;
        TRY(evaluation_bind(comparison->parts, param->name, evaluation_value(comparison->all, param)));
    }
    return DW_OK;
}

static dw_status run_chunk(comparison *comparison, int64_t past, int64_t count) {
    const ir_graph *whole = comparison->whole;
    TRY(evaluation_set_symbol(comparison->parts, "past", past));
    TRY(bind_chunk(comparison, past, count));
    TRY(evaluation_run(comparison->parts));
    for (size_t i = 0; i < whole->output_count; i++) {
        const ir_output *output = &whole->outputs[i];
        const int axis = axis_of(whole, output->value, comparison->length);
        if (axis < 0) continue;    /* of the last token: no such output in the middle of a whole run */
        const dw_tensor expected = part(evaluation_value(comparison->all, output->value), axis, past, count);
        const double error = tensor_error(evaluation_output(comparison->parts, output->name), &expected);
        if (!(error <= TOLERANCE)) {
            return base_fail(whole->context, DW_INTERNAL, "output '%s' of tokens %lld to %lld differs by %g of its norm", output->name,
                             (long long)past, (long long)(past + count), error);
        }
    }
    return DW_OK;
}

static dw_status run_chunks(comparison *comparison) {
    int64_t past = 0;
    TRY(evaluation_set_symbol(comparison->parts, "max", 16));
    for (size_t i = 0; i < COUNT_OF(chunks); i++) {
        TRY(run_chunk(comparison, past, chunks[i]));
        past += chunks[i];
    }
    return DW_OK;
}

static dw_status compare(const ir_graph *whole, const ir_graph *step) {
    const ir_value *tokens = incremental_find_tokens(whole);
    int symbol;
    dim_is_symbol(tokens->type.dims[tokens->type.rank - 1], &symbol);
    comparison comparison = {.whole = whole, .step = step, .length = dim_symbol_name(whole->dims, symbol)};
    dw_status status = evaluation_create(whole, &comparison.all);
    if (status == DW_OK) status = evaluation_create(step, &comparison.parts);
    if (status == DW_OK) status = run_whole(&comparison);
    if (status == DW_OK) status = run_chunks(&comparison);
    evaluation_destroy(comparison.parts);
    evaluation_destroy(comparison.all);
    return status;
}

/* ---- cases ------------------------------------------------------------------------------------------------------------------ */

static dw_status clean(ir_graph *graph) {
    static const char *const names[] = {"fuse_attention", "cse", "dead"};
    const pass_options options = {.check = true};
    bool changed;
    for (size_t i = 0; i < COUNT_OF(names); i++) TRY(pass_run_one(graph, pass_find(names[i]), &options, &changed));
    return DW_OK;
}

static dw_status run_graph(ir_graph *graph, text *output) {
    text why;
    ir_graph *step = NULL;
    TRY(clean(graph));
    text_init(&why, graph->context);
    dw_status status = pass_incremental(graph, &step, &why);
    if (status == DW_OK && step == NULL) text_printf(output, "refused: %s\n", text_string(&why));
    if (status == DW_OK && step != NULL) status = compare(graph, step);
    if (status == DW_OK && step != NULL) status = ir_print(step, output);
    text_free(&why);
    ir_graph_destroy(step);
    return status;
}

static dw_status run_case(dw_context *context, const char *name, const char *input, size_t length, text *output) {
    ir_graph *graph = NULL;
    dw_status status = ir_parse(context, name, input, length, NULL, &graph);
    if (status == DW_OK) status = run_graph(graph, output);
    ir_graph_destroy(graph);
    return status;
}

int main(int argc, char **argv) { return cases_main(argc, argv, "tests/pass/incremental", run_case); }
