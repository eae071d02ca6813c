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

/* What is in blocks as the numbers that they stand for. */
static dw_status emit_plain(gradient *g, ir_value *x, dw_format format, ir_value **result) {
    const op_attr to = op_set_format(OP_ATTR_to, format);
    *result = x;
    return dw_format_is_block(x->type.format) ? ir_emit(g->graph, OP_dequantize, 1, &x, 1, &to, result) : DW_OK;
}

/* c = a b: da = dc b^T, db = a^T dc, each stored as its operand is. Batch axes along which an operand was repeated are summed by gradient_add; where b has none, they are rows of
 * one product. */
dw_status gradient_matmul(gradient *g, const ir_node *node) {
    ir_value *a, *b, *const of_a = ir_in(node, 0), *const of_b = ir_in(node, 1), *d = gradient_of(g, node, 0), *made;
    const bool at = ir_bool(node, OP_ATTR_at), bt = ir_bool(node, OP_ATTR_bt);
    if (dw_format_is_block(ir_out(node)->type.format)) return gradient_refuse(g, node, "its result is in blocks; quantise behind it");
    TRY(emit_plain(g, of_a, d->type.format, &a));
    TRY(emit_plain(g, of_b, d->type.format, &b));
    const dw_format to_a = a->type.format, to_b = b->type.format;
    if (ir_attr_text(node, OP_ATTR_post)[0] != '\0') return gradient_refuse(g, node, "a product with post steps is taken apart first");
    if (gradient_wants(g, of_a)) {
        if (at) TRY(emit_product(g, b, bt, d, true, to_a, &made));
        else TRY(emit_product(g, d, false, b, !bt, to_a, &made));
        TRY(gradient_add(g, of_a, made));
    }
    if (!gradient_wants(g, of_b)) return DW_OK;
    if (b->type.rank == 2 && a->type.rank > 2 && !at) {
        TRY(emit_rows(g, a, &a));
        TRY(emit_rows(g, d, &d));
    }
    if (bt) TRY(emit_product(g, d, true, a, at, to_b, &made));
    else TRY(emit_product(g, a, !at, d, false, to_b, &made));
    return gradient_add(g, of_b, made);
}

/* Rows of d times the matrix of their group the other way around; and for each group the products of its rows of a with those of d. Rows in no group have no part in either. */
dw_status gradient_grouped_matmul(gradient *g, const ir_node *node) {
    ir_value *a, *b, *const of_a = ir_in(node, 0), *const of_b = ir_in(node, 1), *offsets = ir_in(node, 2), *d = gradient_of(g, node, 0), *made;
    const bool bt = ir_bool(node, OP_ATTR_bt);
    op_attr attrs[2];
    int count = 0;
    if (ir_int(node, OP_ATTR_padded) > 0) return gradient_refuse(g, node, "its groups are padded; those of rows side by side have a gradient");
    if (ir_attr_text(node, OP_ATTR_post)[0] != '\0' || dw_format_is_block(ir_out(node)->type.format)) return gradient_refuse(g, node, "it has post steps, or a result in blocks; quantise behind it");
    TRY(emit_plain(g, of_a, d->type.format, &a));
    TRY(emit_plain(g, of_b, d->type.format, &b));
    if (gradient_wants(g, of_a)) {
        if (!bt) attrs[count++] = op_set_bool(OP_ATTR_bt, true);
        if (a->type.format != d->type.format) attrs[count++] = op_set_format(OP_ATTR_to, a->type.format);
        TRY(ir_emit(g->graph, OP_grouped_matmul, 3, (ir_value *[]){d, b, offsets}, count, attrs, &made));
        TRY(gradient_add(g, of_a, made));
    }
    if (!gradient_wants(g, of_b)) return DW_OK;
    const op_attr to = op_set_format(OP_ATTR_to, b->type.format);
    TRY(ir_emit(g->graph, OP_grouped_outer, 3, (ir_value *[]){bt ? d : a, bt ? a : d, offsets}, 1, &to, &made));
    return gradient_add(g, of_b, made);
}
