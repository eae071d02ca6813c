/* Experts inside an axis over which tokens are whole: each rank has some of them, and sees the tokens of the others as those of none.
 *
 *     %1, %2, %3 = dispatch ids {length=8}                     %1 = sub ids, 4 * rank.tp
 *     %4 = take x, %1                                          %2, %3, %4 = dispatch %1 {length=4}
 *     %5 = grouped_matmul %4, w, %3               ->           %5 = take x, %2
 *     %6 = combine %5, %2, weights                             %6 = grouped_matmul %5, (4 of w), %4     rows of other ranks' experts give 0
 *                                                              %7 = combine %6, %3, weights             a term of the sum over ranks */
#include "pass/shard/shard.h"

#include <string.h>

static const shard_place rows_of_experts = {.kind = SHARD_EXPERTS, .repeat = 1};

static bool is_row_of_experts(sharding *sharding, ir_value *value) { return value != NULL && shard_of(sharding, value)->place.kind == SHARD_EXPERTS; }

/* ---- is all that reads the rows of experts something that can do with its own? ---- */

static bool is_by_rows(sharding *sharding, ir_value *value) { return value != NULL && shard_of(sharding, value)->is_by_rows; }

/* The ids sorted, as what was spelled out still reads them: values and places, in the order of the dispatch. */
static ir_node *find_sort(const ir_graph *graph, const ir_node *dispatch) {
    for (ir_node *node = graph->first; node != NULL && node != dispatch; node = node->next) {
        if (node->op != OP_sort || ir_bool(node, OP_ATTR_descending)) continue;
        const ir_value *ids = ir_in(node, 0);
        while (ids->kind == IR_RESULT && (ids->node->op == OP_cast || ids->node->op == OP_reshape)) ids = ir_in(ids->node, 0);
        if (ids == ir_in(dispatch, 0) && ir_in(node, 0)->type.rank == 1) return node;
    }
    return NULL;
}

/* Is the operand the same for all rows? */
static bool is_spread(const ir_node *node, int index) {
    const op_type *x = &ir_in(node, index)->type;
    int64_t one;
    return x->rank < ir_out(node)->type.rank || (x->rank > 0 && dim_is_constant(x->dims[0], &one) && one == 1);
}

/* A step on each row by itself. */
static bool goes_by_rows(sharding *sharding, const ir_node *dispatch, const ir_node *node) {
    const int first_post = 3;
    if (node->op == OP_take) return ir_int(node, OP_ATTR_axis) == 0 && !is_by_rows(sharding, ir_in(node, 0)) && is_by_rows(sharding, ir_in(node, 1));
    if (node->op == OP_slice) return ir_int(node, OP_ATTR_axis) > 0;
    if (node->op == OP_quantize) return node->n_in == 1 && num_info(ir_out(node)->type.format)->rows == 1 && num_info(ir_out(node)->type.format)->second != 1;
    if (node->op == OP_grouped_matmul) {
        bool good = ir_int(node, OP_ATTR_padded) == 0 && shard_is_weighted(node) && is_by_rows(sharding, ir_in(node, 0)) && ir_in(node, 2) == dispatch->out[2];
        for (int i = first_post; i < node->n_in; i++) good = good && (is_by_rows(sharding, ir_in(node, i)) || ir_is_constant(ir_in(node, i)));
        return good;
    }
    if ((op_get(node->op)->traits & OP_TRAIT_POINTWISE) == 0) return false;
    for (int i = 0; i < node->n_in; i++)
        if (!is_by_rows(sharding, ir_in(node, i)) && !is_spread(node, i)) return false;
    return true;
}

/* May the node have an operand of the dispatch's? Its results are by rows then, but for those of combine. */
static bool take_node(sharding *sharding, const ir_node *dispatch, const ir_node *node) {
    if (node->op == OP_combine) return ir_in(node, 1) == dispatch->out[1] && is_by_rows(sharding, ir_in(node, 0)) && !is_by_rows(sharding, ir_in(node, 2));
    for (int i = 0; i < node->n_in; i++)
        if (ir_in(node, i) == dispatch->out[1]) return false;
    if (!goes_by_rows(sharding, dispatch, node) || ir_out(node)->output_count > 0 || ir_out(node)->next_count > 0) return false;
    shard_of(sharding, ir_out(node))->is_by_rows = true;
    return true;
}

