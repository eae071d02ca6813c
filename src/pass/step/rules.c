/* What each op does to labels: where the axes of its operands go. Axes that an op works along may hold no tokens. Ops that shift, sum or pick along the
 * sequence are refused, except forms that keep to the prefix (positions, tables cut to length, running sums of passive values). */
#include "pass/step/stepper.h"

enum { MAX_OPERANDS = 64 };

/* ---- maps ------------------------------------------------------------------------------------------------------------ */

static step_map no_axes(void) {
    step_map map;
    for (int i = 0; i < DW_MAX_RANK; i++) map.to[i] = STEP_DROP;
    return map;
}

/* Aligned from the right, as broadcasting does, but for the last `without` axes. */
static step_map aligned(const ir_node *node, int index, int without) {
    step_map map = no_axes();
    const int rank = ir_in(node, index)->type.rank, shift = ir_out(node)->type.rank - rank;
    for (int i = 0; i < rank - without; i++) map.to[i] = (int8_t)(i + shift);
    return map;
}

static step_map aligned_but(const ir_node *node, int index, int axis) {
    step_map map = aligned(node, index, 0);
    map.to[axis] = STEP_DROP;
    return map;
}

static bool is_attr(const ir_node *node, op_attr_id id, dim size) {
    return op_attr_dim(&node->attrs, id) == size;
}

/* Only the axes along which the operand runs over tokens: gather and scatter let the others be shorter. */
static step_map only_sequences(step_map map, const ir_value *value) {
    for (int i = 0; i < value->type.rank; i++) {
        if (step_axis_sequences(&step_of(value)->label.axes[i]) == 0 && map.to[i] >= 0) map.to[i] = STEP_DROP;
    }
    return map;
}

/* ---- rules of single ops ------------------------------------------------------------------------------------------------ */

static dw_status rule_slice(stepper *stepper, const ir_node *node, step_record *record) {
    dw_context *context = stepper->graph->context;
    dim_table *table = stepper->graph->dims;
    const int axis = (int)ir_int(node, OP_ATTR_axis);
    const step_record *operand = step_of(ir_in(node, 0));
    const dim start = op_attr_dim(&node->attrs, OP_ATTR_start), end = op_attr_dim(&node->attrs, OP_ATTR_end);
    step_map map = aligned(node, 0, 0);
    dim zero, one, last, size;
    bool start_uses, end_uses;
    TRY_DIM(context, zero, dim_constant(table, 0));
    TRY_DIM(context, one, dim_constant(table, 1));
    TRY_DIM(context, last, dim_sub(table, stepper->length, one));
    TRY_DIM(context, size, dim_sub(table, end, start));
    TRY(step_uses_length(stepper, start, &start_uses));
    TRY(step_uses_length(stepper, end, &end_uses));
    if (step_axis_sequences(&operand->label.axes[axis]) == 0) {
        map.to[axis] = STEP_DROP;
        record->shifts = end_uses && !start_uses && size == stepper->length && ir_int(node, OP_ATTR_step) == 1;
        if (operand->active && record->shifts) return step_refuse(stepper, record, node, "it is cut to the sequence length");
        return step_join(stepper, node, &map, record->shifts, record);
    }
    const bool alone = operand->label.axes[axis].count == 1, ends = end == stepper->length;
    if (alone && start == zero && ends && ir_int(node, OP_ATTR_step) == 1) return step_join(stepper, node, &map, false, record);
    if (!alone || start != last || !ends || !operand->active) return step_refuse(stepper, record, node, "it takes a part of the sequence");
    /* The last token: of the new ones, whatever their number. */
    const int number = step_first_sequence(&operand->label, axis);
    record->label = (step_label){.rank = operand->label.rank};
    for (int i = 0; i < operand->label.rank; i++) {
        if (i != axis) record->label.axes[i] = operand->label.axes[i];
    }
    for (int i = 0; i < operand->label.sequences; i++) {
        if (i != number) record->label.kinds[record->label.sequences++] = operand->label.kinds[i];
    }
    if (operand->label.kinds[number] != STEP_NEW) return step_refuse(stepper, record, node, "it takes a part of the sequence");
    return DW_OK;
}

static dw_status rule_transpose(stepper *stepper, const ir_node *node, step_record *record) {
    const int64_t *order;
    const int rank = op_attr_ints(&node->attrs, OP_ATTR_order, &order);
    step_map map = no_axes();
    for (int i = 0; i < rank; i++) map.to[order[i]] = (int8_t)i;
    return step_join(stepper, node, &map, false, record);
}

