/* The gradients of norms, made of ops that there are. With xhat = (x - mean) r, r = 1 / sqrt(var + eps) and e = d weight: r (e - mean(e) - xhat mean(e xhat)); an rms_norm has no means of x
 * and e. Statistics are made again from x, in f32 where x has 16 bits. */
#include "pass/gradient/gradient.h"

/* Rows along the last axis: what is normalised, and what its elements were multiplied by. */
typedef struct rows { ir_value *xhat, *scale; } rows;

static dw_format wide_of(const ir_value *x) { return dw_format_bits(x->type.format) < 32 ? DW_FORMAT_f32 : x->type.format; }

static dw_status emit_row_mean(gradient *g, ir_value *x, ir_value **mean) {
    const int64_t axis = x->type.rank - 1;
    const op_attr attrs[] = {op_set_ints(OP_ATTR_axes, 1, &axis), op_set_bool(OP_ATTR_keep, true)};
    return ir_emit(g->graph, OP_mean, 1, &x, COUNT_OF(attrs), attrs, mean);
}

static dw_status emit_normalised(gradient *g, ir_value *x, bool centred, double eps, rows *made) {
    ir_graph *graph = g->graph;
    ir_value *mean, *square, *number;
    if (centred) {
        TRY(emit_row_mean(g, x, &mean));
        TRY(ir_emit_2(graph, OP_sub, x, mean, &x));
    }
    TRY(ir_emit_2(graph, OP_mul, x, x, &square));
    TRY(emit_row_mean(g, square, &mean));
    TRY(ir_emit_scalar(graph, x->type.format, eps, &number));
    TRY(ir_emit_2(graph, OP_add, mean, number, &mean));
    TRY(ir_emit_1(graph, OP_rsqrt, mean, &made->scale));
    return ir_emit_2(graph, OP_mul, x, made->scale, &made->xhat);
}

static dw_status emit_back(gradient *g, const rows *of, ir_value *e, bool centred, ir_value **result) {
    ir_graph *graph = g->graph;
    ir_value *mean, *product, *made = e;
    if (centred) {
        TRY(emit_row_mean(g, e, &mean));
        TRY(ir_emit_2(graph, OP_sub, e, mean, &made));
    }
    TRY(ir_emit_2(graph, OP_mul, e, of->xhat, &product));
    TRY(emit_row_mean(g, product, &mean));
    TRY(ir_emit_2(graph, OP_mul, of->xhat, mean, &product));
    TRY(ir_emit_2(graph, OP_sub, made, product, &made));
    return ir_emit_2(graph, OP_mul, made, of->scale, result);
}

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

static dw_status norm_gradient(gradient *g, const ir_node *node, bool centred) {
    ir_graph *graph = g->graph;
    ir_value *x = ir_in(node, 0), *weight = ir_in(node, 1), *bias = centred ? ir_in(node, 2) : NULL, *d = gradient_of(g, node, 0), *wide, *e, *made;
    const dw_format format = wide_of(x);
    rows of;
    TRY(ir_emit_cast(graph, x, format, &wide));
    TRY(ir_emit_cast(graph, d, format, &d));
    TRY(emit_normalised(g, wide, centred, ir_real(node, OP_ATTR_eps), &of));
    e = d;
    if (gradient_wants(g, x)) {
        if (weight != NULL) {
            TRY(ir_emit_cast(graph, weight, format, &made));
            TRY(ir_emit_2(graph, OP_mul, d, made, &e));
        }
        TRY(emit_back(g, &of, e, centred, &made));
        TRY(gradient_add(g, x, made));
    }
    const dim *columns = &x->type.dims[x->type.rank - 1];
    return add_for_columns(g, weight, bias, d, of.xhat, 1, columns);
}

dw_status gradient_layer_norm(gradient *g, const ir_node *node) { return norm_gradient(g, node, true); }

dw_status gradient_rms_norm(gradient *g, const ir_node *node) { return norm_gradient(g, node, false); }

/* x [b,c,..] as rows [b,groups,n]. */
dw_status gradient_group_norm(gradient *g, const ir_node *node) {
    ir_graph *graph = g->graph;
    ir_value *x = ir_in(node, 0), *weight = ir_in(node, 1), *bias = ir_in(node, 2), *d = gradient_of(g, node, 0), *wide, *e, *xhat, *made;
    const dw_format format = wide_of(x);
    const int rank = x->type.rank;
    dim columns[DW_MAX_RANK], shape[3] = {x->type.dims[0], NULL, NULL};
    rows of;
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
    TRY(emit_normalised(g, wide, true, ir_real(node, OP_ATTR_eps), &of));
    if (gradient_wants(g, x)) {
        e = d;
        if (weight != NULL) {
            TRY(ir_emit_cast(graph, weight, format, &made));
            TRY(ir_emit_reshape(graph, made, rank - 1, columns, &made));
            TRY(ir_emit_2(graph, OP_mul, d, made, &e));
        }
        TRY(ir_emit_reshape(graph, e, 3, shape, &e));
        TRY(emit_back(g, &of, e, true, &made));
        TRY(ir_emit_reshape(graph, made, rank, x->type.dims, &made));
        TRY(gradient_add(g, x, made));
    }
    TRY(ir_emit_reshape(graph, of.xhat, rank, x->type.dims, &xhat));
    return add_for_columns(g, weight, bias, d, xhat, rank - 1, columns);
}
