/* Mixture of experts: tokens are flattened, sorted by expert, taken in that order, multiplied group by group and brought back. None of it mixes
 * tokens, if the groups are counted from the keys of the same sort:
 *
 *     keys, order = sort experts [b*s*k]      rows in order: an axis "tokens sorted by this sort"
 *     take x, order div k; take weights, order;  offsets = cumsum (bincount keys);  grouped_matmul .., offsets
 *     inverse = index_put empty, 0 1 2 .., order;  take y, inverse      back to [b*s*k]
 *
 * The order itself, counts and offsets depend on all tokens at once; they may be used in these ways alone. */
#include "pass/step/stepper.h"

static const step_record *operand_of(const ir_node *node, int index) {
    return step_of(ir_in(node, index));
}

static dw_status one_sequence(step_record *record, int rank, int axis, const step_atom *atom) {
    record->label = (step_label){.rank = rank, .sequences = 1, .kinds = {STEP_NEW}};
    record->label.axes[axis] = (step_axis){.count = 1, .atoms = {*atom}};
    return DW_OK;
}

static step_atom sorted_atom(const ir_node *sort) {
    return (step_atom){.sequence = true, .sort = sort, .size = ir_out(sort)->type.dims[0]};
}

static bool is_sorted_by(const step_axis *axis, const ir_node *sort) {
    return axis->count == 1 && axis->atoms[0].sort == sort;
}

/* A sort of flattened new tokens. */
static dw_status rule_sort(const ir_node *node, step_record *record, bool *known) {
    const step_record *keys = operand_of(node, 0);
    *known = keys->active && keys->label.rank == 1 && keys->label.sequences == 1 && keys->label.kinds[0] == STEP_NEW && keys->meaning == STEP_DATA;
    if (!*known) return DW_OK;
    const step_atom atom = sorted_atom(node);
    record->meaning = STEP_KEYS;
    record->sort = node;
    return one_sequence(record, 1, 0, &atom);
}

/* A number for each of a few kinds, made of all tokens. */
static dw_status rule_counted(const ir_node *node, step_record *record, step_meaning meaning) {
    record->meaning = meaning;
    record->sort = operand_of(node, 0)->sort;
    record->label = (step_label){.rank = 1};
    record->label.axes[0] = (step_axis){.count = 1, .atoms = {{.size = ir_out(node)->type.dims[0]}}};
    return DW_OK;
}

static dw_status rule_same(const ir_node *node, step_record *record) {
    const step_record *operand = operand_of(node, 0);
    record->meaning = operand->meaning;
    record->sort = operand->sort;
    record->divisor = operand->divisor;
    record->label = operand->label;
    for (int i = 0; i < operand->label.sequences; i++) record->links[0].to[i] = (int8_t)i;
    return DW_OK;
}

static dw_status rule_divided(const ir_node *node, step_record *record, bool *known) {
    double divisor;
    *known = ir_is_scalar(ir_in(node, 1), &divisor) && divisor >= 1;
    if (!*known) return DW_OK;
    TRY(rule_same(node, record));
    record->meaning = STEP_ORDER_DIV;
    record->divisor = (int64_t)divisor;
    return DW_OK;
}

/* Is the axis the sort's own, without the choices that divisor merges? */
static bool is_sorted_axis(const stepper *stepper, const step_axis *axis, const step_record *order) {
    const step_axis *own = &operand_of(order->sort, 0)->label.axes[0];
    if (order->meaning == STEP_ORDER) return step_same_atoms(axis, own);
    step_axis extended = *axis;
    if (extended.count == STEP_MAX_ATOMS) return false;
    const dim choices = dim_constant(stepper->graph->dims, order->divisor);
    if (choices == NULL) return false;
    if (order->divisor > 1) extended.atoms[extended.count++] = (step_atom){.size = choices};
    return step_same_atoms(&extended, own);
}

/* x[order], x[order div k] and y[inverse] along one axis; the others stay. */
static dw_status rule_take(stepper *stepper, const ir_node *node, step_record *record, bool *known) {
    const step_record *x = operand_of(node, 0), *order = operand_of(node, 1);
    const int axis = (int)ir_int(node, OP_ATTR_axis);
    const bool back = order->meaning == STEP_INVERSE;
    const step_axis *taken = &x->label.axes[axis];
    *known = x->active && x->meaning != STEP_ORDER &&
             (back ? is_sorted_by(taken, order->sort) : is_sorted_axis(stepper, taken, order));
    if (!*known) return DW_OK;
    const step_atom atom = sorted_atom(order->sort);
    record->label = x->label;
    record->label.axes[axis] = back ? operand_of(order->sort, 0)->label.axes[0] : (step_axis){.count = 1, .atoms = {atom}};
    record->label.sequences = 0;
    for (int i = 0; i < record->label.rank; i++) record->label.sequences += step_axis_sequences(&record->label.axes[i]);
    for (int i = 0; i < record->label.sequences && i < STEP_MAX_SEQUENCES; i++) record->label.kinds[i] = STEP_NEW;
    *known = x->label.sequences == 1 && record->label.sequences == 1;
    return DW_OK;
}

