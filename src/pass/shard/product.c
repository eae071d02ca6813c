/* Products with weights: cut into columns, of which each rank computes some, or along k, of which each rank sums up some:
 *
 *     %1 = matmul x, w {bt=true,post="bias"}      x whole       ->    each rank's rows of w and of the bias; the result is split
 *     %2 = matmul y, w {bt=true,post="bias,add"}  y split       ->    %1 = matmul (part of y), (columns of w); %2 = all_reduce %1; then bias and add
 *
 * By tokens reduce_scatter stands where all_reduce does, and what follows is of the rank's tokens (tokens.c). */
#include "pass/shard/shard.h"

#include <string.h>

#include "pass/fuse/fuse.h"

typedef struct product {
    ir_node *node;
    op_post_list post;
    int operands;                   /* besides those of post */
    bool halves;
} product;

static dw_status read(sharding *sharding, ir_node *node, product *product) {
    product->node = node;
    product->operands = node->op == OP_matmul ? 2 : 3;
    TRY(op_post_parse(sharding->graph->context, ir_attr_text(node, OP_ATTR_post), &product->post));
    product->halves = false;
    for (int i = 0; i < product->post.count; i++) product->halves = product->halves || op_post_halves(product->post.steps[i]);
    return DW_OK;
}

/* ---- columns ---- */

/* An operand of post that lies along the columns has its part, what is one number for all of them is whole. */
static dw_status post_operand(sharding *sharding, ir_value *value, const shard_place *columns, ir_value **part) {
    int64_t size;
    shard_place place = *columns;
    place.axis = value->type.rank - 1;
    if (!shard_constant_size(value, place.axis, &size)) return shard_whole(sharding, value, part);
    return shard_part(sharding, value, &place, part);
}

static dw_status emit_columns(sharding *sharding, const product *product, const shard_place *columns) {
    const ir_node *node = product->node;
    ir_value *in[64], *made;
    shard_place of_weight = *columns, of_result = *columns;
    of_weight.axis = shard_n_axis(node);
    of_result.axis = ir_out(node)->type.rank - 1;
    TRY(shard_whole(sharding, ir_in(node, 0), &in[0]));
    TRY(shard_part(sharding, ir_in(node, 1), &of_weight, &in[1]));
    for (int i = 2; i < product->operands; i++) TRY(shard_whole(sharding, ir_in(node, i), &in[i]));
    for (int i = product->operands; i < node->n_in; i++) TRY(post_operand(sharding, ir_in(node, i), columns, &in[i]));
    TRY(ir_emit(sharding->graph, node->op, node->n_in, in, node->attrs.count, node->attrs.items, &made));
    return shard_replace(sharding, product->node, &of_result, made->node);
}

/* ---- along k ---- */

/* An operand of post, on the sum of all ranks; tokens >= 0: on that of the rank's tokens, which lie along that axis of the result. */
static dw_status post_of_sum(sharding *sharding, const ir_node *node, ir_value *value, int tokens, ir_value **part) {
    const op_type *y = &ir_out(node)->type;
    const int axis = tokens + value->type.rank - y->rank;
    if (tokens < 0 || axis < 0 || value->type.dims[axis] != y->dims[tokens]) return shard_whole(sharding, value, part);
    return shard_tokens_part(sharding, value, axis, part);
}

/* What the list does, on the sum. */
static dw_status emit_post(sharding *sharding, const product *product, int tokens, ir_value *y, ir_value **result) {
    ir_graph *graph = sharding->graph;
    const ir_node *node = product->node;
    const dw_format format = ir_out(node)->type.format;
    int next = product->operands;
    if (format != DW_FORMAT_f64) TRY(ir_emit_cast(graph, y, DW_FORMAT_f32, &y));
    for (int i = 0; i < product->post.count; i++) {
        const op_post step = product->post.steps[i];
        ir_value *x;
        if (op_post_operand_of(step) == OP_POST_NONE) {
            TRY(ir_emit_1(graph, op_post_op(step), y, &y));
            continue;
        }
        TRY(post_of_sum(sharding, node, ir_in(node, next++), tokens, &x));
        TRY(ir_emit_cast(graph, x, y->type.format, &x));
        TRY(ir_emit_2(graph, op_post_op(step), y, x, &y));
    }
    return ir_emit_cast(graph, y, format, result);
}

