/* Labels: joining the operands' axes into the result's, and regrouping atoms for a reshape. */
#include "pass/step/stepper.h"

dw_status step_refuse(stepper *stepper, step_record *record, const ir_node *node, const char *format, ...) {
    if (record->refusal != NULL) return DW_OK;
    char sentence[300];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    record->culprit = node;
    record->refusal = arena_text(&stepper->arena, sentence);
    return record->refusal == NULL ? DW_NO_MEMORY : DW_OK;
}

dw_status step_uses_length(stepper *stepper, dim size, bool *uses) {
    dim_table *table = stepper->graph->dims;
    dim *replacement, changed;
    if (dim_is_constant(size, NULL)) return *uses = false, DW_OK;
    TRY_NEW(replacement, &stepper->arena, dim_symbol_count(table));
    TRY_DIM(stepper->graph->context, replacement[stepper->length_symbol], dim_constant(table, 1));
    TRY_DIM(stepper->graph->context, changed, dim_rewrite(table, table, size, replacement));
    *uses = changed != size;
    return DW_OK;
}

dw_status step_size(stepper *stepper, dim size, dim *made) {
    ir_graph *graph = stepper->graph;
    dim *replacement;
    *made = size;
    if (stepper->batch_symbol < 0 || dim_is_constant(size, NULL)) return DW_OK;
    TRY_NEW(replacement, &stepper->arena, dim_symbol_count(graph->dims));
    TRY_DIM(graph->context, replacement[stepper->batch_symbol], dim_constant(graph->dims, 1));
    TRY_DIM(graph->context, *made, dim_rewrite(graph->dims, graph->dims, size, replacement));
    return DW_OK;
}

int step_axis_sequences(const step_axis *axis) {
    int count = 0;
    for (int i = 0; i < axis->count; i++) count += axis->atoms[i].sequence;
    return count;
}

int step_first_sequence(const step_label *label, int axis) {
    int count = 0;
    for (int i = 0; i < axis; i++) count += step_axis_sequences(&label->axes[i]);
    return count;
}

static bool is_one(dim size) {
    int64_t number;
    return dim_is_constant(size, &number) && number == 1;
}

/* ---- join ---------------------------------------------------------------------------------------------------------- */

/* One axis of the result, as it is being joined. */
typedef struct joint {
    stepper *stepper;
    const ir_node *node;
    step_record *record;
    int axis, first;           /* the number of its first sequence */
} joint;

static dw_status unify(const joint *joint, int number, step_kind kind) {
    step_kind *kept = &joint->record->label.kinds[number];
    if (*kept == STEP_FREE) *kept = kind;
    if (kind == STEP_FREE || *kept == kind) return DW_OK;
    return step_refuse(joint->stepper, joint->record, joint->node, "new tokens meet all tokens so far along axis %d", joint->axis);
}

bool step_same_atoms(const step_axis *a, const step_axis *b) {
    if (a->count != b->count) return false;
    for (int i = 0; i < a->count; i++) {
        const step_atom *x = &a->atoms[i], *y = &b->atoms[i];
        if (x->sequence != y->sequence || x->sort != y->sort || x->size != y->size) return false;
    }
    return true;
}

static bool is_loose(const step_axis *axis) {
    return axis->count == 1 && axis->atoms[0].loose;
}

static dw_status product_of(stepper *stepper, const step_axis *axis, dim *product) {
    TRY_DIM(stepper->graph->context, *product, dim_constant(stepper->graph->dims, 1));
    for (int i = 0; i < axis->count; i++) {
        TRY_DIM(stepper->graph->context, *product, dim_mul(stepper->graph->dims, *product, axis->atoms[i].size));
    }
    return DW_OK;
}

/* Do the two hold the same: the same atoms, or one of them as many places as it takes? */
static dw_status agree(stepper *stepper, const step_axis *a, const step_axis *b, bool *same) {
    dim x, y;
    *same = step_same_atoms(a, b);
    if (*same || (!is_loose(a) && !is_loose(b))) return DW_OK;
    TRY(product_of(stepper, a, &x));
    TRY(product_of(stepper, b, &y));
    *same = x == y && step_axis_sequences(a) > 0 && step_axis_sequences(b) > 0;
    return DW_OK;
}