static dw_status rule_iota(stepper *stepper, const ir_node *node, step_record *record) {
    bool uses;
    TRY(step_uses_length(stepper, op_attr_dim(&node->attrs, OP_ATTR_start), &uses));
    if (uses) return step_refuse(stepper, record, node, "its first number depends on the sequence length");
    TRY(step_uses_length(stepper, op_attr_dim(&node->attrs, OP_ATTR_length), &uses));
    record->shifts = is_attr(node, OP_ATTR_length, stepper->length);
    if (uses && !record->shifts) {
        int64_t start;
        const bool counts = dim_is_constant(op_attr_dim(&node->attrs, OP_ATTR_start), &start) && start == 0 && ir_int(node, OP_ATTR_step) == 1;
        if (!counts) return step_refuse(stepper, record, node, "it numbers flattened tokens");
        record->meaning = STEP_FLAT;
    }
    return step_join(stepper, node, NULL, true, record);
}

static dw_status rule_size(stepper *stepper, const ir_node *node, step_record *record) {
    bool uses;
    TRY(step_uses_length(stepper, op_attr_dim(&node->attrs, OP_ATTR_size), &uses));
    if (uses) return step_refuse(stepper, record, node, "it uses the sequence length as a number");
    return step_join(stepper, node, NULL, false, record);
}

static dw_status rule_reduce(stepper *stepper, const ir_node *node, step_record *record) {
    const int64_t *axes, one_axis = ir_int(node, OP_ATTR_axis);
    int count = op_attr_ints(&node->attrs, OP_ATTR_axes, &axes);
    if (node->op == OP_argmax || node->op == OP_argmin) {
        axes = &one_axis;
        count = 1;
    }
    step_map map = no_axes();
    int kept = 0;
    for (int i = 0; i < ir_in(node, 0)->type.rank; i++) {
        bool reduced = false;
        for (int j = 0; j < count; j++) reduced = reduced || axes[j] == i;
        if (!reduced) map.to[i] = (int8_t)kept;
        kept += !reduced || ir_bool(node, OP_ATTR_keep);
    }
    return step_join(stepper, node, &map, false, record);
}

static bool reads_input(value_expr x) {
    if (x->kind == VALUE_LOOKUP && x->source->kind == IR_INPUT) return true;
    for (int i = 0; i < x->count; i++) {
        if (reads_input(x->args[i])) return true;
    }
    return false;
}

/* May an index of a lookup along the sequence count from the end, so that it means another place at another length? What the caller gives
 * is taken to be a place. */
static dw_status check_places(stepper *stepper, const ir_node *node, int axis, step_record *record) {
    const step_record *table = step_of(ir_in(node, 0));
    const int count = node->op == OP_index ? node->n_in - 1 : 1;
    for (int i = 0; i < count; i++) {
        const value_formula *formula = value_of(stepper->analysis, ir_in(node, i + 1));
        dim low, high, none;
        if (step_axis_sequences(&table->label.axes[axis + i]) == 0) continue;
        if (formula == NULL) return step_refuse(stepper, record, node, "where it looks up the sequence is not known");
        TRY_DIM(stepper->graph->context, none, dim_constant(stepper->graph->dims, 0));
        value_set_scope(stepper->analysis, formula->rank, formula->dims);
        const bool known = value_range(stepper->analysis, formula->expr, &low, &high);
        TRY(value_status(stepper->analysis));
        const bool is_place = known ? dim_always_le(stepper->graph->dims, none, low) : reads_input(formula->expr);
        if (!is_place) return step_refuse(stepper, record, node, "it looks up the sequence from its end");
    }
    return DW_OK;
}

/* x[.., i, ..]: the looked-up axis gives way to the index's. Passive tables over tokens are looked up in all of their history. */
static dw_status rule_take(stepper *stepper, const ir_node *node, step_record *record) {
    step_map maps[2] = {no_axes(), no_axes()};
    const int axis = (int)ir_int(node, OP_ATTR_axis), rank = ir_in(node, 1)->type.rank;
    for (int i = 0; i < ir_in(node, 0)->type.rank; i++) maps[0].to[i] = (int8_t)(i < axis ? i : i == axis ? STEP_WHOLE : i + rank - 1);
    for (int i = 0; i < rank; i++) maps[1].to[i] = (int8_t)(axis + i);
    TRY(check_places(stepper, node, axis, record));
    return step_join(stepper, node, maps, false, record);
}

static dw_status rule_index(stepper *stepper, const ir_node *node, step_record *record) {
    step_map maps[MAX_OPERANDS];
    const int axis = (int)ir_int(node, OP_ATTR_axis), count = node->n_in - 1;
    int common = 0;
    for (int i = 1; i <= count; i++) common = ir_in(node, i)->type.rank > common ? ir_in(node, i)->type.rank : common;
    maps[0] = no_axes();
    for (int i = 0; i < ir_in(node, 0)->type.rank; i++) {
        maps[0].to[i] = (int8_t)(i < axis ? i : i < axis + count ? STEP_WHOLE : i - count + common);
    }
    for (int i = 1; i <= count; i++) {
        maps[i] = no_axes();
        const int rank = ir_in(node, i)->type.rank;
        for (int j = 0; j < rank; j++) maps[i].to[j] = (int8_t)(axis + common - rank + j);
    }
    TRY(check_places(stepper, node, axis, record));
    return step_join(stepper, node, maps, false, record);
}