/* Does everything that is made of the dispatch go by rows, and end in combines by its places? */
static bool ends_in_combine(sharding *sharding, const ir_node *dispatch, const ir_node *sort) {
    bool good = true;
    for (int i = 0; i < dispatch->n_out; i++) {
        shard_of(sharding, dispatch->out[i])->is_by_rows = true;
        good = good && dispatch->out[i]->output_count == 0;
    }
    for (int i = 0; sort != NULL && i < sort->n_out; i++) {
        shard_of(sharding, sort->out[i])->is_by_rows = true;
        for (const ir_use *use = sort->out[i]->uses; use != NULL; use = use->next) good = good && use->node->order > dispatch->order;
    }
    for (const ir_node *node = dispatch->next; node != NULL && good; node = node->next) {
        bool any = false;
        for (int i = 0; i < node->n_in; i++) any = any || is_by_rows(sharding, ir_in(node, i));
        good = !any || take_node(sharding, dispatch, node);
    }
    for (const ir_node *node = sort != NULL ? sort : dispatch; node != NULL; node = node->next)
        for (int i = 0; i < node->n_out; i++) shard_of(sharding, node->out[i])->is_by_rows = false;
    return good;
}

/* values [n], each at its place in the rank's own order. */
static dw_status emit_placed(ir_graph *graph, ir_value *places, ir_value *values, ir_value **placed) {
    ir_value *in[3] = {NULL, places, values};
    const op_attr of_fill[] = {op_set_dims(OP_ATTR_shape, 1, values->type.dims), op_set_real(OP_ATTR_value, 0), op_set_format(OP_ATTR_to, values->type.format)};
    const op_attr axis = op_set_int(OP_ATTR_axis, 0);
    TRY(ir_emit(graph, OP_fill, 0, NULL, COUNT_OF(of_fill), of_fill, &in[0]));
    return ir_emit(graph, OP_scatter, 3, in, 1, &axis, placed);
}

/* What the sort gave, ids and where they were, in the order of the rank's own dispatch. */
static dw_status emit_sorted(sharding *sharding, const ir_node *sort, const ir_node *dispatch) {
    ir_graph *graph = sharding->graph;
    ir_value *ids, *places, *numbers;
    const dim *count = ir_in(sort, 0)->type.dims;
    TRY(shard_whole(sharding, ir_in(sort, 0), &ids));
    TRY(ir_emit_reshape(graph, dispatch->out[1], 1, count, &places));
    const op_attr attrs[] = {op_set_dim(OP_ATTR_length, count[0]), op_set_dim(OP_ATTR_start, dim_constant(graph->dims, 0)), op_set_int(OP_ATTR_step, 1), op_set_format(OP_ATTR_to, DW_FORMAT_i64)};
    TRY(ir_emit(graph, OP_iota, 0, NULL, COUNT_OF(attrs), attrs, &numbers));
    TRY(emit_placed(graph, places, ids, &ids));
    TRY(emit_placed(graph, places, numbers, &numbers));
    shard_set(sharding, sort->out[0], &rows_of_experts, ids);
    shard_set(sharding, sort->out[1], &rows_of_experts, numbers);
    return DW_OK;
}

static dw_status emit_dispatch(sharding *sharding, ir_node *node, const ir_node *sort, const shard_place *place) {
    ir_graph *graph = sharding->graph;
    ir_value *ids, *first, *made;
    dim start, length;
    TRY(shard_ids(sharding, ir_in(node, 0), &ids));
    TRY(shard_start(sharding, place, &start));
    TRY(ir_emit_size(graph, start, &first));
    TRY(ir_emit_cast(graph, first, ids->type.format, &first));
    TRY(ir_emit_2(graph, OP_sub, ids, first, &ids));
    TRY_DIM(graph->context, length, dim_constant(graph->dims, place->local));
    const op_attr attr = op_set_dim(OP_ATTR_length, length);
    TRY(ir_emit(graph, OP_dispatch, 1, &ids, 1, &attr, &made));
    if (sort != NULL) TRY(emit_sorted(sharding, sort, made->node));
    return shard_replace(sharding, node, &rows_of_experts, made->node);
}

