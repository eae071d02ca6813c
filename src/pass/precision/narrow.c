/* What stays in 16 bits between ops of a graph with gradients. A value that was widened is read as it was, through the views that stand in between; and what a product of bf16 makes is rounded to bf16
 * where what reads it rounds it anyway or computes in fp32 element by element, as PyTorch's autocast has it. Residuals, norms and the gradients of weights stay in fp32.
 *
 *     %1 = cast x {to=f32}                              %1 = reshape x {shape=[b*s,h*d]}
 *     %2 = reshape %1 {shape=[b*s,h*d]}        ->       %2 = sum %1 {axes=[0],to=f32}
 *     %3 = sum %2 {axes=[0]} */
#include "pass/fuse/fuse.h"
#include "pass/precision/told.h"

static bool is_moved(op_id op) { return op == OP_reshape || op == OP_transpose || op == OP_slice; }

bool precision_is_narrow(const ir_value *value, dw_format format) {
    if (value->type.format == format) return true;
    if (value->kind != IR_RESULT) return false;
    const ir_node *node = value->node;
    if (node->op == OP_cast) return fuse_skip_widening((ir_value *)value)->type.format == format;
    if (is_moved(node->op)) return precision_is_narrow(ir_in(node, 0), format);
    bool all = node->op == OP_concat;
    for (int i = 0; all && i < node->n_in; i++) all = precision_is_narrow(ir_in(node, i), format);
    return all;
}

dw_status precision_emit_narrow(ir_graph *graph, ir_value *value, dw_format format, ir_value **made) {
    ir_value *in[64];
    *made = value;
    if (value->type.format == format) return DW_OK;
    const ir_node *node = value->node;
    if (node->op == OP_cast) {
        *made = fuse_skip_widening(value);
        return DW_OK;
    }
    if (node->n_in > 64) return ir_emit_cast(graph, value, format, made);
    for (int i = 0; i < node->n_in; i++) TRY(precision_emit_narrow(graph, ir_in(node, i), format, &in[i]));
    return ir_emit(graph, node->op, node->n_in, in, node->attrs.count, node->attrs.items, made);
}

/* ---- results of products ---- */

static bool is_element_by_element(const ir_node *node) { return (op_get(node->op)->traits & OP_TRAIT_POINTWISE) != 0 && node->op != OP_add && node->op != OP_sub; }

static bool is_read_narrow(const ir_graph *graph, const ir_value *value);

/* Does the node multiply the operand in the format that the policy gives it, or read it in fp32 whatever its format is? */
static bool takes_narrow(const ir_graph *graph, const ir_node *node, int operand) {
    switch (node->op) {
    case OP_matmul:
    case OP_grouped_matmul:
    case OP_grouped_outer: return operand < 2;
    case OP_attention: return node->n_out > 1 && operand <= ATTENTION_V;
    case OP_attention_backward: return operand <= ATTENTION_V || operand == ATTENTION_BACKWARD_OUT || operand == ATTENTION_BACKWARD_DOUT;
    case OP_cross_entropy:
    case OP_cross_entropy_backward: return operand == 0;
    case OP_sum: return true;
    case OP_reshape:
    case OP_transpose:
    case OP_slice:
    case OP_concat: return is_read_narrow(graph, ir_out(node));
    default: return is_element_by_element(node);
    }
}

static bool is_read_narrow(const ir_graph *graph, const ir_value *value) {
    bool all = value->uses != NULL && !ir_is_output(graph, value);
    for (const ir_use *use = value->uses; all && use != NULL; use = use->next) all = takes_narrow(graph, use->node, use->index);
    return all;
}

/* Does the product add a tensor of its shape at its end, as a residual? */
static bool adds_residual(const ir_graph *graph, const ir_node *product) {
    op_post_list list;
    if (op_post_parse(graph->context, ir_attr_text(product, OP_ATTR_post), &list) != DW_OK) return true;
    for (int i = 0; i < list.count; i++)
        if (list.steps[i] == OP_POST_add) return true;
    return false;
}

