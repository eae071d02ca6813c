/* The gradients of cross_entropy, by an op of its own, and of dropout, which drops of the gradient what it dropped of x. */
#include "pass/gradient/gradient.h"

dw_status gradient_cross_entropy(gradient *g, const ir_node *node) {
    ir_graph *graph = g->graph;
    ir_value *logits = ir_in(node, 0), *d = gradient_of(g, node, 0), *of_lse = gradient_of(g, node, 1), *lse = node->out[1], *made;
    if (!gradient_wants(g, logits)) return DW_OK;
    if (d != NULL) {
        TRY(ir_emit(graph, OP_cross_entropy_backward, 4, (ir_value *[]){logits, ir_in(node, 1), lse, d}, node->attrs.count, node->attrs.items, &made));
        TRY(gradient_add(g, logits, made));
    }
    if (of_lse == NULL) return DW_OK;
    /* d * e^(logits - lse), a row of lse for each of logits, and 0 behind the classes */
    const int rank = logits->type.rank;
    const op_attr *classes = op_attrs_get(&node->attrs, OP_ATTR_classes);
    dim dims[DW_MAX_RANK], before[DW_MAX_RANK], after[DW_MAX_RANK], zero, end = NULL;
    TRY_DIM(graph->context, zero, dim_constant(graph->dims, 0));
    for (int i = 0; i < rank - 1; i++) dims[i] = logits->type.dims[i];
    TRY_DIM(graph->context, dims[rank - 1], dim_constant(graph->dims, 1));
    ir_value *counted = logits;
    if (classes != NULL) {
        TRY_DIM(graph->context, end, dim_constant(graph->dims, classes->integer));
        TRY(ir_emit_slice(graph, logits, rank - 1, zero, end, 1, &counted));
    }
    TRY(ir_emit_cast(graph, counted, lse->type.format, &made));
    TRY(ir_emit_reshape(graph, lse, rank, dims, &lse));
    TRY(ir_emit_reshape(graph, of_lse, rank, dims, &of_lse));
    TRY(ir_emit_2(graph, OP_sub, made, lse, &made));
    TRY(ir_emit_1(graph, OP_exp, made, &made));
    TRY(ir_emit_2(graph, OP_mul, made, of_lse, &made));
    if (classes != NULL) {
        for (int i = 0; i < rank; i++) before[i] = after[i] = zero;
        TRY_DIM(graph->context, after[rank - 1], dim_sub(graph->dims, logits->type.dims[rank - 1], end));
        const op_attr pad[] = {op_set_dims(OP_ATTR_before, rank, before), op_set_dims(OP_ATTR_after, rank, after), op_set_real(OP_ATTR_value, 0)};
        TRY(ir_emit(graph, OP_pad, 1, (ir_value *[]){made}, COUNT_OF(pad), pad, &made));
    }
    return gradient_add(g, logits, made);
}

dw_status gradient_dropout(gradient *g, const ir_node *node) {
    ir_value *made;
    TRY(ir_emit(g->graph, OP_dropout, 2, (ir_value *[]){gradient_of(g, node, 0), ir_in(node, 1)}, node->attrs.count, node->attrs.items, &made));
    return gradient_add(g, ir_in(node, 0), made);
}
