/* One node: its strings, attributes, result types, operands and place in the list. What is emitted (build.c), copied (graph.c) and changed (change.c) comes together here. */
#include "ir/internal.h"

#include <string.h>

/* ---- strings ---- */

dw_status ir_intern(ir_graph *graph, const char *text, const char **interned) {
    *interned = NULL;
    if (text == NULL) return DW_OK;
    char *found = map_find(&graph->texts, text);
    if (found == NULL) {
        found = arena_text(&graph->arena, text);
        if (found == NULL) return DW_NO_MEMORY;
        TRY(map_set(&graph->texts, text, found));
    }
    *interned = found;
    return DW_OK;
}

/* ---- attributes ---- */

static dw_status copy_dims(ir_graph *graph, const dim_table *from, int count, const dim *dims, const dim **copy) {
    dim *made;
    TRY_NEW(made, &graph->arena, count);
    for (int i = 0; i < count; i++) {
        made[i] = dims[i];
        if (from != NULL) TRY_DIM(graph->context, made[i], dim_rewrite(graph->dims, from, dims[i], NULL));
    }
    *copy = made;
    return DW_OK;
}

static dw_status copy_attr(ir_graph *graph, const dim_table *from, const op_attr *attr, op_attr *copy) {
    *copy = *attr;
    switch (op_attr_kind_of(attr->id)) {
    case OP_KIND_INT:
    case OP_KIND_BOOL:
    case OP_KIND_REAL:
    case OP_KIND_FORMAT: return DW_OK;
    case OP_KIND_DIM:
        if (from != NULL) TRY_DIM(graph->context, copy->dim, dim_rewrite(graph->dims, from, attr->dim, NULL));
        return DW_OK;
    case OP_KIND_DIMS: return copy_dims(graph, from, attr->count, attr->dims, &copy->dims);
    case OP_KIND_TEXT: return ir_intern(graph, attr->text, &copy->text);
    case OP_KIND_INTS: {
        int64_t *integers;
        TRY_NEW(integers, &graph->arena, attr->count);
        for (int i = 0; i < attr->count; i++) integers[i] = attr->integers[i];
        copy->integers = integers;
        return DW_OK;
    }
    }
    return base_fail(graph->context, DW_INTERNAL, "attribute %d is of no kind", (int)attr->id);
}

dw_status ir_copy_attrs(ir_graph *graph, const dim_table *from, int count, const op_attr *attrs, op_attrs *copy) {
    op_attr *made;
    TRY_NEW(made, &graph->arena, count);
    for (int i = 0; i < count; i++) {
        if ((unsigned)attrs[i].id >= OP_ATTR_COUNT) return base_fail(graph->context, DW_INVALID, "there is no attribute %d", (int)attrs[i].id);
        int at = i;
        while (at > 0 && made[at - 1].id > attrs[i].id) at--;
        if (at > 0 && made[at - 1].id == attrs[i].id) {
            return base_fail(graph->context, DW_INVALID, "attribute %s is given twice", op_attr_name(attrs[i].id));
        }
        memmove(&made[at + 1], &made[at], (size_t)(i - at) * sizeof *made);
        TRY(copy_attr(graph, from, &attrs[i], &made[at]));
    }
    *copy = (op_attrs){count, made};
    return DW_OK;
}

/* ---- inference ---- */

dw_status ir_infer_results(const ir_graph *graph, op_id op, const op_attrs *attrs, int n_in, ir_value *const *in, int *n_out, op_type *out) {
    const op_def *def = op_get(op);
    if (n_in > IR_MAX_IN) return base_fail(graph->context, DW_INVALID, "%s: %d operands, no op takes more than %d", def->name, n_in, IR_MAX_IN);
    const op_type *types[IR_MAX_IN];
    bool present[IR_MAX_IN];
    for (int i = 0; i < n_in; i++) {
        present[i] = in[i] != NULL;
        types[i] = in[i] != NULL ? &in[i]->type : NULL;
    }
    *n_out = n_in < def->min_in || n_in > def->max_in ? def->min_out : op_result_count(op, attrs, n_in, present);   /* a wrong count is an error below */
    for (int i = 0; i < IR_MAX_OUT; i++) out[i] = (op_type){0};
    op_infer infer = {.context = graph->context, .dims = graph->dims, .op = def, .attrs = attrs, .n_in = n_in, .in = types, .n_out = *n_out, .out = out};
    return op_infer_types(&infer);
}