static dw_status rule_gather(stepper *stepper, const ir_node *node, step_record *record) {
    step_map maps[3] = {no_axes(), no_axes(), no_axes()};
    const int axis = (int)ir_int(node, OP_ATTR_axis);
    for (int i = 0; i < node->n_in; i++) {
        maps[i] = aligned_but(node, i, axis);
        const bool shapes_result = node->op == OP_gather ? i == 1 : i == 0;
        if (!shapes_result) maps[i] = only_sequences(maps[i], ir_in(node, i));
    }
    if (node->op == OP_gather) {
        maps[0].to[axis] = STEP_WHOLE;
        maps[1].to[axis] = (int8_t)axis;
        TRY(check_places(stepper, node, axis, record));
    }
    return step_join(stepper, node, maps, false, record);
}

static dw_status rule_matmul(stepper *stepper, const ir_node *node, step_record *record) {
    step_map maps[MAX_OPERANDS];
    const int rank = ir_out(node)->type.rank;
    op_post_list posts;
    TRY(op_post_parse(stepper->graph->context, ir_attr_text(node, OP_ATTR_post), &posts));
    for (int i = 0; i < 2; i++) {
        maps[i] = aligned(node, i, 2);
        const int own = ir_in(node, i)->type.rank;
        const bool flipped = ir_bool(node, i == 0 ? OP_ATTR_at : OP_ATTR_bt);
        if (i == 0) maps[i].to[flipped ? own - 1 : own - 2] = (int8_t)(rank - 2);
        if (i == 1) maps[i].to[flipped ? own - 2 : own - 1] = (int8_t)(rank - 1);
    }
    int next = 2;
    bool halves = false;
    for (int i = 0; i < posts.count; i++) {
        halves = halves || op_post_halves(posts.steps[i]);
        const op_post_operand kind = op_post_operand_of(posts.steps[i]);
        if (kind == OP_POST_NONE || next >= node->n_in) continue;
        maps[next] = kind == OP_POST_FULL ? aligned(node, next, 1) : no_axes();
        next++;
    }
    for (; next < node->n_in; next++) maps[next] = no_axes();
    if (halves || node->n_in > 2) {   /* the last axis has no tokens: its size is that of the result */
        maps[1].to[ir_bool(node, OP_ATTR_bt) ? ir_in(node, 1)->type.rank - 2 : ir_in(node, 1)->type.rank - 1] = STEP_DROP;
    }
    return step_join(stepper, node, maps, false, record);
}

static dw_status rule_pad(stepper *stepper, const ir_node *node, step_record *record) {
    const dim *before, *after;
    const int rank = op_attr_dims(&node->attrs, OP_ATTR_before, &before);
    op_attr_dims(&node->attrs, OP_ATTR_after, &after);
    step_map map = aligned(node, 0, 0);
    int64_t a, b;
    for (int i = 0; i < rank; i++) {
        if (!dim_is_constant(before[i], &a) || !dim_is_constant(after[i], &b) || a != 0 || b != 0) map.to[i] = STEP_DROP;
    }
    return step_join(stepper, node, &map, false, record);
}

/* Running sums and triangles run along their axes: passive values are computed over all tokens and cut. */
static dw_status rule_prefix(stepper *stepper, const ir_node *node, step_record *record) {
    const step_record *operand = step_of(ir_in(node, 0));
    const int rank = operand->label.rank, from = node->op == OP_cumsum ? (int)ir_int(node, OP_ATTR_axis) : rank - 2;
    const int to = node->op == OP_cumsum ? from : rank - 1;
    const step_map map = aligned(node, 0, 0);
    TRY(step_join(stepper, node, &map, false, record));
    for (int i = from; i <= to && i >= 0; i++) {
        const int count = step_axis_sequences(&operand->label.axes[i]);
        if (count == 0) continue;
        if (operand->active || operand->label.axes[i].count > 1) return step_refuse(stepper, record, node, "it runs along the sequence (axis %d)", i);
        record->whole |= 1u << step_first_sequence(&operand->label, i);
    }
    return DW_OK;
}

/* Works along one axis, whose size in the result is its own. */
static dw_status rule_along(stepper *stepper, const ir_node *node, int axis, step_record *record) {
    step_map maps[MAX_OPERANDS];
    for (int i = 0; i < node->n_in; i++) maps[i] = aligned_but(node, i, axis);
    return step_join(stepper, node, maps, false, record);
}

