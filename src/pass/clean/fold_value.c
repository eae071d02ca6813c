/* What the rules of folding share: numbers read from values, and values made of numbers. */
#include "pass/clean/fold.h"

bool fold_may_read(const ir_value *param) {
    return ir_is_made(param) || (param->weight != NULL && param->weight->buffer);
}

bool fold_number(const ir_value *value, double *number) {
    const ir_value *source = value;
    while (source->kind == IR_RESULT && (source->node->op == OP_cast || (op_get(source->node->op)->traits & OP_TRAIT_VIEW) != 0)) source = source->node->in[0].value;
    if (source->kind == IR_PARAM && !fold_may_read(source)) return false;
    return ir_is_scalar(value, number);
}

dw_status fold_fill(ir_graph *graph, const ir_value *like, double number, ir_value **fill) {
    const num_format *info = num_info(like->type.format);
    *fill = NULL;
    if (info->class == NUM_BLOCK || info->class == NUM_SCALE || (info->class == NUM_FLOAT && info->bits < 16)) return DW_OK;
    op_attr attrs[] = {
        op_set_dims(OP_ATTR_shape, like->type.rank, like->type.dims),
        op_set_real(OP_ATTR_value, number),
        op_set_format(OP_ATTR_to, like->type.format),
    };
    return ir_emit(graph, OP_fill, 0, NULL, COUNT_OF(attrs), attrs, fill);
}

dw_status fold_as(ir_graph *graph, ir_value *x, const ir_value *like, ir_value **same) {
    *same = NULL;
    if (op_type_equal(&x->type, &like->type)) {
        *same = x;
        return DW_OK;
    }
    if (x->type.format != like->type.format || x->type.rank > like->type.rank) return DW_OK;
    return ir_emit_broadcast(graph, x, like->type.rank, like->type.dims, same);
}
