/* Scores of attention in fewer bits by policy, "role:scores = fp8", mxfp8 or bf16: queries and keys are quantised or rounded, and multiplied so. Values, and what becomes of them, are bf16:
 *
 *     %1 = attention q, k, v {scale=0.125}   ->    %1 = quantize q {to=fp8_1x128}; %2 = quantize k {to=fp8_128x128}; %3 = cast v {to=bf16}
 *                                                  %4 = attention %1, %2, %3 {scale=0.125}; %5 = cast %4 {to=f32}
 *
 * In fp8 128 keys have one scale, as a scale for each would be a product for each score. So a key's number depends on those beside it, hidden ones among them, and causal attention, where these may come
 * later, stays as it is. In mxfp8 both are mxfp8, and it stays, too: where there is a cached step, it is the attention over caches, whose keys have the format of role:cache. bf16 is for what is
 * fp32: any attention that reads no caches, and over caches in other formats its queries. Graphs with gradients stay. No precision that is not named for role:scores changes any of this. */
#include "pass/fuse/fuse.h"
#include "pass/precision/told.h"

static bool reads_caches(const ir_node *node) {
    bool any = ir_int(node, OP_ATTR_ahead) > 0;
    for (int i = ATTENTION_ROW; i <= ATTENTION_TABLE; i++) any = any || ir_in(node, i) != NULL;
    return any;
}

static bool is_in(const ir_node *node, int operand, dw_format format) { return ir_in(node, operand)->type.format == format; }

/* Queries in fp32, and keys and values likewise, or in what caches are kept in. */
static bool takes_bf16(const ir_node *node) {
    const dw_format keys = ir_in(node, ATTENTION_K)->type.format;
    if (!is_in(node, ATTENTION_Q, DW_FORMAT_f32) || !is_in(node, ATTENTION_V, keys)) return false;
    return keys == DW_FORMAT_bf16 || dw_format_is_block(keys) || (keys == DW_FORMAT_f32 && !reads_caches(node));
}

static bool takes_fewer_bits(const ir_node *node, dw_format to) {
    if (node->op != OP_attention || node->n_out > 1 || dw_format_is_block(ir_out(node)->type.format)) return false;
    if (to == DW_FORMAT_bf16) return takes_bf16(node);
    if (ir_bool(node, OP_ATTR_causal) || reads_caches(node)) return false;
    for (int i = ATTENTION_Q; i <= ATTENTION_V; i++)
        if (!fuse_is_float(ir_in(node, i)->type.format) || is_in(node, i, DW_FORMAT_f64)) return false;
    return true;
}

static dw_status emit_quantized(ir_graph *graph, ir_value **number, dw_format to) {
    const op_attr held = op_set_format(OP_ATTR_to, to);
    ir_value *plain = *number;
    return ir_emit(graph, OP_quantize, 1, &plain, 1, &held, number);
}

/* Do views that nothing else reads end in queries, keys or values? */
static bool is_for_scores(const ir_graph *graph, const ir_value *value) {
    const ir_use *use = value->uses;
    if (use == NULL || use->next != NULL || ir_is_output(graph, value)) return false;
    const ir_node *node = use->node;
    if (node->op == OP_attention) return use->index <= ATTENTION_V;
    return (node->op == OP_reshape || node->op == OP_transpose) && is_for_scores(graph, ir_out(node));
}

/* Is all of the value, of which one part is read, for scores: queries, keys and values that one product makes? */
static bool is_all_for_scores(const ir_graph *graph, const ir_value *value) {
    bool all = value->kind == IR_RESULT && value->node->op == OP_matmul && !ir_is_output(graph, value);
    for (const ir_use *use = value->uses; all && use != NULL; use = use->next)
        all = (use->node->op == OP_slice && is_for_scores(graph, ir_out(use->node))) || (use->node->op == OP_cast && ir_out(use->node)->type.format == DW_FORMAT_bf16);
    return all;
}

/* Rounded where it is computed, in front of views that nothing else reads: a product's result is written so. */
static dw_status emit_bf16(ir_graph *graph, ir_value **number) {
    ir_value *plain = fuse_skip_widening(*number), *from;
    const ir_node *node = plain->kind == IR_RESULT ? plain->node : NULL;
    *number = plain;
    if (plain->type.format == DW_FORMAT_bf16 || dw_format_is_block(plain->type.format)) return DW_OK;
    const bool is_view = node != NULL && plain->uses != NULL && plain->uses->next == NULL && !ir_is_output(graph, plain) &&
                         (node->op == OP_reshape || node->op == OP_transpose || (node->op == OP_slice && is_all_for_scores(graph, ir_in(node, 0))));
    if (!is_view) return ir_emit_cast(graph, plain, DW_FORMAT_bf16, number);
    from = ir_in(node, 0);
    TRY(emit_bf16(graph, &from));
    return ir_emit(graph, node->op, 1, &from, node->attrs.count, node->attrs.items, number);
}

static dw_status emit_in_fewer_bits(ir_graph *graph, ir_node *node, dw_format to, ir_value **result) {
    ir_value *in[ATTENTION_OPERANDS];
    op_attr attrs[OP_ATTR_COUNT];
    int count = 0;
    ir_cursor_before(graph, node);
    for (int i = 0; i < node->n_in; i++) in[i] = ir_in(node, i);
    if (to != DW_FORMAT_bf16) {
        TRY(emit_quantized(graph, &in[ATTENTION_Q], to));
        TRY(emit_quantized(graph, &in[ATTENTION_K], to == DW_FORMAT_fp8_1x128 ? DW_FORMAT_fp8_128x128 : to));
    }
    for (int i = to != DW_FORMAT_bf16 ? ATTENTION_V : ATTENTION_Q; i <= ATTENTION_V; i++) TRY(emit_bf16(graph, &in[i]));
    for (int i = 0; i < node->attrs.count; i++)
        if (node->attrs.items[i].id != OP_ATTR_to) attrs[count++] = node->attrs.items[i];
    TRY(ir_emit(graph, OP_attention, node->n_in, in, count, attrs, result));
    return ir_out(node)->type.format != DW_FORMAT_bf16 ? ir_emit_cast(graph, *result, ir_out(node)->type.format, result) : DW_OK;
}

static dw_status round_scores(ir_graph *graph, const pass_options *options, ir_node *node, dw_format to, int number) {
    ir_value *made = ir_out(node);
    if (to != DW_FORMAT_f32) TRY(emit_in_fewer_bits(graph, node, to, &made));
    return precision_take_attention(graph, options, node, "scores", number, made);
}

dw_status precision_scores(ir_graph *graph, const pass_options *options) {
    const char *rule;
    const pass_precision_row *precision = pass_policy_apart(options->policy, PASS_SCORES, &rule);
    int rounded = 0;
    if (precision == NULL || (precision->scores == DW_FORMAT_f32 && options->probe == PASS_PROBE_NONE)) return DW_OK;
    for (ir_node *node = graph->first, *next; node != NULL; node = next) {
        next = node->next;
        if (takes_fewer_bits(node, precision->scores)) TRY(round_scores(graph, options, node, precision->scores, ++rounded));
    }
    pass_policy_used_apart(options->policy, PASS_SCORES, rounded > 0);
    if (rounded > 0) precision_report(options, "queries and keys", "scores", precision->name, rule);
    return DW_OK;
}
