/* Scores of attention in few bits by policy, "role:scores = fp8" or mxfp8: queries and keys are quantised, and multiplied so. Values, and what becomes of them, are bf16:
 *
 *     %1 = attention q, k, v {scale=0.125}   ->    %1 = quantize q {to=fp8_1x128}; %2 = quantize k {to=fp8_128x128}; %3 = cast v {to=bf16}
 *                                                  %4 = attention %1, %2, %3 {scale=0.125}; %5 = cast %4 {to=f32}
 *
 * In fp8 128 keys have one scale, as a scale for each would be a product for each score. So a key's number depends on those beside it, hidden ones among them, and causal attention, where these may come later, stays as it is. In
 * mxfp8 both are mxfp8, and it stays, too: where there is a cached step, it is the attention over caches, whose keys have the format of role:cache. Graphs with gradients stay, too. No precision that is not named for role:scores changes any of this. */
#include "pass/fuse/fuse.h"
#include "pass/precision/told.h"

static bool takes_few_bits(const ir_node *node) {
    if (node->op != OP_attention || node->n_out > 1 || ir_bool(node, OP_ATTR_causal) || ir_int(node, OP_ATTR_ahead) > 0) return false;
    for (int i = ATTENTION_ROW; i <= ATTENTION_TABLE; i++)
        if (ir_in(node, i) != NULL) return false;
    for (int i = ATTENTION_Q; i <= ATTENTION_V; i++)
        if (!fuse_is_float(ir_in(node, i)->type.format) || ir_in(node, i)->type.format == DW_FORMAT_f64) return false;
    return !dw_format_is_block(ir_out(node)->type.format);
}

static dw_status emit_in_few_bits(ir_graph *graph, ir_node *node, dw_format to, ir_value **result) {
    ir_value *in[ATTENTION_OPERANDS];
    op_attr attrs[OP_ATTR_COUNT];
    const op_attr held[] = {op_set_format(OP_ATTR_to, to), op_set_format(OP_ATTR_to, to == DW_FORMAT_fp8_1x128 ? DW_FORMAT_fp8_128x128 : to)};   /* of q, and of k */
    int count = 0;
    ir_cursor_before(graph, node);
    for (int i = 0; i < node->n_in; i++) in[i] = ir_in(node, i);
    for (int i = ATTENTION_Q; i <= ATTENTION_K; i++) {
        ir_value *number = in[i];
        TRY(ir_emit(graph, OP_quantize, 1, &number, 1, &held[i], &in[i]));
    }
    if (in[ATTENTION_V]->type.format != DW_FORMAT_bf16) TRY(ir_emit_cast(graph, in[ATTENTION_V], DW_FORMAT_bf16, &in[ATTENTION_V]));
    for (int i = 0; i < node->attrs.count; i++)
        if (node->attrs.items[i].id != OP_ATTR_to) attrs[count++] = node->attrs.items[i];
    TRY(ir_emit(graph, OP_attention, node->n_in, in, count, attrs, result));
    return ir_out(node)->type.format != DW_FORMAT_bf16 ? ir_emit_cast(graph, *result, ir_out(node)->type.format, result) : DW_OK;
}

static dw_status round_scores(ir_graph *graph, const pass_options *options, ir_node *node, dw_format to, int number) {
    ir_value *made = ir_out(node);
    if (to != DW_FORMAT_f32) TRY(emit_in_few_bits(graph, node, to, &made));
    return precision_take_attention(graph, options, node, "scores", number, made);
}

dw_status precision_scores(ir_graph *graph, const pass_options *options) {
    const char *rule;
    const pass_precision_row *precision = pass_policy_apart(options->policy, PASS_SCORES, &rule);
    int rounded = 0;
    if (precision == NULL || (precision->scores == DW_FORMAT_f32 && options->probe == PASS_PROBE_NONE)) return DW_OK;
    for (ir_node *node = graph->first, *next; node != NULL; node = next) {
        next = node->next;
        if (takes_few_bits(node)) TRY(round_scores(graph, options, node, precision->scores, ++rounded));
    }
    pass_policy_used_apart(options->policy, PASS_SCORES, rounded > 0);
    if (rounded > 0) precision_report(options, "queries and keys", "scores", precision->name, rule);
    return DW_OK;
}
