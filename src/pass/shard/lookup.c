/* Vocabularies: rows of an embedding's table, and logits, of which each rank has some.
 *
 *     %1 = take w, ids {axis=0}     ->    each rank looks up the ids of its own rows, and has zeros for the others; the sum of all ranks is the embedding, exactly
 *     %1 = argmax x {axis=1}        ->    each rank's likeliest and its value; of these the first largest: two numbers a row are sent, and not the logits */
#include "pass/shard/shard.h"

#include <math.h>

static dw_status emit_number(ir_graph *graph, dw_format format, dim number, ir_value **value) {
    TRY(ir_emit_size(graph, number, value));
    return ir_emit_cast(graph, *value, format, value);
}

/* x op number */
static dw_status emit_with(ir_graph *graph, op_id op, ir_value *x, int64_t number, ir_value **result) {
    ir_value *constant;
    TRY(ir_emit_scalar(graph, x->type.format, (double)number, &constant));
    return ir_emit_2(graph, op, x, constant, result);
}

/* 0 <= x < high */
static dw_status emit_within(ir_graph *graph, ir_value *x, int64_t high, ir_value **within) {
    ir_value *above, *below;
    TRY(emit_with(graph, OP_ge, x, 0, &above));
    TRY(emit_with(graph, OP_lt, x, high, &below));
    return ir_emit_2(graph, OP_and, above, below, within);
}

static dw_status emit_where(ir_graph *graph, ir_value *condition, ir_value *yes, ir_value *no, ir_value **result) {
    ir_value *in[3] = {condition, yes, no};
    return ir_emit(graph, OP_where, 3, in, 0, NULL, result);
}

/* Numbers below 0 count from the end, as take has it. */
static dw_status emit_from_front(ir_graph *graph, ir_value *ids, int64_t size, ir_value **from_front) {
    ir_value *below, *turned;
    TRY(emit_with(graph, OP_lt, ids, 0, &below));
    TRY(emit_with(graph, OP_add, ids, size, &turned));
    return emit_where(graph, below, turned, ids, from_front);
}

/* Ids of few bits in a format that holds the numbers of all rows: whether one is a rank's own is computed in it. */
dw_status shard_ids(sharding *sharding, ir_value *value, ir_value **ids) {
    TRY(shard_whole(sharding, value, ids));
    return dw_format_bits((*ids)->type.format) < 32 ? ir_emit_cast(sharding->graph, *ids, DW_FORMAT_i64, ids) : DW_OK;
}

/* *row: the row of the rank's own table, its first one for rows of other ranks, and one that is nowhere for an id that no rank has, so that it is as wrong as before; *own: is it one of the rank's? */
static dw_status emit_rows_of(sharding *sharding, ir_value *ids, const shard_place *place, ir_value **row, ir_value **own) {
    ir_graph *graph = sharding->graph;
    ir_value *first, *zero, *known, *other;
    dim start;
    TRY(emit_from_front(graph, ids, place->size, &ids));
    TRY(shard_start(sharding, place, &start));
    TRY(emit_number(graph, ids->type.format, start, &first));
    TRY(ir_emit_2(graph, OP_sub, ids, first, row));
    TRY(emit_within(graph, *row, place->local, own));
    TRY(emit_within(graph, ids, place->size, &known));
    TRY(ir_emit_scalar(graph, ids->type.format, 0, &zero));
    TRY(ir_emit_scalar(graph, ids->type.format, (double)place->local, &other));
    TRY(emit_where(graph, known, zero, other, &other));
    return emit_where(graph, *own, *row, other, row);
}

