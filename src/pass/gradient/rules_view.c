/* The gradients of views: the same elements under the index that they had. */
#include "pass/gradient/gradient.h"

dw_status gradient_reshape(gradient *g, const ir_node *node) {
    ir_value *x = ir_in(node, 0), *made;
    TRY(ir_emit_reshape(g->graph, gradient_of(g, node, 0), x->type.rank, x->type.dims, &made));
    return gradient_add(g, x, made);
}

dw_status gradient_transpose(gradient *g, const ir_node *node) {
    const int64_t *order;
    int64_t back[DW_MAX_RANK] = {0};
    ir_value *made;
    const int rank = op_attr_ints(&node->attrs, OP_ATTR_order, &order);
    for (int i = 0; i < rank; i++) back[order[i]] = i;
    TRY(ir_emit_transpose(g->graph, gradient_of(g, node, 0), back, &made));
    return gradient_add(g, ir_in(node, 0), made);
}

dw_status gradient_broadcast(gradient *g, const ir_node *node) { return gradient_add(g, ir_in(node, 0), gradient_of(g, node, 0)); }

/* Zeros around what lies together, else d written into zeros. */
dw_status gradient_slice(gradient *g, const ir_node *node) {
    ir_graph *graph = g->graph;
    ir_value *x = ir_in(node, 0), *d = gradient_of(g, node, 0), *made;
    const int axis = (int)ir_int(node, OP_ATTR_axis);
    const int64_t step = ir_int(node, OP_ATTR_step);
    const dim start = op_attr_dim(&node->attrs, OP_ATTR_start);
    if (step != 1) {
        const op_attr attrs[] = {op_set_int(OP_ATTR_axis, axis), op_set_dim(OP_ATTR_start, start), op_set_int(OP_ATTR_step, step)};
        TRY(gradient_emit_full(g, x, 0, &made));
        TRY(ir_emit(graph, OP_slice_scatter, 2, (ir_value *[]){made, d}, COUNT_OF(attrs), attrs, &made));
        return gradient_add(g, x, made);
    }
    dim before[DW_MAX_RANK], after[DW_MAX_RANK];
    for (int i = 0; i < x->type.rank; i++) {
        TRY_DIM(graph->context, before[i], dim_constant(graph->dims, 0));
        after[i] = before[i];
    }
    before[axis] = start;
    TRY_DIM(graph->context, after[axis], dim_sub(graph->dims, x->type.dims[axis], op_attr_dim(&node->attrs, OP_ATTR_end)));
    const op_attr attrs[] = {op_set_dims(OP_ATTR_before, x->type.rank, before), op_set_dims(OP_ATTR_after, x->type.rank, after), op_set_real(OP_ATTR_value, 0)};
    TRY(ir_emit(graph, OP_pad, 1, &d, COUNT_OF(attrs), attrs, &made));
    return gradient_add(g, x, made);
}