/* tokens: the axis of the result between whose elements the sum is cut; -1: each rank has all of it. */
static dw_status emit_rows(sharding *sharding, const product *product, const shard_place *k, int tokens) {
    ir_graph *graph = sharding->graph;
    const ir_node *node = product->node;
    ir_value *in[3], *made, *sum;
    op_attr attrs[OP_ATTR_COUNT];
    int count = 0;
    shard_place of_a = *k, of_weight = *k;
    const shard_place whole = {.kind = SHARD_WHOLE, .repeat = 1}, partial = {.kind = SHARD_PARTIAL, .by_tokens = tokens >= 0, .repeat = 1}, by_tokens = shard_tokens_of(tokens);
    of_a.axis = ir_in(node, 0)->type.rank - 1;
    of_weight.axis = shard_k_axis(node);
    TRY(shard_part(sharding, ir_in(node, 0), &of_a, &in[0]));
    TRY(shard_part(sharding, ir_in(node, 1), &of_weight, &in[1]));
    for (int i = 2; i < product->operands; i++) TRY(shard_whole(sharding, ir_in(node, i), &in[i]));
    const bool widens = ir_out(node)->type.format == DW_FORMAT_f16 || shard_is_narrow(ir_out(node)->type.format);   /* a term may leave its range though the sum does not */
    for (int i = 0; i < node->attrs.count; i++)
        if (node->attrs.items[i].id != OP_ATTR_post && !(widens && node->attrs.items[i].id == OP_ATTR_to)) attrs[count++] = node->attrs.items[i];
    if (widens) attrs[count++] = op_set_format(OP_ATTR_to, DW_FORMAT_f32);
    TRY(ir_emit(graph, node->op, product->operands, in, count, attrs, &made));
    if (product->post.count == 0 && !widens) return shard_replace(sharding, product->node, &partial, made->node);
    if (tokens >= 0) TRY(shard_scatter(sharding, made, tokens, &sum));
    else TRY(shard_sum(sharding, made, "sum", &sum));
    TRY(emit_post(sharding, product, tokens, sum, &sum));
    return shard_replace(sharding, product->node, tokens >= 0 ? &by_tokens : &whole, sum->node);
}

/* Steps of groups, and those that halve, are the product's alone; so are those that would make another number of the 0 of rows in no group. */
static bool has_steps_of_its_own(const product *product) {
    const ir_node *node = product->node;
    if (product->halves) return true;
    for (int i = 0; node->op == OP_grouped_matmul && i < product->post.count; i++)
        if (product->post.steps[i] != OP_POST_mul) return true;
    for (int i = product->operands; node->op == OP_grouped_matmul && i < node->n_in; i++)
        if (ir_in(node, i)->type.rank > 1) return true;
    return false;
}

/* ---- the choice ---- */

/* Does the result, through steps on each element, come out of the graph? */
static bool comes_out(const ir_value *value, int steps) {
    if (value->output_count > 0) return true;
    for (const ir_use *use = value->uses; use != NULL && steps > 0; use = use->next) {
        const unsigned traits = op_get(use->node->op)->traits;
        if (((traits & (OP_TRAIT_POINTWISE | OP_TRAIT_VIEW)) != 0 || use->node->op == OP_argmax) && comes_out(ir_out(use->node), steps - 1)) return true;
    }
    return false;
}

bool shard_is_logits(const sharding *sharding, const ir_node *node) {
    enum { STEPS = 8 };
    return node->op == OP_matmul && comes_out(ir_out(node), STEPS) && shard_is_large(sharding, ir_in(node, 1));
}

static dw_status fail_split(sharding *sharding, const ir_node *node, const char *split, const char *rule, const char *why, long long size, long long unit, const char *todo) {
    const char *module = node->origin.module != NULL && node->origin.module[0] != '\0' ? node->origin.module : op_get(node->op)->name;
    return base_fail(sharding->graph->context, DW_INVALID, "shard: %s cannot be cut by %s over %d ranks (%s): %s (%lld elements, in units of %lld); %s", module, split, sharding->ranks, rule, why, size, unit, todo);
}

