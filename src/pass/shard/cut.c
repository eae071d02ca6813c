/* Goes through the nodes of a graph in order, and cuts each: its operands are whole, split or partial; it goes on with that where its row of shard.def or a rule of its own says how, else it is given what is
 * whole. Outputs are whole at the end. The nodes that others took the place of are left where they are. */
#include "pass/shard/shard.h"

#include <stdio.h>
#include <string.h>

/* ---- sums that stay apart ---- */

static bool is_partial(sharding *sharding, ir_value *value) { return value != NULL && shard_of(sharding, value)->place.kind == SHARD_PARTIAL; }

/* Of f16 and less a term may leave the range though the sum does not. */
static bool holds_terms(dw_format format) { return format == DW_FORMAT_f64 || format == DW_FORMAT_f32 || format == DW_FORMAT_bf16; }

/* What can be done with a term of a sum: moved, cast, added to another, multiplied by a number. */
static bool keeps_terms(sharding *sharding, const ir_node *node) {
    double number;
    switch (node->op) {
    case OP_reshape:
    case OP_transpose:
    case OP_slice: return is_partial(sharding, ir_in(node, 0));
    case OP_cast: return is_partial(sharding, ir_in(node, 0)) && holds_terms(ir_out(node)->type.format);
    case OP_add: return is_partial(sharding, ir_in(node, 0)) && is_partial(sharding, ir_in(node, 1)) && op_type_equal(&ir_in(node, 0)->type, &ir_in(node, 1)->type);
    case OP_mul:
        for (int i = 0; i < 2; i++)
            if (is_partial(sharding, ir_in(node, i)) && ir_is_scalar(ir_in(node, 1 - i), &number)) return true;
        return false;
    default: return false;
    }
}

static dw_status add_terms(sharding *sharding, ir_node *node, bool *done) {
    shard_place partial = {.kind = SHARD_PARTIAL, .repeat = 1};
    ir_value *in[2], *made;
    if (node->n_in < 1 || node->n_in > 2 || !keeps_terms(sharding, node)) return DW_OK;
    for (int i = 0; i < node->n_in; i++) {
        in[i] = shard_of(sharding, ir_in(node, i))->local;
        partial.by_tokens = partial.by_tokens || shard_of(sharding, ir_in(node, i))->place.by_tokens;
    }
    TRY(ir_emit(sharding->graph, node->op, node->n_in, in, node->attrs.count, node->attrs.items, &made));
    *done = true;
    return shard_replace(sharding, node, &partial, made->node);
}

/* ---- nodes that go on with parts ---- */

/* The result's place where operand i is split as it is. false: the node cannot go on with that. */
static bool place_of_result(sharding *sharding, const ir_node *node, int index, shard_place *place) {
    const shard_record *record = shard_of(sharding, ir_in(node, index));
    if (record->place.kind != SHARD_SPLIT) return false;
    const shard_step step = shard_follow(node, index, record->place.axis);
    const bool padded = record->place.local * (sharding->ranks / record->place.repeat) != record->place.size;
    if (step.axis < 0 || record->place.local * step.times % step.per != 0 || record->place.size * step.times % step.per != 0 || (padded && !shard_keeps_padding(node))) return false;
    *place = record->place;
    place->axis = step.axis;
    place->local = record->place.local * step.times / step.per;
    place->size = record->place.size * step.times / step.per;
    return true;
}

/* Where a fewer heads of keys than ranks are, ranks beside each other share one, and place is that of the queries. */
static bool shares_heads(sharding *sharding, const ir_node *node, int index, const shard_step *step, const shard_place *place, shard_place *of_operand) {
    const shard_record *record = shard_of(sharding, ir_in(node, index));
    if (node->op != OP_attention || (index != ATTENTION_K && index != ATTENTION_V) || record->place.kind != SHARD_SPLIT || record->place.repeat == 1) return false;
    *of_operand = record->place;
    return record->place.axis == 1 && record->place.local == 1 && place->repeat == 1 && place->local * place->repeat * record->place.repeat == step->times * record->place.local && place->local * sharding->ranks == place->size;
}

