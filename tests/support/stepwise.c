/* A causal graph run whole and in chunks by its step graph, both by the references. */
#include "support/stepwise.h"

#include <stdlib.h>
#include <string.h>

#include "pass/step/incremental.h"
#include "support/evaluate.h"

enum { MOST_NEW = STEPWISE_TEXTS * STEPWISE_ROOM };

/* ---- slices of tensors ------------------------------------------------------------------------------------------------ */

static char *at(const dw_tensor *x, int64_t offset) { return (char *)x->data + offset * (int64_t)dw_format_bits(x->format) / 8; }

/* The part of x from begin on along axis, size long. */
static dw_tensor part(const dw_tensor *x, int axis, int64_t begin, int64_t size) {
    dw_tensor slice = *x;
    if (axis < 0) return slice;
    slice.dims[axis] = size;
    slice.data = at(x, begin * x->strides[axis]);
    return slice;
}

static void copy(const dw_tensor *to, const dw_tensor *from) {
    int64_t index[DW_MAX_RANK] = {0};
    for (int64_t left = op_tensor_count(from); left > 0; left--) {
        int64_t source = 0, target = 0;
        for (int i = 0; i < from->rank; i++) {
            source += index[i] * from->strides[i];
            target += index[i] * to->strides[i];
        }
        memcpy(at(to, target), at(from, source), (size_t)dw_format_bits(from->format) / 8);
        for (int i = from->rank - 1; i >= 0 && ++index[i] == from->dims[i]; i--) index[i] = 0;
    }
}

/* The axis whose size is the symbol; -1: none. */
static int axis_of(const ir_graph *graph, const ir_value *value, const char *symbol) {
    for (int i = 0; symbol != NULL && i < value->type.rank; i++) {
        int index;
        if (dim_is_symbol(value->type.dims[i], &index) && strcmp(dim_symbol_name(graph->dims, index), symbol) == 0) return i;
    }
    return -1;
}

/* ---- the comparison ------------------------------------------------------------------------------------------------------ */

typedef struct comparison {
    const ir_graph *whole, *step, *prelude;
    evaluation *all, *parts, *given;
    const ir_value *tokens;
    const char *length, *batch;  /* the symbols; batch NULL: the batch is 1 */
    int texts;
    bool one_at_a_time;
    int count;
    const int64_t *chunks;
    double *error;
    int compared;                /* outputs, over all runs */
} comparison;

/* Some tokens of one text in a run, and where they are in it. */
typedef struct stretch {
    int text;
    int64_t past, count, from;
} stretch;

static int64_t total_of(const comparison *c) {
    int64_t total = 0;
    for (int i = 0; i < c->count; i++) total += c->chunks[i];
    return total;
}

/* Inputs over the sequence besides the tokens are the same for all texts: they get the first one's. */
static void share_inputs(comparison *c) {
    for (size_t i = 0; i < c->whole->input_count; i++) {
        const ir_value *input = c->whole->inputs[i];
        const int axis = axis_of(c->whole, input, c->batch);
        if (input == c->tokens || axis < 0 || axis_of(c->whole, input, c->length) < 0) continue;
        const dw_tensor *data = evaluation_value(c->all, input);
        const dw_tensor first = part(data, axis, 0, 1);
        for (int text = 1; text < c->texts; text++) {
            const dw_tensor other = part(data, axis, text, 1);
            copy(&other, &first);
        }
    }
}

static dw_status run_whole(comparison *c) {
    TRY(evaluation_set_symbol(c->all, c->length, total_of(c)));
    if (c->batch != NULL) TRY(evaluation_set_symbol(c->all, c->batch, c->texts));
    TRY(evaluation_bind_random(c->all, 5));
    TRY(evaluation_run(c->all));
    share_inputs(c);
    return evaluation_run(c->all);
}

/* Params that came without data have the data of the whole run. */
static dw_status bind_params(comparison *c, const ir_graph *graph, evaluation *evaluation) {
    const ir_graph *whole = c->whole;
    for (size_t i = 0; i < whole->param_count; i++) {
        const ir_value *param = whole->params[i];
        if (map_find(&graph->names, param->name) == NULL || param->weight != NULL) continue;
        TRY(evaluation_bind(evaluation, param->name, evaluation_value(c->all, param)));
    }
    return DW_OK;
}

/* ---- the prelude --------------------------------------------------------------------------------------------------------- */

