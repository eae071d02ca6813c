/* Changes to a graph: replacements, removal, attributes, order and numbering. */
#include "ir/internal.h"

#include <string.h>

/* ---- outputs, replacement ---- */

dw_status ir_remove_output(ir_graph *graph, size_t index) {
    TRY(map_set(&graph->output_names, graph->outputs[index].name, NULL));
    graph->outputs[index].value->output_count--;
    memmove(&graph->outputs[index], &graph->outputs[index + 1], (graph->output_count - index - 1) * sizeof *graph->outputs);
    graph->output_count--;
    return DW_OK;
}

void ir_set_output(ir_graph *graph, size_t index, ir_value *value) {
    graph->outputs[index].value->output_count--;
    graph->outputs[index].value = value;
    value->output_count++;
}

void ir_replace(ir_graph *graph, ir_value *from, ir_value *to) {
    if (from == to) return;
    while (from->uses != NULL) ir_set_operand(from->uses->node, from->uses->index, to);
    for (size_t i = 0; from->output_count > 0 && i < graph->output_count; i++) {
        if (graph->outputs[i].value == from) ir_set_output(graph, i, to);
    }
    for (size_t i = 0; from->next_count > 0 && i < graph->state_count; i++) {
        ir_value *state = graph->states[i];
        if (state->next == from && state != from) ir_set_next(state, to);
    }
}

/* ---- removal ---- */

static dw_status fail_used(const ir_graph *graph, const ir_value *value, const char *what) {
    text name;
    text_init(&name, graph->context);
    ir_print_value(&name, value);
    if (value->uses != NULL) {
        text_add(&name, ", by ");
        ir_print_place(&name, value->uses->node);
    }
    dw_status status = base_fail(graph->context, DW_INTERNAL, "%s cannot be removed: it is still used (%s)", what, text_string(&name));
    text_free(&name);
    return status;
}

dw_status ir_remove(ir_graph *graph, ir_node *node) {
    for (int i = 0; i < node->n_out; i++) {
        if (ir_use_count(graph, node->out[i]) > 0) return fail_used(graph, node->out[i], "a result");
    }
    for (int i = 0; i < node->n_in; i++) ir_unlink_use(&node->in[i]);
    if (node->previous != NULL) node->previous->next = node->next;
    else graph->first = node->next;
    if (node->next != NULL) node->next->previous = node->previous;
    else graph->last = node->previous;
    if (graph->cursor == node) graph->cursor = node->next;
    node->next = node->previous = NULL;
    return DW_OK;
}

static dw_status remove_named(ir_graph *graph, ir_value *value, ir_value **values, size_t *count) {
    for (size_t i = 0; i < *count; i++) {
        if (values[i] != value) continue;
        TRY(map_set(&graph->names, value->name, NULL));
        memmove(&values[i], &values[i + 1], (*count - i - 1) * sizeof *values);
        --*count;
        return DW_OK;
    }
    return base_fail(graph->context, DW_INTERNAL, "'%s' cannot be removed: it is not in the graph", value->name);
}

dw_status ir_remove_param(ir_graph *graph, ir_value *param) {
    if (ir_use_count(graph, param) > 0) return fail_used(graph, param, "a param");
    return remove_named(graph, param, graph->params, &graph->param_count);
}

dw_status ir_remove_input(ir_graph *graph, ir_value *input) {
    if (ir_use_count(graph, input) > 0) return fail_used(graph, input, "an input");
    return remove_named(graph, input, graph->inputs, &graph->input_count);
}

dw_status ir_remove_state(ir_graph *graph, ir_value *state) {
    if (ir_use_count(graph, state) > 0) return fail_used(graph, state, "a state");
    if (state->next != state) return base_fail(graph->context, DW_INTERNAL, "state '%s' cannot be removed: it changes", state->name);
    return remove_named(graph, state, graph->states, &graph->state_count);
}

/* ---- the cursor ---- */

void ir_cursor_before(ir_graph *graph, ir_node *node) {
    graph->cursor = node;
    graph->origin = node->origin;
}

void ir_cursor_after(ir_graph *graph, ir_node *node) {
    graph->cursor = node->next;
    graph->origin = node->origin;
}

void ir_cursor_end(ir_graph *graph) { graph->cursor = NULL; }

/* ---- attributes and types ---- */

dw_status ir_set_attr(ir_graph *graph, ir_node *node, op_attr attr) {
    op_attr *items;
    int count = 0;
    TRY_NEW(items, &graph->arena, node->attrs.count + 1);
    for (int i = 0; i < node->attrs.count; i++) {
        if (node->attrs.items[i].id != attr.id) items[count++] = node->attrs.items[i];
    }
    items[count++] = attr;
    TRY(ir_copy_attrs(graph, NULL, count, items, &node->attrs));
    ir_update_rate(node);
    return DW_OK;
}