/* Of an operand the place that goes with the result's; whole where it does not lie along that axis. false: there is none. */
static bool place_of_operand(sharding *sharding, const ir_node *node, int index, const shard_place *place, shard_place *of_operand) {
    shard_step step;
    const int axis = shard_axis_to(node, index, place->axis, &step);
    *of_operand = (shard_place){.kind = SHARD_WHOLE, .repeat = 1};
    if (axis < 0) return true;
    if (shares_heads(sharding, node, index, &step, place, of_operand)) return true;
    if (place->local * step.per % step.times != 0) return false;
    *of_operand = *place;
    of_operand->axis = axis;
    of_operand->local = place->local * step.per / step.times;
    return dim_is_constant(ir_in(node, index)->type.dims[axis], &of_operand->size);
}

/* Shapes in attributes have the size of a part. */
static dw_status local_attrs(sharding *sharding, const ir_node *node, const shard_place *place, op_attr *attrs) {
    ir_graph *graph = sharding->graph;
    for (int i = 0; i < node->attrs.count; i++) {
        attrs[i] = node->attrs.items[i];
        if (attrs[i].id != OP_ATTR_shape) continue;
        dim *dims;
        TRY_NEW(dims, &sharding->arena, attrs[i].count);
        memcpy(dims, attrs[i].dims, (size_t)attrs[i].count * sizeof *dims);
        TRY_DIM(graph->context, dims[place->axis], dim_constant(graph->dims, place->local));
        attrs[i].dims = dims;
    }
    return DW_OK;
}

/* A cache holds the heads of its rank: its state has their number. */
static dw_status cut_cache(sharding *sharding, ir_node *node, const shard_place *place, ir_value **cache) {
    ir_graph *graph = sharding->graph;
    ir_value *state = ir_in(node, CACHE_X);
    TRY_DIM(graph->context, state->type.dims[place->axis], dim_constant(graph->dims, place->local));
    shard_set(sharding, state, place, state);
    *cache = state;
    return DW_OK;
}

static bool is_cache(const ir_node *node) {
    const ir_value *state = ir_in(node, CACHE_X);
    return node->op == OP_cache_write && state->kind == IR_STATE && state->next == ir_out(node) && state->uses != NULL && state->uses->next == NULL && state->output_count == 0 && state->weight == NULL;
}

static dw_status emit_local(sharding *sharding, ir_node *node, const shard_place *place, bool *done) {
    ir_value *in[64], *made;
    op_attr attrs[OP_ATTR_COUNT];
    shard_place places[64];
    for (int i = 0; i < node->n_in; i++)
        if (ir_in(node, i) != NULL && !place_of_operand(sharding, node, i, place, &places[i])) return DW_OK;
    if (node->op == OP_cache_write && !is_cache(node)) return DW_OK;
    for (int i = 0; i < node->n_in; i++) {
        in[i] = NULL;
        if (ir_in(node, i) == NULL) continue;
        if (node->op == OP_cache_write && i == CACHE_X) TRY(cut_cache(sharding, node, place, &in[i]));
        else if (places[i].kind == SHARD_SPLIT) TRY(shard_part(sharding, ir_in(node, i), &places[i], &in[i]));
        else TRY(shard_whole(sharding, ir_in(node, i), &in[i]));
    }
    TRY(local_attrs(sharding, node, place, attrs));
    TRY(ir_emit(sharding->graph, node->op, node->n_in, in, node->attrs.count, attrs, &made));
    if (node->op == OP_cache_write) ir_set_next(ir_in(node, CACHE_X), made);
    *done = true;
    return shard_replace(sharding, node, place, made->node);
}

/* With the first of its operands that is split and can stay so. */
static dw_status go_on(sharding *sharding, ir_node *node, bool *done) {
    shard_place place;
    const char *rule;
    if (node->op == OP_attention && pass_splits_choose(sharding->splits, node->origin.module, node->origin.role, &rule) == PASS_SPLIT_whole) return DW_OK;
    for (int i = 0; i < node->n_in && !*done; i++) {
        if (ir_in(node, i) == NULL || !place_of_result(sharding, node, i, &place)) continue;
        if (node->op == OP_attention && (i == ATTENTION_K || i == ATTENTION_V) && place.repeat > 1) continue;
        TRY(emit_local(sharding, node, &place, done));
        if (*done && node->op == OP_attention) shard_tell(sharding, node, "heads", place.local * sharding->ranks == place.size ? "each rank has as many" : "zeros fill up the last rank's");
    }
    return DW_OK;
}

/* ---- scales of rows of which a rank has a part ---- */