static bool is_by_text(const comparison *c, const ir_value *given) { return axis_of(c->step, given, STEP_SYMBOL_ROWS) == 0; }

/* Runs the prelude for one text; its outputs are inputs of the step, or a row of them. */
static dw_status run_prelude(comparison *c, int text) {
    const ir_graph *prelude = c->prelude;
    for (int i = 0; i < dim_symbol_count(prelude->dims); i++) {
        TRY(evaluation_set_symbol(c->given, dim_symbol_name(prelude->dims, i), evaluation_symbols(c->all)[i]));
    }
    if (c->batch != NULL && dim_symbol_find(prelude->dims, c->batch) >= 0) TRY(evaluation_set_symbol(c->given, c->batch, 1));
    for (size_t i = 0; i < prelude->input_count; i++) {
        const ir_value *input = map_find(&c->whole->names, prelude->inputs[i]->name);
        const int axis = axis_of(c->whole, input, c->batch);
        const dw_tensor mine = part(evaluation_value(c->all, input), axis, text, 1);
        TRY(evaluation_bind(c->given, input->name, &mine));
    }
    TRY(bind_params(c, prelude, c->given));
    TRY(evaluation_run(c->given));
    for (size_t i = 0; i < prelude->output_count; i++) {
        const char *name = prelude->outputs[i].name;
        const dw_tensor *made = evaluation_output(c->given, name);
        if (!is_by_text(c, map_find(&c->step->names, name))) {
            TRY(evaluation_bind(c->parts, name, made));
            continue;
        }
        int64_t dims[DW_MAX_RANK];
        memcpy(dims, made->dims, sizeof dims);
        dims[0] = c->one_at_a_time ? 1 : c->texts;
        dw_tensor rows;
        if (text == 0 || c->one_at_a_time) TRY(evaluation_bind_new(c->parts, name, made->rank, dims, &rows));
        else rows = *evaluation_value(c->parts, map_find(&c->step->names, name));
        const dw_tensor row = part(&rows, 0, c->one_at_a_time ? 0 : text, 1);
        copy(&row, made);
    }
    return DW_OK;
}

/* ---- runs ------------------------------------------------------------------------------------------------------------------ */

static dw_status bind_numbers(comparison *c, const char *name, int64_t count, const int64_t *numbers) {
    dw_tensor tensor;
    if (map_find(&c->step->names, name) == NULL) return DW_OK;
    TRY(evaluation_bind_new(c->parts, name, 1, &count, &tensor));
    for (int64_t i = 0; i < count; i++) op_tensor_store_int(&tensor, &i, numbers[i]);
    return DW_OK;
}

/* Pages of each text, none next to the one before it. */
static dw_status bind_tables(comparison *c) {
    const int64_t dims[] = {c->one_at_a_time ? 1 : c->texts, STEPWISE_PAGES};
    for (size_t i = 0; i < c->step->input_count; i++) {
        const char *name = c->step->inputs[i]->name;
        dw_tensor table;
        if (strncmp(name, STEP_INPUT_TABLE, strlen(STEP_INPUT_TABLE)) != 0) continue;
        TRY(evaluation_bind_new(c->parts, name, 2, dims, &table));
        for (int64_t k = 0; k < dims[0] * dims[1]; k++) op_tensor_store_int(&table, (int64_t[]){k / dims[1], k % dims[1]}, dims[0] * dims[1] - 1 - k);
    }
    return DW_OK;
}

/* How far what is given goes in each text: as far as it is long. */
static dw_status bind_limits(comparison *c, int64_t count) {
    int64_t numbers[MOST_NEW];
    for (size_t i = 0; i < c->step->input_count; i++) {
        const char *name = c->step->inputs[i]->name, *end = strstr(name, STEP_GIVEN_LAST);
        char given[64];
        if (strncmp(name, STEP_GIVEN, strlen(STEP_GIVEN)) != 0 || end == NULL) continue;
        snprintf(given, sizeof given, "%.*s", (int)(end - name), name);
        const int64_t size = evaluation_output(c->given, given)->dims[2];
        for (int64_t k = 0; k < count; k++) numbers[k] = size - 1;
        TRY(bind_numbers(c, name, count, numbers));
    }
    return DW_OK;
}

