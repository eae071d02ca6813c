/* See mutate.h. */
#include "support/mutate.h"

#include "num/num.h"

const char *mutation_name(mutation kind) {
    static const char *const names[MUTATIONS] = {"another sign", "half of it", "a part of a sum", "operands the other way around", "b the other way around", "in another place", "all logits counted"};
    return names[kind];
}

/* Emits the node anew without the attribute. */
static dw_status emit_without(ir_graph *graph, ir_node *node, op_attr_id absent, int count, const op_attr *more, ir_value **made) {
    op_attr attrs[OP_ATTR_COUNT + 2];
    ir_value *in[64];
    int kept = 0;
    for (int i = 0; i < node->attrs.count; i++)
        if (node->attrs.items[i].id != absent) attrs[kept++] = node->attrs.items[i];
    for (int i = 0; i < count; i++) attrs[kept++] = more[i];
    for (int i = 0; i < node->n_in; i++) in[i] = ir_in(node, i);
    return ir_emit(graph, node->op, node->n_in, in, kept, attrs, made);
}

static dw_status make_half(ir_graph *graph, ir_value *y, ir_value **made) {
    ir_value *scalar;
    TRY(ir_emit_scalar(graph, y->type.format, 0.5, &scalar));
    return ir_emit_2(graph, OP_mul, y, scalar, made);
}

static dw_status make_part(ir_graph *graph, ir_node *node, ir_value **made) {
    const int64_t *axes;
    int64_t size;
    dim zero, one;
    ir_value *first;
    if (node->op == OP_add && op_type_equal(&ir_in(node, 0)->type, &ir_out(node)->type)) *made = ir_in(node, 0);
    if (node->op != OP_sum) return DW_OK;
    op_attr_ints(&node->attrs, OP_ATTR_axes, &axes);
    if (!dim_is_constant(ir_in(node, 0)->type.dims[axes[0]], &size) || size < 2) return DW_OK;
    TRY_DIM(graph->context, zero, dim_constant(graph->dims, 0));
    TRY_DIM(graph->context, one, dim_constant(graph->dims, 1));
    TRY(ir_emit_slice(graph, ir_in(node, 0), (int)axes[0], zero, one, 1, &first));
    return ir_emit(graph, OP_sum, 1, &first, node->attrs.count, node->attrs.items, made);
}

static dw_status make_swapped(ir_graph *graph, ir_node *node, ir_value **made) {
    const bool two = node->n_in == 2 && (op_get(node->op)->traits & OP_TRAIT_POINTWISE) != 0;
    if (!two || (op_get(node->op)->traits & OP_TRAIT_COMMUTES) != 0 || ir_in(node, 0) == ir_in(node, 1)) return DW_OK;
    return ir_emit_2(graph, node->op, ir_in(node, 1), ir_in(node, 0), made);
}

/* The first piece of a concat behind the others; a slice of the beginning; padding on the other side. */
static dw_status make_elsewhere(ir_graph *graph, ir_node *node, ir_value **made) {
    ir_value *in[64];
    int64_t start;
    const dim *before, *after;
    if (node->op == OP_concat && node->n_in > 1 && node->n_in <= 64) {
        for (int i = 0; i < node->n_in; i++) in[i] = ir_in(node, (i + 1) % node->n_in);
        return ir_emit(graph, OP_concat, node->n_in, in, node->attrs.count, node->attrs.items, made);
    }
    if (node->op == OP_slice && dim_is_constant(op_attr_dim(&node->attrs, OP_ATTR_start), &start) && start > 0) {
        dim first, behind;
        TRY_DIM(graph->context, first, dim_constant(graph->dims, 0));
        TRY_DIM(graph->context, behind, dim_sub(graph->dims, op_attr_dim(&node->attrs, OP_ATTR_end), op_attr_dim(&node->attrs, OP_ATTR_start)));
        return ir_emit_slice(graph, ir_in(node, 0), (int)ir_int(node, OP_ATTR_axis), first, behind, ir_int(node, OP_ATTR_step), made);
    }
    if (node->op != OP_pad) return DW_OK;
    const int rank = op_attr_dims(&node->attrs, OP_ATTR_before, &before);
    op_attr_dims(&node->attrs, OP_ATTR_after, &after);
    bool same = true;
    for (int i = 0; i < rank; i++) same = same && before[i] == after[i];
    if (same) return DW_OK;
    const op_attr attrs[] = {op_set_dims(OP_ATTR_before, rank, after), op_set_dims(OP_ATTR_after, rank, before), op_set_real(OP_ATTR_value, ir_real(node, OP_ATTR_value))};
    return ir_emit(graph, OP_pad, 1, (ir_value *[]){ir_in(node, 0)}, COUNT_OF(attrs), attrs, made);
}

static dw_status make(ir_graph *graph, ir_node *node, mutation kind, ir_value **made) {
    const op_attr turned = op_set_bool(OP_ATTR_bt, !ir_bool(node, OP_ATTR_bt));
    switch (kind) {
    case MUTATION_SIGN: return ir_emit_1(graph, OP_neg, ir_out(node), made);
    case MUTATION_FACTOR: return make_half(graph, ir_out(node), made);
    case MUTATION_PART: return make_part(graph, node, made);
    case MUTATION_SWAP: return make_swapped(graph, node, made);
    case MUTATION_TURN: return node->op == OP_matmul ? emit_without(graph, node, OP_ATTR_bt, 1, &turned, made) : DW_OK;
    case MUTATION_PLACE: return make_elsewhere(graph, node, made);
    case MUTATION_CLASSES: return op_attrs_get(&node->attrs, OP_ATTR_classes) != NULL ? emit_without(graph, node, OP_ATTR_classes, 0, NULL, made) : DW_OK;
    case MUTATIONS: break;
    }
    return DW_OK;
}

static bool is_nothing(const ir_graph *graph, ir_node *node) {
    ir_value *y = ir_out(node);
    double number;
    return ir_use_count(graph, y) == 0 || num_info(y->type.format)->class != NUM_FLOAT || (node->op == OP_fill && ir_real(node, OP_ATTR_value) == 0) || (ir_is_scalar(y, &number) && number == 0);
}

/* Who reads the result reads made, but for the nodes that made it of the result. */
static void put(ir_graph *graph, const ir_value *y, ir_value *made, bool keeps_own) {
    const ir_node *own[] = {made->kind == IR_RESULT ? made->node : NULL, made->kind == IR_RESULT ? made->node->previous : NULL};
    for (ir_use *use = y->uses, *next; use != NULL; use = next) {
        next = use->next;
        if (use->node != own[0] && (keeps_own || use->node != own[1])) ir_set_operand(use->node, use->index, made);
    }
    for (size_t i = 0; i < graph->output_count; i++)
        if (graph->outputs[i].value == y) ir_set_output(graph, i, made);
}

bool mutate(ir_graph *graph, int order, mutation kind) {
    ir_node *node = graph->first;
    ir_value *made = NULL;
    while (node != NULL && node->order != order) node = node->next;
    if (node == NULL || is_nothing(graph, node)) return false;
    graph->origin = (ir_origin){0};
    graph->cursor = node->next;
    const dw_status status = make(graph, node, kind, &made);
    graph->cursor = NULL;
    if (status != DW_OK || made == NULL || !op_type_equal(&made->type, &ir_out(node)->type)) return false;
    put(graph, ir_out(node), made, made->kind != IR_RESULT || kind == MUTATION_PART);
    if (ir_sort(graph) != DW_OK) return false;
    ir_renumber(graph);
    return true;
}
