/* The gradient of rotary: d turned the other way. A pair (a, b) becomes (a c - b s, b c' + a s'), so d goes back as (d c + d' s', d' c' - d s): the turn by cosines that stay in place, and
 * sines that change places and sign. */
#include "pass/gradient/gradient.h"

/* Each of a pair where the other was, along the last axis of size width. */
static dw_status emit_swapped(gradient *g, const ir_node *node, ir_value *x, ir_value **result) {
    ir_graph *graph = g->graph;
    const int rank = x->type.rank, axis = rank - 1;
    const int64_t width = ir_int(node, OP_ATTR_width);
    dim dims[DW_MAX_RANK + 1];
    int64_t size;
    *result = x;
    if (rank == 0 || (dim_is_constant(x->type.dims[axis], &size) && size == 1)) return DW_OK;   /* the same for all */
    if (ir_bool(node, OP_ATTR_interleaved)) {
        if (rank == DW_MAX_RANK) return gradient_refuse(g, node, "neighbours of a tensor of the highest rank");
        for (int i = 0; i < axis; i++) dims[i] = x->type.dims[i];
        TRY_DIM(graph->context, dims[axis], dim_constant(graph->dims, width / 2));
        TRY_DIM(graph->context, dims[rank], dim_constant(graph->dims, 2));
        TRY(ir_emit_reshape(graph, x, rank + 1, dims, result));
        TRY(gradient_emit_reversed(g, *result, rank, result));
        return ir_emit_reshape(graph, *result, rank, x->type.dims, result);
    }
    dim zero, middle, end;
    ir_value *first, *second;
    TRY_DIM(graph->context, zero, dim_constant(graph->dims, 0));
    TRY_DIM(graph->context, middle, dim_constant(graph->dims, width / 2));
    TRY_DIM(graph->context, end, dim_constant(graph->dims, width));
    TRY(ir_emit_slice(graph, x, axis, zero, middle, 1, &first));
    TRY(ir_emit_slice(graph, x, axis, middle, end, 1, &second));
    const op_attr along = op_set_int(OP_ATTR_axis, axis);
    return ir_emit(graph, OP_concat, 2, (ir_value *[]){second, first}, 1, &along, result);
}

/* d times x, where x is as rotary makes it of these; of the elements that are turned. */
static dw_status add_for_angle(gradient *g, const ir_node *node, ir_value *angle, ir_value *x, ir_value *d) {
    ir_graph *graph = g->graph;
    dim zero, end;
    ir_value *made;
    TRY_DIM(graph->context, zero, dim_constant(graph->dims, 0));
    TRY_DIM(graph->context, end, dim_constant(graph->dims, ir_int(node, OP_ATTR_width)));
    TRY(ir_emit_2(graph, OP_mul, d, x, &made));
    TRY(ir_emit_slice(graph, made, made->type.rank - 1, zero, end, 1, &made));
    return gradient_add(g, angle, made);
}

dw_status gradient_rotary(gradient *g, const ir_node *node) {
    ir_graph *graph = g->graph;
    ir_value *x = ir_in(node, 0), *cosine = ir_in(node, 1), *sine = ir_in(node, 2), *d = gradient_of(g, node, 0), *made, *none, *one;
    if (gradient_wants(g, x)) {
        TRY(emit_swapped(g, node, sine, &made));
        TRY(ir_emit_1(graph, OP_neg, made, &made));
        TRY(ir_emit(graph, OP_rotary, 3, (ir_value *[]){d, cosine, made}, node->attrs.count, node->attrs.items, &made));
        TRY(gradient_add(g, x, made));
    }
    if (gradient_wants(g, cosine)) TRY(add_for_angle(g, node, cosine, x, d));
    if (!gradient_wants(g, sine)) return DW_OK;
    TRY(gradient_emit_full(g, cosine, 0, &none));
    TRY(gradient_emit_full(g, sine, 1, &one));
    TRY(ir_emit(graph, OP_rotary, 3, (ir_value *[]){x, none, one}, node->attrs.count, node->attrs.items, &made));
    return add_for_angle(g, node, sine, made, d);
}
