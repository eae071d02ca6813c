/* Masks and biases of an attention become attributes as far as their formulas say so.
 *
 *     %9 = le k_positions, q_positions; .. %14 = and %12, %13; attention q, k, v, %14
 *     %15 = reshape (ne attention_mask, 0) [b,1,1,t]; attention q, k, v, %15 {causal=true}
 *
 * A part that varies with the key alone is written out small; a part that varies with both stays explicit, and a note says why. */
#include "pass/attention/attention.h"
#include "pass/pass.h"

#include <math.h>

enum { MAX_PARTS = 16 };

/* What the operands of one attention have come to. */
typedef struct reading {
    value_analysis *analysis;
    ir_node *node;
    dim dims[4];                     /* of the scores: b, h, s, t */
    bool causal, reads;              /* reads: something became an attribute, went away or shrank */
    bool finite, blinds;             /* finite numbers became a mask; a part may leave a query without a key */
    int64_t window, ahead;
    value_expr seen;                 /* conjunction of the parts that stay; NULL: none */
    ir_value *masks[MAX_PARTS], *biases[MAX_PARTS];  /* that stay as they are */
    int mask_count, bias_count;
} reading;

static bool is_size(dim size, int64_t number) {
    int64_t constant;
    return dim_is_constant(size, &constant) && constant == number;
}

/* The formula of an operand over the indices of the scores; NULL when it has none. */
static value_expr formula_over_scores(reading *reading, const ir_value *value) {
    const value_formula *formula = value_of(reading->analysis, value);
    value_expr map[DW_MAX_RANK] = {NULL};
    if (formula == NULL || formula->rank > 4) return NULL;
    value_set_scope(reading->analysis, 4, reading->dims);
    for (int i = 0; i < formula->rank; i++) {
        const int axis = i + 4 - formula->rank;
        map[i] = is_size(formula->dims[i], 1) ? value_int(reading->analysis, 0) : value_index(reading->analysis, axis);
    }
    return value_substitute(reading->analysis, formula->expr, map);
}

static dw_status keep(reading *reading, ir_value **list, int *count, ir_value *value) {
    if (*count == MAX_PARTS) {
        return base_fail(reading->analysis->graph->context, DW_LIMIT, "attention adds more than %d masks or biases; add them up before it", MAX_PARTS);
    }
    list[(*count)++] = value;
    return DW_OK;
}

static void limit(int64_t *limit, int64_t value) {
    if (value != 0 && (*limit == 0 || value < *limit)) *limit = value;
}

/* Does the part hide keys whoever asks, as padding? Then a query is without a key only where all that it could see is padding, and no result of that is read. */
static bool is_padding(value_expr part) { return (part->axes & 8) != 0 && (part->axes & 4) == 0; }

/* May the part leave a query without a key, other than by padding? One that lets each query see its own position leaves none without. */
static bool part_may_blind(value_analysis *analysis, value_expr part) {
    double truth;
    value_expr map[DW_MAX_RANK] = {NULL};
    if ((part->axes & 8) == 0) return true;       /* all keys or none */
    if (is_padding(part)) return false;
    map[3] = value_index(analysis, 2);
    const value_expr own = value_substitute(analysis, part, map);
    return own == NULL || !value_is_number(own, &truth) || truth == 0;
}

/* Takes over what mask_read found. */
static dw_status add_mask(reading *reading, const mask *mask) {
    value_analysis *analysis = reading->analysis;
    reading->causal |= mask->causal;
    limit(&reading->window, mask->window);
    limit(&reading->ahead, mask->ahead);
    for (int i = 0; i < mask->part_count; i++) {
        reading->blinds = reading->blinds || part_may_blind(analysis, mask->parts[i]);
        reading->seen = reading->seen == NULL ? mask->parts[i] : value_and(analysis, reading->seen, mask->parts[i]);
        if (reading->seen == NULL) {
            TRY(value_status(analysis));
            return base_fail(analysis->graph->context, DW_LIMIT, "the conjunction of an attention's masks is too large");
        }
    }
    return DW_OK;
}

static bool has_limits(const mask *mask) {
    return mask->causal || mask->window != 0 || mask->ahead != 0;
}