/* The largest magnitude of each row, of all ranks, in front of the rank's part as a block of its own: so the scale of a row is that of one rank, and the block is dropped. */
static dw_status emit_under_maxima(sharding *sharding, const ir_node *node, ir_value *x, int64_t width, ir_value **part) {
    ir_graph *graph = sharding->graph;
    const int last = x->type.rank - 1;
    const int64_t axes[] = {last};
    const op_attr of_largest[] = {op_set_ints(OP_ATTR_axes, 1, axes), op_set_bool(OP_ATTR_keep, true)}, along = op_set_int(OP_ATTR_axis, last);
    ir_value *size, *most, *in[2], *joined;
    dim before[DW_MAX_RANK], after[DW_MAX_RANK], start, end;
    for (int i = 0; i <= last; i++) before[i] = after[i] = dim_constant(graph->dims, 0);
    TRY_DIM(graph->context, after[last], dim_constant(graph->dims, width - 1));
    TRY_DIM(graph->context, start, dim_constant(graph->dims, width));
    TRY_DIM(graph->context, end, dim_add(graph->dims, start, x->type.dims[last]));
    const op_attr of_block[] = {op_set_dims(OP_ATTR_before, last + 1, before), op_set_dims(OP_ATTR_after, last + 1, after), op_set_real(OP_ATTR_value, 0)};
    TRY(ir_emit_1(graph, OP_abs, x, &size));
    TRY(ir_emit(graph, OP_amax, 1, &size, COUNT_OF(of_largest), of_largest, &most));
    TRY(shard_sum(sharding, most, "max", &most));
    TRY(ir_emit(graph, OP_pad, 1, &most, COUNT_OF(of_block), of_block, &in[0]));
    in[1] = x;
    TRY(ir_emit(graph, OP_concat, 2, in, 1, &along, &joined));
    ir_value *quantised;
    TRY(ir_emit(graph, OP_quantize, 1, &joined, node->attrs.count, node->attrs.items, &quantised));
    return ir_emit_slice(graph, quantised, last, start, end, 1, part);
}

/* A value in a format with a scale a row, split within rows, that a product takes along k. */
static dw_status quantise_rows(sharding *sharding, ir_node *node, bool *done) {
    ir_value *part;
    if (node->op != OP_quantize || node->n_in > 1) return DW_OK;
    const num_format *info = num_info(ir_out(node)->type.format);
    const shard_record *x = shard_of(sharding, ir_in(node, 0));
    const shard_place place = x->place;
    const int last = ir_out(node)->type.rank - 1;
    const int64_t width = info->cols > 0 ? info->cols : 1;
    if (info->rows != 1 || (info->cols > 0 && info->second != 2)) return DW_OK;
    if (place.kind != SHARD_SPLIT || place.axis != last || place.repeat != 1 || place.local % width != 0 || !shard_wish_of(sharding, ir_out(node), last).good) return DW_OK;
    if (pass_splits_local_scales(sharding->splits)) TRY(ir_emit(sharding->graph, OP_quantize, 1, (ir_value *[]){x->local}, node->attrs.count, node->attrs.items, &part));
    else TRY(emit_under_maxima(sharding, node, x->local, width, &part));
    *done = true;
    return shard_replace(sharding, node, &place, part->node);
}

/* ---- nodes that are computed whole ---- */

static bool has_part(sharding *sharding, const ir_node *node) {
    for (int i = 0; i < node->n_in; i++)
        if (ir_in(node, i) != NULL && shard_of(sharding, ir_in(node, i))->local != ir_in(node, i)) return true;
    return false;
}

static bool was_split(sharding *sharding, const ir_node *node) {
    for (int i = 0; i < node->n_in; i++)
        if (ir_in(node, i) != NULL && shard_of(sharding, ir_in(node, i))->place.kind == SHARD_SPLIT) return true;
    return false;
}

enum { USUAL_SIZE = 128 };
static const double SHARE_TOLD = 0.01;   /* of the FLOPs, from which an op without a rule is told of that reads no part */

/* At a usual size of each symbol. */
static double flops_of(const sharding *sharding, const ir_node *node) {
    op_work work;
    return sharding->usual != NULL && ir_work(sharding->graph, node, sharding->usual, &work) == DW_OK ? work.flops : 0;
}

