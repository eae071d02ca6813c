/* From one place to another: what ranks tell each other, and parts of what each of them has whole.
 *
 *     split    %1 f32[b,s,128]    ->    %2 = all_gather %1 {axis=2,over="tp",ranks=4}                                          what is behind the end is cut off
 *     partial  %1 f32[b,s,512]    ->    %2 = all_reduce %1 {over="tp",ranks=4,by="sum"}
 *     whole    w f32[500,64]      ->    %1 = pad w {after=[12,0]}; %2 = slice %1 {axis=0,start=128*rank.tp,end=128*rank.tp+128}
 *
 * Weights that are quantised are cut in front of that where each block has a scale of its own, and behind it where a scale sees more: so a part is, bit for bit, a slice of the whole. */
#include "pass/shard/shard.h"

#include <string.h>

/* ---- places ---- */

bool shard_same_place(const shard_place *a, const shard_place *b) {
    return a->kind == b->kind && a->axis == b->axis && a->size == b->size && a->local == b->local && a->repeat == b->repeat;
}

shard_place shard_place_of(const sharding *sharding, int axis, int64_t size, int64_t unit, int repeat) {
    const int64_t parts = sharding->ranks / repeat, units = base_ceil_div(size, unit);
    return (shard_place){.kind = SHARD_SPLIT, .axis = axis, .size = size, .local = base_ceil_div(units, parts) * unit, .repeat = repeat};
}

dw_status shard_start(sharding *sharding, const shard_place *place, dim *start) {
    ir_graph *graph = sharding->graph;
    dim by, local;
    TRY_DIM(graph->context, local, dim_constant(graph->dims, place->local));
    *start = sharding->rank;
    if (place->repeat > 1) {
        TRY_DIM(graph->context, by, dim_constant(graph->dims, place->repeat));
        TRY_DIM(graph->context, *start, dim_floordiv(graph->dims, *start, by));
    }
    TRY_DIM(graph->context, *start, dim_mul(graph->dims, *start, local));
    return DW_OK;
}

/* Of a value of the graph its record; new ones are whole. */
shard_record *shard_of(sharding *sharding, ir_value *value) {
    shard_record *record = value->mark;
    if (record != NULL) return record;
    record = arena_new(&sharding->arena, 1, sizeof *record);
    if (record != NULL) value->mark = record;
    else sharding->failed = true;
    if (record == NULL) record = &sharding->spare;
    *record = (shard_record){.place = {.kind = SHARD_WHOLE, .repeat = 1}, .local = value, .whole = value};
    return record;
}

void shard_set(sharding *sharding, ir_value *value, const shard_place *place, ir_value *local) {
    shard_record *record = shard_of(sharding, value);
    record->place = *place;
    record->local = local;
    record->whole = place->kind == SHARD_WHOLE ? local : NULL;
    record->part_count = 0;
}

dw_status shard_replace(sharding *sharding, ir_node *node, const shard_place *place, ir_node *made) {
    for (int i = 0; i < node->n_out; i++) shard_set(sharding, node->out[i], place, made->out[i]);
    sharding->replaced[sharding->replaced_count++] = node;
    return DW_OK;
}

/* ---- what ranks tell each other ---- */

bool shard_is_narrow(dw_format format) { return num_info(format)->class == NUM_FLOAT && num_info(format)->bits < 16; }

dw_status shard_sum(sharding *sharding, ir_value *value, const char *by, ir_value **sum) {
    const op_attr attrs[] = {op_set_text(OP_ATTR_over, sharding->over), op_set_int(OP_ATTR_ranks, sharding->ranks), op_set_text(OP_ATTR_by, by)};
    const dw_format format = value->type.format;
    const bool narrow = shard_is_narrow(format);
    if (narrow) TRY(ir_emit_cast(sharding->graph, value, DW_FORMAT_bf16, &value));
    TRY(ir_emit(sharding->graph, OP_all_reduce, 1, &value, COUNT_OF(attrs), attrs, sum));
    return narrow ? ir_emit_cast(sharding->graph, *sum, format, sum) : DW_OK;
}

