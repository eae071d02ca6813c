/* New nodes: operands and attributes checked by the op, results inferred (node.c), a failure given its place. */
#include "ir/internal.h"

/* " (op add of x f32[2,3], %7 f32[4], module "blocks.3.mlp", name "add_3")" behind the message. */
static dw_status fail_in_place(const ir_graph *graph, dw_status status, op_id op, int n_in, ir_value *const *in) {
    if (status == DW_NO_MEMORY) return status;
    text place;
    text_init(&place, graph->context);
    text_printf(&place, "op %s", op_get(op)->name);
    for (int i = 0; i < n_in && i < IR_MAX_IN; i++) {
        text_add(&place, i == 0 ? " of " : ", ");
        if (in[i] == NULL) {
            text_add(&place, "-");
        } else {
            ir_print_value(&place, in[i]);
            text_add(&place, " ");
            op_type_print(&place, graph->dims, &in[i]->type);
        }
    }
    if (graph->origin.module != NULL) text_printf(&place, ", module \"%s\"", graph->origin.module);
    if (graph->origin.name != NULL) text_printf(&place, ", name \"%s\"", graph->origin.name);
    base_fail_at(graph->context, status, "%s", text_string(&place));
    text_free(&place);
    return status;
}

dw_status ir_emit(ir_graph *graph, op_id op, int n_in, ir_value *const *in, int n_attrs, const op_attr *attrs, ir_value **result) {
    *result = NULL;
    if ((unsigned)op >= OP_COUNT) return base_fail(graph->context, DW_INVALID, "there is no op %d", (int)op);
    op_attrs copy;
    op_type types[IR_MAX_OUT];
    int n_out;
    dw_status status = ir_copy_attrs(graph, NULL, n_attrs, attrs, &copy);
    if (status == DW_OK) status = ir_infer_results(graph, op, &copy, n_in, in, &n_out, types);
    if (status != DW_OK) return fail_in_place(graph, status, op, n_in, in);
    ir_node *node;
    TRY(ir_new_node(graph, op, &copy, n_in, n_out, types, &node));
    for (int i = 0; i < n_in; i++) ir_set_operand(node, i, in[i]);
    ir_update_rate(node);
    *result = node->out[0];
    return DW_OK;
}

/* ---- frequent forms ---- */

static bool has_shape(const ir_value *value, int rank, const dim *dims) {
    if (value->type.rank != rank) return false;
    for (int i = 0; i < rank; i++) {
        if (value->type.dims[i] != dims[i]) return false;
    }
    return true;
}

dw_status ir_emit_1(ir_graph *graph, op_id op, ir_value *x, ir_value **result) { return ir_emit(graph, op, 1, &x, 0, NULL, result); }

dw_status ir_emit_2(ir_graph *graph, op_id op, ir_value *x, ir_value *y, ir_value **result) {
    return ir_emit(graph, op, 2, (ir_value *[]){x, y}, 0, NULL, result);
}

dw_status ir_emit_cast(ir_graph *graph, ir_value *x, dw_format to, ir_value **result) {
    *result = x;
    if (x->type.format == to) return DW_OK;
    op_attr attr = op_set_format(OP_ATTR_to, to);
    return ir_emit(graph, OP_cast, 1, &x, 1, &attr, result);
}

dw_status ir_emit_scalar(ir_graph *graph, dw_format format, double value, ir_value **result) {
    op_attr attrs[] = {op_set_dims(OP_ATTR_shape, 0, NULL), op_set_real(OP_ATTR_value, value), op_set_format(OP_ATTR_to, format)};
    return ir_emit(graph, OP_fill, 0, NULL, COUNT_OF(attrs), attrs, result);
}

dw_status ir_emit_size(ir_graph *graph, dim size, ir_value **result) {
    op_attr attr = op_set_dim(OP_ATTR_size, size);
    return ir_emit(graph, OP_size, 0, NULL, 1, &attr, result);
}

dw_status ir_emit_reshape(ir_graph *graph, ir_value *x, int rank, const dim *dims, ir_value **result) {
    *result = x;
    if (has_shape(x, rank, dims)) return DW_OK;
    op_attr attr = op_set_dims(OP_ATTR_shape, rank, dims);
    return ir_emit(graph, OP_reshape, 1, &x, 1, &attr, result);
}

dw_status ir_emit_transpose(ir_graph *graph, ir_value *x, const int64_t *order, ir_value **result) {
    op_attr attr = op_set_ints(OP_ATTR_order, x->type.rank, order);
    return ir_emit(graph, OP_transpose, 1, &x, 1, &attr, result);
}

dw_status ir_emit_broadcast(ir_graph *graph, ir_value *x, int rank, const dim *dims, ir_value **result) {
    op_attr attr = op_set_dims(OP_ATTR_shape, rank, dims);
    return ir_emit(graph, OP_broadcast, 1, &x, 1, &attr, result);
}

dw_status ir_emit_slice(ir_graph *graph, ir_value *x, int axis, dim start, dim end, int64_t step, ir_value **result) {
    op_attr attrs[] = {op_set_int(OP_ATTR_axis, axis), op_set_dim(OP_ATTR_start, start), op_set_dim(OP_ATTR_end, end), op_set_int(OP_ATTR_step, step)};
    return ir_emit(graph, OP_slice, 1, &x, COUNT_OF(attrs), attrs, result);
}
