/* Every spelling of attention becomes the attention op: written out in products and a softmax or called by name, with masks made of
 * positions, tables or inputs, with heads repeated for groups of queries. What stays explicit is noted with its reason.
 * The work is in attention_spelled.c, attention_heads.c and attention_masks.c. */
#include "pass/attention.h"
#include "pass/pass.h"

dw_status attention_note(ir_graph *graph, const ir_node *node, const char *format, ...) {
    va_list arguments;
    char sentence[400], key[200];
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    snprintf(key, sizeof key, "attention.%s", node->origin.module == NULL ? "" : node->origin.module);
    char *kept = arena_text(&graph->arena, sentence);
    return kept == NULL ? DW_NO_MEMORY : map_set(&graph->notes, key, kept);
}

static dw_status fuse_all(ir_graph *graph, value_analysis *analysis, bool *changed) {
    for (ir_node *node = graph->first, *next; node != NULL; node = next) {
        next = node->next;
        if (node->op != OP_attention) continue;
        if (node->origin.role == NULL) node->origin.role = "attention";
        TRY(attention_ungroup_heads(analysis, node, changed));
        TRY(attention_read_masks(analysis, node, changed));
    }
    return DW_OK;
}

dw_status pass_fuse_attention(ir_graph *graph, const pass_options *options, bool *changed) {
    (void)options;
    *changed = false;
    TRY(attention_fuse_spelled(graph, changed));
    value_analysis *analysis;
    TRY(value_analyse(graph, &analysis));
    const dw_status status = fuse_all(graph, analysis, changed);
    value_analysis_destroy(analysis);
    return status;
}