/* The result's axis is this one; what was linked to a loose axis there before stays linked to its first sequence. */
static dw_status set_axis(const joint *joint, const step_axis *axis) {
    step_label *label = &joint->record->label;
    const int before = step_axis_sequences(&label->axes[joint->axis]);
    label->axes[joint->axis] = *axis;
    label->sequences += step_axis_sequences(axis) - before;
    if (label->sequences > STEP_MAX_SEQUENCES) {
        return step_refuse(joint->stepper, joint->record, joint->node, "more than %d axes run over tokens", STEP_MAX_SEQUENCES);
    }
    for (int i = joint->first + before; i < label->sequences; i++) label->kinds[i] = STEP_FREE;
    return DW_OK;
}

/* Takes axis `from` of operand `index` into the joint. */
static dw_status join_axis(const joint *joint, int index, int from) {
    const step_record *operand = step_of(ir_in(joint->node, index));
    const step_axis *axis = &operand->label.axes[from];
    const step_axis *result = &joint->record->label.axes[joint->axis];
    bool same = true;
    if (axis->count == 0) return DW_OK;
    if (result->count > 0) TRY(agree(joint->stepper, result, axis, &same));
    if (!same) return step_refuse(joint->stepper, joint->record, joint->node, "axis %d of the operands holds different things", joint->axis);
    const bool loose = is_loose(axis) || is_loose(result);
    if (result->count == 0 || (is_loose(result) && !is_loose(axis))) TRY(set_axis(joint, axis));
    if (joint->record->refusal != NULL) return DW_OK;
    const int own = step_first_sequence(&operand->label, from);
    for (int i = 0; i < step_axis_sequences(axis); i++) {
        joint->record->links[index].to[own + i] = (int8_t)(joint->first + i);
        TRY(unify(joint, joint->first + i, operand->label.kinds[own + i]));
        if (!loose || joint->record->label.kinds[joint->first + i] != STEP_ALL) continue;
        return step_refuse(joint->stepper, joint->record, joint->node, "flattened tokens meet all tokens so far along axis %d", joint->axis);
    }
    return DW_OK;
}

/* An axis that no operand fills. */
static dw_status create_axis(const joint *joint, bool may_create) {
    const dim size = ir_out(joint->node)->type.dims[joint->axis];
    step_label *label = &joint->record->label;
    step_axis *axis = &label->axes[joint->axis];
    bool uses;
    if (is_one(size)) return DW_OK;
    TRY(step_uses_length(joint->stepper, size, &uses));
    const bool alone = size == joint->stepper->length;
    const bool loose = uses && !alone && dim_divide_exact(joint->stepper->graph->dims, size, joint->stepper->length) != NULL &&
                       (joint->node->op == OP_fill || joint->node->op == OP_iota);
    if (uses && !((alone || loose) && may_create && label->sequences < STEP_MAX_SEQUENCES)) {
        return step_refuse(joint->stepper, joint->record, joint->node, "the size of axis %d depends on the sequence length", joint->axis);
    }
    *axis = (step_axis){.count = 1, .atoms = {{.sequence = uses, .loose = loose, .size = size}}};
    if (uses) label->kinds[label->sequences++] = STEP_FREE;
    return DW_OK;
}

/* Operand axes that end here: nothing along the sequence may. */
static dw_status check_dropped(stepper *stepper, const ir_node *node, int index, const step_map *map, step_record *record) {
    const step_record *operand = step_of(ir_in(node, index));
    for (int i = 0; i < operand->label.rank; i++) {
        const int count = step_axis_sequences(&operand->label.axes[i]);
        if (count == 0 || map->to[i] >= 0) continue;
        if (map->to[i] == STEP_DROP || operand->active) return step_refuse(stepper, record, node, "it works along the sequence (axis %d)", i);
        const int own = step_first_sequence(&operand->label, i);
        for (int j = 0; j < count; j++) record->links[index].to[own + j] = STEP_LINK_ALL;
    }
    return DW_OK;
}

