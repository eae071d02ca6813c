/* Makes a graph small that fails: outputs are left out, nodes give way to one of their operands or to a new input of their type, as long as the same kind of failure stays. */
#include <stdio.h>
#include <string.h>

#include "pass/pass.h"
#include "tests/graphs/graphs.h"

enum { MOST_TRIES = 600 };

static dw_status drop_unused(ir_graph *graph) {
    bool changed;
    const pass_options options = {.check = true};
    TRY(pass_run_one(graph, pass_find("dead"), &options, &changed));
    for (size_t i = graph->input_count; i-- > 0;)
        if (ir_use_count(graph, graph->inputs[i]) == 0) TRY(ir_remove_input(graph, graph->inputs[i]));
    ir_renumber(graph);
    return DW_OK;
}

static ir_node *node_at(const ir_graph *graph, int index) {
    ir_node *node = graph->first;
    for (int i = 0; node != NULL && i < index; i++) node = node->next;
    return node;
}

/* Change number `change`; NOT_FOUND behind the last one. */
static dw_status change_graph(ir_graph *graph, int change) {
    if (change < (int)graph->output_count) return graph->output_count > 1 ? ir_remove_output(graph, (size_t)change) : DW_INVALID;
    change -= (int)graph->output_count;
    enum { WAYS = 4 };
    ir_node *node = node_at(graph, change / WAYS);
    if (node == NULL) return DW_NOT_FOUND;
    ir_value *result = ir_out(node), *other = NULL;
    const int way = change % WAYS;
    if (way < WAYS - 1) {
        other = ir_in(node, way);
        if (other == NULL || !op_type_equal(&other->type, &result->type)) return DW_INVALID;
    } else {
        char name[48];
        if (ir_use_count(graph, result) == 0) return DW_INVALID;
        snprintf(name, sizeof name, "cut%d", graph->next_id + (int)graph->input_count);
        TRY(ir_add_input(graph, name, &result->type, &other));
    }
    ir_replace(graph, result, other);
    return DW_OK;
}

/* The changed text; false: the change does not apply, or makes nothing smaller. *end: there are no more changes. */
static bool changed_text(checks *c, const text *from, int change, text *to, bool *end) {
    ir_graph *graph;
    *end = false;
    if (ir_parse(c->context, "shrink", text_string(from), from->length, NULL, &graph) != DW_OK) return false;
    dw_status status = change_graph(graph, change);
    *end = status == DW_NOT_FOUND;
    if (status == DW_OK) status = drop_unused(graph);
    if (status == DW_OK) status = ir_check(graph);
    if (status == DW_OK) status = ir_print(graph, to);
    ir_graph_destroy(graph);
    return status == DW_OK && to->length > 0 && strcmp(text_string(to), text_string(from)) != 0;
}

void graphs_shrink(checks *c, uint64_t seed, text *graph) {
    char kind[sizeof c->kind];
    const bool counting = c->counting;
    snprintf(kind, sizeof kind, "%s", c->kind);
    c->counting = false;
    int tries = 0;
    for (int change = 0; tries < MOST_TRIES; change++) {
        text smaller;
        bool end, meant;
        text_init(&smaller, c->context);
        const bool changed = changed_text(c, graph, change, &smaller, &end);
        tries += changed;
        if (changed && !checks_hold(c, text_string(&smaller), seed, &meant) && strcmp(c->kind, kind) == 0) {
            text_free(graph);
            *graph = smaller;
            change = -1;
            continue;
        }
        text_free(&smaller);
        if (end) break;
    }
    bool meant;
    checks_hold(c, text_string(graph), seed, &meant);      /* so that the words speak of the small one */
    c->counting = counting;
}
