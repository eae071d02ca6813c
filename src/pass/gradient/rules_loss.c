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
    /* d * e^(logits - lse), a row of lse for each of logits */
    const int rank = logits->type.rank;
    dim dims[DW_MAX_RANK];
    for (int i = 0; i < rank - 1; i++) dims[i] = logits->type.dims[i];
    TRY_DIM(graph->context, dims[rank - 1], dim_constant(graph->dims, 1));
    TRY(ir_emit_cast(graph, logits, lse->type.format, &made));
    TRY(ir_emit_reshape(graph, lse, rank, dims, &lse));
    TRY(ir_emit_reshape(graph, of_lse, rank, dims, &of_lse));
    TRY(ir_emit_2(graph, OP_sub, made, lse, &made));
    TRY(ir_emit_1(graph, OP_exp, made, &made));
    TRY(ir_emit_2(graph, OP_mul, made, of_lse, &made));
    return gradient_add(g, logits, made);
}

dw_status gradient_dropout(gradient *g, const ir_node *node) {
    ir_value *made;
    TRY(ir_emit(g->graph, OP_dropout, 2, (ir_value *[]){gradient_of(g, node, 0), ir_in(node, 1)}, node->attrs.count, node->attrs.items, &made));
    return gradient_add(g, ir_in(node, 0), made);
}
