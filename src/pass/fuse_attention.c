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

/* The 16-bit format that q, k and v had before all three were widened to f32; DW_FORMAT_COUNT: none. */
static dw_format widened_from(const ir_node *node) {
    dw_format format = DW_FORMAT_COUNT;
    for (int i = ATTENTION_Q; i <= ATTENTION_V; i++) {
        const ir_node *cast = ir_def(ir_in(node, i), OP_cast);
        const dw_format from = cast == NULL ? DW_FORMAT_COUNT : ir_in(cast, 0)->type.format;
        if ((from != DW_FORMAT_bf16 && from != DW_FORMAT_f16) || (i > ATTENTION_Q && from != format)) return DW_FORMAT_COUNT;
        format = from;
    }
    return format;
}

/* Attention of widened operands whose result only casts back read is attention in their format: it computes in fp32. */
static dw_status narrow(ir_graph *graph, ir_node *node, bool *changed) {
    const dw_format format = widened_from(node);
    if (format == DW_FORMAT_COUNT || ir_out(node)->output_count > 0 || ir_out(node)->type.format != DW_FORMAT_f32) return DW_OK;
    for (const ir_use *use = ir_out(node)->uses; use != NULL; use = use->next) {
        if (use->node->op != OP_cast || ir_out(use->node)->type.format != format) return DW_OK;
    }
    ir_value *in[ATTENTION_OPERANDS], *result;
    op_attr attrs[OP_ATTR_COUNT];
    int count = 0;
    for (int i = 0; i < node->n_in; i++) in[i] = i <= ATTENTION_V ? ir_in(ir_in(node, i)->node, 0) : ir_in(node, i);
    for (int i = 0; i < node->attrs.count; i++) {
        if (node->attrs.items[i].id != OP_ATTR_to) attrs[count++] = node->attrs.items[i];
    }
    ir_cursor_before(graph, node);
    graph->origin = node->origin;
    TRY(ir_emit(graph, OP_attention, node->n_in, in, count, attrs, &result));
    TRY(ir_emit_cast(graph, result, DW_FORMAT_f32, &result));
    ir_replace(graph, ir_out(node), result);
    *changed = true;
    return ir_remove(graph, node);
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
    for (ir_node *node = graph->first, *next; node != NULL; node = next) {
        next = node->next;
        if (node->op == OP_attention) TRY(narrow(graph, node, changed));
    }
    value_analysis *analysis;
    TRY(value_analyse(graph, &analysis));
    const dw_status status = fuse_all(graph, analysis, changed);
    value_analysis_destroy(analysis);
    return status;
}
