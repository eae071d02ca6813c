/* The cached step: finds the sequence, labels every value, makes every node again in order, and drops the old ones. The proof that a step
 * gives what the whole graph gives is the labelling: nothing but causal attention and running positions may look along the sequence. */
#include "pass/step/stepper.h"

/* ---- the sequence ---------------------------------------------------------------------------------------------------- */

static bool is_integer(const ir_value *value) {
    const num_class class = num_info(value->type.format)->class;
    return class == NUM_SIGNED || class == NUM_UNSIGNED;
}

/* Is value, through casts and reshapes, what a table of floating-point numbers is looked up by? */
static bool looks_up(const ir_value *value, int steps) {
    for (const ir_use *use = value->uses; use != NULL && steps > 0; use = use->next) {
        const ir_node *node = use->node;
        if (node->op == OP_take && use->index == 1 && ir_int(node, OP_ATTR_axis) == 0 && ir_in(node, 0)->kind == IR_PARAM) return true;
        if ((node->op == OP_cast || node->op == OP_reshape) && looks_up(ir_out(node), steps - 1)) return true;
    }
    return false;
}

/* Does the first output run along the last axis of value? */
static bool is_along_output(const ir_graph *graph, const ir_value *value) {
    const op_type *output = &graph->outputs[0].value->type;
    for (int i = 0; i < output->rank; i++) {
        if (output->dims[i] == value->type.dims[value->type.rank - 1]) return true;
    }
    return false;
}

ir_value *incremental_find_tokens(const ir_graph *graph) {
    enum { MAX_STEPS = 4 };
    ir_value *first = NULL;
    for (size_t i = 0; i < graph->input_count; i++) {
        ir_value *input = graph->inputs[i];
        if (!is_integer(input) || input->type.rank == 0 || !looks_up(input, MAX_STEPS)) continue;
        if (graph->output_count == 0 || is_along_output(graph, input)) return input;
        if (first == NULL) first = input;
    }
    return first;
}

/* What hinders before any node is looked at; NULL: nothing. */
static const char *find_sequence(stepper *stepper) {
    static const char *const symbols[] = {STEP_SYMBOL_ROWS,  STEP_SYMBOL_MAX,   STEP_SYMBOL_CHUNK,  STEP_SYMBOL_TOTAL,
                                          STEP_SYMBOL_ENDS, STEP_SYMBOL_PAGES, STEP_SYMBOL_SLOTS, STEP_SYMBOL_ENTRIES};
    ir_graph *graph = stepper->graph;
    stepper->tokens = incremental_find_tokens(graph);
    if (stepper->tokens == NULL) return "no integer input looks up an embedding: there are no tokens";
    stepper->length = stepper->tokens->type.dims[stepper->tokens->type.rank - 1];
    if (!dim_is_symbol(stepper->length, &stepper->length_symbol)) return "the length of the token input is fixed: export it as dynamic";
    if (stepper->tokens->type.rank != 2 || !dim_is_symbol(stepper->tokens->type.dims[0], &stepper->batch_symbol)) stepper->batch_symbol = -1;
    if (stepper->batch_symbol == stepper->length_symbol) return "the batch and the length of the token input are one symbol";
    if (graph->state_count > 0) return "it keeps state of its own already";
    for (size_t i = 0; i < COUNT_OF(symbols); i++) {
        if (dim_symbol_find(graph->dims, symbols[i]) >= 0) return "it has a dimension whose name begins with cache_";
    }
    return NULL;
}

