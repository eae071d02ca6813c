/* The invariants of a graph, each held against what is there. Repairs nothing. */
#include "ir/internal.h"

#include <string.h>

typedef struct checker {
    const ir_graph *graph;
    const ir_node **makers;     /* by id: the node that made it, of those walked so far */
    size_t used;                /* operand slots that hold a value */
    size_t linked;              /* entries of the lists of uses */
    size_t ends;                /* outputs and next values, as the values walked so far count them */
} checker;

static dw_status fail_node(const checker *checker, const ir_node *node, const char *what) {
    text place;
    text_init(&place, checker->graph->context);
    ir_print_place(&place, node);
    dw_status status = base_fail(checker->graph->context, DW_INTERNAL, "the graph is broken: %s (%s)", what, text_string(&place));
    text_free(&place);
    return status;
}

static dw_status fail_name(const checker *checker, const char *name, const char *what) {
    return base_fail(checker->graph->context, DW_INTERNAL, "the graph is broken: %s ('%s')", what, name);
}

/* Is value one that a node at the present place of the walk may read? */
static bool is_known(const checker *checker, const ir_value *value) {
    if (value->kind != IR_RESULT) return map_find(&checker->graph->names, value->name) == value;
    if (value->id < 1 || value->id >= checker->graph->next_id) return false;
    const ir_node *maker = checker->makers[value->id];
    return maker != NULL && maker == value->node && value->result >= 0 && value->result < maker->n_out && maker->out[value->result] == value;
}

static bool are_uses_linked(checker *checker, const ir_value *value) {
    const ir_use *previous = NULL;
    int count = 0;
    for (const ir_use *use = value->uses; use != NULL; use = use->next) {
        if (use->value != value || use->previous != previous || use->index < 0 || use->index >= use->node->n_in) return false;
        if (&use->node->in[use->index] != use) return false;
        checker->linked++;
        count++;
        previous = use;
    }
    checker->ends += (size_t)(value->output_count + value->next_count);
    return count == value->use_count;
}

static dw_status check_types(const checker *checker, const ir_node *node) {
    ir_value *in[IR_MAX_IN];
    op_type types[IR_MAX_OUT];
    int n_out;
    for (int i = 0; i < node->n_in; i++) in[i] = node->in[i].value;
    dw_status status = ir_infer_results(checker->graph, node->op, &node->attrs, node->n_in, in, &n_out, types);
    if (status == DW_NO_MEMORY) return status;
    if (status != DW_OK) {
        char message[512];
        snprintf(message, sizeof message, "inference fails: %s", dw_context_error(checker->graph->context));
        return fail_node(checker, node, message);
    }
    if (n_out != node->n_out) return fail_node(checker, node, "it has not as many results as its operands say");
    for (int i = 0; i < n_out; i++) {
        if (!op_type_equal(&types[i], &node->out[i]->type)) return fail_node(checker, node, "the type of a result is not what inference gives");
    }
    return DW_OK;
}

static dw_status check_node(checker *checker, const ir_node *node) {
    const op_def *def = (unsigned)node->op < OP_COUNT ? op_get(node->op) : NULL;
    if (def == NULL || node->n_in < def->min_in || node->n_in > def->max_in) {
        return base_fail(checker->graph->context, DW_INTERNAL, "the graph is broken: a node of op %d has %d operands", (int)node->op, node->n_in);
    }
    if (node->previous == NULL ? checker->graph->first != node : node->previous->next != node) return fail_node(checker, node, "the list of nodes is not linked");
    for (int i = 0; i < node->n_in; i++) {
        const ir_use *use = &node->in[i];
        if (use->node != node || use->index != i) return fail_node(checker, node, "an operand slot does not know its node");
        if (use->value == NULL) continue;
        if (!is_known(checker, use->value)) return fail_node(checker, node, "an operand is not made before it");
        checker->used++;
    }
    for (int i = 1; i < node->attrs.count; i++) {
        if (node->attrs.items[i - 1].id >= node->attrs.items[i].id) return fail_node(checker, node, "attributes are not in order");
    }
    TRY(check_types(checker, node));
    const ir_rate rate = ir_rate_of(node);
    for (int i = 0; i < node->n_out; i++) {
        const ir_value *value = node->out[i];
        if (value->kind != IR_RESULT || value->node != node || value->result != i) return fail_node(checker, node, "a result does not know its node");
        if (value->id < 1 || value->id >= checker->graph->next_id || checker->makers[value->id] != NULL) return fail_node(checker, node, "the id of a result is not its own");
        if (value->rate < rate) return fail_node(checker, node, "a result is said to be known before its operands are");
        if (!are_uses_linked(checker, value)) return fail_node(checker, node, "the uses of a result are not linked");
        checker->makers[value->id] = node;
    }
    return DW_OK;
}

