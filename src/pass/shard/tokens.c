/* Between layers each rank has some tokens: of a product along k it gets the sums of its tokens alone, adds residuals and computes norms of these, and what the next product reads is put together. A format's
 * codes and scales of a row are the row's own, so what is quantised travels quantised.
 *
 *     %2 = all_reduce %1 {by="sum"}               %2 = reduce_scatter %1 {axis=1}              [b,ceil(s/ranks),n]
 *     %3 = add %2, x                        ->    %3 = add %2, (the rank's tokens of x)
 *     %4 = rms_norm %3                            %4 = rms_norm %3
 *     %5 = quantize %4                            %5 = quantize %4;  %6 = all_gather %5 {axis=1,length=s}
 *
 * Each rank has as many rows: where ranks do not divide the number of tokens the last rows are zeros, which fall away when all are put together. Sums are those of all_reduce, bit for bit. */
#include "pass/shard/shard.h"

shard_place shard_tokens_of(int axis) { return (shard_place){.kind = SHARD_TOKENS, .axis = axis, .repeat = 1}; }

/* *part: of so many tokens each rank's, ceil(size / ranks); *all: of all ranks together. */
static dw_status sizes_of(sharding *sharding, dim size, dim *part, dim *all) {
    dim_table *dims = sharding->graph->dims;
    dim ranks, more;
    TRY_DIM(sharding->graph->context, ranks, dim_constant(dims, sharding->ranks));
    TRY_DIM(sharding->graph->context, more, dim_add(dims, size, dim_constant(dims, sharding->ranks - 1)));
    TRY_DIM(sharding->graph->context, *part, dim_floordiv(dims, more, ranks));
    TRY_DIM(sharding->graph->context, *all, dim_mul(dims, *part, ranks));
    return DW_OK;
}

/* value with rows of zeros behind its last token. */
static dw_status emit_filled(sharding *sharding, ir_value *value, int axis, dim all, ir_value **filled) {
    ir_graph *graph = sharding->graph;
    dim before[DW_MAX_RANK], after[DW_MAX_RANK];
    *filled = value;
    if (value->type.dims[axis] == all) return DW_OK;
    for (int i = 0; i < value->type.rank; i++) {
        TRY_DIM(graph->context, before[i], dim_constant(graph->dims, 0));
        after[i] = before[i];
    }
    TRY_DIM(graph->context, after[axis], dim_sub(graph->dims, all, value->type.dims[axis]));
    const op_attr attrs[] = {op_set_dims(OP_ATTR_before, value->type.rank, before), op_set_dims(OP_ATTR_after, value->type.rank, after), op_set_real(OP_ATTR_value, 0)};
    return ir_emit(graph, OP_pad, 1, &value, COUNT_OF(attrs), attrs, filled);
}

dw_status shard_scatter(sharding *sharding, ir_value *term, int axis, ir_value **part) {
    const op_attr attrs[] = {op_set_int(OP_ATTR_axis, axis), op_set_text(OP_ATTR_over, sharding->over), op_set_int(OP_ATTR_ranks, sharding->ranks), op_set_text(OP_ATTR_by, "sum")};
    const dw_format format = term->type.format;
    const bool narrow = shard_is_narrow(format);
    if (narrow) TRY(ir_emit_cast(sharding->graph, term, DW_FORMAT_bf16, &term));
    TRY(ir_emit(sharding->graph, OP_reduce_scatter, 1, &term, COUNT_OF(attrs), attrs, part));
    return narrow ? ir_emit_cast(sharding->graph, *part, format, part) : DW_OK;
}

/* Of a value that each rank has whole the rank's tokens. */
static dw_status slice_tokens(sharding *sharding, ir_value *value, int axis, ir_value **part) {
    ir_graph *graph = sharding->graph;
    dim tokens = NULL, all, start, end;
    TRY(sizes_of(sharding, value->type.dims[axis], &tokens, &all));
    TRY(emit_filled(sharding, value, axis, all, &value));
    TRY_DIM(graph->context, start, dim_mul(graph->dims, sharding->rank, tokens));
    TRY_DIM(graph->context, end, dim_add(graph->dims, start, tokens));
    return ir_emit_slice(graph, value, axis, start, end, 1, part);
}