static dw_status add_symbols(stepper *stepper) {
    ir_graph *graph = stepper->graph;
    int64_t min, most;
    dim_symbol_range(graph->dims, stepper->length_symbol, &min, &most);
    int64_t room = most;
    TRY(step_find_room(stepper, graph->last, &room));
    TRY_DIM(graph->context, stepper->rows, dim_symbol(graph->dims, STEP_SYMBOL_ROWS, 1, DIM_UNBOUNDED));
    TRY_DIM(graph->context, stepper->max, dim_symbol(graph->dims, STEP_SYMBOL_MAX, 1, room));
    TRY_DIM(graph->context, stepper->chunk, dim_symbol(graph->dims, STEP_SYMBOL_CHUNK, 1, most));
    TRY_DIM(graph->context, stepper->total, dim_symbol(graph->dims, STEP_SYMBOL_TOTAL, 1, room));
    step_join_groups(stepper);
    const op_type tokens = {.format = DW_FORMAT_i64, .rank = 1, .dims = {stepper->length}};
    TRY(ir_add_input(graph, STEP_INPUT_ROW, &tokens, &stepper->row));
    return ir_add_input(graph, STEP_INPUT_POSITION, &tokens, &stepper->position);
}

/* ---- sources ----------------------------------------------------------------------------------------------------------- */

static dw_status add_record(stepper *stepper, ir_value *value, step_record **record) {
    TRY_NEW(*record, &stepper->arena, 1);
    value->mark = *record;
    return DW_OK;
}

/* The label of an input or param: its sizes, the length being a sequence. */
static dw_status label_source(stepper *stepper, ir_value *value) {
    step_record *record;
    TRY(add_record(stepper, value, &record));
    record->active = value == stepper->tokens;
    record->given = value->kind == IR_INPUT && !record->active;
    record->label.rank = value->type.rank;
    for (int i = 0; i < value->type.rank; i++) {
        const dim size = value->type.dims[i];
        int64_t number;
        bool uses;
        if (dim_is_constant(size, &number) && number == 1) continue;
        TRY(step_uses_length(stepper, size, &uses));
        const bool sequence = size == stepper->length;
        record->given = record->given && !uses;
        if ((uses && !sequence) || (sequence && record->label.sequences == STEP_MAX_SEQUENCES)) {
            record->refusal = "the size of an input depends on the sequence length";
            return DW_OK;
        }
        record->label.axes[i] = (step_axis){.count = 1, .atoms = {{.sequence = sequence, .size = size}}};
        if (sequence) record->label.kinds[record->label.sequences++] = record->active ? STEP_NEW : STEP_FREE;
    }
    return DW_OK;
}

/* Inputs over the sequence take the whole history; the token input the new tokens alone; the batch is 1. */
static dw_status make_source(stepper *stepper, ir_value *value) {
    step_record *record = step_of(value);
    unsigned all = 0;
    for (int i = 0; i < record->label.sequences && !record->active; i++) all |= 1u << i;
    record->whole = all;
    record->made[all] = value;
    for (int i = 0; i < value->type.rank; i++) {
        if (value->type.dims[i] == stepper->length && all != 0) value->type.dims[i] = stepper->total;
        TRY(step_size(stepper, value->type.dims[i], &value->type.dims[i]));
    }
    return DW_OK;
}

static dw_status add_sources(stepper *stepper) {
    ir_graph *graph = stepper->graph;
    for (size_t i = 0; i < graph->input_count; i++) TRY(label_source(stepper, graph->inputs[i]));
    for (size_t i = 0; i < graph->param_count; i++) TRY(label_source(stepper, graph->params[i]));
    return DW_OK;
}

/* ---- nodes --------------------------------------------------------------------------------------------------------------- */

/* Records of all results of a node are one but for what is made. */
static dw_status label_node(stepper *stepper, const ir_node *node) {
    step_record *first;
    TRY(add_record(stepper, ir_out(node), &first));
    TRY(step_rule(stepper, node, first));
    for (int i = 1; i < node->n_out; i++) {
        step_record *other;
        TRY(add_record(stepper, node->out[i], &other));
        *other = *first;
    }
    step_set_meanings(node);
    return DW_OK;
}

static dw_status explain(stepper *stepper, const step_record *record, const char *output) {
    const ir_node *node = record->culprit;
    if (node == NULL) {
        text_printf(stepper->why, "output '%s': %s", output, record->refusal);
    } else {
        text_printf(stepper->why, "%s in %s: %s", op_get(node->op)->name,
                    node->origin.module == NULL || node->origin.module[0] == '\0' ? "the model itself" : node->origin.module, record->refusal);
    }
    return text_status(stepper->why);
}