static dw_status check_named(checker *checker, ir_kind kind, ir_value *const *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const ir_value *value = values[i];
        if (value->kind != kind) return fail_name(checker, value->name, "a named value is in the wrong list");
        if (map_find(&checker->graph->names, value->name) != value) return fail_name(checker, value->name, "a name is not unique");
        if (!are_uses_linked(checker, value)) return fail_name(checker, value->name, "the uses of a named value are not linked");
        if (value->weight != NULL) TRY(ir_match_weight(checker->graph, &value->type, value->weight));
    }
    return DW_OK;
}

static dw_status check_ends(const checker *checker) {
    const ir_graph *graph = checker->graph;
    size_t ends = graph->output_count;
    for (size_t i = 0; i < graph->state_count; i++) {
        const ir_value *state = graph->states[i];
        if (state->next == NULL || !is_known(checker, state->next)) return fail_name(checker, state->name, "the next value of a state is not in the graph");
        if (!op_type_equal(&state->type, &state->next->type)) return fail_name(checker, state->name, "the next value of a state has another type");
        ends += state->next != state;
        if (state->next != state && state->next->next_count < 1) return fail_name(checker, state->name, "next values are not counted at their values");
    }
    for (size_t i = 0; i < graph->output_count; i++) {
        if (graph->outputs[i].value == NULL || !is_known(checker, graph->outputs[i].value)) return fail_name(checker, graph->outputs[i].name, "an output is not in the graph");
        if (graph->outputs[i].value->output_count < 1) return fail_name(checker, graph->outputs[i].name, "outputs are not counted at their values");
        if (map_find(&graph->output_names, graph->outputs[i].name) != graph->outputs[i].name) {
            return fail_name(checker, graph->outputs[i].name, "the name of an output is not unique");
        }
    }
    if (ends != checker->ends) return fail_name(checker, graph->name, "outputs and next values are not counted at their values");
    return DW_OK;
}

static dw_status check_all(checker *checker) {
    const ir_graph *graph = checker->graph;
    const ir_node *last = NULL;
    bool is_cursor_known = graph->cursor == NULL;
    TRY(check_named(checker, IR_INPUT, graph->inputs, graph->input_count));
    TRY(check_named(checker, IR_PARAM, graph->params, graph->param_count));
    TRY(check_named(checker, IR_STATE, graph->states, graph->state_count));
    for (const ir_node *node = graph->first; node != NULL; node = node->next) {
        TRY(check_node(checker, node));
        is_cursor_known = is_cursor_known || node == graph->cursor;
        last = node;
    }
    if (graph->last != last) return fail_name(checker, graph->name, "the list of nodes has another end");
    if (!is_cursor_known) return fail_name(checker, graph->name, "the cursor is not in the list of nodes");
    if (checker->used != checker->linked) return fail_name(checker, graph->name, "there are more or fewer uses than operands");
    return check_ends(checker);
}

dw_status ir_check(const ir_graph *graph) {
    size_t bytes = (size_t)graph->next_id * sizeof(const ir_node *);
    void *memory;
    TRY(base_alloc(graph->context, bytes, 16, &memory));
    memset(memory, 0, bytes);
    checker checker = {.graph = graph, .makers = memory};
    dw_status status = check_all(&checker);
    base_release(graph->context, memory, bytes, 16);
    return status;
}