bool precision_gives_narrow(const ir_graph *graph, const ir_node *product) {
    return ir_out(product)->type.format == DW_FORMAT_f32 && !adds_residual(graph, product) && is_read_narrow(graph, ir_out(product));
}

/* ---- what reads them ---- */

/* Do products and sums alone read the value, through views? */
static bool is_multiplied(const ir_graph *graph, const ir_value *value) {
    if (!is_read_narrow(graph, value)) return false;
    for (const ir_use *use = value->uses; use != NULL; use = use->next) {
        const ir_node *node = use->node;
        if ((op_get(node->op)->traits & OP_TRAIT_POINTWISE) != 0) return false;
        if ((is_moved(node->op) || node->op == OP_concat) && !is_multiplied(graph, ir_out(node))) return false;
    }
    return true;
}

dw_status precision_round(ir_graph *graph, ir_node *node) {
    ir_value *rounded, *wide, *const made = ir_out(node);
    bool reads_narrow = false;
    if (node->op == OP_cast || made->type.format != DW_FORMAT_f32 || ir_is_weight(made) || !is_multiplied(graph, made)) return DW_OK;
    for (int i = 0; i < node->n_in; i++) reads_narrow = reads_narrow || (ir_in(node, i)->type.format == DW_FORMAT_f32 && precision_is_narrow(ir_in(node, i), DW_FORMAT_bf16));
    if (!reads_narrow) return DW_OK;
    ir_cursor_after(graph, node);
    graph->origin = node->origin;
    TRY(ir_emit_cast(graph, made, DW_FORMAT_bf16, &rounded));
    TRY(ir_emit_cast(graph, rounded, DW_FORMAT_f32, &wide));
    ir_replace(graph, made, wide);
    ir_set_operand(rounded->node, 0, made);
    return DW_OK;
}

dw_status precision_sum(ir_graph *graph, ir_node *node) {
    op_attr attrs[OP_ATTR_COUNT];
    ir_value *x = ir_in(node, 0), *made;
    const dw_format to = ir_out(node)->type.format;
    int count = 0;
    bool changed = false;
    if (x->type.format != DW_FORMAT_f32 || !precision_is_narrow(x, DW_FORMAT_bf16)) return DW_OK;
    ir_cursor_before(graph, node);
    graph->origin = node->origin;
    TRY(precision_emit_narrow(graph, x, DW_FORMAT_bf16, &x));
    for (int i = 0; i < node->attrs.count; i++)
        if (node->attrs.items[i].id != OP_ATTR_to) attrs[count++] = node->attrs.items[i];
    attrs[count++] = op_set_format(OP_ATTR_to, to);
    TRY(ir_emit(graph, OP_sum, 1, &x, count, attrs, &made));
    return fuse_replace(graph, ir_out(node), made, &changed);
}

dw_status precision_loss(ir_graph *graph, ir_node *node) {
    ir_value *in[4], *made, *same;
    bool changed = false;
    if (ir_in(node, 0)->type.format != DW_FORMAT_f32 || !precision_is_narrow(ir_in(node, 0), DW_FORMAT_bf16)) return DW_OK;
    if (node->op == OP_cross_entropy_backward && !is_read_narrow(graph, ir_out(node))) return DW_OK;
    for (int i = 0; i < node->n_in; i++) in[i] = ir_in(node, i);
    ir_cursor_before(graph, node);
    graph->origin = node->origin;
    TRY(precision_emit_narrow(graph, in[0], DW_FORMAT_bf16, &in[0]));
    TRY(ir_emit(graph, node->op, node->n_in, in, node->attrs.count, node->attrs.items, &made));
    const ir_node *const narrow = made->node;
    for (int i = 0; i < node->n_out; i++) {
        TRY(ir_emit_cast(graph, narrow->out[i], node->out[i]->type.format, &same));
        TRY(fuse_replace(graph, node->out[i], same, &changed));
    }
    return DW_OK;
}
