/* The writes of keys and values into their caches, which attention reads then, and the rotation of keys and queries in front of them, become one op. It runs behind the derivation of the
 * cached step (pass/step/attention.c), which makes the writes.
 *
 *     %1 = rotary q, cos, sin; %2 = rotary k, cos, sin
 *     %3 = cache_write cache.0, %2, row, position               ->     %1, %2, %3 = cache_update cache.0, cache.1, k, v, row, position, cos, sin, q
 *     %4 = cache_write cache.1, v, row, position                       %4 = attention %3, %1, %2, ..
 *     %5 = attention %1, %3, %4, ..
 *
 * Queries that are other tokens than the keys, as where the last tokens alone go on, keep a rotation of their own. */
#include "pass/fuse/fuse.h"

/* Is value read by nothing in front of node? */
static bool is_read_from(const ir_value *value, const ir_node *node) {
    for (const ir_use *use = value->uses; use != NULL; use = use->next)
        if (use->node->order < node->order) return false;
    return true;
}

/* Do both writes put the same tokens at the same places of caches of one size? */
static bool are_pair(const ir_node *keys, const ir_node *values) {
    const op_type *x = &ir_out(keys)->type, *y = &ir_out(values)->type;
    return keys != values && ir_in(keys, CACHE_X) != ir_in(values, CACHE_X) && ir_in(keys, CACHE_ROW) == ir_in(values, CACHE_ROW) &&
           ir_in(keys, CACHE_POSITION) == ir_in(values, CACHE_POSITION) && ir_in(keys, CACHE_TABLE) == ir_in(values, CACHE_TABLE) && x->dims[0] == y->dims[0] && x->dims[2] == y->dims[2];
}

/* Are the angles the same for all heads? */
static bool is_of_tokens(const ir_value *angle) {
    int64_t size;
    for (int i = 0; i + 2 < angle->type.rank; i++)
        if (!dim_is_constant(angle->type.dims[i], &size) || size != 1) return false;
    return angle->type.rank <= 4;
}

/* The rotation that alone feeds value's reader; NULL: there is none. */
static const ir_node *rotation_of(const ir_graph *graph, const ir_value *value) {
    const ir_node *rotary = fuse_def_single(graph, value, OP_rotary);
    return rotary != NULL && is_of_tokens(ir_in(rotary, 1)) && is_of_tokens(ir_in(rotary, 2)) ? rotary : NULL;
}

/* Rows of one size, of the same tokens, by the same angles. */
static bool turns_alike(const ir_node *a, const ir_node *b) {
    const op_type *x = &ir_out(a)->type, *y = &ir_out(b)->type;
    return ir_in(a, 1) == ir_in(b, 1) && ir_in(a, 2) == ir_in(b, 2) && op_attrs_equal(&a->attrs, &b->attrs) && x->format == y->format && x->dims[0] == y->dims[0] &&
           x->dims[2] == y->dims[2] && x->dims[3] == y->dims[3];
}

static dw_status fuse_cache_update(ir_graph *graph, ir_node *node, bool *changed) {
    ir_value *in[UPDATE_OPERANDS] = {NULL}, *result;
    if (node->op != OP_attention || ir_in(node, ATTENTION_POSITION) == NULL) return DW_OK;
    const ir_node *keys = ir_def(ir_in(node, ATTENTION_K), OP_cache_write), *values = ir_def(ir_in(node, ATTENTION_V), OP_cache_write);
    if (keys == NULL || values == NULL || !are_pair(keys, values) || !is_read_from(ir_out(keys), node) || !is_read_from(ir_out(values), node)) return DW_OK;
    const ir_node *of_keys = rotation_of(graph, ir_in(keys, CACHE_Y)), *of_queries = of_keys != NULL ? rotation_of(graph, ir_in(node, ATTENTION_Q)) : NULL;
    if (of_queries != NULL && !turns_alike(of_queries, of_keys)) of_queries = NULL;
    in[UPDATE_X] = ir_in(keys, CACHE_X);
    in[UPDATE_Y] = ir_in(values, CACHE_X);
    in[UPDATE_KEYS] = of_keys != NULL ? ir_in(of_keys, 0) : ir_in(keys, CACHE_Y);
    in[UPDATE_VALUES] = ir_in(values, CACHE_Y);
    in[UPDATE_ROW] = ir_in(keys, CACHE_ROW);
    in[UPDATE_POSITION] = ir_in(keys, CACHE_POSITION);
    for (int i = 0; i < 2 && of_keys != NULL; i++) in[UPDATE_COS + i] = ir_in(of_keys, 1 + i);
    if (of_queries != NULL) in[UPDATE_QUERIES] = ir_in(of_queries, 0);
    in[UPDATE_TABLE] = ir_in(keys, CACHE_TABLE);
    int count = UPDATE_OPERANDS;
    while (in[count - 1] == NULL) count--;
    fuse_cursor(graph, node, node);
    TRY(ir_emit(graph, OP_cache_update, count, in, of_keys != NULL ? of_keys->attrs.count : 0, of_keys != NULL ? of_keys->attrs.items : NULL, &result));
    ir_node *update = result->node;
    if (of_queries != NULL) TRY(fuse_replace(graph, ir_out(of_queries), update->out[2], changed));
    TRY(fuse_replace(graph, ir_out(keys), update->out[0], changed));
    return fuse_replace(graph, ir_out(values), update->out[1], changed);
}

/* Ops for which the caller named or registered a kernel stay. */
dw_status pass_cache(ir_graph *graph, const pass_options *options, bool *changed) {
    *changed = false;
    if (options->alone != NULL && (options->alone[OP_cache_write] || options->alone[OP_rotary])) return DW_OK;
    ir_renumber(graph);
    return fuse_each(graph, "cache_update", fuse_cache_update, changed);
}
