/* Dead code: what no output and no changing state depends on is removed. Inputs stay: they are the graph's interface.
 *
 *     param  w f32[4]                    input  x f32[4]
 *     input  x f32[4]                    %1 = exp x
 *     %1 = exp x                  ->     output y %1
 *     %2 = mul %1, w
 *     output y %1
 *
 * A state that changes stays even if nothing but its own next value reads it: it lives across runs. So does a trained one, which is a parameter of the model. */
#include "pass/pass.h"

static bool is_used(const ir_graph *graph, const ir_node *node) {
    for (int i = 0; i < node->n_out; i++) {
        if (node->out[i]->uses != NULL || ir_use_count(graph, node->out[i]) > 0) return true;
    }
    return false;
}

dw_status pass_dead(ir_graph *graph, const pass_options *options, bool *changed) {
    (void)options;
    *changed = false;
    for (ir_node *node = graph->last, *previous; node != NULL; node = previous) {
        previous = node->previous;
        if (is_used(graph, node)) continue;
        TRY(ir_remove(graph, node));
        *changed = true;
    }
    for (size_t i = graph->param_count; i-- > 0;) {
        if (ir_use_count(graph, graph->params[i]) > 0) continue;
        TRY(ir_remove_param(graph, graph->params[i]));
        *changed = true;
    }
    for (size_t i = graph->state_count; i-- > 0;) {
        ir_value *state = graph->states[i];
        if (state->next != state || state->trained || ir_use_count(graph, state) > 0) continue;
        TRY(ir_remove_state(graph, state));
        *changed = true;
    }
    return DW_OK;
}
