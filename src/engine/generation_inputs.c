/* The inputs and outputs of a generating graph, recognised by names and shapes: token ids are looked up in a table, the usual companions have the names that
 * PyTorch users give them, and the step's own inputs those of pass/step/incremental.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

static bool is_integer(dw_format format) { return format == DW_FORMAT_i64 || format == DW_FORMAT_i32; }

static const ir_graph *prelude_of(const dw_session *session) { return session->prelude.program != NULL ? session->prelude.program->plan->graph : NULL; }

/* Which output of the prelude the first length characters name; -1: none. */
static int given_index(const dw_session *session, const char *name, size_t length) {
    const ir_graph *prelude = prelude_of(session);
    for (size_t i = 0; prelude != NULL && i < prelude->output_count; i++)
        if (strlen(prelude->outputs[i].name) == length && strncmp(prelude->outputs[i].name, name, length) == 0) return (int)i;
    return -1;
}

/* Inputs of the step that are not the model's. */
static feed step_feed(const dw_session *session, const char *name, int *given) {
    const char *last = strstr(name, STEP_GIVEN_LAST);
    if (strcmp(name, STEP_INPUT_ROW) == 0) return FEED_ROWS;
    if (strcmp(name, STEP_INPUT_POSITION) == 0) return FEED_PLACES;
    if (strcmp(name, STEP_INPUT_LAST) == 0) return FEED_LAST;
    if (strncmp(name, STEP_INPUT_TABLE, strlen(STEP_INPUT_TABLE)) == 0) return FEED_TABLE;
    *given = given_index(session, name, strlen(name));
    if (*given >= 0) return FEED_GIVEN;
    *given = last != NULL ? given_index(session, name, (size_t)(last - name)) : -1;
    return *given >= 0 ? FEED_LIMIT : FEED_UNKNOWN;
}

/* The model's own. along: does it run over the tokens? */
static feed model_feed(generation_mode mode, const ir_value *input, bool along) {
    const char *name = input->name;
    const int rank = input->type.rank;
    const bool number = is_integer(input->type.format);
    if (rank < 1 || rank > 2) return FEED_UNKNOWN;
    if (strstr(name, "mask") != NULL) return along ? FEED_ONES : FEED_UNKNOWN;
    if (strstr(name, "position") != NULL && number) return mode == GENERATION_STATE ? FEED_PLACES : along ? FEED_POSITIONS : FEED_UNKNOWN;
    if (strstr(name, "type_ids") != NULL) return along ? FEED_ZEROS : FEED_UNKNOWN;
    return number && along && rank == 2 ? FEED_IDS : FEED_UNKNOWN;
}

/* The size that counts tokens: the last of the token input; NULL: there is none. */
static dim tokens_of(const generation *g, const ir_graph *graph) {
    const ir_value *row = map_find(&graph->names, STEP_INPUT_ROW), *tokens = incremental_find_tokens(graph);
    if (g->mode == GENERATION_STEP && row != NULL) return row->type.dims[0];
    if (tokens != NULL) return tokens->type.dims[tokens->type.rank - 1];
    for (size_t i = 0; i < graph->input_count; i++) {
        const op_type *type = &graph->inputs[i]->type;
        if (is_integer(type->format) && type->rank == 2) return type->dims[1];
    }
    return NULL;
}

static bool runs_along(const ir_graph *graph, const generation *g, const ir_value *input, dim tokens) {
    for (int i = 0; i < input->type.rank; i++) {
        int symbol;
        if (input->type.dims[i] == tokens) return true;
        if (g->mode == GENERATION_STEP && dim_is_symbol(input->type.dims[i], &symbol) && strcmp(dim_symbol_name(graph->dims, symbol), STEP_SYMBOL_TOTAL) == 0)
            return true;
    }
    return false;
}

static dw_status read_ids(dw_session *session, const ir_value *ids, generation *g) {
    int64_t rows;
    if (!dim_is_symbol(ids->type.dims[0], &g->batch)) g->batch = -1;
    if (dim_is_constant(ids->type.dims[0], &rows) && rows != 1)
        return base_fail(session->context, DW_UNSUPPORTED,
                         "generation continues one prompt at a time; %s has %" PRId64 " rows: export it with 1 or with a dynamic batch", ids->name, rows);
    if (dim_is_symbol(ids->type.dims[1], &g->fresh)) return DW_OK;
    g->fresh = -1;
    if (g->mode == GENERATION_STATE && dim_is_constant(ids->type.dims[1], &g->fixed) && g->fixed == 1) return DW_OK;
    return base_fail(session->context, DW_UNSUPPORTED, "generation needs a model exported with a dynamic number of tokens; %s has a fixed one",
                     ids->name);
}

