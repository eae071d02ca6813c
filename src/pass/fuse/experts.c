/* The way of tokens to experts and back, spelled out by sorts, counts and lookups, becomes dispatch and combine. The products between stay.
 *
 *     %1 = reshape ids [t*k]; %2, %3 = sort %1; %4 = floordiv %3, k         %1, %2, %3 = dispatch ids {length=8}
 *     %5 = cumsum (bincount %2 {length=8}); %6 = index_put 0, 0 1 2 .., %3
 *     %7 = take x, %4; %8 = grouped_matmul %7, w, %5                   ->   %4 = take x, %1; %5 = grouped_matmul %4, w, %3
 *     %9 = mul %8, (take weights, %3)
 *     %10 = take %9, %6; %11 = sum (reshape %10 [t,k,d]) {axes=[1]}         %6 = combine %5, %2, weights
 *
 * It runs behind the derivation of the cached step, which reads the spelling (pass/step/experts.c). */
#include "pass/fuse/fuse.h"

/* Casts of integers and of small counts change nothing. */
static ir_value *without_casts(ir_value *value) {
    for (const ir_node *node = ir_def(value, OP_cast); node != NULL; node = ir_def(value, OP_cast)) value = ir_in(node, 0);
    return value;
}

static bool is_same_size(dim a, dim b) { return a == b; }

/* ---- dispatch ------------------------------------------------------------------------------------------------------------------------ */

/* Does value hold the keys of the sort, in whatever order? */
static bool is_keys(const ir_node *sort, ir_value *value) {
    value = without_casts(value);
    return value == sort->out[0] || value == without_casts(ir_in(sort, 0));
}

/* cumsum (bincount keys), however cast; NULL when node is none. */
static const ir_node *counts_of(const ir_node *sort, const ir_node *node) {
    if (node->op != OP_cumsum || ir_bool(node, OP_ATTR_exclusive)) return NULL;
    const ir_node *counts = ir_def(without_casts(ir_in(node, 0)), OP_bincount);
    return counts != NULL && is_keys(sort, ir_in(counts, 0)) ? counts : NULL;
}

/* 0 1 2 .. written at the places of the order: its inverse. */
static bool is_inverse(const ir_node *sort, const ir_node *node) {
    if (node->op == OP_sort) return ir_in(node, 0) == sort->out[1] && !ir_bool(node, OP_ATTR_descending);
    if (node->op != OP_index_put || node->n_in != 3 || ir_in(node, 2) != sort->out[1] || ir_bool(node, OP_ATTR_accumulate)) return false;
    const ir_node *numbers = ir_def(ir_in(node, 1), OP_iota);
    int64_t start;
    return numbers != NULL && ir_int(numbers, OP_ATTR_step) == 1 && dim_is_constant(op_attr_dim(&numbers->attrs, OP_ATTR_start), &start) && start == 0 &&
           is_same_size(ir_in(node, 0)->type.dims[0], ir_out(node)->type.dims[0]) && is_same_size(ir_in(node, 1)->type.dims[0], ir_out(node)->type.dims[0]);
}

/* The ids [t,k] of a sort of them all, row by row. */
static bool read_sort(const ir_node *sort, ir_value **ids, const ir_node **counts) {
    if (sort->op != OP_sort || ir_bool(sort, OP_ATTR_descending) || ir_in(sort, 0)->type.rank != 1) return false;
    const ir_node *flat = ir_def(without_casts(ir_in(sort, 0)), OP_reshape);
    if (flat == NULL || ir_in(flat, 0)->type.rank != 2 || num_info(ir_in(flat, 0)->type.format)->class == NUM_FLOAT) return false;
    *ids = ir_in(flat, 0);
    *counts = NULL;
    for (const ir_node *node = sort->next; node != NULL && *counts == NULL; node = node->next) *counts = counts_of(sort, node);
    return *counts != NULL;
}

/* The results of dispatch take the places of what says the same. */
static dw_status replace_uses(ir_graph *graph, ir_node *sort, ir_node *dispatch, int64_t choices, bool *changed) {
    ir_value *value;
    for (ir_node *node = dispatch->next, *next; node != NULL; node = next) {
        double divisor;
        next = node->next;
        ir_cursor_before(graph, node);
        graph->origin = node->origin;
        if (counts_of(sort, node) != NULL && is_same_size(ir_out(node)->type.dims[0], dispatch->out[2]->type.dims[0])) {
            TRY(ir_emit_cast(graph, dispatch->out[2], ir_out(node)->type.format, &value));
        } else if (node->op == OP_floordiv && ir_in(node, 0) == sort->out[1] && ir_is_scalar(ir_in(node, 1), &divisor) && divisor == (double)choices) {
            TRY(ir_emit_cast(graph, dispatch->out[0], ir_out(node)->type.format, &value));
        } else if (is_inverse(sort, node)) {
            ir_value *inverse = node->out[node->op == OP_sort ? 1 : 0];
            TRY(ir_emit_reshape(graph, dispatch->out[1], 1, inverse->type.dims, &value));
            TRY(ir_emit_cast(graph, value, inverse->type.format, &value));
            ir_replace(graph, inverse, value);
            *changed = true;
            continue;
        } else {
            continue;
        }
        ir_replace(graph, ir_out(node), value);
        *changed = true;
    }
    return DW_OK;
}

