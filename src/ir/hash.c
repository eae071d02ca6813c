/* A number for a graph: equal for graphs of the same meaning and order, whatever their ids and origins. Used as a key of caches. */
#include "ir/internal.h"

dw_status ir_hash(const ir_graph *graph, uint64_t *hash) {
    *hash = 0;
    size_t bytes = (size_t)graph->next_id * sizeof(int);
    void *memory;
    TRY(base_alloc(graph->context, bytes, 16, &memory));
    int *ids = memory;
    int next = 1;
    for (const ir_node *node = graph->first; node != NULL; node = node->next) {
        for (int i = 0; i < node->n_out; i++) ids[node->out[i]->id] = next++;
    }
    text text;
    text_init(&text, graph->context);
    ir_print_options options = {.without_origins = true, .without_example = true, .without_data = true, .ids = ids};
    dw_status status = ir_print_with(graph, &options, &text);
    if (status == DW_OK) *hash = base_hash(text_string(&text), text.length, 0);
    text_free(&text);
    base_release(graph->context, memory, bytes, 16);
    return status;
}
