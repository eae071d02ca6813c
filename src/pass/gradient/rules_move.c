/* The gradients of ops that place elements anew: each goes back to where its element came from. */
#include "pass/gradient/gradient.h"

static dw_status emit_part(gradient *g, ir_value *d, int axis, dim start, dim size, int64_t step, ir_value **result) {
    ir_graph *graph = g->graph;
    dim span, end, one;
    TRY_DIM(graph->context, one, dim_constant(graph->dims, 1));
    TRY_DIM(graph->context, span, dim_sub(graph->dims, size, one));
    TRY_DIM(graph->context, end, dim_constant(graph->dims, step));
    TRY_DIM(graph->context, span, dim_mul(graph->dims, span, end));
    TRY_DIM(graph->context, span, dim_add(graph->dims, span, one));     /* from the first to the last of size elements, step apart */
    TRY_DIM(graph->context, end, dim_add(graph->dims, start, step == 1 ? size : span));
    return ir_emit_slice(graph, d, axis, start, end, step, result);
}

dw_status gradient_concat(gradient *g, const ir_node *node) {
    ir_graph *graph = g->graph;
    const int axis = (int)ir_int(node, OP_ATTR_axis);
    dim start;
    TRY_DIM(graph->context, start, dim_constant(graph->dims, 0));
    for (int i = 0; i < node->n_in; i++) {
        ir_value *x = ir_in(node, i), *part;
        if (gradient_wants(g, x)) {
            TRY(emit_part(g, gradient_of(g, node, 0), axis, start, x->type.dims[axis], 1, &part));
            TRY(gradient_add(g, x, part));
        }
        TRY_DIM(graph->context, start, dim_add(graph->dims, start, x->type.dims[axis]));
    }
    return DW_OK;
}

dw_status gradient_pad(gradient *g, const ir_node *node) {
    const dim *before;
    ir_value *x = ir_in(node, 0), *made = gradient_of(g, node, 0);
    const int rank = op_attr_dims(&node->attrs, OP_ATTR_before, &before);
    for (int i = 0; i < rank; i++) {
        if (ir_out(node)->type.dims[i] != x->type.dims[i]) TRY(emit_part(g, made, i, before[i], x->type.dims[i], 1, &made));
    }
    return gradient_add(g, x, made);
}

dw_status gradient_slice_scatter(gradient *g, const ir_node *node) {
    ir_value *x = ir_in(node, 0), *y = ir_in(node, 1), *d = gradient_of(g, node, 0), *made;
    const int axis = (int)ir_int(node, OP_ATTR_axis);
    if (gradient_wants(g, x)) {
        TRY(gradient_emit_full(g, y, 0, &made));
        TRY(ir_emit(g->graph, OP_slice_scatter, 2, (ir_value *[]){d, made}, node->attrs.count, node->attrs.items, &made));
        TRY(gradient_add(g, x, made));
    }
    if (!gradient_wants(g, y)) return DW_OK;
    TRY(emit_part(g, d, axis, op_attr_dim(&node->attrs, OP_ATTR_start), y->type.dims[axis], ir_int(node, OP_ATTR_step), &made));
    return gradient_add(g, y, made);
}

dw_status gradient_triangle(gradient *g, const ir_node *node) {
    ir_value *made, *d = gradient_of(g, node, 0);
    TRY(ir_emit(g->graph, node->op, 1, &d, node->attrs.count, node->attrs.items, &made));
    return gradient_add(g, ir_in(node, 0), made);
}