dw_status step_join(stepper *stepper, const ir_node *node, const step_map *maps, bool may_create, step_record *record) {
    record->label = (step_label){.rank = ir_out(node)->type.rank};
    for (int i = 0; i < node->n_in; i++) {
        if (ir_in(node, i) != NULL) TRY(check_dropped(stepper, node, i, &maps[i], record));
    }
    for (int axis = 0; axis < record->label.rank && record->refusal == NULL; axis++) {
        const joint joint = {stepper, node, record, axis, record->label.sequences};
        for (int i = 0; i < node->n_in; i++) {
            if (ir_in(node, i) == NULL) continue;
            for (int from = 0; from < ir_in(node, i)->type.rank && record->refusal == NULL; from++) {
                if (maps[i].to[from] == axis) TRY(join_axis(&joint, i, from));
            }
        }
        if (record->label.axes[axis].count == 0) TRY(create_axis(&joint, may_create));
    }
    return DW_OK;
}

/* ---- regroup --------------------------------------------------------------------------------------------------------- */

enum { MAX_FLAT = DW_MAX_RANK * STEP_MAX_ATOMS };

/* Neighbouring numbers become one: [8, 16] is [128]. */
static dw_status push_atom(stepper *stepper, step_axis *axis, step_atom atom, bool *fits) {
    int64_t a, b;
    step_atom *last = axis->count == 0 ? NULL : &axis->atoms[axis->count - 1];
    if (last != NULL && !last->sequence && !atom.sequence && dim_is_constant(last->size, &a) && dim_is_constant(atom.size, &b)) {
        TRY_DIM(stepper->graph->context, last->size, dim_mul(stepper->graph->dims, last->size, atom.size));
        return DW_OK;
    }
    *fits = axis->count < STEP_MAX_ATOMS;
    if (*fits) axis->atoms[axis->count++] = atom;
    return DW_OK;
}

/* Takes atoms from flat[*at..] until their product is size. *fits is false when they do not come out even. */
static dw_status consume_atoms(stepper *stepper, step_atom *flat, int count, int *at, dim size, step_axis *axis, bool *fits) {
    dim_table *table = stepper->graph->dims;
    dw_context *context = stepper->graph->context;
    dim product;
    *axis = (step_axis){.count = 0};
    *fits = true;
    TRY_DIM(context, product, dim_constant(table, 1));
    while (*fits && product != size) {
        dim more, rest;
        int64_t atom, wanted;
        if (*at == count) return *fits = false, DW_OK;
        TRY_DIM(context, more, dim_mul(table, product, flat[*at].size));
        if (dim_divide_exact(table, size, more) != NULL) {
            TRY(push_atom(stepper, axis, flat[(*at)++], fits));
            product = more;
            continue;
        }
        rest = dim_divide_exact(table, size, product);
        *fits = rest != NULL && !flat[*at].sequence && dim_is_constant(rest, &wanted) && dim_is_constant(flat[*at].size, &atom) && wanted > 1 &&
                atom % wanted == 0;
        if (!*fits) return DW_OK;
        TRY(push_atom(stepper, axis, (step_atom){.size = rest}, fits));
        TRY_DIM(context, flat[*at].size, dim_constant(table, atom / wanted));
        product = size;
    }
    return DW_OK;
}

dw_status step_regroup(stepper *stepper, const ir_node *node, step_record *record) {
    const step_record *operand = step_of(ir_in(node, 0));
    const op_type *type = &ir_out(node)->type;
    step_atom flat[MAX_FLAT];
    int count = 0, at = 0;
    for (int i = 0; i < operand->label.rank; i++) {
        for (int j = 0; j < operand->label.axes[i].count; j++) flat[count++] = operand->label.axes[i].atoms[j];
    }
    record->label = (step_label){.rank = type->rank, .sequences = operand->label.sequences};
    for (int i = 0; i < operand->label.sequences; i++) {
        record->label.kinds[i] = operand->label.kinds[i];
        record->links[0].to[i] = (int8_t)i;
    }
    for (int i = 0; i < type->rank; i++) {
        bool fits;
        TRY(consume_atoms(stepper, flat, count, &at, type->dims[i], &record->label.axes[i], &fits));
        if (!fits) return step_refuse(stepper, record, node, "it splits the sequence, or mixes it with axis %d", i);
    }
    return DW_OK;
}