static dw_status find_inputs(dw_session *session, const ir_graph *graph, generation *g) {
    const ir_value *ids = NULL;
    const dim tokens = tokens_of(g, graph);
    bool told = false;
    if (graph->input_count > GENERATION_TENSORS)
        return base_fail(session->context, DW_LIMIT, "generation with more than %d inputs", GENERATION_TENSORS);
    for (size_t i = 0; i < graph->input_count; i++) {
        const ir_value *input = graph->inputs[i];
        const bool along = runs_along(graph, g, input, tokens);
        g->given[i] = -1;
        g->feeds[i] = g->mode == GENERATION_STEP ? step_feed(session, input->name, &g->given[i]) : FEED_UNKNOWN;
        if (g->feeds[i] == FEED_UNKNOWN) g->feeds[i] = model_feed(g->mode, input, along);
        if (g->feeds[i] == FEED_UNKNOWN && g->mode == GENERATION_WHOLE && tokens != NULL && !along) g->feeds[i] = FEED_CALLER;
        told = told || g->feeds[i] == FEED_PLACES;
        if (g->feeds[i] == FEED_UNKNOWN)
            return base_fail(session->context, DW_UNSUPPORTED,
                             "generation does not know what to feed input %s: it knows token ids, and masks, positions and type ids by token", input->name);
        if (g->feeds[i] != FEED_IDS) continue;
        if (ids != NULL)
            return base_fail(session->context, DW_UNSUPPORTED, "generation takes one input of token ids, this model has %s and %s", ids->name, input->name);
        ids = input;
    }
    if (ids == NULL)
        return base_fail(session->context, DW_UNSUPPORTED, "generation needs an input of token ids [batch, tokens]; this model has none");
    if (g->mode == GENERATION_STATE && !told)
        return base_fail(session->context, DW_UNSUPPORTED, "generation with a model that keeps its own cache needs an input of integer positions by token");
    return read_ids(session, ids, g);
}

/* The groups of caches in pages, by their tables. */
static dw_status find_groups(dw_session *session, const ir_graph *graph, generation *g) {
    g->slots = dim_symbol_find(graph->dims, STEP_SYMBOL_SLOTS);
    g->entries = dim_symbol_find(graph->dims, STEP_SYMBOL_ENTRIES);
    for (size_t i = 0; i < graph->input_count; i++) {
        char name[32];
        if (g->feeds[i] != FEED_TABLE) continue;
        if (g->group_count == GENERATION_GROUPS) return base_fail(session->context, DW_LIMIT, "generation with more than %d tables of pages", GENERATION_GROUPS);
        snprintf(name, sizeof name, "%s%s", STEP_SYMBOL_PAGES, graph->inputs[i]->name + strlen(STEP_INPUT_TABLE));
        g->groups[g->group_count++] = (generation_group){.input = i, .symbol = dim_symbol_find(graph->dims, name), .reach = incremental_reach_of(graph->inputs[i])};
    }
    return DW_OK;
}

static dw_status find_outputs(dw_session *session, const ir_graph *graph, generation *g) {
    g->output = incremental_find_logits(graph, &g->vocabulary);
    if (g->output < 0)
        return base_fail(session->context, DW_UNSUPPORTED, "generation needs an output of logits [batch, tokens, vocabulary]; this model has none");
    g->logits_format = graph->outputs[g->output].value->type.format;
    const char *all = map_find(&graph->notes, STEP_NOTE_VOCABULARY);
    if (all != NULL && g->mode == GENERATION_STEP) {
        g->parts = (generation_parts){.ranks = engine_cut_ranks(session->model), .columns = g->vocabulary};
        g->vocabulary = strtoll(all, NULL, 10);
    }
    g->next = -1;
    for (size_t i = 0; i < graph->output_count && g->mode == GENERATION_STEP; i++)
        if (strcmp(graph->outputs[i].name, STEP_OUTPUT_NEXT) == 0) g->next = (int)i;
    return DW_OK;
}

