/* Parts of a gradient that lie side by side, as those of a split value do: put together rather than padded with zeros and added.
 *
 *     %1 = pad q {before=[0,0],after=[0,16]}
 *     %2 = pad k {before=[0,8],after=[0,8]}                %6 = concat q, k, v {axis=1}
 *     %3 = pad v {before=[0,16],after=[0,0]}       ->
 *     %4 = add %1, %2
 *     %5 = add %4, %3 */
#include "pass/gradient/gradient.h"

enum { MOST_PARTS = 64 };           /* operands of concat */

/* The one axis along which the pad adds something; -1: it is no pad of zeros along one axis. */
static int axis_of(const ir_value *part) {
    const ir_node *pad = ir_def(part, OP_pad);
    const dim *before, *after;
    int axis = -1, found = 0;
    int64_t zero;
    if (pad == NULL || ir_real(pad, OP_ATTR_value) != 0) return -1;
    const int rank = op_attr_dims(&pad->attrs, OP_ATTR_before, &before);
    op_attr_dims(&pad->attrs, OP_ATTR_after, &after);
    for (int i = 0; i < rank; i++) {
        if (dim_is_constant(before[i], &zero) && zero == 0 && dim_is_constant(after[i], &zero) && zero == 0) continue;
        axis = i;
        found++;
    }
    return found == 1 ? axis : -1;
}

static dim start_of(const ir_value *part, int axis) {
    const dim *before;
    op_attr_dims(&part->node->attrs, OP_ATTR_before, &before);
    return before[axis];
}

/* The part that begins there, among those that are not in place yet; count when there is none. */
static size_t find_next(ir_value *const *parts, size_t count, size_t placed, int axis, dim start) {
    size_t at = placed;
    while (at < count && start_of(parts[at], axis) != start) at++;
    return at;
}

dw_status gradient_emit_tiles(gradient *g, const ir_value *value, ir_value *const *parts, size_t count, ir_value **result) {
    ir_graph *graph = g->graph;
    ir_value *order[MOST_PARTS], *in[MOST_PARTS];
    dim end;
    *result = NULL;
    const int axis = count >= 2 && count <= MOST_PARTS ? axis_of(parts[0]) : -1;
    if (axis < 0) return DW_OK;
    for (size_t i = 0; i < count; i++) {
        if (axis_of(parts[i]) != axis) return DW_OK;
        order[i] = parts[i];
    }
    TRY_DIM(graph->context, end, dim_constant(graph->dims, 0));
    for (size_t i = 0; i < count; i++) {
        const size_t at = find_next(order, count, i, axis, end);
        if (at == count) return DW_OK;
        ir_value *next = order[at];
        order[at] = order[i];
        order[i] = next;
        in[i] = ir_in(next->node, 0);
        TRY_DIM(graph->context, end, dim_add(graph->dims, end, in[i]->type.dims[axis]));
    }
    if (end != value->type.dims[axis]) return DW_OK;
    const op_attr along = op_set_int(OP_ATTR_axis, axis);
    return ir_emit(graph, OP_concat, (int)count, in, 1, &along, result);
}
