/* Values through which no gradient flows, reshapes with detached=true: cut out of the graph for as long as gradients are derived, so that no pass looks through them, and put back afterwards.
 *
 *     %2 = exp %1                                        %2 = exp %1
 *     %3 = reshape %2 {detached=true}             ->     %3 = mul %1, detached.0
 *     %4 = mul %1, %3                                    output detached.0 %2 */
#include "pass/gradient/gradient.h"

#include <string.h>

/* Marks what depends on a value whose gradient may be asked for. */
static void mark_reached(const ir_graph *graph, const char *inputs) {
    for (size_t i = 0; i < graph->param_count; i++) graph->params[i]->mark = NULL;
    for (size_t i = 0; i < graph->input_count; i++) graph->inputs[i]->mark = inputs != NULL ? graph->inputs[i] : NULL;
    for (size_t i = 0; i < graph->state_count; i++) graph->states[i]->mark = graph->states[i]->trained ? graph->states[i] : NULL;
    for (const ir_node *node = graph->first; node != NULL; node = node->next) {
        void *mark = NULL;
        for (int i = 0; i < node->n_in && mark == NULL; i++) mark = ir_in(node, i) != NULL ? ir_in(node, i)->mark : NULL;
        for (int i = 0; i < node->n_out; i++) node->out[i]->mark = mark;
    }
}

dw_status gradient_cut(ir_graph *graph, const char *inputs, arena *scratch, gradient_cuts *cuts) {
    size_t capacity = 0;
    mark_reached(graph, inputs);
    for (ir_node *node = graph->first, *next; node != NULL; node = next) {
        ir_value *stand_in, *value = node->n_in > 0 ? ir_in(node, 0) : NULL;
        next = node->next;
        if (node->op != OP_reshape || !ir_bool(node, OP_ATTR_detached) || value->mark == NULL) continue;
        const char *name = arena_printf(scratch, GRADIENT_DETACHED "%zu", cuts->count);
        cuts->items = arena_grow(scratch, cuts->items, cuts->count, &capacity, sizeof *cuts->items);
        if (name == NULL || cuts->items == NULL) return DW_NO_MEMORY;
        cuts->items[cuts->count++] = name;
        TRY(ir_add_input(graph, name, &ir_out(node)->type, &stand_in));
        TRY(ir_add_output(graph, name, value));
        ir_replace(graph, ir_out(node), stand_in);
        TRY(ir_remove(graph, node));
    }
    ir_renumber(graph);
    return DW_OK;
}

dw_status gradient_rejoin(ir_graph *graph, const gradient_cuts *cuts) {
    for (size_t i = 0; i < cuts->count; i++) {
        ir_value *stand_in = map_find(&graph->names, cuts->items[i]), *value = NULL;
        for (size_t k = graph->output_count; k-- > 0 && value == NULL;) {
            if (strcmp(graph->outputs[k].name, cuts->items[i]) != 0) continue;
            value = graph->outputs[k].value;
            TRY(ir_remove_output(graph, k));
        }
        if (stand_in == NULL || value == NULL) return base_fail(graph->context, DW_INTERNAL, "the detached value %s is gone", cuts->items[i]);
        ir_cursor_end(graph);
        TRY(ir_emit_reshape(graph, value, stand_in->type.rank, stand_in->type.dims, &value));
        ir_replace(graph, stand_in, value);
        TRY(ir_remove_input(graph, stand_in));
    }
    return cuts->count > 0 ? ir_sort(graph) : DW_OK;
}