/* A broadcast costs nothing to undo: masks and biases broadcast anyway. */
static ir_value *without_broadcast(ir_value *value) {
    for (const ir_node *node = ir_def(value, OP_broadcast); node != NULL; node = ir_def(value, OP_broadcast)) value = ir_in(node, 0);
    return value;
}

static bool varies_with_both(const ir_value *value) {
    const op_type *type = &value->type;
    return type->rank >= 2 && !is_size(type->dims[type->rank - 1], 1) && !is_size(type->dims[type->rank - 2], 1);
}

/* Do the parts together vary with the query and the key? */
static bool are_large(const mask *mask) {
    unsigned axes = 0;
    for (int i = 0; i < mask->part_count; i++) axes |= mask->parts[i]->axes;
    return (axes & 4) != 0 && (axes & 8) != 0;
}

static dw_status read_mask(reading *reading, ir_value *value) {
    const value_expr x = formula_over_scores(reading, value);
    mask mask;
    bool known = false;
    if (x != NULL) TRY(mask_read(reading->analysis, x, 4, reading->dims, &mask, &known));
    const ir_node *both = ir_def(value, OP_and);
    if (!known && both != NULL) {
        TRY(read_mask(reading, ir_in(both, 0)));
        return read_mask(reading, ir_in(both, 1));
    }
    const bool kept = known && !has_limits(&mask) && mask.part_count > 0 && (are_large(&mask) || !varies_with_both(value));
    if (!known || mask.never || kept) return keep(reading, reading->masks, &reading->mask_count, without_broadcast(value));
    reading->reads = true;
    return add_mask(reading, &mask);
}

/* The truth under which a value is not hidden, and the value there: where(c, x, -inf), where(c, -inf, x). */
static bool open_where(const ir_value *value, ir_value **condition, ir_value **inner, bool *negated) {
    const ir_node *node = ir_def(value, OP_where);
    double number;
    if (node == NULL) return false;
    for (int arm = 1; arm <= 2; arm++) {
        if (!ir_is_scalar(ir_in(node, arm), &number) || number != -INFINITY) continue;
        *condition = ir_in(node, 0);
        *inner = ir_in(node, 3 - arm);
        *negated = arm == 1;
        return true;
    }
    return false;
}

static dw_status read_bias(reading *reading, ir_value *value);

/* May a query be left without a key, other than by padding? */
static bool may_blind(value_analysis *analysis, const mask *mask) {
    for (int i = 0; i < mask->part_count; i++)
        if (part_may_blind(analysis, mask->parts[i])) return true;
    return false;
}

/* May what else hides keys leave a query none but those that finite numbers hide? Masks without a formula may, unless they are the same for all queries. */
static bool others_may_blind(const reading *reading) {
    for (int i = 0; i < reading->mask_count; i++) {
        const op_type *type = &reading->masks[i]->type;
        if (type->rank < 1 || is_size(type->dims[type->rank - 1], 1) || (type->rank >= 2 && !is_size(type->dims[type->rank - 2], 1))) return true;
    }
    return reading->blinds;
}

/* A row of padding alone, which finite numbers hide, would average it; as a mask it gives zeros. */
static dw_status note_padding(ir_graph *graph, const mask *mask) {
    bool pads = false;
    for (int i = 0; i < mask->part_count; i++) pads = pads || is_padding(mask->parts[i]);
    if (!mask->finite || !pads) return DW_OK;
    return ir_set_note(graph, PASS_PADDING, "a query that sees padding alone gets zeros from attention, not the mean of what its mask's finite numbers hide");
}

/* Where hidden scores are finite, a row of nothing else averages all keys; a mask operand would give it zeros. */
static bool is_finite_where(const ir_value *value) {
    const ir_node *node = ir_def(value, OP_where);
    double number;
    for (int arm = 1; node != NULL && arm <= 2; arm++) {
        if (ir_is_scalar(ir_in(node, arm), &number) && isfinite(number) && (number <= -1e30 || number == -65504)) return true;
    }
    return false;
}