static dw_status gather(sharding *sharding, ir_value *value, int axis, ir_value **whole) {
    const op_attr attrs[] = {op_set_int(OP_ATTR_axis, axis), op_set_text(OP_ATTR_over, sharding->over), op_set_int(OP_ATTR_ranks, sharding->ranks)};
    return ir_emit(sharding->graph, OP_all_gather, 1, &value, COUNT_OF(attrs), attrs, whole);
}

static dw_status cut(sharding *sharding, ir_value *value, int axis, int64_t first, int64_t end, ir_value **part) {
    ir_graph *graph = sharding->graph;
    dim from, to;
    TRY_DIM(graph->context, from, dim_constant(graph->dims, first));
    TRY_DIM(graph->context, to, dim_constant(graph->dims, end));
    if (from == dim_constant(graph->dims, 0) && to == value->type.dims[axis]) return *part = value, DW_OK;
    return ir_emit_slice(graph, value, axis, from, to, 1, part);
}

/* One of each so many equal parts of local elements. */
static dw_status drop_repeats(sharding *sharding, ir_value *value, const shard_place *place, ir_value **once) {
    ir_graph *graph = sharding->graph;
    dim dims[DW_MAX_RANK];
    const int rank = value->type.rank, axis = place->axis;
    const int64_t parts = sharding->ranks / place->repeat;
    if (rank + 2 > DW_MAX_RANK) return base_fail(graph->context, DW_LIMIT, "a value of %d axes cannot be put together from parts that several ranks have", rank);
    for (int i = 0; i < rank + 2; i++) dims[i] = value->type.dims[i <= axis ? i : i >= axis + 3 ? i - 2 : axis];
    TRY_DIM(graph->context, dims[axis], dim_constant(graph->dims, parts));
    TRY_DIM(graph->context, dims[axis + 1], dim_constant(graph->dims, place->repeat));
    TRY_DIM(graph->context, dims[axis + 2], dim_constant(graph->dims, place->local));
    TRY(ir_emit_reshape(graph, value, rank + 2, dims, once));
    TRY(cut(sharding, *once, axis + 1, 0, 1, once));
    for (int i = 0; i < rank; i++) dims[i] = value->type.dims[i];
    TRY_DIM(graph->context, dims[axis], dim_constant(graph->dims, parts * place->local));
    return ir_emit_reshape(graph, *once, rank, dims, once);
}

/* What is quantised, of all that it is made of. */
static dw_status quantise_whole(sharding *sharding, const ir_node *quantise, ir_value **whole) {
    ir_value *in[2] = {NULL, ir_in(quantise, 1)};
    TRY(shard_whole(sharding, ir_in(quantise, 0), &in[0]));
    return ir_emit(sharding->graph, OP_quantize, quantise->n_in, in, quantise->attrs.count, quantise->attrs.items, whole);
}

/* All of a value that is split. Formats whose blocks run along the axis do not travel: what they are made of does. */
static dw_status gather_whole(sharding *sharding, ir_value *value, const shard_record *record, ir_value **whole) {
    const ir_node *made = ir_def(value, OP_quantize);
    if (dw_format_is_block(value->type.format) && record->place.axis == value->type.rank - 1) {
        return made != NULL ? quantise_whole(sharding, made, whole) : base_fail(sharding->graph->context, DW_INTERNAL, "parts of blocks cannot be put together");
    }
    TRY(gather(sharding, record->local, record->place.axis, whole));
    if (record->place.repeat > 1) TRY(drop_repeats(sharding, *whole, &record->place, whole));
    return cut(sharding, *whole, record->place.axis, 0, record->place.size, whole);
}

