/* Rules where the data decide: numbers that are taken out of tensors, and results whose size depends on values.
 *
 *     n = x.max().item(); y * n        the number stands for the tensor wherever a tensor may stand
 *     torch.arange(n); x[x > 0]        a size known from the data alone: refused, with what to write instead
 *
 * A mask whose result has the shape of an operand is no such size: masked_scatter, index_put. */
#include "capture/program.h"

/* The number is known by its name from here on. Where assertions alone ask for it, nothing is emitted. */
dw_status capture_rule_item(capture_call *call) {
    static const char *const kinds[] = {"as_sym_int", "as_sym_float", "as_sym_bool"};
    capture_tensor *x;
    TRY(capture_tensor_arg(call, "self", &x));
    const json_t *output = json_array_get(json_object_get(call->node, "outputs"), 0);
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        const char *name = json_string_value(json_object_get(json_object_get(output, kinds[i]), "as_name"));
        ir_value *value;
        capture_tensor *item;
        if (name == NULL) continue;
        TRY(capture_read(call->capture, x, &value));
        TRY(capture_emit_reshape_scalar(call->graph, value, &value));
        TRY(capture_fresh(call->capture, value, &item));
        return map_set(&call->scope->items, name, item);
    }
    return DW_OK;
}

dw_status capture_rule_data_size(capture_call *call) {
    return capture_fail(call, DW_UNSUPPORTED, "the size of its result depends on the data; write it with a result of fixed size instead "
                                              "(torch.where or a product with the mask, topk with a fixed number, one_hot)");
}

dw_status capture_rule_random(capture_call *call) {
    return capture_fail(call, DW_UNSUPPORTED, "random numbers: make them an input of the model, or call .eval() where they are dropout");
}

/* ---- masks ---- */

/* For each element how many true ones are before it, in row-major order: i64 of mask's shape. */
static dw_status count_before(capture_call *call, ir_value *mask, ir_value **result) {
    dim all;
    op_type type = mask->type;
    TRY(ir_emit_cast(call->graph, mask, DW_FORMAT_i64, &mask));
    TRY_DIM(call->capture->context, all, dim_product(call->dims, type.dims, type.rank));
    TRY(ir_emit_reshape(call->graph, mask, 1, &all, &mask));
    op_attr attrs[] = {op_set_int(OP_ATTR_axis, 0), op_set_bool(OP_ATTR_exclusive, true)};
    TRY(ir_emit(call->graph, OP_cumsum, 1, (ir_value *[]){mask}, COUNT_OF(attrs), attrs, &mask));
    return ir_emit_reshape(call->graph, mask, type.rank, type.dims, result);
}

/* Rows of values [n, ..] for the true elements of mask, in order; row 0 for the others. More of them than rows are an error of the run. */
static dw_status rows_in_order(capture_call *call, ir_value *mask, ir_value *values, ir_value **result) {
    ir_value *at, *zero;
    TRY(count_before(call, mask, &at));
    TRY(ir_emit_scalar(call->graph, DW_FORMAT_i64, 0, &zero));
    TRY(ir_emit(call->graph, OP_where, 3, (ir_value *[]){mask, at, zero}, 0, NULL, &at));
    op_attr attr = op_set_int(OP_ATTR_axis, 0);
    return ir_emit(call->graph, OP_take, 2, (ir_value *[]){values, at}, 1, &attr, result);
}

dw_status capture_emit_masked_rows(capture_call *call, ir_value *x, ir_value *mask, ir_value *values, ir_value **result) {
    dim dims[DW_MAX_RANK];
    TRY(rows_in_order(call, mask, values, &values));
    for (int i = 0; i < x->type.rank; i++) {
        if (i < mask->type.rank) dims[i] = mask->type.dims[i];
        else TRY_DIM(call->capture->context, dims[i], dim_constant(call->dims, 1));
    }
    TRY(ir_emit_reshape(call->graph, mask, x->type.rank, dims, &mask));
    return ir_emit(call->graph, OP_where, 3, (ir_value *[]){mask, values, x}, 0, NULL, result);
}

/* Elements of source, in order, where the mask is true. */
dw_status capture_rule_masked_scatter(capture_call *call) {
    ir_value *x, *mask, *source;
    dim all;
    op_type type;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_value_arg(call, "mask", &mask));
    TRY(capture_value_arg(call, "source", &source));
    TRY(ir_emit_cast(call->graph, mask, DW_FORMAT_bool, &mask));
    TRY(ir_emit_cast(call->graph, source, x->type.format, &source));
    TRY(capture_broadcast_dims(call, &x->type, &mask->type, &type));
    TRY(ir_emit_broadcast(call->graph, x, type.rank, type.dims, &x));
    TRY(ir_emit_broadcast(call->graph, mask, type.rank, type.dims, &mask));
    TRY_DIM(call->capture->context, all, dim_product(call->dims, source->type.dims, source->type.rank));
    TRY(ir_emit_reshape(call->graph, source, 1, &all, &source));
    TRY(capture_emit_masked_rows(call, x, mask, source, &x));
    return capture_result(call, 0, x);
}