/* Labels all nodes. *proved is false when a value that is needed cannot be made; then why says so. */
static dw_status prove(stepper *stepper, bool *proved) {
    ir_graph *graph = stepper->graph;
    *proved = false;
    for (const ir_node *node = graph->first; node != NULL; node = node->next) {
        TRY(label_node(stepper, node));
        const step_record *record = step_of(ir_out(node));
        if (record->active && record->refusal != NULL) return explain(stepper, record, "");
    }
    for (size_t i = 0; i < graph->output_count; i++) {
        const step_record *record = step_of(graph->outputs[i].value);
        if (record->refusal != NULL) return explain(stepper, record, graph->outputs[i].name);
    }
    *proved = true;
    return DW_OK;
}

static dw_status make_nodes(stepper *stepper, const ir_node *last) {
    static const step_kind new_tokens[STEP_MAX_SEQUENCES] = {STEP_NEW, STEP_NEW, STEP_NEW};
    ir_graph *graph = stepper->graph;
    for (ir_node *node = graph->first; node != NULL; node = node->next) {
        const step_record *record = step_of(ir_out(node));
        if (record->active && node->op == OP_attention) TRY(step_make_attention(stepper, node));
        if (record->active && node->op != OP_attention) TRY(step_make_node(stepper, node, record->label.kinds));
        if (node == last) break;
    }
    for (size_t i = graph->output_count; i-- > 0;) {
        if (step_of(graph->outputs[i].value)->given) TRY(ir_remove_output(graph, i));
    }
    for (size_t i = 0; i < graph->output_count; i++) {
        ir_value *made;
        ir_cursor_end(graph);
        TRY(step_make(stepper, graph->outputs[i].value, new_tokens, &made));
        ir_set_output(graph, i, made);
    }
    return DW_OK;
}

static dw_status remove_old(ir_graph *graph, ir_node *last) {
    for (ir_node *node = last, *previous; node != NULL; node = previous) {
        previous = node->previous;
        TRY(ir_remove(graph, node));
    }
    ir_renumber(graph);
    return DW_OK;
}

static dw_status build(stepper *stepper, const ir_graph *whole, ir_graph **prelude, bool *proved) {
    ir_graph *graph = stepper->graph;
    *proved = false;
    const char *obstacle = find_sequence(stepper);
    if (obstacle != NULL) {
        text_add(stepper->why, obstacle);
        return text_status(stepper->why);
    }
    TRY(value_analyse(graph, &stepper->analysis));
    TRY(add_sources(stepper));
    TRY(prove(stepper, proved));
    if (!*proved) return DW_OK;
    ir_node *last = graph->last;
    TRY(add_symbols(stepper));
    for (size_t i = 0; i < graph->input_count; i++) {
        if (step_of(graph->inputs[i]) != NULL && !step_of(graph->inputs[i])->given) TRY(make_source(stepper, graph->inputs[i]));
    }
    for (size_t i = 0; i < graph->param_count; i++) TRY(make_source(stepper, graph->params[i]));
    TRY(make_nodes(stepper, last));
    if (stepper->given_count > 0) TRY(step_make_prelude(stepper, whole, prelude));
    TRY(remove_old(graph, last));
    if (stepper->given_count > 0) TRY(step_remove_given(stepper));
    return ir_check(graph);
}

dw_status pass_incremental(const ir_graph *graph, step_cache cache, ir_graph **step, ir_graph **prelude, text *why) {
    *step = *prelude = NULL;
    stepper stepper = {.why = why, .cache = cache};
    TRY(ir_graph_clone(graph, &stepper.graph));
    arena_init(&stepper.arena, graph->context);
    bool proved = false;
    const dw_status status = build(&stepper, graph, prelude, &proved);
    value_analysis_destroy(stepper.analysis);
    arena_free(&stepper.arena);
    if (status != DW_OK || !proved) {
        ir_graph_destroy(stepper.graph);
        ir_graph_destroy(*prelude);
        *prelude = NULL;
        return status;
    }
    *step = stepper.graph;
    return DW_OK;
}