/* Parts without a formula: sums and choices are taken apart, the rest is kept. */
static dw_status read_unknown_bias(reading *reading, ir_value *value) {
    ir_graph *graph = reading->analysis->graph;
    ir_value *condition, *inner;
    bool negated;
    const ir_node *node = ir_def(value, OP_add);
    if (node != NULL) {
        TRY(read_bias(reading, ir_in(node, 0)));
        return read_bias(reading, ir_in(node, 1));
    }
    if (is_finite_where(value)) return keep(reading, reading->biases, &reading->bias_count, value);
    if (open_where(value, &condition, &inner, &negated)) {
        if (negated) {
            const value_expr x = formula_over_scores(reading, condition);
            const value_expr shown = value_not(reading->analysis, x);
            mask mask;
            bool known = false;
            if (shown != NULL) TRY(mask_read(reading->analysis, shown, 4, reading->dims, &mask, &known));
            if (known && !mask.never) {
                TRY(add_mask(reading, &mask));
            } else {
                ir_cursor_before(graph, reading->node);
                TRY(ir_emit_1(graph, OP_not, condition, &condition));
                TRY(keep(reading, reading->masks, &reading->mask_count, condition));
            }
        } else {
            TRY(read_mask(reading, condition));
        }
        reading->reads = true;
        return read_bias(reading, inner);
    }
    return keep(reading, reading->biases, &reading->bias_count, without_broadcast(value));
}

static dw_status read_bias(reading *reading, ir_value *value) {
    value_analysis *analysis = reading->analysis;
    ir_graph *graph = analysis->graph;
    value = without_broadcast(value);
    const value_expr x = formula_over_scores(reading, value);
    mask mask;
    bool known = false;
    if (x != NULL) TRY(mask_read(analysis, x, 4, reading->dims, &mask, &known));
    TRY(value_status(analysis));
    if (!known || mask.never) return read_unknown_bias(reading, value);
    const bool overcome = mask.weak && value->type.format != DW_FORMAT_f16;   /* scores of wider formats may be as far apart */
    if (overcome || (mask.finite && may_blind(analysis, &mask))) return keep(reading, reading->biases, &reading->bias_count, value);

    const bool masked = has_limits(&mask) || mask.part_count > 0;
    if (!masked && mask.bias == NULL) {
        reading->reads = true;
        return DW_OK;
    }
    if (ir_def(value, OP_add) != NULL && mask.bias != NULL) return read_unknown_bias(reading, value);
    const bool shrinks = mask.bias != NULL && varies_with_both(value) && !mask_is_large(mask.bias, 4);
    if (!masked && !shrinks) return keep(reading, reading->biases, &reading->bias_count, value);
    ir_value *bias = NULL;
    if (mask.bias != NULL) {
        ir_cursor_before(graph, reading->node);
        TRY(value_emit(analysis, mask.bias, 4, reading->dims, value->type.format, &bias));
        if (bias == NULL) return keep(reading, reading->biases, &reading->bias_count, value);
        TRY(keep(reading, reading->biases, &reading->bias_count, bias));
    }
    reading->reads = true;
    reading->finite |= masked && mask.finite;
    TRY(note_padding(graph, &mask));
    return add_mask(reading, &mask);
}

static dw_status join(ir_graph *graph, op_id op, ir_value *const *parts, int count, ir_value **joined) {
    *joined = count == 0 ? NULL : parts[0];
    for (int i = 1; i < count; i++) TRY(ir_emit_2(graph, op, *joined, parts[i], joined));
    return DW_OK;
}

static dw_status note_mask(const reading *reading, const ir_value *mask) {
    ir_graph *graph = reading->analysis->graph;
    const char *reason = "it depends on both query and key";
    const ir_node *stop = mask == NULL ? NULL : value_stop(reading->analysis, mask, &reason);
    if (stop == NULL) return attention_note(graph, reading->node, "keeps an explicit mask because %s", reason);
    const char *module = stop->origin.module == NULL ? "the graph" : stop->origin.module;
    return attention_note(graph, reading->node, "keeps an explicit mask because of %s in %s: %s", op_get(stop->op)->name, module, reason);
}

/* The operands as they are to be; the parts that have a formula are written out, small ones and large ones alike. *written is false when
 * some part cannot be: then the operands stay, and the limits only repeat what they say. */
