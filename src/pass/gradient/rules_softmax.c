/* The gradients of softmax and its logarithm, by the result: sums over a row are made in f32 where d has 16 bits. */
#include "pass/gradient/gradient.h"

/* d and y in the format that is computed in, and the sum of x over the axis, which stays with size 1. */
static dw_status emit_wide(gradient *g, const ir_node *node, ir_value **d, ir_value **y) {
    const dw_format format = ir_out(node)->type.format, wide = dw_format_bits(format) < 32 ? DW_FORMAT_f32 : format;
    TRY(ir_emit_cast(g->graph, gradient_of(g, node, 0), wide, d));
    return ir_emit_cast(g->graph, ir_out(node), wide, y);
}

static dw_status emit_row_sum(gradient *g, const ir_node *node, ir_value *x, ir_value **sum) {
    const int64_t axis = ir_int(node, OP_ATTR_axis);
    const op_attr attrs[] = {op_set_ints(OP_ATTR_axes, 1, &axis), op_set_bool(OP_ATTR_keep, true)};
    return ir_emit(g->graph, OP_sum, 1, &x, COUNT_OF(attrs), attrs, sum);
}

/* y (d - sum of y d) */
dw_status gradient_softmax(gradient *g, const ir_node *node) {
    ir_graph *graph = g->graph;
    ir_value *d, *y, *sum, *made;
    TRY(emit_wide(g, node, &d, &y));
    TRY(ir_emit_2(graph, OP_mul, d, y, &made));
    TRY(emit_row_sum(g, node, made, &sum));
    TRY(ir_emit_2(graph, OP_sub, d, sum, &made));
    TRY(ir_emit_2(graph, OP_mul, y, made, &made));
    return gradient_add(g, ir_in(node, 0), made);
}

/* d - e^y sum of d */
dw_status gradient_log_softmax(gradient *g, const ir_node *node) {
    ir_graph *graph = g->graph;
    ir_value *d, *y, *sum, *made;
    TRY(emit_wide(g, node, &d, &y));
    TRY(emit_row_sum(g, node, d, &sum));
    TRY(ir_emit_1(graph, OP_exp, y, &made));
    TRY(ir_emit_2(graph, OP_mul, made, sum, &made));
    TRY(ir_emit_2(graph, OP_sub, d, made, &made));
    return gradient_add(g, ir_in(node, 0), made);
}