static dw_status fuse_dispatch(ir_graph *graph, ir_node *sort, bool *changed) {
    ir_value *ids, *rows;
    const ir_node *counts;
    int64_t choices;
    if (!read_sort(sort, &ids, &counts) || !dim_is_constant(ids->type.dims[1], &choices)) return DW_OK;
    for (const ir_node *node = sort->next; node != NULL; node = node->next) {       /* made before, for this sort */
        if (node->op == OP_dispatch && ir_in(node, 0) == ids) return DW_OK;
    }
    ir_cursor_before(graph, sort->next);
    graph->origin = sort->origin;
    const op_attr attr = op_set_dim(OP_ATTR_length, op_attr_dim(&counts->attrs, OP_ATTR_length));
    TRY(ir_emit(graph, OP_dispatch, 1, &ids, 1, &attr, &rows));
    return replace_uses(graph, sort, rows->node, choices, changed);
}

/* ---- combine ------------------------------------------------------------------------------------------------------------------------- */

/* The weights [t,k] whose elements, sorted as the ids of dispatch are, are column [n,1]; NULL when they are not. */
static ir_value *unsorted_weights(const ir_node *dispatch, ir_value *column) {
    const ir_node *reshape = ir_def(column, OP_reshape), *take = reshape == NULL ? NULL : ir_def(ir_in(reshape, 0), OP_take);
    if (take == NULL || ir_int(take, OP_ATTR_axis) != 0) return NULL;
    const ir_node *sort = ir_def(ir_in(take, 1), OP_sort), *flat = ir_def(ir_in(take, 0), OP_reshape);
    ir_value *ids;
    const ir_node *keys = sort == NULL ? NULL : ir_def(without_casts(ir_in(sort, 0)), OP_reshape);
    if (keys == NULL || flat == NULL || ir_in(take, 1) != sort->out[1] || ir_bool(sort, OP_ATTR_descending)) return NULL;
    ids = ir_in(keys, 0);
    if (ids != ir_in(dispatch, 0)) return NULL;
    ir_value *weights = ir_in(flat, 0);
    const bool fits = weights->type.rank == 2 && is_same_size(weights->type.dims[0], ids->type.dims[0]) && is_same_size(weights->type.dims[1], ids->type.dims[1]);
    return fits ? weights : NULL;
}

/* The rows times one number each: *rows and the column of numbers. */
static bool read_weighted(const ir_node *mul, ir_value **rows, ir_value **column) {
    int64_t one;
    for (int side = 0; side < 2; side++) {
        const ir_value *x = ir_in(mul, side);
        if (x->type.rank != 2 || !dim_is_constant(x->type.dims[1], &one) || one != 1) continue;
        *column = ir_in(mul, side);
        *rows = ir_in(mul, 1 - side);
        return true;
    }
    return false;
}

static dw_status fuse_combine(ir_graph *graph, ir_node *sum, bool *changed) {
    const int64_t *axes;
    ir_value *rows, *column, *result;
    if (sum->op != OP_sum || op_attr_ints(&sum->attrs, OP_ATTR_axes, &axes) != 1 || axes[0] != 1 || ir_bool(sum, OP_ATTR_keep)) return DW_OK;
    const ir_node *shape = ir_def(without_casts(ir_in(sum, 0)), OP_reshape), *take = shape == NULL ? NULL : ir_def(ir_in(shape, 0), OP_take);
    if (take == NULL || ir_out(shape)->type.rank != 3 || ir_int(take, OP_ATTR_axis) != 0 || ir_in(take, 0)->type.rank != 2) return DW_OK;
    const ir_node *place = ir_def(ir_in(take, 1), OP_reshape), *mul = ir_def(without_casts(ir_in(take, 0)), OP_mul);
    const ir_node *dispatch = place == NULL ? NULL : ir_def(ir_in(place, 0), OP_dispatch);
    if (dispatch == NULL || mul == NULL || ir_in(place, 0) != dispatch->out[1] || !read_weighted(mul, &rows, &column)) return DW_OK;
    ir_value *weights = unsorted_weights(dispatch, column);
    const op_type *split = &ir_out(shape)->type, *by = &dispatch->out[1]->type;
    if (weights == NULL || !is_same_size(split->dims[0], by->dims[0]) || !is_same_size(split->dims[1], by->dims[1])) return DW_OK;
    ir_value *in[3] = {rows, dispatch->out[1], weights};
    fuse_cursor(graph, sum, sum);
    TRY(ir_emit(graph, OP_combine, 3, in, 0, NULL, &result));
    TRY(ir_emit_cast(graph, result, ir_out(sum)->type.format, &result));
    return fuse_replace(graph, ir_out(sum), result, changed);
}

dw_status pass_experts(ir_graph *graph, const pass_options *options, bool *changed) {
    (void)options;
    *changed = false;
    TRY(fuse_each(graph, "dispatch", fuse_dispatch, changed));
    return fuse_each(graph, "combine", fuse_combine, changed);
}
