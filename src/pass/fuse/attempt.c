/* One rewrite at a time, undone where its result does not check: whatever it matched, a model that could be opened without it opens. Rewrites nothing itself. */
#include "pass/fuse/fuse.h"

fuse_attempt fuse_begin(ir_graph *graph, const char *fusion, const ir_node *node) {
    return (fuse_attempt){.graph = graph, .fusion = fusion, .module = node->origin.module, .first_id = graph->next_id, .params = graph->param_count};
}

/* Nodes come before who uses them, so the last are the first to go. */
static dw_status remove_emitted(const fuse_attempt *attempt) {
    ir_graph *graph = attempt->graph;
    ir_cursor_end(graph);
    for (ir_node *node = graph->last, *previous; node != NULL; node = previous) {
        previous = node->previous;
        if (ir_out(node)->id >= attempt->first_id && !fuse_is_used(graph, node)) TRY(ir_remove(graph, node));
    }
    for (size_t i = graph->param_count; i-- > attempt->params;) {
        if (ir_use_count(graph, graph->params[i]) == 0) TRY(ir_remove_param(graph, graph->params[i]));
    }
    return DW_OK;
}

/* A copy is checked: ids and orders of the graph belong to the pass that runs. */
static dw_status check_copy(const ir_graph *graph) {
    ir_graph *copy;
    TRY(ir_graph_clone(graph, &copy));
    ir_renumber(copy);
    const dw_status status = ir_check(copy);
    ir_graph_destroy(copy);
    return status;
}

static dw_status note(const fuse_attempt *attempt, const char *reason) {
    ir_graph *graph = attempt->graph;
    const char *name = arena_printf(&graph->arena, PASS_UNDONE "%s.%s", attempt->fusion, attempt->module != NULL ? attempt->module : "");
    const char *words = arena_printf(&graph->arena, "fusion %s is undone, as what it makes does not check: %s", attempt->fusion, reason);
    return name != NULL && words != NULL ? ir_set_note(graph, name, words) : DW_NO_MEMORY;
}

dw_status fuse_end(const fuse_attempt *attempt, dw_status status) {
    if (status == DW_OK || status == DW_NO_MEMORY || status == DW_CANCELLED) return status;
    ir_graph *graph = attempt->graph;
    const char *reason = arena_text(&graph->arena, dw_context_error(graph->context));
    if (reason == NULL) return DW_NO_MEMORY;
    dw_status undone = remove_emitted(attempt);
    if (undone == DW_OK) undone = check_copy(graph);
    if (undone == DW_OK) return note(attempt, reason);
    return undone == DW_NO_MEMORY ? undone : base_fail(graph->context, status, "fusion %s: %s", attempt->fusion, reason);
}

/* Behind a rewrite the order may be another until it is sorted. */
static dw_status attempt(ir_graph *graph, const char *fusion, fuse_function run, ir_node *node, bool *changed) {
    const fuse_attempt attempt = fuse_begin(graph, fusion, node);
    const dw_status status = run(graph, node, changed);
    if (status == DW_OK) return DW_OK;
    TRY(ir_sort(graph));
    return fuse_end(&attempt, status);
}

static dw_status run_each(ir_graph *graph, const char *fusion, arena *scratch, fuse_function run, bool *changed) {
    ir_node **nodes;
    size_t count = 0;
    for (const ir_node *node = graph->first; node != NULL; node = node->next) count++;
    TRY_NEW(nodes, scratch, count);
    count = 0;
    for (ir_node *node = graph->first; node != NULL; node = node->next) nodes[count++] = node;
    for (size_t i = 0; i < count; i++) {
        if (fuse_is_in_graph(graph, nodes[i]) && fuse_is_used(graph, nodes[i])) TRY(attempt(graph, fusion, run, nodes[i], changed));
    }
    return DW_OK;
}

dw_status fuse_each(ir_graph *graph, const char *fusion, fuse_function run, bool *changed) {
    arena scratch;
    arena_init(&scratch, graph->context);
    dw_status status = run_each(graph, fusion, &scratch, run, changed);
    arena_free(&scratch);
    return status;
}
