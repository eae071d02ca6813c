/* The gradient of attention: one op, which makes the weights again from the logarithm of each row's sum. That is a second result of the forward node: where it has none, a node that has it takes
 * its place.
 *
 *     %1 = attention q, k, v {scale=0.125}            %1:2 = attention q, k, v {scale=0.125,lse=true}
 *                                              ->     %2:3 = attention_backward q, k, v, %1, %1.1, d {scale=0.125}
 */
#include "pass/gradient/gradient.h"

/* Which attributes attention and its gradient share. */
static bool is_shared(op_attr_id id) {
    return id == OP_ATTR_scale || id == OP_ATTR_causal || id == OP_ATTR_window || id == OP_ATTR_ahead || id == OP_ATTR_offset || id == OP_ATTR_softcap;
}

/* [b,s,h*e] as [b,h,s,e] */
static dw_status emit_by_heads(gradient *g, const ir_node *node, ir_value *x, ir_value **result) {
    static const int64_t order[] = {0, 2, 1, 3};
    const ir_value *q = ir_in(node, ATTENTION_Q), *v = ir_in(node, ATTENTION_V);
    const dim dims[] = {x->type.dims[0], x->type.dims[1], q->type.dims[1], v->type.dims[3]};
    *result = x;
    if (!ir_bool(node, OP_ATTR_joined)) return DW_OK;
    TRY(ir_emit_reshape(g->graph, x, 4, dims, result));
    return ir_emit_transpose(g->graph, *result, order, result);
}

/* The node with lse, in place of the one without. */
static dw_status widen(gradient *g, ir_node *node, const ir_node **with_lse) {
    ir_graph *graph = g->graph;
    op_attr attrs[OP_ATTR_COUNT];
    ir_value *in[ATTENTION_OPERANDS], *made;
    *with_lse = node;
    if (node->n_out > 1) return DW_OK;
    for (int i = 0; i < node->n_in; i++) in[i] = ir_in(node, i);
    for (int i = 0; i < node->attrs.count; i++) attrs[i] = node->attrs.items[i];
    attrs[node->attrs.count] = op_set_bool(OP_ATTR_lse, true);
    ir_cursor_before(graph, node);
    const dw_status status = ir_emit(graph, OP_attention, node->n_in, in, node->attrs.count + 1, attrs, &made);
    ir_cursor_end(graph);
    graph->origin = node->origin;
    if (status != DW_OK) return status;
    *with_lse = made->node;
    ir_replace(graph, ir_out(node), made);
    return DW_OK;
}

/* Its weight times what all keys lose to it: -e^(sink - lse) dout . out, over batches and queries. */
static dw_status add_for_sink(gradient *g, ir_value *sink, ir_value *out, ir_value *lse, ir_value *d) {
    static const int64_t columns[] = {3}, rows[] = {0, 2};
    ir_graph *graph = g->graph;
    const dw_format wide = d->type.format == DW_FORMAT_f64 || sink->type.format == DW_FORMAT_f64 ? DW_FORMAT_f64 : DW_FORMAT_f32;
    ir_value *share, *weight;
    dim dims[2] = {sink->type.dims[0], NULL};
    TRY_DIM(graph->context, dims[1], dim_constant(graph->dims, 1));
    TRY(ir_emit_cast(graph, out, wide, &out));
    TRY(ir_emit_cast(graph, d, wide, &d));
    TRY(ir_emit_2(graph, OP_mul, out, d, &share));
    TRY(gradient_emit_sum(g, share, 1, columns, &share));
    TRY(ir_emit_cast(graph, sink, wide, &weight));
    TRY(ir_emit_reshape(graph, weight, 2, dims, &weight));
    TRY(ir_emit_cast(graph, lse, wide, &lse));
    TRY(ir_emit_2(graph, OP_sub, weight, lse, &weight));
    TRY(ir_emit_1(graph, OP_exp, weight, &weight));
    TRY(ir_emit_2(graph, OP_mul, weight, share, &share));
    TRY(gradient_emit_sum(g, share, 2, rows, &share));
    TRY(ir_emit_1(graph, OP_neg, share, &share));
    return gradient_add(g, sink, share);
}

static ir_value *operand(const ir_node *node, int index) { return index < node->n_in ? ir_in(node, index) : NULL; }

static dw_status add_for_operands(gradient *g, const ir_node *node, ir_value *out, ir_value *lse, ir_value *d) {
    ir_value *bias = operand(node, ATTENTION_BIAS), *in[] = {ir_in(node, ATTENTION_Q), ir_in(node, ATTENTION_K), ir_in(node, ATTENTION_V), out, lse, d, operand(node, ATTENTION_MASK), bias}, *made;
    const bool of_bias = gradient_wants(g, bias);
    op_attr attrs[OP_ATTR_COUNT];
    int count = 0, n_in = COUNT_OF(in);
    while (in[n_in - 1] == NULL) n_in--;
    for (int i = 0; i < node->attrs.count; i++)
        if (is_shared(node->attrs.items[i].id)) attrs[count++] = node->attrs.items[i];
    if (of_bias) attrs[count++] = op_set_bool(OP_ATTR_dbias, true);
    if (!of_bias && !gradient_wants(g, in[0]) && !gradient_wants(g, in[1]) && !gradient_wants(g, in[2])) return DW_OK;
    TRY(ir_emit(g->graph, OP_attention_backward, n_in, in, count, attrs, &made));
    const ir_node *backward = made->node;
    for (int i = 0; i < 3; i++) TRY(gradient_add(g, in[i], backward->out[i]));
    return of_bias ? gradient_add(g, bias, backward->out[3]) : DW_OK;
}

dw_status gradient_attention(gradient *g, const ir_node *node) {
    ir_value *d = gradient_of(g, node, 0), *sink = operand(node, ATTENTION_SINK), *out;
    const ir_node *with_lse;
    for (int i = ATTENTION_ROW; i < node->n_in; i++) {
        if (ir_in(node, i) != NULL) return gradient_refuse(g, node, "it reads a cache of keys and values; gradients are those of whole sequences");
    }
    if (gradient_of(g, node, 1) != NULL) return gradient_refuse(g, node, "its second result, lse, is used by what is trained");
    if (dw_format_is_block(ir_out(node)->type.format)) return gradient_refuse(g, node, "its result is in blocks; quantise behind it");
    if (d == NULL) return DW_OK;
    TRY(widen(g, ir_out(node)->node, &with_lse));
    TRY(emit_by_heads(g, node, with_lse->out[0], &out));
    TRY(emit_by_heads(g, node, d, &d));
    TRY(add_for_operands(g, node, out, with_lse->out[1], d));
    return gradient_wants(g, sink) ? add_for_sink(g, sink, out, with_lse->out[1], d) : DW_OK;
}
