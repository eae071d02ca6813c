/* What is known of a value's gradient while the nodes are visited: that it is wanted, its parts, one for each use, and their sum. */
#include "pass/gradient/gradient.h"

/* Behind ir_value.mark of each value whose gradient is wanted. */
typedef struct wanted {
    ir_value **parts;               /* in the order in which they were added: from the last use to the first */
    size_t count, capacity;
    ir_value *sum;                  /* NULL until gradient_sum, or when there is no part */
} wanted;

dw_status gradient_want(gradient *g, ir_value *value) {
    wanted *made;
    TRY_NEW(made, &g->scratch, 1);
    value->mark = made;
    return DW_OK;
}

bool gradient_is_asked_for(const ir_value *input, const char *inputs) {
    const num_format *info = num_info(input->type.format);
    return inputs != NULL && info->class == NUM_FLOAT && info->bits >= 16 && pass_is_listed(inputs, input->name);
}

bool gradient_wants(const gradient *g, const ir_value *value) {
    (void)g;
    return value != NULL && value->mark != NULL;
}

size_t gradient_part_count(const ir_value *value) { return ((const wanted *)value->mark)->count; }

void gradient_set_phase(gradient *g, const char *phase) {
    for (ir_node *node = g->phased->next; node != NULL; node = node->next) node->origin.phase = phase;
    g->phased = g->graph->last;
}

dw_status gradient_add(gradient *g, ir_value *value, ir_value *d) {
    if (!gradient_wants(g, value)) return DW_OK;
    wanted *to = value->mark;
    TRY(gradient_emit_unbroadcast(g, d, value->type.rank, value->type.dims, &d));
    if (!dw_format_is_block(value->type.format)) TRY(ir_emit_cast(g->graph, d, value->type.format, &d));
    gradient_set_phase(g, ir_is_weight(value) ? g->wgrad : g->dgrad);
    to->parts = arena_grow(&g->scratch, to->parts, to->count, &to->capacity, sizeof *to->parts);
    if (to->parts == NULL) return DW_NO_MEMORY;
    to->parts[to->count++] = d;
    return DW_OK;
}

static dw_status add_part(gradient *g, wanted *of, ir_value *part) {
    if (of->sum != NULL) return ir_emit_2(g->graph, OP_add, of->sum, part, &of->sum);
    of->sum = part;
    return DW_OK;
}

/* In the order of the value's uses, but what is made of the logits' gradient first: where logits come in parts, one after the other, each part is added to those before it as soon as it is there, also
 * to a weight that an embedding has, too. */
static dw_status add_parts(gradient *g, wanted *of) {
    for (size_t i = of->count; i-- > 0;)
        if (gradient_is_of_logits(of->parts[i])) TRY(add_part(g, of, of->parts[i]));
    for (size_t i = of->count; i-- > 0;)
        if (!gradient_is_of_logits(of->parts[i])) TRY(add_part(g, of, of->parts[i]));
    return DW_OK;
}

dw_status gradient_sum_parts(gradient *g, const ir_value *value, ir_value **sum) {
    wanted *of = value->mark;
    *sum = NULL;
    if (of->count == 0) return DW_OK;
    TRY(gradient_emit_tiles(g, value, of->parts, of->count, &of->sum));
    if (of->sum == NULL) TRY(add_parts(g, of));
    gradient_set_phase(g, ir_is_weight(value) ? g->wgrad : g->dgrad);
    *sum = of->sum;
    return DW_OK;
}

ir_value *gradient_of(const gradient *g, const ir_node *node, int result) {
    if (result >= node->n_out || !gradient_wants(g, node->out[result])) return NULL;
    const wanted *of = node->out[result]->mark;
    return of->sum;
}

dw_status gradient_refuse(gradient *g, const ir_node *node, const char *why) {
    const ir_origin *origin = &node->origin;
    return base_fail(g->graph->context, DW_UNSUPPORTED, "the gradient of op %s%s%s%s%s: %s", op_get(node->op)->name, origin->module != NULL ? " of module " : "",
                     origin->module != NULL ? origin->module : "", origin->name != NULL ? ", exported as " : "", origin->name != NULL ? origin->name : "", why);
}
