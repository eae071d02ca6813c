/* The gradients of reductions, scans and orders. */
#include "pass/gradient/gradient.h"

/* ---- reductions ---- */

dw_status gradient_sum(gradient *g, const ir_node *node) {
    const int64_t *axes;
    ir_value *x = ir_in(node, 0), *made;
    const int count = op_attr_ints(&node->attrs, OP_ATTR_axes, &axes);
    TRY(gradient_emit_spread(g, gradient_of(g, node, 0), x, count, axes, &made));
    return gradient_add(g, x, made);
}

dw_status gradient_mean(gradient *g, const ir_node *node) {
    ir_graph *graph = g->graph;
    const int64_t *axes;
    ir_value *x = ir_in(node, 0), *d = gradient_of(g, node, 0), *size, *made;
    const dw_format format = d->type.format, wide = dw_format_bits(format) < 32 ? DW_FORMAT_f32 : format;   /* a size may be no number of 16 bits */
    const int count = op_attr_ints(&node->attrs, OP_ATTR_axes, &axes);
    dim elements;
    TRY_DIM(graph->context, elements, dim_constant(graph->dims, 1));
    for (int i = 0; i < count; i++) TRY_DIM(graph->context, elements, dim_mul(graph->dims, elements, x->type.dims[axes[i]]));
    TRY(gradient_emit_count(g, elements, wide, &size));
    TRY(ir_emit_cast(graph, d, wide, &made));
    TRY(ir_emit_2(graph, OP_div, made, size, &made));
    TRY(ir_emit_cast(graph, made, format, &made));
    TRY(gradient_emit_spread(g, made, x, count, axes, &made));
    return gradient_add(g, x, made);
}

/* d and the result spread over the reduced axes, and x, in a format that products of them are made in. */
typedef struct spread { ir_value *x, *y, *d; } spread;

static dw_status emit_spreads(gradient *g, const ir_node *node, int count, const int64_t *axes, spread *s) {
    ir_value *x = ir_in(node, 0);
    *s = (spread){x, ir_out(node), gradient_of(g, node, 0)};
    TRY(gradient_emit_spread(g, s->y, x, count, axes, &s->y));
    TRY(gradient_emit_spread(g, s->d, x, count, axes, &s->d));
    if (dw_format_bits(x->type.format) >= 32) return DW_OK;
    TRY(ir_emit_cast(g->graph, s->x, DW_FORMAT_f32, &s->x));
    TRY(ir_emit_cast(g->graph, s->y, DW_FORMAT_f32, &s->y));
    return ir_emit_cast(g->graph, s->d, DW_FORMAT_f32, &s->d);
}

/* Among elements that are all the largest it is shared evenly. */
dw_status gradient_extreme(gradient *g, const ir_node *node) {
    ir_graph *graph = g->graph;
    const int64_t *axes;
    const int count = op_attr_ints(&node->attrs, OP_ATTR_axes, &axes);
    spread s;
    ir_value *is, *one, *share, *sum;
    TRY(emit_spreads(g, node, count, axes, &s));
    TRY(ir_emit_2(graph, OP_eq, s.x, s.y, &is));
    TRY(ir_emit_cast(graph, is, s.d->type.format, &one));
    TRY(gradient_emit_sum(g, one, count, axes, &sum));
    TRY(gradient_emit_spread(g, sum, ir_in(node, 0), count, axes, &sum));
    TRY(ir_emit_2(graph, OP_mul, s.d, one, &share));
    TRY(ir_emit_2(graph, OP_div, share, sum, &share));
    return gradient_add(g, ir_in(node, 0), share);
}

/* d times the product of the other elements: y / x, but for zeros. Where there is one it has the product of the rest, where there are more all have 0. */
dw_status gradient_prod(gradient *g, const ir_node *node) {
    ir_graph *graph = g->graph;
    const int64_t *axes;
    const int count = op_attr_ints(&node->attrs, OP_ATTR_axes, &axes);
    const op_attr over = op_set_ints(OP_ATTR_axes, count, axes);
    ir_value *zero, *one, *is_zero, *zeros, *is_only, *rest, *at_zero, *others;
    spread s;
    TRY(emit_spreads(g, node, count, axes, &s));
    TRY(ir_emit_scalar(graph, s.d->type.format, 0, &zero));
    TRY(ir_emit_scalar(graph, s.d->type.format, 1, &one));
    TRY(ir_emit_2(graph, OP_eq, s.x, zero, &is_zero));
    TRY(ir_emit_cast(graph, is_zero, s.d->type.format, &zeros));
    TRY(gradient_emit_sum(g, zeros, count, axes, &zeros));
    TRY(gradient_emit_spread(g, zeros, ir_in(node, 0), count, axes, &zeros));
    TRY(ir_emit(graph, OP_where, 3, (ir_value *[]){is_zero, one, s.x}, 0, NULL, &rest));
    TRY(ir_emit(graph, OP_prod, 1, (ir_value *[]){rest}, 1, &over, &rest));
    TRY(gradient_emit_spread(g, rest, ir_in(node, 0), count, axes, &rest));
    TRY(ir_emit_2(graph, OP_eq, zeros, one, &is_only));
    TRY(ir_emit(graph, OP_where, 3, (ir_value *[]){is_only, rest, zero}, 0, NULL, &at_zero));
    TRY(ir_emit_2(graph, OP_div, s.y, s.x, &others));
    TRY(ir_emit(graph, OP_where, 3, (ir_value *[]){is_zero, at_zero, others}, 0, NULL, &others));
    TRY(ir_emit_2(graph, OP_mul, s.d, others, &others));
    return gradient_add(g, ir_in(node, 0), others);
}

/* ---- scans and orders ---- */

/* From the end to the front. */
dw_status gradient_cumsum(gradient *g, const ir_node *node) {
    const int axis = (int)ir_int(node, OP_ATTR_axis);
    ir_value *made;
    TRY(gradient_emit_reversed(g, gradient_of(g, node, 0), axis, &made));
    TRY(ir_emit(g->graph, OP_cumsum, 1, (ir_value *[]){made}, node->attrs.count, node->attrs.items, &made));
    TRY(gradient_emit_reversed(g, made, axis, &made));
    return gradient_add(g, ir_in(node, 0), made);
}

/* sort and topk: each element back to the place that the second result names, of which no two are the same. */
dw_status gradient_sort(gradient *g, const ir_node *node) {
    ir_value *x = ir_in(node, 0), *zeros, *made;
    const op_attr axis = op_set_int(OP_ATTR_axis, ir_int(node, OP_ATTR_axis));
    TRY(gradient_emit_full(g, x, 0, &zeros));
    TRY(ir_emit(g->graph, OP_scatter, 3, (ir_value *[]){zeros, node->out[1], gradient_of(g, node, 0)}, 1, &axis, &made));
    return gradient_add(g, x, made);
}