/* How many tokens the states hold that are written place by place. */
static int64_t room_of(const ir_graph *graph) {
    int64_t room = INT64_MAX, size;
    for (size_t i = 0; i < graph->state_count; i++) {
        const ir_value *state = graph->states[i], *next = state->next;
        const bool written = next->kind == IR_RESULT && (next->node->op == OP_index_put || next->node->op == OP_slice_scatter || next->node->op == OP_scatter);
        if (!written || ir_in(next->node, 0) != state) continue;
        if (dim_is_constant(state->type.dims[ir_int(next->node, OP_ATTR_axis)], &size) && size < room) room = size;
    }
    return room;
}

static bool is_size(const ir_graph *graph, dim size, const char *name) {
    int symbol;
    return dim_is_symbol(size, &symbol) && strcmp(dim_symbol_name(graph->dims, symbol), name) == 0;
}

bool generation_gives_rows(const ir_graph *step) {
    for (size_t i = 0; i < step->input_count; i++) {
        const ir_value *input = step->inputs[i];
        const bool is_given = strncmp(input->name, STEP_GIVEN, strlen(STEP_GIVEN)) == 0 && strstr(input->name, STEP_GIVEN_LAST) == NULL;
        if (is_given && (input->type.rank == 0 || !is_size(step, input->type.dims[0], STEP_SYMBOL_ROWS))) return false;
    }
    return true;
}

bool generation_tells_apart(const ir_graph *step) {
    int64_t vocabulary;
    const int output = incremental_find_logits(step, &vocabulary);
    bool apart = false;
    for (int i = 0; output >= 0 && i < step->outputs[output].value->type.rank; i++) apart = apart || is_size(step, step->outputs[output].value->type.dims[i], STEP_SYMBOL_ENDS);
    return apart && generation_gives_rows(step);
}

const char *engine_alone(const dw_model *model) {
    if (model->step.plan == NULL) return model->no_step;
    if (!generation_tells_apart(model->step.plan->graph)) return "the step cannot tell texts apart";
    if (model->chip.kind == CHIP_CPU || model->fused != NULL || model->paged.plan != NULL) return NULL;
    return "a package for a GPU holds no step with caches in pages: serve the model that it was made from";
}

dw_status generation_find(dw_session *session, const ir_graph *graph, generation *g) {
    if (graph->output_count > GENERATION_TENSORS)
        return base_fail(session->context, DW_LIMIT, "generation with more than %d outputs", GENERATION_TENSORS);
    if (dim_symbol_count(graph->dims) > ENGINE_MAX_SYMBOLS)
        return base_fail(session->context, DW_LIMIT, "the model has %d symbolic sizes, at most %d can be bound", dim_symbol_count(graph->dims),
                         ENGINE_MAX_SYMBOLS);
    TRY(find_inputs(session, graph, g));
    TRY(find_groups(session, graph, g));
    g->rows = dim_symbol_find(graph->dims, STEP_SYMBOL_ROWS);
    g->max = dim_symbol_find(graph->dims, STEP_SYMBOL_MAX);
    g->ring = dim_symbol_find(graph->dims, STEP_SYMBOL_CHUNK);
    g->total = dim_symbol_find(graph->dims, STEP_SYMBOL_TOTAL);
    g->ends = dim_symbol_find(graph->dims, STEP_SYMBOL_ENDS);
    g->room = g->mode == GENERATION_STATE ? room_of(graph) : INT64_MAX;
    return find_outputs(session, graph, g);
}

void generation_store(dw_format format, void *buffer, int64_t index, int64_t value) {
    switch (format) {
    case DW_FORMAT_i64: ((int64_t *)buffer)[index] = value; break;
    case DW_FORMAT_i32: ((int32_t *)buffer)[index] = (int32_t)value; break;
    default:            num_store(format, buffer, index, (double)value, true); break;
    }
}

void generation_fill_constants(const ir_graph *graph, const generation *g, void *const *buffers, int64_t count) {
    for (size_t i = 0; i < graph->input_count; i++) {
        const feed feed = g->feeds[i];
        if (feed != FEED_ONES && feed != FEED_POSITIONS && feed != FEED_ZEROS) continue;
        for (int64_t k = 0; k < count; k++)
            generation_store(graph->inputs[i]->type.format, buffers[i], k, feed == FEED_ONES ? 1 : feed == FEED_POSITIONS ? k : 0);
    }
}