static dw_status cut_dispatch(sharding *sharding, ir_node *node, bool *done) {
    int64_t experts;
    const char *rule;
    const pass_split split = pass_splits_choose(sharding->splits, node->origin.module, node->origin.role, &rule);
    const pass_split preferred = split == PASS_SPLIT_chosen ? shard_preferred(sharding->splits, node->origin.module, &rule) : split;
    if (split == PASS_SPLIT_chosen && preferred == PASS_SPLIT_whole) {
        shard_tell(sharding, node, "whole", rule);
        return DW_OK;
    }
    const bool asked = split == PASS_SPLIT_experts;
    if (!asked && split != PASS_SPLIT_chosen) return DW_OK;
    if (!dim_is_constant(op_attr_dim(&node->attrs, OP_ATTR_length), &experts)) return DW_OK;
    const ir_node *sort = find_sort(sharding->graph, node);
    const bool good = experts >= sharding->ranks && ends_in_combine(sharding, node, sort);
    if (!good && asked)
        return base_fail(sharding->graph->context, DW_INVALID, "shard: experts of %s cannot be cut over %d ranks (%s): there are %lld, and their rows are read by more than products and combine, or they are fewer than ranks; leave them whole",
                         node->origin.module != NULL ? node->origin.module : "dispatch", sharding->ranks, rule, (long long)experts);
    shard_explain(sharding, node, good ? "experts" : "whole", asked ? rule : good ? "each rank has its own" : "something else reads the rows of experts", asked ? NULL : rule);
    if (!good) return DW_OK;
    const shard_place place = shard_place_of(sharding, 0, experts, 1, 1);
    *done = true;
    return emit_dispatch(sharding, node, sort, &place);
}

/* ---- what goes by rows ---- */

static dw_status emit_by_rows(sharding *sharding, ir_node *node, const shard_place *result) {
    ir_value *in[64], *made;
    for (int i = 0; i < node->n_in; i++) {
        in[i] = NULL;
        if (ir_in(node, i) == NULL) continue;
        const shard_record *record = shard_of(sharding, ir_in(node, i));
        int64_t groups;
        if (record->place.kind == SHARD_EXPERTS) {
            in[i] = record->local;
        } else if (node->op == OP_grouped_matmul && (i == 1 || (i > 2 && ir_in(node, i)->type.rank > 1)) && dim_is_constant(ir_in(node, i)->type.dims[0], &groups)) {
            const shard_place place = shard_place_of(sharding, 0, groups, 1, 1);
            TRY(shard_part(sharding, ir_in(node, i), &place, &in[i]));
        } else {
            TRY(shard_whole(sharding, ir_in(node, i), &in[i]));
        }
    }
    TRY(ir_emit(sharding->graph, node->op, node->n_in, in, node->attrs.count, node->attrs.items, &made));
    return shard_replace(sharding, node, result, made->node);
}

/* Rows of other ranks' experts, which steps behind the products, such as a bias, may have made something of, are zeros again. */
static dw_status hide_others(sharding *sharding, const ir_node *combine) {
    ir_graph *graph = sharding->graph;
    shard_record *record = shard_of(sharding, ir_in(combine, 0));
    ir_value *offsets = shard_of(sharding, ir_in(combine, 1)->node->out[2])->local, *y = record->local, *number, *count, *own, *zero, *in[3];
    const dim end = offsets->type.dims[0];
    dim first, dims[2] = {y->type.dims[0]};
    if (record->place.kind != SHARD_EXPERTS || ir_def(y, OP_grouped_matmul) != NULL) return DW_OK;
    TRY_DIM(graph->context, first, dim_sub(graph->dims, end, dim_constant(graph->dims, 1)));
    TRY_DIM(graph->context, dims[1], dim_constant(graph->dims, 1));
    const op_attr attrs[] = {op_set_dim(OP_ATTR_length, dims[0]), op_set_dim(OP_ATTR_start, dim_constant(graph->dims, 0)), op_set_int(OP_ATTR_step, 1), op_set_format(OP_ATTR_to, offsets->type.format)};
    TRY(ir_emit(graph, OP_iota, 0, NULL, COUNT_OF(attrs), attrs, &number));
    TRY(ir_emit_slice(graph, offsets, 0, first, end, 1, &count));
    TRY(ir_emit_2(graph, OP_lt, number, count, &own));
    TRY(ir_emit_reshape(graph, own, 2, dims, &own));
    TRY(ir_emit_scalar(graph, y->type.format, 0, &zero));
    in[0] = own;
    in[1] = y;
    in[2] = zero;
    return ir_emit(graph, OP_where, 3, in, 0, NULL, &record->local);
}

dw_status shard_experts(sharding *sharding, ir_node *node, bool *done) {
    const shard_place partial = {.kind = SHARD_PARTIAL, .repeat = 1};
    bool any = false;
    if (node->op == OP_dispatch) return cut_dispatch(sharding, node, done);
    for (int i = 0; i < node->n_in; i++) any = any || is_row_of_experts(sharding, ir_in(node, i));
    if (!any) return DW_OK;
    *done = true;
    if (node->op == OP_combine) TRY(hide_others(sharding, node));
    return emit_by_rows(sharding, node, node->op == OP_combine ? &partial : &rows_of_experts);
}
