/* What is known before the first token: values that depend on inputs, but neither on tokens nor on positions along them, are computed once by
 * a graph of their own, the prelude. The step takes them as inputs where nodes of its own need them:
 *
 *     input sound f32[b,e,d]; input ids i64[b,s]              prelude: input sound; %1 = matmul sound, wk; ..; output given.0 %3
 *     %1 = matmul sound, wk; ..; attention q, %3, ..   ->     step:    input ids; input given.0 f32[cache_rows,h,e,d]; attention q, given.0, .. */
#include <string.h>

#include "pass/pass.h"
#include "pass/step/stepper.h"

/* ---- labels ------------------------------------------------------------------------------------------------------------ */

static dw_status attr_uses_length(stepper *stepper, const op_attr *attr, bool *uses) {
    *uses = false;
    if (op_attr_kind_of(attr->id) == OP_KIND_DIM) return step_uses_length(stepper, attr->dim, uses);
    if (op_attr_kind_of(attr->id) != OP_KIND_DIMS) return DW_OK;
    for (int i = 0; i < attr->count && !*uses; i++) TRY(step_uses_length(stepper, attr->dims[i], uses));
    return DW_OK;
}

static dw_status node_uses_length(stepper *stepper, const ir_node *node, bool *uses) {
    *uses = false;
    for (int i = 0; i < node->attrs.count && !*uses; i++) TRY(attr_uses_length(stepper, &node->attrs.items[i], uses));
    for (int i = 0; i < node->n_out; i++) {
        const op_type *type = &node->out[i]->type;
        for (int axis = 0; axis < type->rank && !*uses; axis++) TRY(step_uses_length(stepper, type->dims[axis], uses));
    }
    return DW_OK;
}

dw_status step_rule_alone(stepper *stepper, const ir_node *node, step_record *record, bool *known) {
    bool uses, given = false;
    *known = false;
    if (record->active) return DW_OK;
    for (int i = 0; i < node->n_in; i++) {
        const ir_value *operand = ir_in(node, i);
        if (operand != NULL && step_of(operand)->label.sequences > 0) return DW_OK;
        given = given || (operand != NULL && step_of(operand)->given);
    }
    TRY(node_uses_length(stepper, node, &uses));
    if (uses) return DW_OK;
    const op_type *type = &ir_out(node)->type;
    *known = true;
    record->given = given;
    record->label = (step_label){.rank = type->rank};
    for (int i = 0; i < type->rank; i++) {
        int64_t number;
        if (dim_is_constant(type->dims[i], &number) && number == 1) continue;
        record->label.axes[i] = (step_axis){.count = 1, .atoms = {{.size = type->dims[i]}}};
    }
    return DW_OK;
}

/* ---- the step's side -------------------------------------------------------------------------------------------------------- */

static dw_status add_given(stepper *stepper, ir_value *value, const op_type *type, ir_value **made) {
    char name[32];
    ir_value **grown = arena_grow(&stepper->arena, stepper->given, stepper->given_count, &stepper->given_capacity, sizeof *grown);
    if (grown == NULL) return DW_NO_MEMORY;
    stepper->given = grown;
    snprintf(name, sizeof name, STEP_GIVEN "%zu", stepper->given_count);
    stepper->given[stepper->given_count++] = value;
    return ir_add_input(stepper->graph, name, type, made);
}

dw_status step_make_given(stepper *stepper, ir_value *value, ir_value **made) {
    op_type type = value->type;
    for (int i = 0; i < type.rank; i++) TRY(step_size(stepper, type.dims[i], &type.dims[i]));
    return add_given(stepper, value, &type, made);
}

dw_status step_make_rows(stepper *stepper, ir_value *value, ir_value **made) {
    step_record *record = step_of(value);
    if (record->by_row == NULL) {
        op_type type = value->type;
        for (int i = 1; i < type.rank; i++) TRY(step_size(stepper, type.dims[i], &type.dims[i]));
        type.dims[0] = stepper->rows;
        TRY(add_given(stepper, value, &type, &record->by_row));
    }
    *made = record->by_row;
    return DW_OK;
}

dw_status step_make_limit(stepper *stepper, const ir_value *value, ir_value **last) {
    const ir_value *given = step_of(value)->by_row;
    const dim size = value->type.dims[2];
    const op_type type = {.format = DW_FORMAT_i64, .rank = 1, .dims = {stepper->length}};
    char name[64];
    *last = NULL;
    if (dim_is_constant(size, NULL)) return DW_OK;
    for (size_t i = 0; i < stepper->limit_count; i++) {
        if (stepper->limits[i].size != size) continue;
        *last = stepper->limits[i].last;
        return DW_OK;
    }
    step_limit *grown = arena_grow(&stepper->arena, stepper->limits, stepper->limit_count, &stepper->limit_capacity, sizeof *grown);
    if (grown == NULL) return DW_NO_MEMORY;
    stepper->limits = grown;
    snprintf(name, sizeof name, "%s" STEP_GIVEN_LAST, given->name);
    TRY(ir_add_input(stepper->graph, name, &type, last));
    stepper->limits[stepper->limit_count++] = (step_limit){.size = size, .last = *last};
    return DW_OK;
}

dw_status step_remove_given(stepper *stepper) {
    ir_graph *graph = stepper->graph;
    for (size_t i = graph->input_count; i-- > 0;) {
        const step_record *record = step_of(graph->inputs[i]);
        if (record != NULL && record->given) TRY(ir_remove_input(graph, graph->inputs[i]));
    }
    return DW_OK;
}

/* ---- the prelude's side ------------------------------------------------------------------------------------------------------ */

/* The value of copy, a clone, that stands where value, an input or result, stands in graph. */
static ir_value *counterpart(const ir_graph *graph, const ir_graph *copy, const ir_value *value) {
    for (size_t i = 0; i < copy->input_count; i++) {
        if (graph->inputs[i] == value) return copy->inputs[i];
    }
    const ir_node *node = graph->first, *same = copy->first;
    while (node != value->node) {
        node = node->next;
        same = same->next;
    }
    return same->out[value->result];
}

static dw_status restrict_to_given(const stepper *stepper, ir_graph *prelude) {
    const pass_options options = {0};
    bool changed;
    ir_value *value;
    for (size_t i = prelude->output_count; i-- > 0;) TRY(ir_remove_output(prelude, i));
    for (size_t i = 0; i < stepper->given_count; i++) {
        char name[32];
        value = counterpart(stepper->graph, prelude, stepper->given[i]);
        snprintf(name, sizeof name, STEP_GIVEN "%zu", i);
        TRY(ir_add_output(prelude, name, value));
    }
    ir_cursor_end(prelude);
    TRY(pass_dead(prelude, &options, &changed));
    for (size_t i = prelude->input_count; i-- > 0;) {
        if (!step_of(stepper->graph->inputs[i])->given) TRY(ir_remove_input(prelude, prelude->inputs[i]));
    }
    ir_renumber(prelude);
    return ir_check(prelude);
}

dw_status step_make_prelude(const stepper *stepper, const ir_graph *whole, ir_graph **prelude) {
    TRY(ir_graph_clone(whole, prelude));
    return restrict_to_given(stepper, *prelude);
}
