/* The gradients of conv, as convolutions. Of x: d with stride - 1 zeros between its elements, under the taps in reverse order, from outputs to channels. Of w: x under d as taps, as
 * far apart as the stride; what was a batch is what is summed over. */
#include "pass/gradient/gradient.h"

enum { AXES_MAX = 2 };

typedef struct convolution {
    const ir_node *node;
    int axes;                       /* spatial ones */
    int64_t groups;
    const int64_t *stride, *padding, *dilation;
} convolution;

static convolution convolution_of(const ir_node *node) {
    convolution c = {.node = node, .axes = ir_in(node, 0)->type.rank - 2, .groups = ir_int(node, OP_ATTR_groups)};
    op_attr_ints(&node->attrs, OP_ATTR_stride, &c.stride);
    op_attr_ints(&node->attrs, OP_ATTR_padding, &c.padding);
    op_attr_ints(&node->attrs, OP_ATTR_dilation, &c.dilation);
    return c;
}

static dw_status emit_conv(gradient *g, const convolution *c, ir_value *x, ir_value *w, const int64_t *stride, const int64_t *padding, const int64_t *dilation, ir_value **result) {
    const op_attr attrs[] = {op_set_ints(OP_ATTR_stride, c->axes, stride), op_set_ints(OP_ATTR_padding, c->axes, padding), op_set_ints(OP_ATTR_dilation, c->axes, dilation),
                             op_set_int(OP_ATTR_groups, c->groups)};
    return ir_emit(g->graph, OP_conv, 2, (ir_value *[]){x, w}, COUNT_OF(attrs), attrs, result);
}

/* a + factor * b */
static dw_status sum_dims(gradient *g, dim a, int64_t factor, dim b, dim *sum) {
    dim term;
    TRY_DIM(g->graph->context, term, dim_constant(g->graph->dims, factor));
    TRY_DIM(g->graph->context, term, dim_mul(g->graph->dims, term, b));
    TRY_DIM(g->graph->context, *sum, dim_add(g->graph->dims, a, term));
    return DW_OK;
}

/* [g p,q,..] as [p,g q,..]: groups change places with what is in front of them. */
static dw_status emit_regrouped(gradient *g, ir_value *x, int64_t groups, ir_value **result) {
    ir_graph *graph = g->graph;
    dim dims[DW_MAX_RANK + 1], merged[DW_MAX_RANK];
    int64_t order[DW_MAX_RANK + 1];
    const int rank = x->type.rank;
    *result = x;
    if (groups == 1) return DW_OK;
    TRY_DIM(graph->context, dims[0], dim_constant(graph->dims, groups));
    TRY_DIM(graph->context, dims[1], dim_floordiv(graph->dims, x->type.dims[0], dims[0]));
    for (int i = 1; i < rank; i++) dims[i + 1] = merged[i] = x->type.dims[i];
    merged[0] = dims[1];
    TRY_DIM(graph->context, merged[1], dim_mul(graph->dims, dims[0], dims[2]));
    for (int i = 0; i < rank + 1; i++) order[i] = i;
    order[0] = 1;
    order[1] = 0;
    TRY(ir_emit_reshape(graph, x, rank + 1, dims, result));
    TRY(ir_emit_transpose(graph, *result, order, result));
    return ir_emit_reshape(graph, *result, rank, merged, result);
}

static dw_status emit_swapped(gradient *g, ir_value *x, ir_value **result) {
    const int64_t order[] = {1, 0, 2, 3};
    return ir_emit_transpose(g->graph, x, order, result);
}

/* stride - 1 zeros between elements along an axis. */
static dw_status emit_apart(gradient *g, ir_value *d, int axis, int64_t stride, ir_value **result) {
    ir_graph *graph = g->graph;
    op_type type = d->type;
    dim one, zero;
    *result = d;
    if (stride == 1) return DW_OK;
    TRY_DIM(graph->context, one, dim_constant(graph->dims, 1));
    TRY_DIM(graph->context, zero, dim_constant(graph->dims, 0));
    TRY_DIM(graph->context, type.dims[axis], dim_sub(graph->dims, d->type.dims[axis], one));
    TRY(sum_dims(g, one, stride, type.dims[axis], &type.dims[axis]));
    const ir_value like = {.type = type};
    const op_attr attrs[] = {op_set_int(OP_ATTR_axis, axis), op_set_dim(OP_ATTR_start, zero), op_set_int(OP_ATTR_step, stride)};
    ir_value *zeros;
    TRY(gradient_emit_full(g, &like, 0, &zeros));
    return ir_emit(graph, OP_slice_scatter, 2, (ir_value *[]){zeros, d}, COUNT_OF(attrs), attrs, result);
}

