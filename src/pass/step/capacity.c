/* How many tokens a text may have, as far as the tables say that are looked up by its positions: learned positions end somewhere. */
#include "pass/step/stepper.h"

/* size with the sequence length that is given, if that makes it a number. */
static dw_status at_length(stepper *stepper, dim size, int64_t length, int64_t *number, bool *known) {
    ir_graph *graph = stepper->graph;
    dim *replacement, changed;
    TRY_NEW(replacement, &stepper->arena, dim_symbol_count(graph->dims));
    TRY_DIM(graph->context, replacement[stepper->length_symbol], dim_constant(graph->dims, length));
    TRY_DIM(graph->context, changed, dim_rewrite(graph->dims, graph->dims, size, replacement));
    *known = dim_is_constant(changed, number);
    return DW_OK;
}

/* The longest sequence whose largest index is below size; indices grow with the sequence. */
static dw_status longest(stepper *stepper, dim highest, int64_t size, int64_t *room) {
    int64_t low = 1, high = *room, number;
    bool known;
    TRY(at_length(stepper, highest, low, &number, &known));
    if (!known || number >= size) return DW_OK;   /* not of the length alone, or wrong from the first token on: the run says so */
    if (high > size) high = size + 1;             /* an index of 0, 1, .. has no more than size */
    TRY(at_length(stepper, highest, high, &number, &known));
    if (!known || number < size) return DW_OK;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        TRY(at_length(stepper, highest, middle, &number, &known));
        *(number < size ? &low : &high) = middle;
    }
    *room = low;
    return DW_OK;
}

static dw_status look_up(stepper *stepper, const ir_value *index, dim size, int64_t *room) {
    const value_formula *formula = value_of(stepper->analysis, index);
    int64_t count;
    dim low, high;
    bool uses = false;
    if (formula == NULL || !dim_is_constant(size, &count)) return DW_OK;
    value_set_scope(stepper->analysis, formula->rank, formula->dims);
    const bool known = value_range(stepper->analysis, formula->expr, &low, &high);
    TRY(value_status(stepper->analysis));
    if (known) TRY(step_uses_length(stepper, high, &uses));
    return uses ? longest(stepper, high, count, room) : DW_OK;
}

dw_status step_find_room(stepper *stepper, const ir_node *last, int64_t *room) {
    for (const ir_node *node = stepper->graph->first; node != NULL; node = node == last ? NULL : node->next) {
        const int axis = (int)ir_int(node, OP_ATTR_axis), count = node->op == OP_index ? node->n_in - 1 : 1;
        if (node->op != OP_take && node->op != OP_gather && node->op != OP_index) continue;
        for (int i = 0; i < count; i++) TRY(look_up(stepper, ir_in(node, 1 + i), ir_in(node, 0)->type.dims[axis + i], room));
    }
    return DW_OK;
}
