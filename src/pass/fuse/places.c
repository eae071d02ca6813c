/* Sums at places of zeros, added to a tensor, become sums at places of that tensor, as where an embedding is read twice, or gradients of several runs are added up:
 *
 *     %1 = index_put zeros, d, ids {axis=0,accumulate=true}
 *     %2 = add x, %1                                            ->    %1 = index_put x, d, ids {axis=0,accumulate=true}
 *
 * In f32 and f64 alone: in 16 bits each sum is rounded, and a large x would swallow them one by one. */
#include "pass/fuse/fuse.h"

/* The node that adds at places of zeros, if nothing else uses value. */
static ir_node *places_of_zeros(const ir_graph *graph, const ir_value *value) {
    ir_node *put = fuse_def_single(graph, value, OP_index_put);
    double number;
    return put != NULL && ir_bool(put, OP_ATTR_accumulate) && ir_is_scalar(ir_in(put, 0), &number) && number == 0 ? put : NULL;
}

dw_status fuse_places_add(ir_graph *graph, ir_node *node, bool *changed) {
    ir_value *in[64], *made;
    if (node->op != OP_add || dw_format_bits(ir_out(node)->type.format) < 32 || !fuse_is_float(ir_out(node)->type.format)) return DW_OK;
    for (int side = 0; side < 2; side++) {
        const ir_node *put = places_of_zeros(graph, ir_in(node, side));
        ir_value *other = ir_in(node, 1 - side);
        if (put == NULL || !op_type_equal(&other->type, &ir_out(node)->type) || !op_type_equal(&ir_out(put)->type, &ir_out(node)->type)) continue;
        for (int i = 0; i < put->n_in; i++) in[i] = ir_in(put, i);
        in[0] = other;
        fuse_cursor(graph, node, put);
        TRY(ir_emit(graph, OP_index_put, put->n_in, in, put->attrs.count, put->attrs.items, &made));
        return fuse_replace(graph, ir_out(node), made, changed);
    }
    return DW_OK;
}
