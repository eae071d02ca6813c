/* What is kept about each attention for those who ask why. */
#include "pass/attention/attention.h"

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