/* 0, 1, 2, .. written at the places of the order. */
static dw_status rule_inverse(const ir_node *node, step_record *record, bool *known) {
    const step_record *order = operand_of(node, 2), *numbers = operand_of(node, 1);
    *known = node->n_in == 3 && numbers->meaning == STEP_FLAT && !ir_bool(node, OP_ATTR_accumulate) && ir_out(node)->type.rank == 1 &&
             ir_in(node, 0)->type.dims[0] == ir_out(order->sort)->type.dims[0] && ir_in(node, 1)->type.dims[0] == ir_in(node, 0)->type.dims[0];
    if (!*known) return DW_OK;
    const step_atom atom = {.sequence = true, .loose = true, .size = ir_out(node)->type.dims[0]};
    record->meaning = STEP_INVERSE;
    record->sort = order->sort;
    return one_sequence(record, 1, 0, &atom);
}

/* Rows in the order of the sort whose keys the offsets count. Further operands are joined as those of a pointwise op. */
static dw_status rule_grouped(stepper *stepper, const ir_node *node, step_record *record, bool *known) {
    const step_record *rows = operand_of(node, 0), *offsets = operand_of(node, 2);
    *known = rows->active && rows->label.rank == 2 && offsets->meaning == STEP_OFFSETS && is_sorted_by(&rows->label.axes[0], offsets->sort);
    if (!*known) return DW_OK;
    step_map maps[8];
    for (int i = 0; i < node->n_in && i < 8; i++) {
        for (int j = 0; j < DW_MAX_RANK; j++) maps[i].to[j] = STEP_DROP;
        const int rank = ir_in(node, i)->type.rank;
        if (i != 1 && i != 2 && rank == 2) maps[i].to[0] = 0;
    }
    return step_join(stepper, node, maps, false, record);
}

dw_status step_rule_experts(stepper *stepper, const ir_node *node, step_record *record, bool *known) {
    step_meaning meaning = STEP_DATA;
    for (int i = 0; i < node->n_in && meaning == STEP_DATA; i++) {
        if (ir_in(node, i) != NULL) meaning = operand_of(node, i)->meaning;
    }
    *known = true;
    if (node->op == OP_cast && meaning != STEP_DATA && meaning != STEP_FLAT) return rule_same(node, record);
    if (node->op == OP_sort && meaning == STEP_DATA) return rule_sort(node, record, known);
    if (node->op == OP_bincount && meaning == STEP_KEYS) return rule_counted(node, record, STEP_COUNTS);
    if (node->op == OP_cumsum && meaning == STEP_COUNTS && !ir_bool(node, OP_ATTR_exclusive)) return rule_counted(node, record, STEP_OFFSETS);
    if (node->op == OP_floordiv && meaning == STEP_ORDER && operand_of(node, 0)->meaning == STEP_ORDER) return rule_divided(node, record, known);
    if (node->op == OP_take) {
        const step_meaning by = operand_of(node, 1)->meaning;
        if (by == STEP_ORDER || by == STEP_ORDER_DIV || by == STEP_INVERSE) return rule_take(stepper, node, record, known);
    }
    if (node->op == OP_index_put && operand_of(node, 2)->meaning == STEP_ORDER) return rule_inverse(node, record, known);
    if (node->op == OP_grouped_matmul && ir_int(node, OP_ATTR_padded) == 0 && operand_of(node, 2)->meaning == STEP_OFFSETS) return rule_grouped(stepper, node, record, known);
    *known = false;
    if (meaning == STEP_DATA || meaning == STEP_KEYS) return DW_OK;
    *known = true;
    return step_refuse(stepper, record, node, "it uses the order of tokens in a way that may mix them");
}

void step_set_meanings(const ir_node *node) {
    if (node->op == OP_sort && step_of(node->out[0])->meaning == STEP_KEYS) step_of(node->out[1])->meaning = STEP_ORDER;
}
