/* Softmax written out becomes the op, whatever reads it:
 *
 *     %1 = amax x {axes=[2],keep=true}; %2 = sub x, %1; %3 = exp %2
 *     %4 = sum %3 {axes=[2],keep=true}                                   ->   %1 = softmax x {axis=2}
 *     %5 = div %3, %4
 *
 * The row of -inf is the one that PyTorch gives as NaN and the op as zeros. */
#include "pass/fuse/fuse.h"

static bool is_last_axis(const ir_node *node, const ir_value *x) {
    const int64_t *axes;
    return op_attr_ints(&node->attrs, OP_ATTR_axes, &axes) == 1 && axes[0] == x->type.rank - 1 && ir_bool(node, OP_ATTR_keep);
}

/* x, if value is x minus the largest of its rows; else value. */
static ir_value *without_max(ir_value *value) {
    const ir_node *node = ir_def(value, OP_sub);
    if (node == NULL) return value;
    const ir_node *max = ir_def(ir_in(node, 1), OP_amax);
    const bool same = max != NULL && ir_in(max, 0) == ir_in(node, 0) && is_last_axis(max, ir_in(node, 0));
    return same ? ir_in(node, 0) : value;
}

ir_value *fuse_softmax_operand(const ir_value *p) {
    const ir_node *node = ir_def(p, OP_softmax);
    if (node != NULL) return ir_int(node, OP_ATTR_axis) == p->type.rank - 1 ? without_max(ir_in(node, 0)) : NULL;
    node = ir_def(p, OP_div);
    const ir_node *exp = node == NULL ? NULL : ir_def(ir_in(node, 0), OP_exp), *sum = node == NULL ? NULL : ir_def(ir_in(node, 1), OP_sum);
    if (exp == NULL || sum == NULL || ir_in(sum, 0) != ir_out(exp) || !is_last_axis(sum, ir_out(exp))) return NULL;
    return without_max(ir_in(exp, 0));
}

dw_status fuse_softmax(ir_graph *graph, ir_node *node, bool *changed) {
    ir_value *x = node->op == OP_div ? fuse_softmax_operand(ir_out(node)) : NULL, *made;
    if (x == NULL || x->type.rank == 0 || !fuse_is_float(x->type.format) || !op_type_equal(&x->type, &ir_out(node)->type)) return DW_OK;
    op_attr attr = op_set_int(OP_ATTR_axis, x->type.rank - 1);
    fuse_cursor(graph, node, node);
    TRY(ir_emit(graph, OP_softmax, 1, (ir_value *[]){x}, 1, &attr, &made));
    return fuse_replace(graph, ir_out(node), made, changed);
}
