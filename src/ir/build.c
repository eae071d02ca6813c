/* New nodes: operands and attributes checked by the op, results inferred, a failure given its place. */
#include "ir/internal.h"

#include <string.h>

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
    *n_out = n_in < def->min_in || n_in > def->max_in ? def->min_out : op_result_count(op, n_in, present);   /* a wrong count is told below */
    for (int i = 0; i < IR_MAX_OUT; i++) out[i] = (op_type){0};
    op_infer infer = {.context = graph->context, .dims = graph->dims, .op = def, .attrs = attrs, .n_in = n_in, .in = types, .n_out = *n_out, .out = out};
    return op_infer_types(&infer);
}

/* " (op add of x f32[2,3], %7 f32[4], module "blocks.3.mlp", name "add_3")" behind the message. */
static dw_status fail_in_place(const ir_graph *graph, dw_status status, op_id op, int n_in, ir_value *const *in) {
    if (status == DW_NO_MEMORY) return status;
    text place;
    text_init(&place, graph->context);
    text_printf(&place, "op %s", op_get(op)->name);
    for (int i = 0; i < n_in && i < IR_MAX_IN; i++) {
        text_add(&place, i == 0 ? " of " : ", ");
        if (in[i] == NULL) {
            text_add(&place, "-");
        } else {
            ir_print_value(&place, in[i]);
            text_add(&place, " ");
            op_type_print(&place, graph->dims, &in[i]->type);
        }
    }
    if (graph->origin.module != NULL) text_printf(&place, ", module \"%s\"", graph->origin.module);
    if (graph->origin.name != NULL) text_printf(&place, ", name \"%s\"", graph->origin.name);
    base_fail_at(graph->context, status, "%s", text_string(&place));
    text_free(&place);
    return status;
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

void ir_update_constant(ir_node *node) {
    bool is_constant = true;
    for (int i = 0; is_constant && i < node->n_in; i++) is_constant = node->in[i].value == NULL || node->in[i].value->is_constant;
    for (int i = 0; is_constant && i < node->n_out; i++) {
        const op_type *type = &node->out[i]->type;
        for (int axis = 0; is_constant && axis < type->rank; axis++) is_constant = dim_is_constant(type->dims[axis], NULL);
    }
    for (int i = 0; is_constant && i < node->attrs.count; i++) {
        const op_attr *attr = &node->attrs.items[i];
        op_attr_kind kind = op_attr_kind_of(attr->id);
        if (kind == OP_KIND_DIM) is_constant = dim_is_constant(attr->dim, NULL);
        for (int j = 0; kind == OP_KIND_DIMS && is_constant && j < attr->count; j++) is_constant = dim_is_constant(attr->dims[j], NULL);
    }
    for (int i = 0; i < node->n_out; i++) node->out[i]->is_constant = is_constant;
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
        values[i] = (ir_value){.kind = IR_RESULT, .id = graph->next_id++, .type = out[i], .node = made, .result = i};
        made->out[i] = &values[i];
    }
    link_before(graph, made, graph->cursor);
    made->order = made->previous != NULL ? made->previous->order + 1 : 1;
    *node = made;
    return DW_OK;
}

dw_status ir_emit(ir_graph *graph, op_id op, int n_in, ir_value *const *in, int n_attrs, const op_attr *attrs, ir_value **result) {
    *result = NULL;
    if ((unsigned)op >= OP_COUNT) return base_fail(graph->context, DW_INVALID, "there is no op %d", (int)op);
    op_attrs copy;
    op_type types[IR_MAX_OUT];
    int n_out;
    dw_status status = ir_copy_attrs(graph, NULL, n_attrs, attrs, &copy);
    if (status == DW_OK) status = ir_infer_results(graph, op, &copy, n_in, in, &n_out, types);
    if (status != DW_OK) return fail_in_place(graph, status, op, n_in, in);
    ir_node *node;
    TRY(ir_new_node(graph, op, &copy, n_in, n_out, types, &node));
    for (int i = 0; i < n_in; i++) ir_set_operand(node, i, in[i]);
    ir_update_constant(node);
    *result = node->out[0];
    return DW_OK;
}

/* ---- frequent forms ---- */

static bool has_shape(const ir_value *value, int rank, const dim *dims) {
    if (value->type.rank != rank) return false;
    for (int i = 0; i < rank; i++) {
        if (value->type.dims[i] != dims[i]) return false;
    }
    return true;
}

dw_status ir_emit_1(ir_graph *graph, op_id op, ir_value *x, ir_value **result) { return ir_emit(graph, op, 1, &x, 0, NULL, result); }

dw_status ir_emit_2(ir_graph *graph, op_id op, ir_value *x, ir_value *y, ir_value **result) {
    return ir_emit(graph, op, 2, (ir_value *[]){x, y}, 0, NULL, result);
}

dw_status ir_emit_cast(ir_graph *graph, ir_value *x, dw_format to, ir_value **result) {
    *result = x;
    if (x->type.format == to) return DW_OK;
    op_attr attr = op_set_format(OP_ATTR_to, to);
    return ir_emit(graph, OP_cast, 1, &x, 1, &attr, result);
}

dw_status ir_emit_scalar(ir_graph *graph, dw_format format, double value, ir_value **result) {
    op_attr attrs[] = {op_set_dims(OP_ATTR_shape, 0, NULL), op_set_real(OP_ATTR_value, value), op_set_format(OP_ATTR_to, format)};
    return ir_emit(graph, OP_fill, 0, NULL, COUNT_OF(attrs), attrs, result);
}

dw_status ir_emit_size(ir_graph *graph, dim size, ir_value **result) {
    op_attr attr = op_set_dim(OP_ATTR_size, size);
    return ir_emit(graph, OP_size, 0, NULL, 1, &attr, result);
}

dw_status ir_emit_reshape(ir_graph *graph, ir_value *x, int rank, const dim *dims, ir_value **result) {
    *result = x;
    if (has_shape(x, rank, dims)) return DW_OK;
    op_attr attr = op_set_dims(OP_ATTR_shape, rank, dims);
    return ir_emit(graph, OP_reshape, 1, &x, 1, &attr, result);
}

dw_status ir_emit_transpose(ir_graph *graph, ir_value *x, const int64_t *order, ir_value **result) {
    op_attr attr = op_set_ints(OP_ATTR_order, x->type.rank, order);
    return ir_emit(graph, OP_transpose, 1, &x, 1, &attr, result);
}

dw_status ir_emit_broadcast(ir_graph *graph, ir_value *x, int rank, const dim *dims, ir_value **result) {
    op_attr attr = op_set_dims(OP_ATTR_shape, rank, dims);
    return ir_emit(graph, OP_broadcast, 1, &x, 1, &attr, result);
}

dw_status ir_emit_slice(ir_graph *graph, ir_value *x, int axis, dim start, dim end, int64_t step, ir_value **result) {
    op_attr attrs[] = {op_set_int(OP_ATTR_axis, axis), op_set_dim(OP_ATTR_start, start), op_set_dim(OP_ATTR_end, end), op_set_int(OP_ATTR_step, step)};
    return ir_emit(graph, OP_slice, 1, &x, COUNT_OF(attrs), attrs, result);
}