/* All tokens. What quantises them is the norm's that made them, which will take it in. */
static dw_status gather_tokens(sharding *sharding, const ir_value *value, const shard_record *record, ir_value **whole) {
    const int axis = record->place.axis;
    const op_attr attrs[] = {op_set_int(OP_ATTR_axis, axis), op_set_dim(OP_ATTR_length, value->type.dims[axis]), op_set_text(OP_ATTR_over, sharding->over), op_set_int(OP_ATTR_ranks, sharding->ranks)};
    const ir_node *quantise = ir_def(value, OP_quantize);
    if (quantise != NULL && ir_in(quantise, 0)->kind == IR_RESULT) sharding->graph->origin = ir_in(quantise, 0)->node->origin;
    return ir_emit(sharding->graph, OP_all_gather, 1, &record->local, COUNT_OF(attrs), attrs, whole);
}

dw_status shard_whole(sharding *sharding, ir_value *value, ir_value **whole) {
    shard_record *record = shard_of(sharding, value);
    if (record->whole == NULL) {
        const ir_origin reader = sharding->graph->origin;
        if (value->kind == IR_RESULT) sharding->graph->origin = value->node->origin;   /* what is sent is the maker's, whoever reads it first */
        if (record->place.kind == SHARD_PARTIAL) TRY(shard_sum(sharding, record->local, "sum", &record->whole));
        else if (record->place.kind == SHARD_TOKENS) TRY(gather_tokens(sharding, value, record, &record->whole));
        else if (record->place.kind == SHARD_SPLIT) TRY(gather_whole(sharding, value, record, &record->whole));
        else return base_fail(sharding->graph->context, DW_INTERNAL, "rows of experts have no order that ranks share");
        sharding->graph->origin = reader;
    }
    *whole = record->whole;
    return DW_OK;
}

/* ---- parts of what is whole ---- */

static bool is_cut_in_front(const ir_node *quantize, const shard_place *place) {
    const num_format *info = num_info(ir_out(quantize)->type.format);
    const int rank = ir_out(quantize)->type.rank;
    const int64_t block = place->axis == rank - 1 ? info->cols : place->axis == rank - 2 ? info->rows : 1;
    if (quantize->n_in > 1 || info->rows == 0 || info->second == 1) return false;
    if (place->axis == rank - 1 && (info->cols == 0 || info->second != 0)) return false;
    return block <= 1 || place->local % block == 0;
}

/* value with zeros behind the end, so that all parts are of one size. */
static dw_status emit_padded(sharding *sharding, ir_value *value, const shard_place *place, ir_value **padded) {
    ir_graph *graph = sharding->graph;
    const int64_t more = place->local * (sharding->ranks / place->repeat) - place->size;
    dim before[DW_MAX_RANK], after[DW_MAX_RANK];
    *padded = value;
    if (more == 0) return DW_OK;
    for (int i = 0; i < value->type.rank; i++) {
        TRY_DIM(graph->context, before[i], dim_constant(graph->dims, 0));
        TRY_DIM(graph->context, after[i], dim_constant(graph->dims, i == place->axis ? more : 0));
    }
    const op_attr attrs[] = {op_set_dims(OP_ATTR_before, value->type.rank, before), op_set_dims(OP_ATTR_after, value->type.rank, after), op_set_real(OP_ATTR_value, 0)};
    return ir_emit(graph, OP_pad, 1, &value, COUNT_OF(attrs), attrs, padded);
}

static dw_status emit_part(sharding *sharding, ir_value *value, const shard_place *place, ir_value **part) {
    ir_graph *graph = sharding->graph;
    dim start, end, local;
    TRY(emit_padded(sharding, value, place, &value));
    TRY(shard_start(sharding, place, &start));
    TRY_DIM(graph->context, local, dim_constant(graph->dims, place->local));
    TRY_DIM(graph->context, end, dim_add(graph->dims, start, local));
    return ir_emit_slice(graph, value, place->axis, start, end, 1, part);
}