static dw_status write_operands(reading *reading, ir_value **mask, ir_value **bias, bool *written) {
    value_analysis *analysis = reading->analysis;
    ir_graph *graph = analysis->graph;
    ir_cursor_before(graph, reading->node);
    if (reading->seen != NULL) {
        ir_value *seen;
        TRY(value_emit(analysis, reading->seen, 4, reading->dims, DW_FORMAT_bool, &seen));
        *written = seen != NULL;
        if (mask_is_large(reading->seen, 4) || !*written) TRY(note_mask(reading, NULL));
        if (!*written) return DW_OK;
        TRY(keep(reading, reading->masks, &reading->mask_count, seen));
    }
    *written = true;
    TRY(join(graph, OP_and, reading->masks, reading->mask_count, mask));
    return join(graph, OP_add, reading->biases, reading->bias_count, bias);
}

/* Do the limits that were read add to those of the node? */
static bool sharpens(const reading *reading) {
    const ir_node *node = reading->node;
    const int64_t window = ir_int(node, OP_ATTR_window);
    return (reading->causal && !ir_bool(node, OP_ATTR_causal)) || (reading->window != 0 && (window == 0 || reading->window < window));
}

/* The attention with these operands, absent ones at the end left out, and the limits among its attributes. */
static dw_status replace_node(const reading *reading, ir_value *mask, ir_value *bias) {
    ir_graph *graph = reading->analysis->graph;
    ir_node *node = reading->node;
    ir_value *in[ATTENTION_OPERANDS] = {NULL}, *result;
    for (int i = 0; i < node->n_in; i++) in[i] = ir_in(node, i);
    in[ATTENTION_MASK] = mask;
    in[ATTENTION_BIAS] = bias;
    int n_in = ATTENTION_OPERANDS;
    while (in[n_in - 1] == NULL) n_in--;

    op_attr attrs[OP_ATTR_COUNT];
    int count = 0;
    int64_t window = ir_int(node, OP_ATTR_window), ahead = ir_int(node, OP_ATTR_ahead);
    limit(&window, reading->window);
    limit(&ahead, reading->ahead);
    const bool causal = reading->causal || ir_bool(node, OP_ATTR_causal);
    for (int i = 0; i < node->attrs.count; i++) {
        const op_attr_id id = node->attrs.items[i].id;
        if (id != OP_ATTR_causal && id != OP_ATTR_window && id != OP_ATTR_ahead) attrs[count++] = node->attrs.items[i];
    }
    if (causal) attrs[count++] = op_set_bool(OP_ATTR_causal, true);
    if (window != 0) attrs[count++] = op_set_int(OP_ATTR_window, window);
    if (ahead != 0 && !causal) attrs[count++] = op_set_int(OP_ATTR_ahead, ahead);
    ir_cursor_before(graph, node);
    TRY(ir_emit(graph, OP_attention, n_in, in, count, attrs, &result));
    ir_replace(graph, ir_out(node), result);
    return ir_remove(graph, node);
}

dw_status attention_read_masks(value_analysis *analysis, ir_node *node, bool *changed) {
    ir_value *mask = ir_in(node, ATTENTION_MASK), *bias = ir_in(node, ATTENTION_BIAS);
    const bool placed = ir_in(node, ATTENTION_ROW) != NULL || ir_in(node, ATTENTION_POSITION) != NULL || ir_in(node, ATTENTION_TABLE) != NULL;   /* masks are of texts and positions then, not of the scores' axes */
    if ((mask == NULL && bias == NULL) || placed || op_attrs_get(&node->attrs, OP_ATTR_offset) != NULL) return DW_OK;
    const op_type *q = &ir_in(node, ATTENTION_Q)->type, *k = &ir_in(node, ATTENTION_K)->type;
    reading reading = {.analysis = analysis, .node = node, .dims = {q->dims[0], q->dims[1], q->dims[2], k->dims[2]}};
    if (mask != NULL) TRY(read_mask(&reading, mask));
    if (bias != NULL) TRY(read_bias(&reading, bias));
    TRY(value_status(analysis));
    for (int i = 0; i < reading.mask_count; i++) {
        if (varies_with_both(reading.masks[i])) TRY(note_mask(&reading, reading.masks[i]));
    }
    if (!reading.reads || (reading.finite && others_may_blind(&reading))) return DW_OK;
    bool written;
    TRY(write_operands(&reading, &mask, &bias, &written));
    if (!written && !sharpens(&reading)) return DW_OK;
    TRY(replace_node(&reading, mask, bias));
    *changed = true;
    return DW_OK;
}
