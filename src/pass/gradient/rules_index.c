/* The gradients of ops that read or write at places named by integer tensors: reading becomes adding, writing becomes reading. Rows that meet at one place are added in the
 * order of the index tensor, in f32 where they have 16 bits. */
#include "pass/gradient/gradient.h"

enum { MAX_OPERANDS = 10 };

/* Zeros of x's shape, and d, both in a format that sums are made in. */
static dw_status emit_target(gradient *g, const ir_value *x, ir_value **zeros, ir_value **d) {
    if (dw_format_bits((*d)->type.format) < 32) TRY(ir_emit_cast(g->graph, *d, DW_FORMAT_f32, d));
    const op_attr attrs[] = {op_set_dims(OP_ATTR_shape, x->type.rank, x->type.dims), op_set_real(OP_ATTR_value, 0), op_set_format(OP_ATTR_to, (*d)->type.format)};
    return ir_emit(g->graph, OP_fill, 0, NULL, COUNT_OF(attrs), attrs, zeros);
}

/* take with one index tensor and index with several read alike. */
static dw_status add_at_places(gradient *g, const ir_node *node, ir_value *d) {
    ir_value *x = ir_in(node, 0), *in[MAX_OPERANDS], *made;
    in[1] = d;
    TRY(emit_target(g, x, &in[0], &in[1]));
    for (int i = 1; i < node->n_in; i++) in[i + 1] = ir_in(node, i);
    const op_attr attrs[] = {op_set_int(OP_ATTR_axis, ir_int(node, OP_ATTR_axis)), op_set_bool(OP_ATTR_accumulate, true)};
    TRY(ir_emit(g->graph, OP_index_put, node->n_in + 1, in, COUNT_OF(attrs), attrs, &made));
    return gradient_add(g, x, made);
}

/* d without what was read of the frozen row. */
static dw_status emit_thawed(gradient *g, const ir_node *node, ir_value *d, ir_value **result) {
    ir_graph *graph = g->graph;
    const op_attr *frozen = op_attrs_get(&node->attrs, OP_ATTR_frozen);
    const int axis = (int)ir_int(node, OP_ATTR_axis);
    ir_value *places = ir_in(node, 1), *row, *zero, *is;
    dim dims[DW_MAX_RANK];
    *result = d;
    if (frozen == NULL) return DW_OK;
    for (int i = 0; i < d->type.rank; i++) {
        if (i >= axis && i < axis + places->type.rank) dims[i] = places->type.dims[i - axis];
        else TRY_DIM(graph->context, dims[i], dim_constant(graph->dims, 1));
    }
    TRY(ir_emit_scalar(graph, places->type.format, (double)frozen->integer, &row));
    TRY(ir_emit_2(graph, OP_eq, places, row, &is));
    TRY(ir_emit_reshape(graph, is, d->type.rank, dims, &is));
    TRY(ir_emit_scalar(graph, d->type.format, 0, &zero));
    return ir_emit(graph, OP_where, 3, (ir_value *[]){is, zero, d}, 0, NULL, result);
}

dw_status gradient_take(gradient *g, const ir_node *node) {
    ir_value *d = gradient_of(g, node, 0);
    if (!gradient_wants(g, ir_in(node, 0))) return DW_OK;
    TRY(emit_thawed(g, node, d, &d));
    return add_at_places(g, node, d);
}

dw_status gradient_index(gradient *g, const ir_node *node) { return gradient_wants(g, ir_in(node, 0)) ? add_at_places(g, node, gradient_of(g, node, 0)) : DW_OK; }

dw_status gradient_gather(gradient *g, const ir_node *node) {
    ir_value *x = ir_in(node, 0), *d = gradient_of(g, node, 0), *zeros, *made;
    if (!gradient_wants(g, x)) return DW_OK;
    TRY(emit_target(g, x, &zeros, &d));
    const op_attr attrs[] = {op_set_int(OP_ATTR_axis, ir_int(node, OP_ATTR_axis)), op_set_bool(OP_ATTR_accumulate, true)};
    TRY(ir_emit(g->graph, OP_scatter, 3, (ir_value *[]){zeros, ir_in(node, 1), d}, COUNT_OF(attrs), attrs, &made));
    return gradient_add(g, x, made);
}

