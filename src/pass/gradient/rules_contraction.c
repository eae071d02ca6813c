/* The gradients of products: two products each, of d with the other operand. */
#include "pass/gradient/gradient.h"

static dw_status emit_product(gradient *g, ir_value *a, bool at, ir_value *b, bool bt, dw_format to, ir_value **result) {
    op_attr attrs[3];
    int count = 0;
    if (at) attrs[count++] = op_set_bool(OP_ATTR_at, true);
    if (bt) attrs[count++] = op_set_bool(OP_ATTR_bt, true);
    if (to != a->type.format) attrs[count++] = op_set_format(OP_ATTR_to, to);
    return ir_emit(g->graph, OP_matmul, 2, (ir_value *[]){a, b}, count, attrs, result);
}

/* [..,m,k] as [..m,k] */
static dw_status emit_rows(gradient *g, ir_value *x, ir_value **result) {
    dim dims[2] = {x->type.dims[0], x->type.dims[x->type.rank - 1]};
    for (int i = 1; i < x->type.rank - 1; i++) TRY_DIM(g->graph->context, dims[0], dim_mul(g->graph->dims, dims[0], x->type.dims[i]));
    return ir_emit_reshape(g->graph, x, 2, dims, result);
}

/* c = a b: da = dc b^T, db = a^T dc, each stored as its operand is. Batch axes along which an operand was repeated are summed by gradient_add; where b has none, they are rows of
 * one product. */
dw_status gradient_matmul(gradient *g, const ir_node *node) {
    ir_value *a = ir_in(node, 0), *b = ir_in(node, 1), *d = gradient_of(g, node, 0), *made;
    const bool at = ir_bool(node, OP_ATTR_at), bt = ir_bool(node, OP_ATTR_bt);
    const dw_format to_a = a->type.format, to_b = b->type.format;
    if (node->n_in > 2) return gradient_refuse(g, node, "a product with post steps is taken apart first");
    if (dw_format_is_block(to_a) || dw_format_is_block(to_b) || dw_format_is_block(ir_out(node)->type.format)) return gradient_refuse(g, node, "a product of blocks has no rule yet");
    if (gradient_wants(g, a)) {
        if (at) TRY(emit_product(g, b, bt, d, true, to_a, &made));
        else TRY(emit_product(g, d, false, b, !bt, to_a, &made));
        TRY(gradient_add(g, a, made));
    }
    if (!gradient_wants(g, b)) return DW_OK;
    if (b->type.rank == 2 && a->type.rank > 2 && !at) {
        TRY(emit_rows(g, a, &a));
        TRY(emit_rows(g, d, &d));
    }
    if (bt) TRY(emit_product(g, d, true, a, at, to_b, &made));
    else TRY(emit_product(g, a, !at, d, false, to_b, &made));
    return gradient_add(g, b, made);
}