static dw_status emit_lookup(sharding *sharding, ir_node *node, const shard_place *place) {
    ir_graph *graph = sharding->graph;
    const shard_place partial = {.kind = SHARD_PARTIAL, .repeat = 1};
    ir_value *in[2], *ids, *own, *found, *zero;
    dim dims[DW_MAX_RANK];
    TRY(shard_ids(sharding, ir_in(node, 1), &ids));
    TRY(shard_part(sharding, ir_in(node, 0), place, &in[0]));
    TRY(emit_rows_of(sharding, ids, place, &in[1], &own));
    const op_attr attr = op_set_int(OP_ATTR_axis, 0);
    TRY(ir_emit(graph, OP_take, 2, in, 1, &attr, &found));
    const int rank = own->type.rank;
    for (int i = 0; i < rank; i++) dims[i] = own->type.dims[i];
    TRY_DIM(graph->context, dims[rank], dim_constant(graph->dims, 1));
    TRY(ir_emit_reshape(graph, own, rank + 1, dims, &own));
    TRY(ir_emit_scalar(graph, found->type.format, 0, &zero));
    TRY(emit_where(graph, own, found, zero, &found));
    return shard_replace(sharding, node, &partial, found->node);
}

static const ir_value *table_of(const ir_value *value) {
    while (value->kind == IR_RESULT && value->node->n_in == 1) value = ir_in(value->node, 0);
    return value;
}

/* Does a product read the table, too, as logits of tied embeddings do? */
static bool is_tied(const sharding *sharding, const ir_value *table) {
    const ir_value *param = table_of(table);
    for (const ir_node *node = sharding->graph->first; node != NULL; node = node->next)
        if (shard_is_weighted(node) && table_of(ir_in(node, 1)) == param) return true;
    return false;
}

dw_status shard_lookup(sharding *sharding, ir_node *node, bool *done) {
    int64_t size;
    const char *rule;
    if (node->op != OP_take || ir_int(node, OP_ATTR_axis) != 0 || !ir_is_constant(ir_in(node, 0)) || ir_is_constant(ir_in(node, 1)) || ir_in(node, 0)->type.rank != 2) return DW_OK;
    if (dw_format_is_block(ir_in(node, 0)->type.format) || num_info(ir_in(node, 0)->type.format)->class != NUM_FLOAT || !shard_constant_size(ir_in(node, 0), 0, &size)) return DW_OK;
    const shard_record *ids = shard_of(sharding, ir_in(node, 1));
    if (ids->place.kind != SHARD_WHOLE) return DW_OK;
    const pass_split split = pass_splits_choose(sharding->splits, node->origin.module, node->origin.role, &rule);
    const bool large = shard_is_large(sharding, ir_in(node, 0)) && size >= sharding->ranks;
    const bool wanted = split == PASS_SPLIT_vocabulary || (split == PASS_SPLIT_chosen && large);
    if (split == PASS_SPLIT_vocabulary && size < sharding->ranks)
        return base_fail(sharding->graph->context, DW_INVALID, "shard: %s cannot be cut by vocabulary over %d ranks (%s): it has %lld rows; leave it whole", node->origin.module != NULL ? node->origin.module : "take",
                         sharding->ranks, rule, (long long)size);
    if (!wanted) {
        shard_tell(sharding, node, "whole", rule != NULL ? rule : "a small table: nothing is sent");
        return DW_OK;
    }
    const shard_place place = shard_place_of(sharding, 0, size, 1, 1);
    *done = true;
    shard_tell(sharding, node, "vocabulary", rule != NULL ? rule : is_tied(sharding, ir_in(node, 0)) ? "the logits' table, too" : "a large table");
    return emit_lookup(sharding, node, &place);
}

/* ---- the likeliest ---- */

