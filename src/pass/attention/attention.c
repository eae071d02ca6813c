/* Every spelling of attention becomes the attention op: written out in products and a softmax or called by name, with masks made of
 * positions, tables or inputs, with heads repeated for groups of queries. What stays explicit is noted with its reason.
 * The work is in spelled.c, factors.c, heads.c and masks.c. Later, when precisions are fixed, attention takes in what quantises its result. */
#include "pass/attention/attention.h"
#include "pass/fuse/fuse.h"

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
    const dw_format format = node->n_out == 1 ? widened_from(node) : DW_FORMAT_COUNT;
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

static dw_status read_operands(value_analysis *analysis, ir_node *node, bool *changed) {
    ir_graph *graph = analysis->graph;
    if (node->origin.role == NULL) node->origin.role = "attention";
    if (node->n_out > 1) return DW_OK;                 /* what else its rows are told by stays as it is written */
    fuse_attempt attempt = fuse_begin(graph, "attention_heads", node);
    TRY(fuse_end(&attempt, attention_ungroup_heads(analysis, node, changed)));
    attempt = fuse_begin(graph, "attention_masks", node);
    return fuse_end(&attempt, attention_read_masks(analysis, node, changed));
}

static dw_status fuse_all(ir_graph *graph, value_analysis *analysis, bool *changed) {
    for (ir_node *node = graph->first, *next; node != NULL; node = next) {
        next = node->next;
        if (node->op == OP_attention) TRY(read_operands(analysis, node, changed));
    }
    return DW_OK;
}

static dw_status simplify(ir_graph *graph, const char *fusion, fuse_function run, bool *changed) {
    for (ir_node *node = graph->first, *next; node != NULL; node = next) {
        next = node->next;
        if (node->op != OP_attention) continue;
        const fuse_attempt attempt = fuse_begin(graph, fusion, node);
        TRY(fuse_end(&attempt, run(graph, node, changed)));
    }
    return DW_OK;
}

/* ---- quantisers, of the pass merge ---- */

/* The attention whose heads are put side by side as [b,s,h*e], which value alone is; NULL: there is none. */
static ir_node *joined_by(ir_graph *graph, const ir_value *value) {
    const ir_node *reshape = fuse_def_single(graph, value, OP_reshape), *transpose = reshape != NULL ? fuse_def_single(graph, ir_in(reshape, 0), OP_transpose) : NULL;
    ir_node *attention = transpose != NULL ? fuse_def_single(graph, ir_in(transpose, 0), OP_attention) : NULL;
    const int64_t *order;
    if (attention == NULL || attention->n_out > 1 || ir_out(attention)->type.rank != 4 || value->type.rank != 3) return NULL;
    op_attr_ints(&transpose->attrs, OP_ATTR_order, &order);
    const dim *from = ir_out(attention)->type.dims, *to = value->type.dims;
    const bool side_by_side = order[0] == 0 && order[1] == 2 && order[2] == 1 && order[3] == 3;
    return side_by_side && to[0] == from[0] && to[1] == from[2] ? attention : NULL;
}

/* Attention whose result, its heads side by side, only a quantize reads, makes that, where blocks lie within a head. What is quantised is the result in the format it had, so
 * that no bit changes. */
dw_status fuse_attention_quantize(ir_graph *graph, ir_node *node, bool *changed) {
    const dw_format to = fuse_blocks(node);
    const ir_node *attention = to != DW_FORMAT_COUNT ? joined_by(graph, ir_in(node, 0)) : NULL;
    int64_t width;
    if (attention == NULL || !op_is_via(ir_out(attention)->type.format)) return DW_OK;
    if (!dim_is_constant(ir_out(attention)->type.dims[3], &width) || width % num_info(to)->cols != 0) return DW_OK;
    ir_value *in[ATTENTION_OPERANDS], *made;
    op_attr attrs[OP_ATTR_COUNT];
    int count = 0;
    for (int i = 0; i < attention->n_in; i++) in[i] = ir_in(attention, i);
    for (int i = 0; i < attention->attrs.count; i++) {
        if (attention->attrs.items[i].id != OP_ATTR_to) attrs[count++] = attention->attrs.items[i];
    }
    attrs[count++] = op_set_format(OP_ATTR_to, to);
    if (ir_out(attention)->type.format != DW_FORMAT_f32) attrs[count++] = op_set_format(OP_ATTR_via, ir_out(attention)->type.format);
    attrs[count++] = op_set_bool(OP_ATTR_joined, true);
    fuse_cursor(graph, node, attention);
    TRY(ir_emit(graph, OP_attention, attention->n_in, in, count, attrs, &made));
    return fuse_replace(graph, ir_out(node), made, changed);
}

/* ---- the pass ---- */

dw_status pass_fuse_attention(ir_graph *graph, const pass_options *options, bool *changed) {
    (void)options;
    *changed = false;
    TRY(attention_fuse_spelled(graph, changed));
    TRY(simplify(graph, "attention_factors", attention_take_factors, changed));
    TRY(simplify(graph, "attention_narrow", narrow, changed));
    value_analysis *analysis;
    TRY(value_analyse(graph, &analysis));
    const dw_status status = fuse_all(graph, analysis, changed);
    value_analysis_destroy(analysis);
    return status;
}