/* Columns in units of whole heads and blocks. pays: also where the result has to be put together. place->local 0: they are not cut. */
static dw_status choose_columns(sharding *sharding, const product *product, pass_split split, bool pays, const char *rule, shard_place *place, const char **because) {
    ir_node *node = product->node;
    const int last = ir_out(node)->type.rank - 1;
    const shard_wish wish = shard_wish_of(sharding, ir_out(node), last);
    const bool logits = shard_is_logits(sharding, node), asked = split != PASS_SPLIT_chosen;
    int64_t size, unit = wish.good ? wish.unit : 1;
    *place = (shard_place){0};
    *because = product->halves ? "its steps take pairs of columns" : "what reads it needs all of it";
    if (!shard_constant_size(ir_out(node), last, &size) || product->halves || (!asked && !pays && !wish.good && !logits)) {
        return asked ? fail_split(sharding, node, pass_split_name(split), rule, *because, 0, 1, "leave it whole") : DW_OK;
    }
    const int64_t rows = shard_n_unit(sharding, node);
    if (unit % rows != 0 && rows % unit == 0) unit = rows;
    else if (unit % rows != 0) unit *= rows;
    const int64_t parts = sharding->ranks / (wish.good ? wish.repeat : 1);
    if (base_ceil_div(size, unit) < parts) {
        *because = "there are fewer units than ranks";
        return asked ? fail_split(sharding, node, pass_split_name(split), rule, *because, size, unit, "take a smaller mesh, or leave it whole") : DW_OK;
    }
    *place = shard_place_of(sharding, shard_n_axis(node), size, unit, wish.good ? wish.repeat : 1);
    if (!shard_can_be_cut(sharding, ir_in(node, 1), place)) {
        place->local = 0;
        *because = "its weight comes in blocks, and ranks do not divide it";
        return asked ? fail_split(sharding, node, pass_split_name(split), rule, *because, size, unit, "take a mesh that does, or leave it whole") : DW_OK;
    }
    *because = logits && !wish.good ? "logits: by vocabulary" : wish.repeat > 1 ? "ranks beside each other share it" : "its readers go on with their part";
    place->axis = last;
    return DW_OK;
}

static bool asks_for_rows(pass_split split) { return split == PASS_SPLIT_row || split == PASS_SPLIT_tokens; }

/* Along k: the operand is split so already, or it is asked for. */
static dw_status find_rows(sharding *sharding, const product *product, pass_split split, const char *rule, shard_place *place) {
    const ir_node *node = product->node;
    const shard_record *a = shard_of(sharding, ir_in(node, 0));
    const int last = ir_in(node, 0)->type.rank - 1;
    const int64_t unit = shard_k_unit(node);
    int64_t size;
    const bool is_split = a->place.kind == SHARD_SPLIT && a->place.axis == last && a->place.repeat == 1;
    *place = (shard_place){0};
    if (has_steps_of_its_own(product)) return asks_for_rows(split) ? fail_split(sharding, node, pass_split_name(split), rule, "its steps belong to groups or take pairs of columns", 0, 1, "leave it whole") : DW_OK;
    if (is_split && a->place.local % unit == 0) return *place = a->place, DW_OK;
    /* One scale a row is of all ranks' parts together: the whole is quantised, and each rank takes its part of that. */
    const shard_place *source = &a->source;
    if (source->kind == SHARD_SPLIT && source->axis == last && source->repeat == 1 && source->local % unit == 0) return *place = *source, DW_OK;
    if (!asks_for_rows(split)) return DW_OK;
    if (!shard_constant_size(ir_in(node, 0), last, &size)) return fail_split(sharding, node, pass_split_name(split), rule, "k is no fixed size", 0, unit, "leave it whole");
    if (base_ceil_div(size, unit) < sharding->ranks) return fail_split(sharding, node, pass_split_name(split), rule, "there are fewer blocks along k than ranks", size, unit, "take a smaller mesh, or leave it whole");
    *place = shard_place_of(sharding, last, size, unit, 1);
    if (!shard_can_be_cut(sharding, ir_in(node, 0), place)) return fail_split(sharding, node, pass_split_name(split), rule, "its operand comes in blocks, and ranks do not divide it", size, unit, "take a mesh that does, or leave it whole");
    return DW_OK;
}

static dw_status choose_rows(sharding *sharding, const product *product, pass_split split, const char *rule, shard_place *place) {
    ir_node *node = product->node;
    TRY(find_rows(sharding, product, split, rule, place));
    shard_place of_weight = *place;
    of_weight.axis = shard_k_axis(node);
    if (place->local == 0 || shard_can_be_cut(sharding, ir_in(node, 1), &of_weight)) return DW_OK;
    place->local = 0;
    return asks_for_rows(split) ? fail_split(sharding, node, pass_split_name(split), rule, "its weight comes in blocks, and ranks do not divide it", place->size, shard_k_unit(node), "take a mesh that does, or leave it whole") : DW_OK;
}

