/* Spares copies: decides which views are only strides over their operand, and which results are written in the order in which a transpose will read
 * them. A view stays a step (a copy) if a reader needs contiguous memory, or if no strides express it. */
#include "plan/internal.h"

#include <string.h>

static bool is_view(const ir_node *node) { return op_get(node->op)->traits & OP_TRAIT_VIEW; }

/* Does reshape only split axes of its operand (or add and drop axes of size 1)? Then strides express it whatever the operand's are. */
static bool only_splits(dim_table *dims, const op_type *from, const op_type *to)
{
    int i = 0, k = 0;
    while (i < from->rank || k < to->rank) {
        int64_t one;
        if (i < from->rank && dim_is_constant(from->dims[i], &one) && one == 1) { i++; continue; }
        if (i == from->rank) {
            if (!(dim_is_constant(to->dims[k], &one) && one == 1)) return false;
            k++;
            continue;
        }
        dim product = dim_constant(dims, 1);
        while (k < to->rank && product != from->dims[i]) {
            product = product ? dim_mul(dims, product, to->dims[k]) : NULL;
            k++;
        }
        if (product != from->dims[i]) return false;
        i++;
    }
    return true;
}

static bool same_order(const ir_node *transpose)
{
    const int64_t *order;
    int count = op_attr_ints(&transpose->attrs, OP_ATTR_order, &order);
    int64_t last = -1;
    for (int i = 0; i < count; i++) {
        int64_t one;
        if (dim_is_constant(ir_in(transpose, 0)->type.dims[order[i]], &one) && one == 1) continue;
        if (order[i] < last) return false;
        last = order[i];
    }
    return true;
}

/* A slice of the outermost axis that is not 1 keeps the memory in one piece. */
static bool slices_outermost(const ir_node *slice)
{
    const op_type *type = &ir_in(slice, 0)->type;
    int64_t axis = ir_int(slice, OP_ATTR_axis), one;
    for (int64_t i = 0; i < axis; i++)
        if (!(dim_is_constant(type->dims[i], &one) && one == 1)) return false;
    return ir_int(slice, OP_ATTR_step) == 1;
}

/* Is it a rank's part of what is computed at load? As a view it would keep all of that in memory. */
static bool is_part_of_computed(const ir_node *slice)
{
    const plan_value *from = plan_value_of(ir_in(slice, 0));
    return from->key != NULL && from->value->kind == IR_RESULT && !from->view && !dim_is_constant(op_attr_dim(&slice->attrs, OP_ATTR_start), NULL) && plan_value_of(ir_out(slice))->key != NULL;
}

/* Can strides express node over its operand, and is the result contiguous then? */
static bool can_alias(plan *plan, const ir_node *node, bool *contiguous)
{
    const ir_value *operand = ir_in(node, 0);
    const plan_value *from = plan_value_of(operand);
    *contiguous = false;
    if (dw_format_is_block(operand->type.format) || dw_format_bits(operand->type.format) < 8) return false;
    switch (node->op) {
    case OP_reshape:
        *contiguous = from->contiguous;
        return from->contiguous || only_splits(plan->graph->dims, &operand->type, &ir_out(node)->type);
    case OP_transpose:
        *contiguous = from->contiguous && same_order(node);
        return true;
    case OP_slice:
        *contiguous = from->contiguous && slices_outermost(node);
        return !is_part_of_computed(node);
    case OP_broadcast:
        *contiguous = from->contiguous && op_type_equal(&operand->type, &ir_out(node)->type);
        return true;
    default:
        return false;
    }
}

/* Values that no reader may see as strided: they are written to where the caller or the next run finds them. */
static bool must_be_contiguous(const plan *plan, const ir_value *value)
{
    return ir_is_output(plan->graph, value) || value->next_count > 0;
}

static bool readers_accept_strides(const plan *plan, const ir_value *value)
{
    if (must_be_contiguous(plan, value)) return false;
    for (const ir_use *use = value->uses; use != NULL; use = use->next) {
        const plan_step *step = use->node->mark;
        if (is_view(use->node) && plan_value_of(ir_out(use->node))->view) continue;
        if (step->at_load != (plan_value_of(value)->key != NULL && !plan_value_of(value)->updated)) return false;   /* constants cross into run time in one piece */
        if (!(step->row->strided_in >> use->index & 1)) return false;
    }
    return true;
}

static void alias_forward(plan *plan)
{
    for (ir_node *node = plan->graph->first; node != NULL; node = node->next) {
        if (!is_view(node)) continue;
        plan_value *v = plan_value_of(ir_out(node)), *operand = plan_value_of(ir_in(node, 0));
        bool contiguous, possible = can_alias(plan, node, &contiguous);
        if (node->op == OP_transpose && operand->layout != NULL) contiguous = true;   /* laid out for this very view */
        v->view = possible && !must_be_contiguous(plan, v->value);
        v->base = v->view ? operand : NULL;
        v->contiguous = v->view ? contiguous : true;
    }
}

