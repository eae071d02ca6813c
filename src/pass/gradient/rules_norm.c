/* The gradients of norms. Those of layer_norm and rms_norm are ops, which make the statistics again from x; group_norm is a layer_norm of its groups, as rows. */
#include "pass/gradient/gradient.h"

/* The op's results: the gradients of x, of weight, and of layer_norm's bias. */
static dw_status emit_back(gradient *g, op_id op, ir_value *x, ir_value *d, ir_value *weight, double eps, const ir_node **made) {
    const op_attr attr = op_set_real(OP_ATTR_eps, eps);
    ir_value *first;
    TRY(ir_emit(g->graph, op, weight != NULL ? 3 : 2, (ir_value *[]){x, d, weight}, 1, &attr, &first));
    *made = first->node;
    return DW_OK;
}

static dw_status norm_gradient(gradient *g, const ir_node *node, op_id op) {
    ir_value *x = ir_in(node, 0), *weight = ir_in(node, 1);
    const ir_node *made;
    TRY(emit_back(g, op, x, gradient_of(g, node, 0), weight, ir_real(node, OP_ATTR_eps), &made));
    TRY(gradient_add(g, x, made->out[0]));
    TRY(gradient_add(g, weight, made->out[1]));
    return op == OP_layer_norm_backward ? gradient_add(g, ir_in(node, 2), made->out[2]) : DW_OK;
}

dw_status gradient_layer_norm(gradient *g, const ir_node *node) { return norm_gradient(g, node, OP_layer_norm_backward); }

dw_status gradient_rms_norm(gradient *g, const ir_node *node) { return norm_gradient(g, node, OP_rms_norm_backward); }

static dw_format wide_of(const ir_value *x) { return dw_format_bits(x->type.format) < 32 ? DW_FORMAT_f32 : x->type.format; }

/* Of weight and bias, which are as many rows of d repeat, once reshaped to rank axes. */
static dw_status add_for_columns(gradient *g, ir_value *weight, ir_value *bias, ir_value *d, ir_value *xhat, int rank, const dim *dims) {
    ir_value *made;
    if (gradient_wants(g, weight)) {
        TRY(ir_emit_2(g->graph, OP_mul, d, xhat, &made));
        TRY(gradient_emit_unbroadcast(g, made, rank, dims, &made));
        TRY(ir_emit_reshape(g->graph, made, weight->type.rank, weight->type.dims, &made));
        TRY(gradient_add(g, weight, made));
    }
    if (!gradient_wants(g, bias)) return DW_OK;
    TRY(gradient_emit_unbroadcast(g, d, rank, dims, &made));
    TRY(ir_emit_reshape(g->graph, made, bias->type.rank, bias->type.dims, &made));
    return gradient_add(g, bias, made);
}

/* x [b,c,..] as rows [b,groups,n]. */
dw_status gradient_group_norm(gradient *g, const ir_node *node) {
    ir_graph *graph = g->graph;
    ir_value *x = ir_in(node, 0), *weight = ir_in(node, 1), *bias = ir_in(node, 2), *d = gradient_of(g, node, 0), *wide, *e, *xhat, *made;
    const dw_format format = wide_of(x);
    const int rank = x->type.rank;
    dim columns[DW_MAX_RANK], shape[3] = {x->type.dims[0], NULL, NULL};
    const double eps = ir_real(node, OP_ATTR_eps);
    const ir_node *back;
    TRY_DIM(graph->context, shape[1], dim_constant(graph->dims, ir_int(node, OP_ATTR_groups)));
    shape[2] = x->type.dims[1];
    TRY_DIM(graph->context, shape[2], dim_floordiv(graph->dims, shape[2], shape[1]));
    columns[0] = x->type.dims[1];
    for (int i = 2; i < rank; i++) {
        TRY_DIM(graph->context, shape[2], dim_mul(graph->dims, shape[2], x->type.dims[i]));
        TRY_DIM(graph->context, columns[i - 1], dim_constant(graph->dims, 1));
    }
    TRY(ir_emit_cast(graph, x, format, &wide));
    TRY(ir_emit_reshape(graph, wide, 3, shape, &wide));
    TRY(ir_emit_cast(graph, d, format, &d));
    if (gradient_wants(g, x)) {
        e = d;
        if (weight != NULL) {
            TRY(ir_emit_cast(graph, weight, format, &made));
            TRY(ir_emit_reshape(graph, made, rank - 1, columns, &made));
            TRY(ir_emit_2(graph, OP_mul, d, made, &e));
        }
        TRY(ir_emit_reshape(graph, e, 3, shape, &e));
        TRY(emit_back(g, OP_layer_norm_backward, wide, e, NULL, eps, &back));
        TRY(ir_emit_reshape(graph, back->out[0], rank, x->type.dims, &made));
        TRY(gradient_add(g, x, made));
    }
    const op_attr attr = op_set_real(OP_ATTR_eps, eps);
    TRY(ir_emit(graph, OP_layer_norm, 1, &wide, 1, &attr, &xhat));
    TRY(ir_emit_reshape(graph, xhat, rank, x->type.dims, &xhat));
    return add_for_columns(g, weight, bias, d, xhat, rank - 1, columns);
}