static dw_status count_flops(sharding *sharding) {
    const dim_table *dims = sharding->graph->dims;
    const int count = dim_symbol_count(dims);
    TRY_NEW(sharding->usual, &sharding->arena, count + 1);
    for (int i = 0; i < count; i++) {
        int64_t min, max;
        dim_symbol_range(dims, i, &min, &max);
        sharding->usual[i] = max < USUAL_SIZE ? max : min > USUAL_SIZE ? min : USUAL_SIZE;
    }
    for (const ir_node *node = sharding->graph->first; node != NULL; node = node->next) sharding->flops += flops_of(sharding, node);
    return DW_OK;
}

/* Of an op that has no rule for parts each rank computes all: an error where the policy says strict. */
static dw_status tell_without_rule(sharding *sharding, const ir_node *node) {
    const double share = sharding->flops > 0 ? 100 * flops_of(sharding, node) / sharding->flops : 0;
    if (!was_split(sharding, node) && share < 100 * SHARE_TOLD) return DW_OK;
    const char *strict = pass_splits_strict(sharding->splits), *module = node->origin.module;
    if (strict != NULL)
        return base_fail(sharding->graph->context, DW_UNSUPPORTED,
                         "shard: op %s has no rule for parts (%s), so each of %d ranks would compute all of it, %.2g %% of the FLOPs, which 'strict' forbids (%s); take out 'strict' to have it so",
                         op_get(node->op)->name, module != NULL && module[0] != '\0' ? module : "of no module", sharding->ranks, share, strict);
    char why[128];
    snprintf(why, sizeof why, "op %s has no rule for parts: %.2g %% of the FLOPs", op_get(node->op)->name, share);
    shard_tell(sharding, node, "whole", why);
    return DW_OK;
}

static dw_status compute_whole(sharding *sharding, ir_node *node) {
    if (!shard_has_rule(node->op)) TRY(tell_without_rule(sharding, node));
    if (!has_part(sharding, node)) return DW_OK;
    if (node->op == OP_quantize) shard_of(sharding, ir_out(node))->source = shard_of(sharding, ir_in(node, 0))->place;
    if (was_split(sharding, node) && shard_has_rule(node->op)) shard_tell(sharding, node, "whole", "its parts are put together: it reads across them");
    for (int i = 0; i < node->n_in; i++) {
        ir_value *whole;
        if (ir_in(node, i) == NULL) continue;
        TRY(shard_whole(sharding, ir_in(node, i), &whole));
        ir_set_operand(node, i, whole);
    }
    return DW_OK;
}

static dw_status cut_node(sharding *sharding, ir_node *node) {
    static dw_status (*const rules[])(struct sharding *, ir_node *, bool *) = {shard_experts, shard_product, shard_lookup, shard_likeliest, add_terms, shard_by_tokens, quantise_rows, go_on};
    bool done = false;
    if (ir_is_constant(ir_out(node))) return DW_OK;
    ir_cursor_before(sharding->graph, node);
    for (size_t i = 0; i < COUNT_OF(rules) && !done; i++) TRY(rules[i](sharding, node, &done));
    return done ? DW_OK : compute_whole(sharding, node);
}

/* ---- all of them ---- */

void shard_clear_marks(ir_graph *graph) {
    for (size_t i = 0; i < graph->input_count; i++) graph->inputs[i]->mark = NULL;
    for (size_t i = 0; i < graph->param_count; i++) graph->params[i]->mark = NULL;
    for (size_t i = 0; i < graph->state_count; i++) graph->states[i]->mark = NULL;
    for (ir_node *node = graph->first; node != NULL; node = node->next)
        for (int i = 0; i < node->n_out; i++) node->out[i]->mark = NULL;
}

static dw_status add_records(sharding *sharding) {
    ir_graph *graph = sharding->graph;
    int count = 0;
    shard_clear_marks(graph);
    for (size_t i = 0; i < graph->state_count; i++)
        shard_of(sharding, graph->states[i]);
    for (ir_node *node = graph->first; node != NULL; node = node->next) {
        count++;
        for (int i = 0; i < node->n_out; i++) shard_of(sharding, node->out[i]);
    }
    for (size_t i = 0; i < graph->input_count + graph->param_count; i++)
        shard_of(sharding, i < graph->input_count ? graph->inputs[i] : graph->params[i - graph->input_count]);
    if (sharding->failed) return DW_NO_MEMORY;
    for (ir_node *node = graph->last; node != NULL; node = node->previous)
        for (int i = 0; i < node->n_out; i++)
            for (int axis = 0; axis < node->out[i]->type.rank; axis++) shard_wish_of(sharding, node->out[i], axis);
    TRY_NEW(sharding->replaced, &sharding->arena, count + 1);
    return DW_OK;
}

