/* Grouped heads: k [b,g,t,d] repeated to [b,h,t,d] for the attention, by whatever chain of views, is taken as it was.
 *
 *     %1 = reshape k [b,g,1,t,d]; %2 = broadcast %1 [b,g,r,t,d]; %3 = reshape %2 [b,h,t,d]; attention q, %3, ..
 *     attention q, k, ..
 *
 * What a chain of views does is read off its formula: element (i0, i1, i2, i3) of the operand is element (i0, i1 / r, i2, i3) of k. */
#include "pass/attention.h"

enum { MAX_CHAIN = 24 };

/* A value that a view chain starts from, and how the operand's axes lie in it. */
typedef struct source {
    ir_value *value;
    int64_t groups, order[4];   /* axis i of the heads [b,g,t,d] is axis order[i] of value */
    bool straight;              /* order is 0, 1, 2, 3 */
} source;

/* The expression of chain[0] over elements of chain[last], of which it is a view. */
static value_expr view_formula(value_analysis *analysis, ir_value *const *chain, int last) {
    value_expr args[DW_MAX_RANK];
    const op_type *type = &chain[last]->type;
    value_set_scope(analysis, type->rank, type->dims);
    for (int i = 0; i < type->rank; i++) args[i] = value_index(analysis, i);
    value_expr x = value_lookup(analysis, chain[last], VALUE_REAL, type->rank, args);
    for (int i = last - 1; i >= 0 && x != NULL; i--) {
        value_formula formula = {.format = chain[i + 1]->type.format, .rank = chain[i + 1]->type.rank, .expr = x};
        for (int j = 0; j < formula.rank; j++) formula.dims[j] = chain[i + 1]->type.dims[j];
        const value_formula *in = &formula;
        const char *reason;
        value_set_scope(analysis, chain[i]->type.rank, chain[i]->type.dims);
        x = value_rule(analysis, chain[i]->node, &in, &reason);
    }
    return x;
}

/* Which axis of the operand does arg stand for, head axis 1 standing for its group? -1: none. */
static int axis_of(value_analysis *analysis, value_expr arg, dim size, const dim *dims) {
    if (arg->kind == VALUE_INDEX && arg->axis != 1) return arg->axis;
    const dim repeat = dim_divide_exact(analysis->graph->dims, dims[1], size);
    if (repeat != NULL && arg == value_div(analysis, value_index(analysis, 1), repeat)) return 1;
    return -1;
}

static bool read_source(value_analysis *analysis, ir_value *const *chain, int last, source *found) {
    const op_type *type = &chain[last]->type;
    if (type->rank != 4) return false;
    const value_expr x = view_formula(analysis, chain, last);
    if (x == NULL || x->kind != VALUE_LOOKUP) return false;
    unsigned seen = 0;
    int64_t one;
    *found = (source){.value = chain[last], .straight = true};
    for (int i = 0; i < 4; i++) {
        int axis = axis_of(analysis, x->args[i], type->dims[i], chain[0]->type.dims);
        if (axis < 0 && dim_is_constant(type->dims[i], &one) && one == 1 && dim_is_constant(chain[0]->type.dims[i], &one) && one == 1) axis = i;
        if (axis < 0 || (seen & 1u << axis)) return false;
        seen |= 1u << axis;
        found->order[axis] = i;
        found->straight = found->straight && axis == i;
    }
    return dim_is_constant(type->dims[found->order[1]], &found->groups);
}

/* The fewest heads that the operand is made of; of equal ones a value that needs no transpose, then the nearest. */
static bool find_source(value_analysis *analysis, ir_value *operand, source *best) {
    ir_value *chain[MAX_CHAIN] = {operand};
    bool found = false;
    for (int i = 0; i < MAX_CHAIN; i++) {
        source at;
        if (read_source(analysis, chain, i, &at)) {
            if (!found || at.groups < best->groups || (at.groups == best->groups && at.straight && !best->straight)) *best = at;
            found = true;
        }
        const ir_node *node = chain[i]->node;
        if (node == NULL || !(op_get(node->op)->traits & OP_TRAIT_VIEW) || i + 1 == MAX_CHAIN) break;
        chain[i + 1] = ir_in(node, 0);
    }
    return found;
}

static dw_status set_heads(ir_graph *graph, ir_node *node, int index, const source *from) {
    ir_value *heads = from->value;
    if (!from->straight) {
        ir_cursor_before(graph, node);
        TRY(ir_emit_transpose(graph, heads, from->order, &heads));
    }
    ir_set_operand(node, index, heads);
    return DW_OK;
}

dw_status attention_ungroup_heads(value_analysis *analysis, ir_node *node, bool *changed) {
    ir_value *k = ir_in(node, ATTENTION_K), *v = ir_in(node, ATTENTION_V);
    int64_t heads;
    source from_k, from_v;
    if (!dim_is_constant(k->type.dims[1], &heads)) return DW_OK;
    const bool found = find_source(analysis, k, &from_k) && find_source(analysis, v, &from_v);
    TRY(value_status(analysis));
    if (!found || from_k.groups >= heads || from_k.groups != from_v.groups) return DW_OK;
    TRY(set_heads(analysis->graph, node, ATTENTION_K, &from_k));
    TRY(set_heads(analysis->graph, node, ATTENTION_V, &from_v));
    *changed = true;
    return ir_infer(analysis->graph, node);
}
