/* Old nodes are made again for the step: sizes come from labels, positions begin at past, passive values come in the variant that is needed. */
#include "pass/step.h"

/* The size of an axis whose sequences, from number `first` on, are as kinds say. */
static dw_status axis_size(stepper *stepper, const step_axis *axis, const step_kind *kinds, int first, dim *size) {
    ir_graph *graph = stepper->graph;
    TRY_DIM(graph->context, *size, dim_constant(graph->dims, 1));
    for (int i = 0; i < axis->count; i++) {
        const bool all = axis->atoms[i].sequence && kinds[first] == STEP_ALL;
        first += axis->atoms[i].sequence;
        TRY_DIM(graph->context, *size, dim_mul(graph->dims, *size, all ? stepper->total : axis->atoms[i].size));
    }
    return DW_OK;
}

static dw_status set_shape(stepper *stepper, const step_record *record, const step_kind *kinds, op_attr *attr) {
    dim *sizes;
    int first = 0;
    TRY_NEW(sizes, &stepper->arena, record->label.rank);
    for (int i = 0; i < record->label.rank; i++) {
        TRY(axis_size(stepper, &record->label.axes[i], kinds, first, &sizes[i]));
        first += step_axis_sequences(&record->label.axes[i]);
    }
    *attr = op_set_dims(attr->id, record->label.rank, sizes);
    return DW_OK;
}

/* Positions: the first of the new tokens is past steps further. */
static dw_status set_iota(stepper *stepper, const ir_node *node, const step_kind *kinds, op_attr *attr) {
    ir_graph *graph = stepper->graph;
    const bool all = kinds[0] == STEP_ALL;
    if (attr->id == OP_ATTR_length) {
        attr->dim = all ? stepper->total : stepper->length;
    } else if (attr->id == OP_ATTR_start && !all) {
        dim step;
        TRY_DIM(graph->context, step, dim_constant(graph->dims, ir_int(node, OP_ATTR_step)));
        TRY_DIM(graph->context, step, dim_mul(graph->dims, step, stepper->past));
        TRY_DIM(graph->context, attr->dim, dim_add(graph->dims, attr->dim, step));
    }
    return DW_OK;
}

/* A slice of a table to the length, or one over the whole of a sequence; others have no sequence along their axis. */
static dw_status set_slice(stepper *stepper, const ir_node *node, const step_kind *kinds, op_attr *attr) {
    ir_graph *graph = stepper->graph;
    const step_record *record = step_of(ir_out(node)), *operand = step_of(ir_in(node, 0));
    const int axis = (int)ir_int(node, OP_ATTR_axis);
    if (record->shifts) {
        const bool all = kinds[step_first_sequence(&record->label, axis)] == STEP_ALL;
        dim start = op_attr_dim(&node->attrs, OP_ATTR_start);
        if (!all) TRY_DIM(graph->context, start, dim_add(graph->dims, start, stepper->past));
        if (attr->id == OP_ATTR_start) attr->dim = start;
        if (attr->id == OP_ATTR_end) TRY_DIM(graph->context, attr->dim, dim_add(graph->dims, start, all ? stepper->total : stepper->length));
    } else if (step_axis_sequences(&operand->label.axes[axis]) > 0 && record->label.axes[axis].count > 0 && attr->id == OP_ATTR_end) {
        TRY(axis_size(stepper, &record->label.axes[axis], kinds, step_first_sequence(&record->label, axis), &attr->dim));
    }
    return DW_OK;
}

static dw_status set_attr(stepper *stepper, const ir_node *node, const step_kind *kinds, op_attr *attr) {
    if (attr->id == OP_ATTR_shape) return set_shape(stepper, step_of(ir_out(node)), kinds, attr);
    if (node->op == OP_slice) return set_slice(stepper, node, kinds, attr);
    if (node->op == OP_iota && step_of(ir_out(node))->shifts) return set_iota(stepper, node, kinds, attr);
    return DW_OK;
}

static unsigned variant(const step_record *record, const step_kind *kinds) {
    unsigned bits = 0;
    if (record->active) return 0;
    for (int i = 0; i < record->label.sequences; i++) bits |= kinds[i] == STEP_ALL ? 1u << i : 0;
    return bits;
}

dw_status step_make_node(stepper *stepper, ir_node *node, const step_kind *kinds) {
    ir_graph *graph = stepper->graph;
    const step_record *record = step_of(ir_out(node));
    ir_value **in, *result;
    op_attr attrs[OP_ATTR_COUNT];
    TRY_NEW(in, &stepper->arena, node->n_in);
    for (int i = 0; i < node->n_in; i++) {
        step_kind needed[STEP_MAX_SEQUENCES] = {STEP_FREE};
        if (ir_in(node, i) == NULL) continue;
        for (int j = 0; j < step_of(ir_in(node, i))->label.sequences; j++) {
            const int to = record->links[i].to[j];
            needed[j] = to == STEP_LINK_ALL ? STEP_ALL : kinds[to];
        }
        TRY(step_make(stepper, ir_in(node, i), needed, &in[i]));
    }
    for (int i = 0; i < node->attrs.count; i++) {
        attrs[i] = node->attrs.items[i];
        TRY(set_attr(stepper, node, kinds, &attrs[i]));
    }
    ir_cursor_end(graph);
    graph->origin = node->origin;
    TRY(ir_emit(graph, node->op, node->n_in, in, node->attrs.count, attrs, &result));
    for (int i = 0; i < node->n_out; i++) {
        step_record *own = step_of(node->out[i]);
        own->made[variant(own, kinds)] = result->node->out[i];
    }
    return DW_OK;
}

/* The new part of what is computed over all tokens. */
static dw_status make_part(stepper *stepper, ir_value *value, const step_kind *kinds, unsigned whole, ir_value **made) {
    const step_record *record = step_of(value);
    step_kind all[STEP_MAX_SEQUENCES];
    for (int i = 0; i < record->label.sequences; i++) all[i] = whole & 1u << i ? STEP_ALL : kinds[i];
    TRY(step_make(stepper, value, all, made));
    for (int axis = 0; axis < record->label.rank; axis++) {
        if (step_axis_sequences(&record->label.axes[axis]) == 0 || !(whole & 1u << step_first_sequence(&record->label, axis))) continue;
        TRY(ir_emit_slice(stepper->graph, *made, axis, stepper->past, stepper->total, 1, made));
    }
    return DW_OK;
}

dw_status step_make(stepper *stepper, ir_value *value, const step_kind *kinds, ir_value **made) {
    step_record *record = step_of(value);
    const unsigned bits = variant(record, kinds), whole = record->whole & ~bits;
    *made = record->made[bits];
    if (*made != NULL) return DW_OK;
    if (record->given) {
        TRY(step_make_given(stepper, value, made));
    } else if (whole != 0) {
        TRY(make_part(stepper, value, kinds, whole, made));
    } else if (value->kind == IR_RESULT && !record->active) {
        TRY(step_make_node(stepper, value->node, kinds));
        *made = record->made[bits];
    } else {
        return base_fail(stepper->graph->context, DW_INTERNAL, "the step needs a value before it is made");
    }
    record->made[bits] = *made;
    return DW_OK;
}