/* One number is the same in every part. */
static dw_status emit_fill(sharding *sharding, const ir_node *node, const shard_place *place, ir_value **part) {
    ir_graph *graph = sharding->graph;
    dim dims[DW_MAX_RANK];
    op_attr attrs[OP_ATTR_COUNT];
    for (int i = 0; i < ir_out(node)->type.rank; i++) dims[i] = ir_out(node)->type.dims[i];
    TRY_DIM(graph->context, dims[place->axis], dim_constant(graph->dims, place->local));
    for (int i = 0; i < node->attrs.count; i++) {
        attrs[i] = node->attrs.items[i];
        if (attrs[i].id == OP_ATTR_shape) attrs[i].dims = dims;
    }
    return ir_emit(graph, OP_fill, 0, NULL, node->attrs.count, attrs, part);
}

/* Where axis of what node, which moves axes, makes lies in its operand; -1: nowhere. */
static int axis_before(const ir_node *node, int axis) {
    const int64_t *order;
    if (node->op != OP_transpose || op_attr_ints(&node->attrs, OP_ATTR_order, &order) <= axis) return -1;
    return (int)order[axis];
}

/* What comes in blocks gets no zeros behind its end, unless it is quantised here. */
bool shard_can_be_cut(const sharding *sharding, const ir_value *value, const shard_place *place) {
    const bool padded = place->local * (sharding->ranks / place->repeat) != place->size;
    return !padded || !dw_format_is_block(value->type.format) || ir_def(value, OP_quantize) != NULL;
}

dw_status shard_slice(sharding *sharding, ir_value *value, const shard_place *place, ir_value **part) {
    ir_graph *graph = sharding->graph;
    const ir_node *node = value->kind == IR_RESULT ? value->node : NULL;
    ir_value *in[2] = {NULL};
    if (node != NULL && node->op == OP_fill) return emit_fill(sharding, node, place, part);
    const bool padded = place->local * (sharding->ranks / place->repeat) != place->size;
    if (node == NULL || (!ir_is_constant(value) && !(node->op == OP_quantize && padded))) return emit_part(sharding, value, place, part);
    if (node->op == OP_quantize && is_cut_in_front(node, place)) {
        TRY(shard_slice(sharding, ir_in(node, 0), place, &in[0]));
        return ir_emit(graph, OP_quantize, 1, in, node->attrs.count, node->attrs.items, part);
    }
    if (node->op == OP_quantize) {   /* zeros change no scale */
        for (int i = 0; i < node->n_in; i++) in[i] = ir_in(node, i);
        TRY(emit_padded(sharding, in[0], place, &in[0]));
        TRY(ir_emit(graph, OP_quantize, node->n_in, in, node->attrs.count, node->attrs.items, part));
        shard_place whole = *place;
        whole.size = place->local * (sharding->ranks / place->repeat);
        return emit_part(sharding, *part, &whole, part);
    }
    const int before = axis_before(node, place->axis);
    if (node->op == OP_cast || before >= 0) {
        shard_place there = *place;
        if (before >= 0) there.axis = before;
        TRY(shard_slice(sharding, ir_in(node, 0), &there, &in[0]));
        return ir_emit(graph, node->op, 1, in, node->attrs.count, node->attrs.items, part);
    }
    return emit_part(sharding, value, place, part);
}

dw_status shard_part(sharding *sharding, ir_value *value, const shard_place *place, ir_value **part) {
    shard_record *record = shard_of(sharding, value);
    const ir_node *quantise = ir_def(value, OP_quantize);
    ir_value *whole;
    if (shard_same_place(&record->place, place)) return *part = record->local, DW_OK;
    for (int i = 0; i < record->part_count; i++)
        if (shard_same_place(&record->parts[i].place, place)) return *part = record->parts[i].value, DW_OK;
    const bool gets_zeros = record->place.kind == SHARD_TOKENS && place->local * (sharding->ranks / place->repeat) != place->size;   /* which blocks that were put together do not */
    if (gets_zeros && quantise != NULL) TRY(quantise_whole(sharding, quantise, &whole));
    else TRY(shard_whole(sharding, value, &whole));
    TRY(shard_slice(sharding, whole, place, part));
    if (record->part_count == SHARD_PARTS) return DW_OK;
    record->parts[record->part_count].place = *place;
    record->parts[record->part_count++].value = *part;
    return DW_OK;
}
