/* Grouped heads: k [b,g,t,d] repeated to [b,h,t,d] for the attention, by whatever chain of views, is taken as it was.
 *
 *     %1 = reshape k [b,g,1,t,d]; %2 = broadcast %1 [b,g,r,t,d]; %3 = reshape %2 [b,h,t,d]; attention q, %3, ..
 *     attention q, k, ..
 *
 * What a chain of views does is read off its formula: element (i0, i1, i2, i3) of the operand is element (i0, i1 / r, i2, i3) of k. A rotation
 * that is the same for all heads may follow the chain: then it is done on k. */
#include "pass/attention/attention.h"

enum { MAX_CHAIN = 24 };

/* A value that a view chain starts from, and how the operand's axes lie in it. */
typedef struct source {
    ir_value *value;
    int64_t groups, order[4];   /* axis i of the heads [b,g,t,d] is axis order[i] of value without its axes that are not one of them */
    dim dims[4];                /* of value without those */
    bool plain, straight;       /* plain: value has no other axes; straight: order is 0, 1, 2, 3 */
    ir_node *rotary;            /* that follows; NULL: none */
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

static bool is_one(dim size) {
    int64_t number;
    return dim_is_constant(size, &number) && number == 1;
}

/* Which axis of the operand each axis of the source is; -1: none, it has size 1. A lone 0 on the group axis is a single group. */
static bool find_order(value_analysis *analysis, value_expr x, const op_type *type, const dim *heads, int *axes) {
    unsigned seen = 0;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < type->rank; i++) {
            double number;
            const bool fixed = value_is_number(x->args[i], &number);
            if (fixed != (round == 1)) continue;
            axes[i] = axis_of(analysis, x->args[i], type->dims[i], heads);
            if (fixed && axes[i] >= 0 && (seen & 1u << axes[i])) axes[i] = -1;
            if (fixed && axes[i] < 0 && type->rank == 4 && is_one(heads[i]) && is_one(type->dims[i]) && !(seen & 1u << i)) axes[i] = i;
            if (axes[i] < 0 && is_one(type->dims[i])) continue;
            if (axes[i] < 0 || (seen & 1u << axes[i])) return false;
            seen |= 1u << axes[i];
        }
    }
    return seen == 15;
}

static bool read_source(value_analysis *analysis, ir_value *const *chain, int last, source *found) {
    const op_type *type = &chain[last]->type;
    const dim *heads = chain[0]->type.dims;
    const value_expr x = type->rank < 4 ? NULL : view_formula(analysis, chain, last);
    int axes[DW_MAX_RANK], kept = 0;
    if (x == NULL || x->kind != VALUE_LOOKUP || !find_order(analysis, x, type, heads, axes)) return false;
    *found = (source){.value = chain[last], .plain = type->rank == 4, .straight = true};
    for (int i = 0; i < type->rank; i++) {
        if (axes[i] < 0) continue;
        found->dims[kept] = type->dims[i];
        found->straight = found->straight && axes[i] == kept;
        found->order[axes[i]] = kept++;
    }
    return dim_is_constant(found->dims[found->order[1]], &found->groups);
}

/* The fewest heads that the operand is made of; of equal ones a value that needs no transpose, then the nearest. */
static bool find_source(value_analysis *analysis, ir_value *operand, source *best) {
    ir_value *chain[MAX_CHAIN] = {operand};
    bool found = false;
    for (int i = 0; i < MAX_CHAIN; i++) {
        source at;
        if (read_source(analysis, chain, i, &at)) {
            const bool nicer = at.plain && at.straight && !(best->plain && best->straight);
            if (!found || at.groups < best->groups || (at.groups == best->groups && nicer)) *best = at;
            found = true;
        }
        const ir_node *node = chain[i]->node;
        if (node == NULL || !(op_get(node->op)->traits & OP_TRAIT_VIEW) || i + 1 == MAX_CHAIN) break;
        chain[i + 1] = ir_in(node, 0);
    }
    return found;
}

/* Does the rotation treat all heads alike? */
static bool is_same_for_heads(const ir_node *rotary) {
    for (int i = 1; i < rotary->n_in; i++) {
        const op_type *type = &ir_in(rotary, i)->type;
        int64_t one;
        if (type->rank >= 3 && (!dim_is_constant(type->dims[type->rank - 3], &one) || one != 1)) return false;
    }
    return true;
}

static bool find_heads(value_analysis *analysis, ir_value *operand, int64_t heads, source *best) {
    if (find_source(analysis, operand, best) && best->groups < heads) return true;
    ir_node *rotary = ir_def(operand, OP_rotary);
    if (rotary == NULL || !is_same_for_heads(rotary) || !find_source(analysis, ir_in(rotary, 0), best)) return false;
    best->rotary = rotary;
    return best->groups < heads;
}

static dw_status emit_heads(ir_graph *graph, ir_node *node, const source *from, ir_value **heads) {
    *heads = from->value;
    ir_cursor_before(graph, node);
    if (!from->plain) TRY(ir_emit_reshape(graph, *heads, 4, from->dims, heads));
    if (!from->straight) TRY(ir_emit_transpose(graph, *heads, from->order, heads));
    if (from->rotary == NULL) return DW_OK;
    graph->origin = from->rotary->origin;
    ir_value *const in[3] = {*heads, ir_in(from->rotary, 1), ir_in(from->rotary, 2)};
    return ir_emit(graph, OP_rotary, 3, in, from->rotary->attrs.count, from->rotary->attrs.items, heads);
}

static dw_status set_heads(ir_graph *graph, ir_node *node, ir_value *k, ir_value *v) {
    ir_set_operand(node, ATTENTION_K, k);
    ir_set_operand(node, ATTENTION_V, v);
    return ir_infer(graph, node);
}

dw_status attention_ungroup_heads(value_analysis *analysis, ir_node *node, bool *changed) {
    ir_value *k = ir_in(node, ATTENTION_K), *v = ir_in(node, ATTENTION_V);
    int64_t heads;
    source from_k = {.groups = 0}, from_v = {.groups = 0};
    if (!dim_is_constant(k->type.dims[1], &heads)) return DW_OK;
    const bool found = find_heads(analysis, k, heads, &from_k) && find_heads(analysis, v, heads, &from_v);
    TRY(value_status(analysis));
    if (!found || from_k.groups != from_v.groups) return DW_OK;
    ir_value *fewer_k, *fewer_v;
    TRY(emit_heads(analysis->graph, node, &from_k, &fewer_k));
    TRY(emit_heads(analysis->graph, node, &from_v, &fewer_v));
    const dw_status status = set_heads(analysis->graph, node, fewer_k, fewer_v);
    if (status != DW_OK) {
        TRY(set_heads(analysis->graph, node, k, v));
        return status;
    }
    *changed = true;
    return DW_OK;
}