static dw_status bind_tokens(comparison *c, int count, const stretch *stretches) {
    const dw_tensor *ids = evaluation_value(c->all, c->tokens);
    const int rank = ids->rank;
    int64_t dims[2] = {1, 1}, rows[MOST_NEW], positions[MOST_NEW], last[STEPWISE_TEXTS], at_new = 0;
    for (int i = 0; i < count; i++) {
        for (int64_t k = 0; k < stretches[i].count; k++, at_new++) {
            rows[at_new] = c->one_at_a_time ? 0 : stretches[i].text;
            positions[at_new] = stretches[i].past + k;
        }
        last[i] = at_new - 1;
    }
    dw_tensor fresh;
    dims[rank - 1] = at_new;
    TRY(evaluation_bind_new(c->parts, c->tokens->name, rank, dims, &fresh));
    for (int i = 0; i < count; i++) {
        const dw_tensor text = rank == 2 ? part(ids, 0, c->batch != NULL ? stretches[i].text : 0, 1) : *ids;
        const dw_tensor from = part(&text, rank - 1, stretches[i].past, stretches[i].count), to = part(&fresh, rank - 1, stretches[i].from, stretches[i].count);
        copy(&to, &from);
    }
    TRY(bind_numbers(c, STEP_INPUT_ROW, at_new, rows));
    TRY(bind_numbers(c, STEP_INPUT_POSITION, at_new, positions));
    TRY(bind_numbers(c, STEP_INPUT_LAST, count, last));
    return bind_limits(c, at_new);
}

/* Inputs over the sequence have every position of the run. */
static dw_status bind_history(comparison *c, int64_t total) {
    for (size_t i = 0; i < c->whole->input_count; i++) {
        const ir_value *input = c->whole->inputs[i];
        if (map_find(&c->step->names, input->name) == NULL || input == c->tokens) continue;
        const dw_tensor text = part(evaluation_value(c->all, input), axis_of(c->whole, input, c->batch), 0, 1);
        const dw_tensor known = part(&text, axis_of(c->whole, input, c->length), 0, total);
        TRY(evaluation_bind(c->parts, input->name, &known));
    }
    return bind_params(c, c->step, c->parts);
}

/* An output of the run for one stretch against the same of the whole. */
static void compare_output(comparison *c, const ir_output *output, int index, const stretch *stretch, bool is_last) {
    const int axis = axis_of(c->whole, output->value, c->length), batch = axis_of(c->whole, output->value, c->batch);
    if (axis < 0 && !is_last) return;      /* of the last token: not there in the middle of a whole run */
    const dw_tensor *made = evaluation_output(c->parts, output->name);
    if (made == NULL && c->prelude != NULL) return;    /* given, no result of a step */
    const bool ends = map_find(&c->step->names, STEP_INPUT_LAST) != NULL;
    const int64_t count = ends ? 1 : stretch->count;
    const dw_tensor text = part(evaluation_value(c->all, output->value), batch, stretch->text, 1);
    const dw_tensor expected = part(&text, axis, stretch->past + stretch->count - count, count);
    const dw_tensor mine = part(made, axis, ends ? index : stretch->from, count);
    const double error = tensor_error(&mine, &expected);
    if (!(error <= *c->error)) *c->error = error;
    c->compared++;
}

static dw_status run_stretches(comparison *c, int count, const stretch *stretches, bool is_last) {
    int64_t total = 0;
    for (int i = 0; i < count; i++) total = stretches[i].past + stretches[i].count > total ? stretches[i].past + stretches[i].count : total;
    if (dim_symbol_find(c->step->dims, STEP_SYMBOL_TOTAL) >= 0) TRY(evaluation_set_symbol(c->parts, STEP_SYMBOL_TOTAL, total));
    TRY(bind_tokens(c, count, stretches));
    TRY(bind_tables(c));
    TRY(bind_history(c, total));
    TRY(evaluation_run(c->parts));
    for (size_t i = 0; i < c->whole->output_count; i++) {
        for (int k = 0; k < count; k++) compare_output(c, &c->whole->outputs[i], k, &stretches[k], is_last);
    }
    return DW_OK;
}