/* A result that is quantised in place: its scales are of all columns' sums. */
static dw_status keep_blocks(sharding *sharding, const ir_node *node, pass_split split, const char *rule) {
    if (split != PASS_SPLIT_chosen && split != PASS_SPLIT_whole) return fail_split(sharding, node, pass_split_name(split), rule, "its result comes in blocks", 0, 1, "leave it whole");
    shard_tell(sharding, node, "whole", "its result comes in blocks");
    return DW_OK;
}

/* Is the sum cut by tokens, and along which axis? -1: it is not. */
static dw_status choose_tokens(sharding *sharding, const product *product, pass_split split, pass_split preferred, const char *rule, int *tokens) {
    const ir_node *node = product->node;
    const bool wanted = pass_splits_sums(sharding->splits) == PASS_SPLIT_tokens || preferred == PASS_SPLIT_tokens || (sharding->trial != NULL && sharding->trial->by_tokens);
    const bool chosen = split == PASS_SPLIT_chosen && wanted;
    *tokens = node->op == OP_matmul && (chosen || split == PASS_SPLIT_tokens) ? shard_tokens_axis(ir_out(node)) : -1;
    return split == PASS_SPLIT_tokens && *tokens < 0 ? fail_split(sharding, node, "tokens", rule, "its result has no rows of tokens", 0, 1, "cut it by row") : DW_OK;
}

/* *columns: along k it could be cut, and is by columns. */
static dw_status try_rows(sharding *sharding, const product *product, pass_split split, const char *rule, bool *columns, bool *done) {
    const char *found;
    shard_place place;
    int tokens;
    const pass_split preferred = shard_preferred(sharding->splits, product->node->origin.module, &found);
    *columns = false;
    if (split == PASS_SPLIT_whole || split == PASS_SPLIT_column) return DW_OK;
    TRY(choose_rows(sharding, product, split, rule, &place));
    if (place.local == 0) return DW_OK;
    *columns = split == PASS_SPLIT_chosen && (preferred == PASS_SPLIT_column || (sharding->trial != NULL && sharding->trial->by_columns));
    if (*columns) return DW_OK;
    *done = true;
    TRY(choose_tokens(sharding, product, split, preferred, rule, &tokens));
    shard_explain(sharding, product->node, tokens >= 0 ? "tokens" : "row", rule != NULL ? rule : "its operand is split along k", rule != NULL ? NULL : found);
    return emit_rows(sharding, product, &place, tokens);
}

static dw_status try_columns(sharding *sharding, const product *product, pass_split split, bool pays, const char *rule, bool *done) {
    ir_node *node = product->node;
    const char *because = rule, *found;
    shard_place place;
    if (split == PASS_SPLIT_whole) return shard_tell(sharding, node, "whole", rule), DW_OK;
    TRY(choose_columns(sharding, product, split, pays, rule, &place, &because));
    shard_preferred(sharding->splits, node->origin.module, &found);
    if (rule != NULL) because = rule, found = NULL;
    if (place.local == 0) return shard_explain(sharding, node, "whole", because, NULL), DW_OK;
    *done = true;
    if (pays && rule == NULL && found != NULL) because = found, found = NULL;
    shard_explain(sharding, node, shard_is_logits(sharding, node) ? "vocabulary" : "column", because, found);
    return emit_columns(sharding, product, &place);
}

dw_status shard_product(sharding *sharding, ir_node *node, bool *done) {
    product product;
    const char *rule;
    bool pays;
    if (!shard_is_weighted(node)) return DW_OK;
    TRY(read(sharding, node, &product));
    const shard_record *a = shard_of(sharding, ir_in(node, 0));
    if (a->place.kind == SHARD_EXPERTS) return DW_OK;
    pass_split split = pass_splits_choose(sharding->splits, node->origin.module, node->origin.role, &rule);
    if (dw_format_is_block(ir_out(node)->type.format)) return keep_blocks(sharding, node, split, rule);
    if (split == PASS_SPLIT_chosen && shard_preferred(sharding->splits, node->origin.module, &rule) == PASS_SPLIT_whole) split = PASS_SPLIT_whole;
    else if (split == PASS_SPLIT_chosen) rule = NULL;
    TRY(try_rows(sharding, &product, split, rule, &pays, done));
    if (*done) return DW_OK;
    if (split != PASS_SPLIT_whole && a->place.kind == SHARD_SPLIT && a->place.axis < ir_in(node, 0)->type.rank - 1) return DW_OK;   /* rows of it are other ranks' */
    return try_columns(sharding, &product, split, pays, rule, done);
}
