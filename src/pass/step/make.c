/* Old nodes are made again for the step: sizes come from labels, positions are those of the new tokens, passive values come in the variant that is needed. */
#include "pass/step/stepper.h"

/* The size of an axis whose sequences, from number `first` on, are as kinds say. */
static dw_status axis_size(stepper *stepper, const step_axis *axis, const step_kind *kinds, int first, dim *size) {
    ir_graph *graph = stepper->graph;
    TRY_DIM(graph->context, *size, dim_constant(graph->dims, 1));
    for (int i = 0; i < axis->count; i++) {
        const bool all = axis->atoms[i].sequence && kinds[first] == STEP_ALL;
        first += axis->atoms[i].sequence;
        TRY_DIM(graph->context, *size, dim_mul(graph->dims, *size, all ? stepper->total : axis->atoms[i].size));
    }
    return step_size(stepper, *size, size);
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

/* iota over all positions; over the new tokens it is no iota (make_shifted). */
static dw_status set_iota(stepper *stepper, op_attr *attr) {
    if (attr->id == OP_ATTR_length) attr->dim = stepper->total;
    return DW_OK;
}

/* A slice of a table to the length, or one over the whole of a sequence; others have no sequence along their axis. */
static dw_status set_slice(stepper *stepper, const ir_node *node, const step_kind *kinds, op_attr *attr) {
    ir_graph *graph = stepper->graph;
    const step_record *record = step_of(ir_out(node)), *operand = step_of(ir_in(node, 0));
    const int axis = (int)ir_int(node, OP_ATTR_axis);
    if (record->shifts && attr->id == OP_ATTR_end) {
        TRY_DIM(graph->context, attr->dim, dim_add(graph->dims, op_attr_dim(&node->attrs, OP_ATTR_start), stepper->total));
    } else if (!record->shifts && step_axis_sequences(&operand->label.axes[axis]) > 0 && record->label.axes[axis].count > 0 && attr->id == OP_ATTR_end) {
        TRY(axis_size(stepper, &record->label.axes[axis], kinds, step_first_sequence(&record->label, axis), &attr->dim));
    }
    return DW_OK;
}

/* Sizes with the batch that is 1 in the step. */
static dw_status set_sizes(stepper *stepper, op_attr *attr) {
    if (op_attr_kind_of(attr->id) == OP_KIND_DIM) return step_size(stepper, attr->dim, &attr->dim);
    if (op_attr_kind_of(attr->id) != OP_KIND_DIMS) return DW_OK;
    dim *sizes;
    TRY_NEW(sizes, &stepper->arena, attr->count);
    for (int i = 0; i < attr->count; i++) TRY(step_size(stepper, attr->dims[i], &sizes[i]));
    attr->dims = sizes;
    return DW_OK;
}

static dw_status set_attr(stepper *stepper, const ir_node *node, const step_kind *kinds, op_attr *attr) {
    if (attr->id == OP_ATTR_shape) return set_shape(stepper, step_of(ir_out(node)), kinds, attr);
    if (node->op == OP_slice) TRY(set_slice(stepper, node, kinds, attr));
    if (node->op == OP_iota && step_of(ir_out(node))->shifts) TRY(set_iota(stepper, attr));
    return set_sizes(stepper, attr);
}

/* start + step * position of each new token. */
static dw_status places_of(stepper *stepper, dim start, int64_t step, ir_value **places) {
    ir_graph *graph = stepper->graph;
    int64_t number;
    *places = stepper->position;
    if (step != 1) {
        ir_value *factor;
        TRY(ir_emit_scalar(graph, DW_FORMAT_i64, (double)step, &factor));
        TRY(ir_emit_2(graph, OP_mul, *places, factor, places));
    }
    if (dim_is_constant(start, &number) && number == 0) return DW_OK;
    ir_value *first;
    TRY(ir_emit_size(graph, start, &first));
    return ir_emit_2(graph, OP_add, *places, first, places);
}

static dw_status emit_take(ir_graph *graph, ir_value *table, ir_value *places, int axis, ir_value **result) {
    ir_value *const in[2] = {table, places};
    const op_attr attr = op_set_int(OP_ATTR_axis, axis);
    return ir_emit(graph, OP_take, 2, in, 1, &attr, result);
}

/* What counts along the sequence, for the new tokens: each has a place of its own. */
static dw_status make_shifted(stepper *stepper, const ir_node *node, ir_value *table, ir_value **made) {
    ir_graph *graph = stepper->graph;
    dim start;
    TRY(step_size(stepper, op_attr_dim(&node->attrs, OP_ATTR_start), &start));
    TRY(places_of(stepper, start, ir_int(node, OP_ATTR_step), made));
    if (node->op == OP_iota) return ir_emit_cast(graph, *made, op_attr_format(&node->attrs, OP_ATTR_to), made);
    return emit_take(graph, table, *made, (int)ir_int(node, OP_ATTR_axis), made);
}

/* Is the sequence that node begins wanted of the new tokens? */
static bool is_shifted(const ir_node *node, const step_kind *kinds) {
    const step_record *record = step_of(ir_out(node));
    if (!record->shifts) return false;
    return kinds[node->op == OP_iota ? 0 : step_first_sequence(&record->label, (int)ir_int(node, OP_ATTR_axis))] != STEP_ALL;
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
    if (is_shifted(node, kinds)) {
        TRY(make_shifted(stepper, node, node->n_in > 0 ? in[0] : NULL, &step_of(ir_out(node))->made[variant(step_of(ir_out(node)), kinds)]));
        return DW_OK;
    }
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
        TRY(emit_take(stepper->graph, *made, stepper->position, axis, made));
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