dw_status shard_tokens_part(sharding *sharding, ir_value *value, int axis, ir_value **part) {
    shard_record *record = shard_of(sharding, value);
    const shard_place place = shard_tokens_of(axis);
    ir_value *whole;
    if (shard_same_place(&record->place, &place)) return *part = record->local, DW_OK;
    for (int i = 0; i < record->part_count; i++)
        if (shard_same_place(&record->parts[i].place, &place)) return *part = record->parts[i].value, DW_OK;
    if (record->place.kind == SHARD_PARTIAL && record->whole == NULL) {
        TRY(shard_scatter(sharding, record->local, axis, part));
    } else {
        TRY(shard_whole(sharding, value, &whole));
        TRY(slice_tokens(sharding, whole, axis, part));
    }
    if (record->part_count == SHARD_PARTS) return DW_OK;
    record->parts[record->part_count].place = place;
    record->parts[record->part_count++].value = *part;
    return DW_OK;
}

/* ---- nodes that go on with a rank's tokens ---- */

/* Rows of the result are made of the same rows of operands. */
static bool is_by_rows(const ir_node *node) {
    const num_format *info = num_info(ir_out(node)->type.format);
    if (node->op == OP_quantize) return info->rows == 1 && info->second != 1;
    return op_has(node->op, OP_TRAIT_POINTWISE) || node->op == OP_cast || node->op == OP_layer_norm || node->op == OP_rms_norm;
}

/* Tokens are rows of matrices. -1: there are none. */
int shard_tokens_axis(const ir_value *value) {
    const int axis = value->type.rank - 2;
    int64_t size;
    return axis >= 0 && !(dim_is_constant(value->type.dims[axis], &size) && size < 2) ? axis : -1;
}

/* Does an operand lie by tokens, or is it a sum that is to? Then the result does, along *axis. */
static bool begins(sharding *sharding, const ir_node *node, int *axis) {
    const int to = shard_tokens_axis(ir_out(node));
    for (int i = 0; i < node->n_in && to >= 0; i++) {
        if (ir_in(node, i) == NULL) continue;
        const shard_place *place = &shard_of(sharding, ir_in(node, i))->place;
        const int from = place->kind == SHARD_TOKENS ? place->axis : place->kind == SHARD_PARTIAL && place->by_tokens ? shard_tokens_axis(ir_in(node, i)) : -1;
        if (from < 0 || shard_follow_any(node, i, from).axis != to) continue;
        *axis = to;
        return true;
    }
    return false;
}

/* The axis of an operand that has the result's tokens; -1: it is the same for all of them. */
static int axis_of_operand(const ir_node *node, int index, int axis) {
    for (int i = 0; i < ir_in(node, index)->type.rank; i++)
        if (shard_follow_any(node, index, i).axis == axis) return i;
    return -1;
}

dw_status shard_by_tokens(sharding *sharding, ir_node *node, bool *done) {
    ir_value *in[64] = {NULL}, *made;
    int axis;
    if (!is_by_rows(node) || node->n_in > (int)COUNT_OF(in) || !begins(sharding, node, &axis)) return DW_OK;
    for (int i = 0; i < node->n_in; i++)
        if (ir_in(node, i) != NULL && dw_format_is_block(ir_in(node, i)->type.format)) return DW_OK;
    for (int i = 0; i < node->n_in; i++) {
        if (ir_in(node, i) == NULL) continue;
        const int from = axis_of_operand(node, i, axis);
        if (from >= 0) TRY(shard_tokens_part(sharding, ir_in(node, i), from, &in[i]));
        else TRY(shard_whole(sharding, ir_in(node, i), &in[i]));
    }
    TRY(ir_emit(sharding->graph, node->op, node->n_in, in, node->attrs.count, node->attrs.items, &made));
    *done = true;
    const shard_place place = shard_tokens_of(axis);
    return shard_replace(sharding, node, &place, made->node);
}