/* Works along the last axis of x; other operands of one axis are parameters of it. */
static dw_status rule_rows(stepper *stepper, const ir_node *node, step_record *record) {
    step_map maps[MAX_OPERANDS];
    for (int i = 0; i < node->n_in; i++) maps[i] = ir_in(node, i) == NULL ? no_axes() : aligned(node, i, 1);
    return step_join(stepper, node, maps, false, record);
}

static dw_status rule_pointwise(stepper *stepper, const ir_node *node, bool may_create, step_record *record) {
    step_map maps[MAX_OPERANDS];
    for (int i = 0; i < node->n_in; i++) maps[i] = aligned(node, i, 0);
    return step_join(stepper, node, maps, may_create, record);
}

/* Ops without a rule along the sequence: only the first axis, a batch, may hold anything but plain sizes. */
static dw_status rule_other(stepper *stepper, const ir_node *node, step_record *record) {
    step_map maps[MAX_OPERANDS];
    for (int i = 0; i < node->n_in; i++) maps[i] = no_axes();
    return step_join(stepper, node, maps, false, record);
}

/* ---- all ops ------------------------------------------------------------------------------------------------------------ */

static dw_status rule(stepper *stepper, const ir_node *node, step_record *record) {
    switch (node->op) {
    case OP_fill: return step_join(stepper, node, NULL, true, record);
    case OP_iota: return rule_iota(stepper, node, record);
    case OP_size: return rule_size(stepper, node, record);
    case OP_reshape: return step_regroup(stepper, node, record);
    case OP_transpose: return rule_transpose(stepper, node, record);
    case OP_broadcast: return rule_pointwise(stepper, node, true, record);
    case OP_slice: return rule_slice(stepper, node, record);
    case OP_pad: return rule_pad(stepper, node, record);
    case OP_take: return rule_take(stepper, node, record);
    case OP_index: return rule_index(stepper, node, record);
    case OP_gather:
    case OP_scatter: return rule_gather(stepper, node, record);
    case OP_matmul: return rule_matmul(stepper, node, record);
    case OP_tril:
    case OP_triu:
    case OP_cumsum: return rule_prefix(stepper, node, record);
    case OP_concat:
    case OP_slice_scatter:
    case OP_softmax:
    case OP_log_softmax:
    case OP_sort:
    case OP_topk: return rule_along(stepper, node, (int)ir_int(node, OP_ATTR_axis), record);
    case OP_layer_norm:
    case OP_rms_norm:
    case OP_rotary:
    case OP_quantize:
    case OP_dequantize: return rule_rows(stepper, node, record);
    default: break;
    }
    const unsigned traits = op_get(node->op)->traits;
    if (traits & OP_TRAIT_POINTWISE) return rule_pointwise(stepper, node, false, record);
    if (traits & OP_TRAIT_REDUCE) return rule_reduce(stepper, node, record);
    return rule_other(stepper, node, record);
}

/* Attributes that are sizes may not depend on the length, where no rule looked at them. */
static dw_status check_attrs(stepper *stepper, const ir_node *node, step_record *record) {
    if (node->op == OP_iota || node->op == OP_size || node->op == OP_slice) return DW_OK;
    for (int i = 0; i < node->attrs.count; i++) {
        const op_attr *attr = &node->attrs.items[i];
        bool uses = false;
        if (op_attr_kind_of(attr->id) == OP_KIND_DIM) TRY(step_uses_length(stepper, attr->dim, &uses));
        if (uses) return step_refuse(stepper, record, node, "its %s depends on the sequence length", op_attr_name(attr->id));
    }
    return DW_OK;
}

dw_status step_rule(stepper *stepper, const ir_node *node, step_record *record) {
    if (node->n_in > MAX_OPERANDS) return step_refuse(stepper, record, node, "it has more than %d operands", MAX_OPERANDS);
    TRY_NEW(record->links, &stepper->arena, node->n_in);
    for (int i = 0; i < node->n_in; i++) {
        const ir_value *operand = ir_in(node, i);
        if (operand == NULL) continue;
        const step_record *from = step_of(operand);
        record->active = record->active || from->active;
        if (from->refusal == NULL || record->refusal != NULL) continue;
        record->refusal = from->refusal;
        record->culprit = from->culprit;
    }
    if (record->refusal != NULL) return DW_OK;
    bool known;
    TRY(step_rule_alone(stepper, node, record, &known));
    if (known) return DW_OK;
    TRY(step_rule_experts(stepper, node, record, &known));
    if (!known) TRY(node->op == OP_attention ? step_rule_attention(stepper, node, record) : rule(stepper, node, record));
    if (record->refusal == NULL) TRY(check_attrs(stepper, node, record));
    for (int i = 0; record->active && i < record->label.sequences; i++) {
        if (record->label.kinds[i] == STEP_FREE) record->label.kinds[i] = STEP_NEW;
    }
    return DW_OK;
}