static void look_at_weights(sharding *sharding) {
    const ir_graph *graph = sharding->graph;
    sharding->rows = 1;
    for (const ir_node *node = graph->first; node != NULL; node = node->next) {
        if (!shard_is_weighted(node)) continue;
        const int64_t rows = shard_n_unit(sharding, node);
        if (rows > sharding->rows) sharding->rows = rows;
    }
    for (size_t i = 0; i < graph->param_count; i++) sharding->weight_bytes += shard_bytes(graph->params[i]);
}

static bool has_output(const ir_graph *graph, const char *name) {
    for (size_t i = 0; i < graph->output_count; i++)
        if (strcmp(graph->outputs[i].name, name) == 0) return true;
    return false;
}

/* The logits of a step stay in parts where the vocabulary is cut: the likeliest token is known by then, and whoever draws asks the others for what it needs. -1: they do not. */
static int find_parted_logits(sharding *sharding, int64_t *vocabulary) {
    const ir_graph *graph = sharding->graph;
    const int logits = has_output(graph, STEP_OUTPUT_NEXT) ? incremental_find_logits(graph, vocabulary) : -1;
    if (logits < 0) return -1;
    const shard_place *place = &shard_of(sharding, graph->outputs[logits].value)->place;
    return place->kind == SHARD_SPLIT && place->axis == graph->outputs[logits].value->type.rank - 1 && place->repeat == 1 ? logits : -1;
}

static dw_status note_vocabulary(ir_graph *graph, int64_t vocabulary) {
    char words[32];
    snprintf(words, sizeof words, "%lld", (long long)vocabulary);
    return ir_set_note(graph, STEP_NOTE_VOCABULARY, words);
}

/* Outputs are whole; so are states that are no caches. */
static dw_status finish(sharding *sharding) {
    ir_graph *graph = sharding->graph;
    ir_value *whole;
    int64_t vocabulary = 0;
    const int parted = find_parted_logits(sharding, &vocabulary);
    if (parted >= 0) TRY(note_vocabulary(graph, vocabulary));
    ir_cursor_end(graph);
    for (size_t i = 0; i < graph->output_count; i++) {
        ir_value *value = graph->outputs[i].value;
        graph->origin = value->kind == IR_RESULT ? value->node->origin : (ir_origin){0};
        if ((int)i == parted) {
            ir_set_output(graph, i, shard_of(sharding, value)->local);
            continue;
        }
        TRY(shard_whole(sharding, value, &whole));
        ir_set_output(graph, i, whole);
    }
    for (size_t i = 0; i < graph->state_count; i++) {
        ir_value *state = graph->states[i];
        if (state->next == state || shard_of(sharding, state)->place.kind == SHARD_SPLIT) continue;
        TRY(shard_whole(sharding, state->next, &whole));
        ir_set_next(state, whole);
    }
    return DW_OK;
}

dw_status shard_cut(sharding *sharding) {
    ir_graph *graph = sharding->graph;
    bool changed = false;
    char name[OP_MESH_NAME + sizeof DIM_RANK];
    snprintf(name, sizeof name, DIM_RANK "%s", sharding->over);
    TRY_DIM(graph->context, sharding->rank, dim_symbol(graph->dims, name, 0, sharding->ranks - 1));
    look_at_weights(sharding);
    TRY(count_flops(sharding));
    TRY(add_records(sharding));
    TRY(shard_cut_packed(sharding, &changed));
    if (changed) {
        ir_renumber(graph);
        TRY(add_records(sharding));
    }
    TRY(shard_trial_begin(sharding));
    for (ir_node *node = graph->first, *next; node != NULL; node = next) {
        ir_node *before = node->previous;
        next = node->next;
        TRY(cut_node(sharding, node));
        if (sharding->failed) return DW_NO_MEMORY;
        TRY(shard_trial_add(sharding, before, node));
    }
    ir_node *last = graph->last;
    TRY(finish(sharding));
    return shard_trial_add(sharding, last, NULL);
}