static dw_status run_together(comparison *c) {
    int64_t past[STEPWISE_TEXTS] = {0};
    for (int text = 0; text < c->texts && c->prelude != NULL; text++) TRY(run_prelude(c, text));
    for (int i = 0; i < c->count; i++) {
        stretch stretches[STEPWISE_TEXTS];
        int64_t from = 0;
        for (int text = 0; text < c->texts; text++) {
            stretches[text] = (stretch){text, past[text], c->chunks[text == 0 ? i : c->count - 1 - i], from};
            past[text] += stretches[text].count;
            from += stretches[text].count;
        }
        TRY(run_stretches(c, c->texts, stretches, i + 1 == c->count));
    }
    return DW_OK;
}

static dw_status run_one_by_one(comparison *c) {
    for (int text = 0; text < c->texts; text++) {
        int64_t past = 0;
        evaluation_reset(c->parts);
        if (c->prelude != NULL) TRY(run_prelude(c, text));
        for (int i = 0; i < c->count; i++) {
            const stretch stretch = {text, past, c->chunks[i], 0};
            TRY(run_stretches(c, 1, &stretch, i + 1 == c->count));
            past += c->chunks[i];
        }
    }
    return DW_OK;
}

/* Does some output, or something given, belong to one text alone? */
static bool serves_one(const comparison *c) {
    for (size_t i = 0; i < c->whole->output_count; i++) {
        if (axis_of(c->whole, c->whole->outputs[i].value, c->length) < 0) return true;
    }
    for (size_t i = 0; c->prelude != NULL && i < c->prelude->output_count; i++) {
        if (!is_by_text(c, map_find(&c->step->names, c->prelude->outputs[i].name))) return true;
    }
    return false;
}

static dw_status set_symbols(comparison *c) {
    int64_t most = 1;
    for (int i = 0; i < c->count; i++) most = c->chunks[i] > most ? c->chunks[i] : most;
    const struct {
        const char *name;
        int64_t value;
    } symbols[] = {{STEP_SYMBOL_ROWS, c->one_at_a_time ? 1 : c->texts}, {STEP_SYMBOL_MAX, STEPWISE_ROOM}, {STEP_SYMBOL_CHUNK, most}, {c->batch, 1}, {STEP_SYMBOL_SLOTS, STEPWISE_ROOM / STEPWISE_PAGES},
                 {STEP_SYMBOL_ENTRIES, STEPWISE_PAGES}, {STEP_SYMBOL_PAGES, STEPWISE_PAGES * STEPWISE_TEXTS}, {STEP_SYMBOL_PAGES ".1", STEPWISE_PAGES * STEPWISE_TEXTS},
                 {STEP_SYMBOL_PAGES ".2", STEPWISE_PAGES * STEPWISE_TEXTS}};
    for (size_t i = 0; i < COUNT_OF(symbols); i++) {
        if (symbols[i].name == NULL || dim_symbol_find(c->step->dims, symbols[i].name) < 0) continue;
        TRY(evaluation_set_symbol(c->parts, symbols[i].name, symbols[i].value));
    }
    return DW_OK;
}

dw_status stepwise_compare(const ir_graph *whole, const ir_graph *step, const ir_graph *prelude, int count, const int64_t *chunks, double *error) {
    comparison c = {.whole = whole, .step = step, .prelude = prelude, .tokens = incremental_find_tokens(whole), .texts = 1, .count = count,
                    .chunks = chunks, .error = error};
    const op_type *tokens = &c.tokens->type;
    int symbol;
    dim_is_symbol(tokens->dims[tokens->rank - 1], &symbol);
    c.length = dim_symbol_name(whole->dims, symbol);
    if (tokens->rank == 2 && dim_is_symbol(tokens->dims[0], &symbol)) {
        c.batch = dim_symbol_name(whole->dims, symbol);
        c.texts = STEPWISE_TEXTS;
    }
    c.one_at_a_time = serves_one(&c);
    *error = 0;
    dw_status status = evaluation_create(whole, &c.all);
    if (status == DW_OK) status = evaluation_create(step, &c.parts);
    if (status == DW_OK && prelude != NULL) status = evaluation_create(prelude, &c.given);
    if (status == DW_OK) status = run_whole(&c);
    if (status == DW_OK) status = set_symbols(&c);
    if (status == DW_OK) status = c.one_at_a_time ? run_one_by_one(&c) : run_together(&c);
    if (status == DW_OK && c.compared == 0) status = base_fail(whole->context, DW_INTERNAL, "no output was compared");
    evaluation_destroy(c.parts);
    evaluation_destroy(c.given);
    evaluation_destroy(c.all);
    return status;
}