/* Elements behind the end are less than all others. */
static dw_status hide_padding(sharding *sharding, const shard_place *place, ir_value **x) {
    ir_graph *graph = sharding->graph;
    ir_value *number, *first, *there, *least;
    dim start, length;
    if (place->local * (sharding->ranks / place->repeat) == place->size) return DW_OK;
    TRY_DIM(graph->context, length, dim_constant(graph->dims, place->local));
    const op_attr attrs[] = {op_set_dim(OP_ATTR_length, length), op_set_dim(OP_ATTR_start, dim_constant(graph->dims, 0)), op_set_int(OP_ATTR_step, 1), op_set_format(OP_ATTR_to, DW_FORMAT_i64)};
    TRY(ir_emit(graph, OP_iota, 0, NULL, COUNT_OF(attrs), attrs, &number));
    TRY(shard_start(sharding, place, &start));
    TRY(ir_emit_size(graph, start, &first));
    TRY(ir_emit_2(graph, OP_add, number, first, &number));
    TRY(emit_within(graph, number, place->size, &there));
    TRY(ir_emit_scalar(graph, (*x)->type.format, -INFINITY, &least));
    return emit_where(graph, there, *x, least, x);
}

static dw_status emit_gathered(sharding *sharding, ir_value *value, int axis, ir_value **all) {
    const op_attr attrs[] = {op_set_int(OP_ATTR_axis, axis), op_set_text(OP_ATTR_over, sharding->over), op_set_int(OP_ATTR_ranks, sharding->ranks)};
    return ir_emit(sharding->graph, OP_all_gather, 1, &value, COUNT_OF(attrs), attrs, all);
}

/* The rank's own best, [..,1], by its number in all; what is no number keeps its sign. */
static dw_status emit_own_best(sharding *sharding, const ir_node *node, ir_value *x, const shard_place *place, ir_value **id) {
    ir_graph *graph = sharding->graph;
    ir_value *first, *none, *moved;
    dim start;
    op_attr attrs[3] = {op_set_int(OP_ATTR_axis, place->axis), op_set_bool(OP_ATTR_keep, true), op_set_bool(OP_ATTR_finite, true)};
    TRY(ir_emit(graph, OP_argmax, 1, &x, ir_bool(node, OP_ATTR_finite) ? 3 : 2, attrs, id));
    TRY(shard_start(sharding, place, &start));
    TRY(ir_emit_size(graph, start, &first));
    TRY(ir_emit_2(graph, OP_add, *id, first, &moved));
    TRY(emit_with(graph, OP_lt, *id, 0, &none));
    return emit_where(graph, none, *id, moved, id);
}

dw_status shard_likeliest(sharding *sharding, ir_node *node, bool *done) {
    ir_graph *graph = sharding->graph;
    if (node->op != OP_argmax) return DW_OK;
    const shard_record *x = shard_of(sharding, ir_in(node, 0));
    const shard_place place = x->place, whole = {.kind = SHARD_WHOLE, .repeat = 1};
    if (place.kind != SHARD_SPLIT || place.axis != ir_int(node, OP_ATTR_axis) || place.repeat != 1) return DW_OK;
    ir_value *local = x->local, *value, *id, *best, *in[2];
    const int64_t axes[] = {place.axis};
    TRY(hide_padding(sharding, &place, &local));
    const op_attr of_value[] = {op_set_ints(OP_ATTR_axes, 1, axes), op_set_bool(OP_ATTR_keep, true)};
    const op_attr of_best[] = {op_set_int(OP_ATTR_axis, place.axis), op_set_bool(OP_ATTR_keep, true)};
    TRY(ir_emit(graph, OP_amax, 1, &local, COUNT_OF(of_value), of_value, &value));
    TRY(emit_own_best(sharding, node, local, &place, &id));
    TRY(emit_gathered(sharding, value, place.axis, &value));
    TRY(emit_gathered(sharding, id, place.axis, &in[0]));
    TRY(ir_emit(graph, OP_argmax, 1, &value, COUNT_OF(of_best), of_best, &in[1]));
    TRY(ir_emit(graph, OP_gather, 2, in, 1, of_best, &best));
    const op_type *type = &ir_out(node)->type;
    TRY(ir_emit_reshape(graph, best, type->rank, type->dims, &best));
    *done = true;
    return shard_replace(sharding, node, &whole, best->node);
}