static void refuse_backward(plan *plan)
{
    for (ir_node *node = plan->graph->last; node != NULL; node = node->previous) {
        if (!is_view(node)) continue;
        plan_value *v = plan_value_of(ir_out(node));
        if (!v->view || v->contiguous || readers_accept_strides(plan, v->value)) continue;
        v->view = false;
        v->base = NULL;
        v->contiguous = true;
    }
}

/* Does a step read the operand row by row, wherever the rows lie? So an attention's gradient reads its result. */
static bool reads_rows(const ir_use *use)
{
    const plan_step *step = use->node->mark;
    return use->node->op == OP_attention_backward && (step->row->strided_in >> use->index & 1) != 0;
}

/* The order of the transposes by which a result is read, where that is one and keeps the last axis; NULL: it is not, or others read it than those and steps that read rows. */
static const int64_t *order_of_readers(const ir_value *result)
{
    const int64_t *order = NULL, *other;
    for (const ir_use *use = result->uses; use != NULL; use = use->next) {
        if (reads_rows(use)) continue;
        if (use->node->op != OP_transpose || !plan_value_of(ir_out(use->node))->view) return NULL;
        const int rank = op_attr_ints(&use->node->attrs, OP_ATTR_order, &other);
        if (rank < 1 || other[rank - 1] != rank - 1 || same_order(use->node)) return NULL;
        if (order != NULL && memcmp(order, other, (size_t)rank * sizeof *order) != 0) return NULL;
        order = other;
    }
    return order;
}

/* A result that is read through one transpose, or several of the same order, is written in that order, if its kernel can:
 *     %1 = attention ..            memory runs along [b,s,h,d]
 *     %2 = transpose %1 {0,2,1,3}  contiguous                                                                                   */
static void write_transposed(plan *plan)
{
    for (int i = plan->run_first; i < plan->step_count; i++) {
        const plan_step *step = &plan->steps[i];
        ir_value *result = ir_out(step->node);
        if (is_view(step->node) || !step->row->strided_out || must_be_contiguous(plan, result) || dw_format_is_block(result->type.format)) continue;
        const int64_t *order = order_of_readers(result);
        if (order == NULL) continue;
        plan_value_of(result)->layout = order;
        plan_value_of(result)->contiguous = false;
    }
}

/* What only one take reads is written in the order in which that writes: the taken rows lie as they did, and where all are taken they need not move. */
static void write_as_taken(plan *plan)
{
    for (int i = plan->step_count; i-- > plan->run_first;) {
        const plan_step *step = &plan->steps[i];
        ir_value *result = ir_out(step->node);
        if (is_view(step->node) || !step->row->strided_out || must_be_contiguous(plan, result)) continue;
        if (result->uses == NULL || result->uses->next != NULL || dw_format_is_block(result->type.format)) continue;
        const ir_node *take = result->uses->node;
        const plan_value *taken = plan_value_of(ir_out(take));
        if (take->op != OP_take || result->uses->index != 0 || taken->layout == NULL || taken->value->type.rank != result->type.rank || !readers_accept_strides(plan, result)) continue;
        plan_value_of(result)->layout = taken->layout;
        plan_value_of(result)->contiguous = false;
    }
}

/* Was every transpose copied after all that the value is laid out for, or what is taken of it? */
static bool is_in_vain(const plan_value *v)
{
    for (const ir_use *use = v->value->uses; use != NULL; use = use->next) {
        const plan_value *read = plan_value_of(ir_out(use->node));
        if (use->node->op == OP_take ? read->layout != NULL : use->node->op == OP_transpose && read->view) return false;
    }
    return true;
}

void plan_lay_out(plan *plan)
{
    alias_forward(plan);
    write_transposed(plan);
    write_as_taken(plan);
    alias_forward(plan);
    refuse_backward(plan);
    for (ir_node *node = plan->graph->first; node != NULL; node = node->next) {
        plan_value *v = plan_value_of(ir_out(node));
        if (!is_view(node) || v->view) continue;
        bool contiguous;
        plan_value *operand = plan_value_of(ir_in(node, 0));
        if (can_alias(plan, node, &contiguous) && contiguous && !must_be_contiguous(plan, v->value)) {
            v->view = true;   /* what came before it has become contiguous meanwhile */
            v->base = operand;
        }
    }
    for (int i = plan->value_count; i-- > 0;) {
        plan_value *v = &plan->values[i];
        if (v->layout != NULL && is_in_vain(v)) {
            v->layout = NULL;
            v->contiguous = true;
        }
    }
}

dw_status plan_drop_views(plan *plan)
{
    int kept = 0, load = 0, update = 0;
    for (int i = 0; i < plan->step_count; i++) {
        plan_step *step = &plan->steps[i];
        if (is_view(step->node) && plan_value_of(ir_out(step->node))->view) {
            step->node->mark = NULL;
            continue;
        }
        load += step->at_load;
        update += step->at_update;
        plan->steps[kept] = *step;
        plan->steps[kept].node->mark = &plan->steps[kept];
        kept++;
    }
    plan->step_count = kept;
    plan->load_count = load;
    plan->run_first = load + update;
    return DW_OK;
}