/* y may reach further than the index tensor, whose part of it is written: the rest has no gradient. */
static dw_status emit_within(gradient *g, ir_value *made, const ir_value *y, ir_value **result) {
    ir_graph *graph = g->graph;
    dim before[DW_MAX_RANK], after[DW_MAX_RANK];
    bool reaches = true;
    for (int i = 0; i < y->type.rank; i++) {
        TRY_DIM(graph->context, before[i], dim_constant(graph->dims, 0));
        TRY_DIM(graph->context, after[i], dim_sub(graph->dims, y->type.dims[i], made->type.dims[i]));
        reaches = reaches && y->type.dims[i] == made->type.dims[i];
    }
    *result = made;
    if (reaches) return DW_OK;
    const op_attr attrs[] = {op_set_dims(OP_ATTR_before, y->type.rank, before), op_set_dims(OP_ATTR_after, y->type.rank, after), op_set_real(OP_ATTR_value, 0)};
    return ir_emit(graph, OP_pad, 1, &made, COUNT_OF(attrs), attrs, result);
}

dw_status gradient_scatter(gradient *g, const ir_node *node) {
    ir_value *x = ir_in(node, 0), *places = ir_in(node, 1), *y = ir_in(node, 2), *d = gradient_of(g, node, 0), *made = d;
    const op_attr axis = op_set_int(OP_ATTR_axis, ir_int(node, OP_ATTR_axis));
    if (gradient_wants(g, x)) {
        if (!ir_bool(node, OP_ATTR_accumulate)) {
            TRY(gradient_emit_full(g, y, 0, &made));
            TRY(ir_emit(g->graph, OP_scatter, 3, (ir_value *[]){d, places, made}, 1, &axis, &made));
        }
        TRY(gradient_add(g, x, made));
    }
    if (!gradient_wants(g, y)) return DW_OK;
    TRY(ir_emit(g->graph, OP_gather, 2, (ir_value *[]){d, places}, 1, &axis, &made));
    TRY(emit_within(g, made, y, &made));
    return gradient_add(g, y, made);
}

dw_status gradient_index_put(gradient *g, const ir_node *node) {
    ir_value *x = ir_in(node, 0), *values = ir_in(node, 1), *d = gradient_of(g, node, 0), *in[MAX_OPERANDS], *made = d;
    const op_attr axis = op_set_int(OP_ATTR_axis, ir_int(node, OP_ATTR_axis));
    for (int i = 2; i < node->n_in; i++) in[i] = ir_in(node, i);
    if (gradient_wants(g, x)) {
        if (!ir_bool(node, OP_ATTR_accumulate)) {
            in[0] = d;
            TRY(ir_emit_scalar(g->graph, d->type.format, 0, &in[1]));
            TRY(ir_emit(g->graph, OP_index_put, node->n_in, in, 1, &axis, &made));
        }
        TRY(gradient_add(g, x, made));
    }
    if (!gradient_wants(g, values)) return DW_OK;
    in[1] = d;
    TRY(ir_emit(g->graph, OP_index, node->n_in - 1, in + 1, 1, &axis, &made));
    return gradient_add(g, values, made);
}

/* combine: row i is the sum over j of weights[i,j] * y[place[i,j]]. */
dw_status gradient_combine(gradient *g, const ir_node *node) {
    ir_graph *graph = g->graph;
    ir_value *y = ir_in(node, 0), *place = ir_in(node, 1), *weights = ir_in(node, 2), *d = gradient_of(g, node, 0), *zeros, *made;
    dim dims[3] = {d->type.dims[0], NULL, d->type.dims[1]}, of_weights[3] = {place->type.dims[0], place->type.dims[1], NULL};
    TRY_DIM(graph->context, dims[1], dim_constant(graph->dims, 1));
    TRY_DIM(graph->context, of_weights[2], dim_constant(graph->dims, 1));
    if (dw_format_bits(d->type.format) < 32) TRY(ir_emit_cast(graph, d, DW_FORMAT_f32, &d));
    TRY(ir_emit_reshape(graph, d, 3, dims, &d));
    const op_attr attrs[] = {op_set_int(OP_ATTR_axis, 0), op_set_bool(OP_ATTR_accumulate, true)};
    if (gradient_wants(g, y)) {
        TRY(ir_emit_cast(graph, weights, d->type.format, &made));
        TRY(ir_emit_reshape(graph, made, 3, of_weights, &made));
        TRY(ir_emit_2(graph, OP_mul, made, d, &made));
        TRY(emit_target(g, y, &zeros, &made));
        TRY(ir_emit(graph, OP_index_put, 3, (ir_value *[]){zeros, made, place}, COUNT_OF(attrs), attrs, &made));
        TRY(gradient_add(g, y, made));
    }
    if (!gradient_wants(g, weights)) return DW_OK;
    TRY(ir_emit(graph, OP_take, 2, (ir_value *[]){y, place}, 1, attrs, &made));
    TRY(ir_emit_cast(graph, made, d->type.format, &made));
    TRY(ir_emit_2(graph, OP_mul, made, d, &made));
    TRY(gradient_emit_sum(g, made, 1, (int64_t[]){2}, &made));
    return gradient_add(g, weights, made);
}