dw_status ir_infer(ir_graph *graph, ir_node *node) {
    ir_value *in[IR_MAX_IN];
    op_type types[IR_MAX_OUT];
    int n_out;
    for (int i = 0; i < node->n_in; i++) in[i] = node->in[i].value;
    dw_status status = ir_infer_results(graph, node->op, &node->attrs, node->n_in, in, &n_out, types);
    if (status == DW_OK && n_out != node->n_out) {
        status = base_fail(graph->context, DW_INTERNAL, "%s has %d results, with its operands of now it must have %d; emit a new node",
                           op_get(node->op)->name, node->n_out, n_out);
    }
    if (status != DW_OK) {
        text place;
        text_init(&place, graph->context);
        ir_print_place(&place, node);
        base_fail_at(graph->context, status, "%s", text_string(&place));
        text_free(&place);
        return status;
    }
    for (int i = 0; i < n_out; i++) node->out[i]->type = types[i];
    ir_update_rate(node);
    return DW_OK;
}

dw_status ir_infer_all(ir_graph *graph) {
    for (ir_node *node = graph->first; node != NULL; node = node->next) TRY(ir_infer(graph, node));
    return DW_OK;
}

/* ---- order ---- */

void ir_renumber(ir_graph *graph) {
    int order = 1;
    graph->next_id = 1;
    for (ir_node *node = graph->first; node != NULL; node = node->next) {
        node->order = order++;
        for (int i = 0; i < node->n_out; i++) node->out[i]->id = graph->next_id++;
        ir_update_rate(node);
    }
}

enum { SORT_NEW, SORT_OPEN, SORT_DONE };

/* A walk that puts nodes behind their operands; states are indexed by order - 1. */
typedef struct sorter {
    ir_graph *graph;
    uint8_t *state;
    ir_node **open;         /* the path of the walk */
    int *operand;           /* and which operand of each comes next */
    size_t depth;
    ir_node *last;          /* of the new list */
} sorter;

static void append(sorter *sorter, ir_node *node) {
    node->previous = sorter->last;
    if (sorter->last != NULL) sorter->last->next = node;
    else sorter->graph->first = node;
    sorter->last = node;
    sorter->state[node->order - 1] = SORT_DONE;
}

static void open_node(sorter *sorter, ir_node *node) {
    sorter->state[node->order - 1] = SORT_OPEN;
    sorter->open[sorter->depth] = node;
    sorter->operand[sorter->depth++] = 0;
}

static dw_status fail_cycle(const sorter *sorter, const ir_node *node) {
    text place;
    text_init(&place, sorter->graph->context);
    ir_print_place(&place, node);
    dw_status status = base_fail(sorter->graph->context, DW_INTERNAL, "the graph has a cycle through %s", text_string(&place));
    text_free(&place);
    return status;
}

/* Appends node and, before it, what it needs. */
static dw_status visit(sorter *sorter, ir_node *root) {
    if (sorter->state[root->order - 1] == SORT_DONE) return DW_OK;
    open_node(sorter, root);
    while (sorter->depth > 0) {
        ir_node *node = sorter->open[sorter->depth - 1];
        int index = sorter->operand[sorter->depth - 1]++;
        if (index == node->n_in) {
            append(sorter, node);
            sorter->depth--;
            continue;
        }
        const ir_value *value = node->in[index].value;
        if (value == NULL || value->kind != IR_RESULT) continue;
        switch (sorter->state[value->node->order - 1]) {
        case SORT_NEW: open_node(sorter, value->node); break;
        case SORT_OPEN: return fail_cycle(sorter, value->node);
        default: break;
        }
    }
    return DW_OK;
}

/* nodes: all, in their present order. On a failure the list is as it was. */
static dw_status sort_nodes(sorter *sorter, ir_node **nodes, size_t count) {
    ir_graph *graph = sorter->graph;
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < count; i++) status = visit(sorter, nodes[i]);
    if (status != DW_OK) {
        sorter->last = NULL;
        for (size_t i = 0; i < count; i++) append(sorter, nodes[i]);
    }
    graph->last = sorter->last;
    if (sorter->last != NULL) sorter->last->next = NULL;
    int order = 1;
    for (ir_node *node = graph->first; node != NULL; node = node->next) node->order = order++;
    return status;
}

dw_status ir_sort(ir_graph *graph) {
    size_t count = 0;
    for (ir_node *node = graph->first; node != NULL; node = node->next) node->order = (int)++count;
    arena scratch;
    arena_init(&scratch, graph->context);
    sorter sorter = {.graph = graph};
    sorter.state = arena_new(&scratch, count, sizeof *sorter.state);
    sorter.open = arena_new(&scratch, count, sizeof *sorter.open);
    sorter.operand = arena_new(&scratch, count, sizeof *sorter.operand);
    ir_node **nodes = arena_new(&scratch, count, sizeof *nodes);
    dw_status status = DW_NO_MEMORY;
    if (sorter.state != NULL && sorter.open != NULL && sorter.operand != NULL && nodes != NULL) {
        for (ir_node *node = graph->first; node != NULL; node = node->next) nodes[node->order - 1] = node;
        status = sort_nodes(&sorter, nodes, count);
    }
    arena_free(&scratch);
    return status;
}