/* ---- operands ---- */

static bool has_symbol(int count, const dim *dims) {
    for (int i = 0; i < count; i++) {
        if (!dim_is_constant(dims[i], NULL)) return true;
    }
    return false;
}

static bool is_settled(const op_attr *attr) {
    const op_attr_kind kind = op_attr_kind_of(attr->id);
    if (kind == OP_KIND_DIM) return dim_is_settled(attr->dim);
    for (int i = 0; kind == OP_KIND_DIMS && i < attr->count; i++) {
        if (!dim_is_settled(attr->dims[i])) return false;
    }
    return true;
}

ir_rate ir_rate_of(const ir_node *node) {
    ir_rate rate = op_has(node->op, OP_TRAIT_COLLECTIVE) ? IR_RATE_RUN : IR_RATE_LOAD;
    for (int i = 0; i < node->n_in; i++) {
        if (node->in[i].value != NULL && node->in[i].value->rate > rate) rate = node->in[i].value->rate;
    }
    for (int i = 0; rate < IR_RATE_RUN && i < node->n_out; i++) {
        if (has_symbol(node->out[i]->type.rank, node->out[i]->type.dims)) rate = IR_RATE_RUN;
    }
    for (int i = 0; rate < IR_RATE_RUN && i < node->attrs.count; i++) {
        if (!is_settled(&node->attrs.items[i])) rate = IR_RATE_RUN;
    }
    return rate;
}

void ir_update_rate(ir_node *node) {
    const ir_rate rate = ir_rate_of(node);
    for (int i = 0; i < node->n_out; i++) node->out[i]->rate = rate;
}

void ir_unlink_use(ir_use *use) {
    if (use->value == NULL) return;
    if (use->previous != NULL) use->previous->next = use->next;
    else use->value->uses = use->next;
    use->value->use_count--;
    if (use->next != NULL) use->next->previous = use->previous;
    use->value = NULL;
    use->next = use->previous = NULL;
}

void ir_set_operand(ir_node *node, int index, ir_value *value) {
    ir_use *use = &node->in[index];
    ir_unlink_use(use);
    if (value != NULL) {
        use->value = value;
        use->next = value->uses;
        if (use->next != NULL) use->next->previous = use;
        value->uses = use;
        value->use_count++;
    }
    ir_update_rate(node);
}

void ir_set_next(ir_value *state, ir_value *next) {
    if (state->next != state) state->next->next_count--;
    if (next != state) next->next_count++;
    state->next = next;
}

/* ---- nodes ---- */

static void link_before(ir_graph *graph, ir_node *node, ir_node *next) {
    node->next = next;
    node->previous = next != NULL ? next->previous : graph->last;
    if (node->previous != NULL) node->previous->next = node;
    else graph->first = node;
    if (next != NULL) next->previous = node;
    else graph->last = node;
}

dw_status ir_new_node(ir_graph *graph, op_id op, const op_attrs *attrs, int n_in, int n_out, const op_type *out, ir_node **node) {
    ir_node *made;
    ir_value *values;
    *node = NULL;
    if (graph->next_id > INT32_MAX - n_out) return base_fail(graph->context, DW_LIMIT, "a graph has at most %d values", INT32_MAX);
    TRY_NEW(made, &graph->arena, 1);
    TRY_NEW(made->in, &graph->arena, n_in);
    TRY_NEW(made->out, &graph->arena, n_out);
    TRY_NEW(values, &graph->arena, n_out);
    made->op = op;
    made->attrs = *attrs;
    made->origin = graph->origin;
    made->n_in = n_in;
    made->n_out = n_out;
    for (int i = 0; i < n_in; i++) made->in[i] = (ir_use){.node = made, .index = i};
    for (int i = 0; i < n_out; i++) {
        values[i] = (ir_value){.kind = IR_RESULT, .rate = IR_RATE_RUN, .id = graph->next_id++, .type = out[i], .node = made, .result = i};
        made->out[i] = &values[i];
    }
    link_before(graph, made, graph->cursor);
    made->order = made->previous != NULL ? made->previous->order + 1 : 1;
    *node = made;
    return DW_OK;
}