/* So many zeros before and after along an axis; fewer than none: so many elements leave. */
static dw_status emit_edges(gradient *g, ir_value *x, int axis, dim before, dim after, ir_value **result) {
    ir_graph *graph = g->graph;
    dim zero, least[2], leave[2], add[2][DW_MAX_RANK];
    const dim edges[2] = {before, after};
    TRY_DIM(graph->context, zero, dim_constant(graph->dims, 0));
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < x->type.rank; i++) add[side][i] = zero;
        TRY_DIM(graph->context, add[side][axis], dim_max(graph->dims, edges[side], zero));
        TRY_DIM(graph->context, least[side], dim_min(graph->dims, edges[side], zero));
        TRY_DIM(graph->context, leave[side], dim_sub(graph->dims, zero, least[side]));
    }
    if (leave[0] != zero || leave[1] != zero) {
        dim end;
        TRY_DIM(graph->context, end, dim_sub(graph->dims, x->type.dims[axis], leave[1]));
        TRY(ir_emit_slice(graph, x, axis, leave[0], end, 1, &x));
    }
    const op_attr attrs[] = {op_set_dims(OP_ATTR_before, x->type.rank, add[0]), op_set_dims(OP_ATTR_after, x->type.rank, add[1]), op_set_real(OP_ATTR_value, 0)};
    *result = x;
    return add[0][axis] == zero && add[1][axis] == zero ? DW_OK : ir_emit(graph, OP_pad, 1, &x, COUNT_OF(attrs), attrs, result);
}

/* The taps in reverse order, along all spatial axes as one. */
static dw_status emit_turned(gradient *g, ir_value *w, ir_value **result) {
    ir_graph *graph = g->graph;
    dim dims[DW_MAX_RANK], taps;
    const int rank = w->type.rank;
    TRY_DIM(graph->context, taps, dim_constant(graph->dims, 1));
    for (int i = 0; i < rank; i++) {
        dims[i] = w->type.dims[i];
        if (i >= 2) TRY_DIM(graph->context, taps, dim_mul(graph->dims, taps, dims[i]));
    }
    TRY(ir_emit_reshape(graph, w, 3, (dim[]){dims[0], dims[1], taps}, &w));
    TRY(gradient_emit_reversed(g, w, 2, &w));
    return ir_emit_reshape(graph, w, rank, dims, result);
}

/* Zeros that are as many before as after are the convolution's own padding. */
static dw_status emit_or_count_edges(gradient *g, ir_value *d, int axis, dim before, dim after, int64_t *padding, ir_value **result) {
    const bool is_own = before == after && dim_is_constant(before, padding) && *padding >= 0;
    *result = d;
    if (is_own) return DW_OK;
    *padding = 0;
    return emit_edges(g, d, axis, before, after, result);
}

static dw_status add_for_x(gradient *g, const convolution *c, ir_value *d) {
    static const int64_t ones[AXES_MAX] = {1, 1};
    int64_t padding[AXES_MAX] = {0};
    ir_graph *graph = g->graph;
    ir_value *x = ir_in(c->node, 0), *w = ir_in(c->node, 1);
    dim reach, before, after, one;
    TRY_DIM(graph->context, one, dim_constant(graph->dims, 1));
    for (int i = 0; i < c->axes; i++) {
        const int axis = 2 + i;
        TRY_DIM(graph->context, reach, dim_sub(graph->dims, w->type.dims[axis], one));          /* dilation (taps - 1) */
        TRY_DIM(graph->context, before, dim_constant(graph->dims, -c->padding[i]));
        TRY(sum_dims(g, before, c->dilation[i], reach, &before));
        TRY(emit_apart(g, d, axis, c->stride[i], &d));
        TRY_DIM(graph->context, after, dim_constant(graph->dims, c->padding[i]));
        TRY(sum_dims(g, after, 1, x->type.dims[axis], &after));
        TRY(sum_dims(g, after, -1, d->type.dims[axis], &after));
        TRY(emit_or_count_edges(g, d, axis, before, after, &padding[i], &d));
    }
    TRY(emit_turned(g, w, &w));
    TRY(emit_regrouped(g, w, c->groups, &w));     /* [o,c/g,..] as [o/g,c,..], and that turned [c,o/g,..] */
    TRY(emit_swapped(g, w, &w));
    TRY(emit_conv(g, c, d, w, ones, padding, c->dilation, &d));
    return gradient_add(g, x, d);
}

static dw_status add_for_w(gradient *g, const convolution *c, ir_value *d) {
    ir_graph *graph = g->graph;
    ir_value *x = ir_in(c->node, 0), *w = ir_in(c->node, 1), *made;
    dim zero;
    TRY_DIM(graph->context, zero, dim_constant(graph->dims, 0));
    TRY(emit_swapped(g, d, &d));                        /* [o,b,..] */
    TRY(emit_swapped(g, x, &made));                     /* [c,b,..] as [c/g,g b,..] */
    TRY(emit_regrouped(g, made, c->groups, &made));
    TRY(emit_conv(g, c, made, d, c->dilation, c->padding, c->stride, &made));
    for (int i = 0; i < c->axes; i++) {                 /* windows that stride left over at the end */
        if (made->type.dims[2 + i] != w->type.dims[2 + i]) TRY(ir_emit_slice(graph, made, 2 + i, zero, w->type.dims[2 + i], 1, &made));
    }
    TRY(emit_swapped(g, made, &made));                  /* [c/g,o,..] as [o,c/g,..] */
    return gradient_add(g, w, made);
}

dw_status gradient_conv(gradient *g, const ir_node *node) {
    const convolution c = convolution_of(node);
    ir_value *d = gradient_of(g, node, 0), *bias = ir_in(node, 2), *made;
    static const int64_t beside[] = {0, 2, 3};
    if (gradient_wants(g, ir_in(node, 0))) TRY(add_for_x(g, &c, d));
    if (gradient_wants(g, ir_in(node, 1))) TRY(add_for_w(g, &c, d));
    if (!gradient_wants(g, bias)) return DW_OK;
    TRY(gradient_emit_sum(g, d, 1 + c.axes, beside, &made));
    return gradient_add(g, bias, made);
}
