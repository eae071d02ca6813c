/* Outputs of a step for the last token of each text alone: they are taken at each output over the new tokens, and the taking is moved up as long as
 * what it passes treats tokens one by one.
 *
 *     %8 = attention %q, %k, %v, -, -, -, step.row, step.position {causal}; %9 = matmul %8, wo; .. ; output logits %20      [1,s,v]
 *     %8 = attention %q, %k, %v, -, -, -, step.row, step.position {causal}; %9 = take %8, step.last; %10 = matmul %9, wo; .. [1,cache_ends,v]
 *
 * It stops at attention. Queries of last tokens alone would need a product, a rotation and angles of their own, which cost a step of one token for each text more than the rest
 * of one layer's queries costs a prompt.
 *
 * What others need whole is computed whole and cut, which costs nothing. Experts have to be spelled as dispatch and combine by then. */
#include "pass/step/incremental.h"

enum { MAX_OPERANDS = 64 };

/* What is needed of a value; found by its mark. An axis that runs over tokens has them alone or behind another axis that was merged with
 * it (b*s). */
typedef struct need {
    bool whole, last;        /* all tokens, the last token */
    int axis;                /* along which the last token is needed */
    bool sorted;             /* made of the tokens in the order of their experts (along axis 0), for one combine alone */
    ir_value *made;          /* the last token */
} need;

typedef struct restrictor {
    ir_graph *graph;
    arena arena;
    dim length, one, ends;
    ir_value *last;          /* input step.last [ends] */
} restrictor;

static need *need_of(const ir_value *value) {
    return value->mark;
}

/* ---- shapes ---------------------------------------------------------------------------------------------------------- */

/* The size of an axis without its tokens: 1, or what it was merged with; NULL when it has no tokens. */
static dim outer_of(const restrictor *to, dim size) {
    return size == to->length ? to->one : dim_divide_exact(to->graph->dims, size, to->length);
}

/* The product of the sizes up to and with axis. */
static dw_status size_through(const restrictor *to, const op_type *type, int axis, dim *size) {
    TRY_DIM(to->graph->context, *size, dim_product(to->graph->dims, type->dims, axis + 1));
    return DW_OK;
}

/* The axis of a reshape's operand that ends with the tokens of the result's axis; -1: none does. */
static dw_status reshape_axis(const restrictor *to, const ir_node *node, int axis, int *from) {
    const op_type *x = &ir_in(node, 0)->type, *y = &ir_out(node)->type;
    dim end, other;
    *from = -1;
    TRY(size_through(to, y, axis, &end));
    for (int i = 0; i < x->rank && *from < 0; i++) {
        TRY(size_through(to, x, i, &other));
        if (other == end && outer_of(to, x->dims[i]) != NULL) *from = i;
    }
    return DW_OK;
}

/* ---- where the slice goes ------------------------------------------------------------------------------------------------ */

/* The operand's axis under broadcasting; -1 when it has size 1 there, or none. *fits is false when it is neither. */
static int aligned_axis(const ir_node *node, int index, int axis, bool *fits) {
    const op_type *x = &ir_in(node, index)->type, *y = &ir_out(node)->type;
    const int own = axis - (y->rank - x->rank);
    int64_t size;
    if (own < 0 || (dim_is_constant(x->dims[own], &size) && size == 1)) return -1;
    *fits = *fits && x->dims[own] == y->dims[axis];
    return own;
}

static void align_operands(const ir_node *node, int first, int count, int axis, int *axes, bool *fits) {
    for (int i = first; i < count; i++) axes[i] = ir_in(node, i) == NULL ? -1 : aligned_axis(node, i, axis, fits);
}

static bool find_matmul_axes(const ir_node *node, int axis, int *axes) {
    const int rank = ir_out(node)->type.rank, own = ir_in(node, 0)->type.rank;
    bool fits = axis != rank - 1;
    if (axis == rank - 2) {
        axes[0] = ir_bool(node, OP_ATTR_at) ? own - 1 : own - 2;
    } else if (fits) {
        align_operands(node, 0, 2, axis, axes, &fits);
    }
    for (int i = 2; i < node->n_in && fits; i++) axes[i] = ir_in(node, i)->type.rank < 2 ? -1 : aligned_axis(node, i, axis, &fits);
    return fits;
}

static bool find_reduced_axes(const ir_node *node, int axis, int *axes) {
    const int64_t *reduced;
    const int count = op_attr_ints(&node->attrs, OP_ATTR_axes, &reduced);
    if (count == 0) return false;
    axes[0] = axis;
    for (int i = 0; i < count; i++) {
        if (ir_bool(node, OP_ATTR_keep) && reduced[i] == axis) return false;
        if (!ir_bool(node, OP_ATTR_keep) && reduced[i] <= axes[0]) axes[0]++;
    }
    return true;
}

/* ---- experts ----------------------------------------------------------------------------------------------------------
 *
 *     %1, %2, %3 = dispatch ids; %4 = take x, %1; .. %8 = grouped_matmul %7, w, %3; %9 = combine %8, %2, weights
 *
 * What lies in the order of dispatch cannot be cut, but it may all be made again: for the ids of the last tokens. */

/* Nodes that were made meanwhile have no needs. */
static bool is_sorted(const ir_value *value) { return value != NULL && need_of(value) != NULL && need_of(value)->sorted; }
static void set_sorted(const ir_node *node, bool sorted) {
    for (int i = 0; i < node->n_out; i++)
        if (need_of(node->out[i]) != NULL) need_of(node->out[i])->sorted = sorted;
}

/* Is each operand from first on in sorted rows as the result is, or the same for all of them? */
static bool reads_in_order(const ir_node *node, int first) {
    const op_type *type = &ir_out(node)->type;
    for (int i = first; i < node->n_in; i++) {
        const ir_value *x = ir_in(node, i);
        int64_t size;
        if (x == NULL) continue;
        if (is_sorted(x) && (x->type.rank != type->rank || x->type.dims[0] != type->dims[0])) return false;
        if (!is_sorted(x) && x->type.rank == type->rank && (!dim_is_constant(x->type.dims[0], &size) || size != 1) && !ir_is_constant(x)) return false;
    }
    return true;
}

/* Is what node makes of sorted rows sorted rows as well, each made of its own? */
static bool keeps_order(const ir_node *node, const ir_node *dispatch) {
    switch (node->op) {
    case OP_take: return is_sorted(ir_in(node, 1)) && ir_in(node, 1)->type.rank == 1 && !is_sorted(ir_in(node, 0)) && ir_int(node, OP_ATTR_axis) == 0;
    case OP_grouped_matmul: return ir_int(node, OP_ATTR_padded) == 0 && is_sorted(ir_in(node, 0)) && ir_in(node, 2) == dispatch->out[2] && reads_in_order(node, 3);
    case OP_slice: return ir_int(node, OP_ATTR_axis) != 0;
    default: return (op_get(node->op)->traits & OP_TRAIT_POINTWISE) != 0 && reads_in_order(node, 0);
    }
}

/* Marks what lies between dispatch and combine. false: some of it is read elsewhere, or treats rows not one by one. */
static bool mark_sorted(const ir_node *dispatch, const ir_node *combine) {
    set_sorted(dispatch, true);
    for (const ir_node *node = dispatch->next; node != combine; node = node->next) {
        bool reads = false;
        for (int i = 0; i < node->n_in; i++) reads = reads || is_sorted(ir_in(node, i));
        if (!reads) continue;
        if (node->n_out != 1 || !keeps_order(node, dispatch)) return false;
        set_sorted(node, true);
    }
    return is_sorted(ir_in(combine, 0)) && !is_sorted(ir_in(combine, 2));
}

/* Do sorted rows and combine alone read value, and do they read it at all? Of what dispatch makes nobody has to. */
static bool is_read_up_to(const ir_value *value, const ir_node *combine) {
    if (value->output_count > 0 || value->next_count > 0 || (value->uses == NULL && value->node->op != OP_dispatch)) return false;
    for (const ir_use *use = value->uses; use != NULL; use = use->next)
        if (use->node != combine && !is_sorted(ir_out(use->node))) return false;
    return true;
}

/* May all between its dispatch and combine be made for the last tokens alone? Says so once, and leaves the marks. */
static bool find_experts(const ir_node *combine) {
    const ir_node *dispatch = ir_def(ir_in(combine, 1), OP_dispatch);
    if (dispatch == NULL || ir_in(combine, 1) != dispatch->out[1]) return false;
    if (is_sorted(dispatch->out[1])) return is_sorted(ir_in(combine, 0));
    bool fits = mark_sorted(dispatch, combine);
    for (const ir_node *node = dispatch; node != combine; node = node->next)
        for (int i = 0; i < node->n_out; i++) fits = fits && (!is_sorted(node->out[i]) || is_read_up_to(node->out[i], combine));
    for (const ir_node *node = dispatch; !fits && node != combine; node = node->next) set_sorted(node, false);
    return fits;
}

/* Of a node that makes sorted rows: sorted operands along their rows, what dispatch and take read along its tokens, nothing of others. */
static void find_sorted_axes(const ir_node *node, int *axes) {
    for (int i = 0; i < node->n_in; i++) axes[i] = ir_in(node, i) != NULL && is_sorted(ir_in(node, i)) ? 0 : -1;
    if (node->op == OP_dispatch || node->op == OP_take) axes[0] = 0;
}

/* Which axis of each operand (-1: none) must be restricted so that node's axis is. false: the op does not treat tokens one by one there. */
static dw_status find_axes(const restrictor *to, const ir_node *node, int axis, int *axes, bool *fits) {
    const int rank = ir_out(node)->type.rank, along = (int)ir_int(node, OP_ATTR_axis);
    const unsigned traits = op_get(node->op)->traits;
    for (int i = 0; i < node->n_in; i++) axes[i] = -1;
    *fits = true;
    if (is_sorted(ir_out(node))) {
        find_sorted_axes(node, axes);
        return DW_OK;
    }
    switch (node->op) {
    case OP_combine:
        *fits = axis == 0 && find_experts(node);
        for (int i = 0; i < node->n_in; i++) axes[i] = 0;
        return DW_OK;
    case OP_sort:
    case OP_topk:
        *fits = axis != along;
        axes[0] = axis;
        return DW_OK;
    case OP_reshape:
        TRY(reshape_axis(to, node, axis, &axes[0]));
        *fits = axes[0] >= 0;
        return DW_OK;
    case OP_transpose: {
        const int64_t *order;
        op_attr_ints(&node->attrs, OP_ATTR_order, &order);
        axes[0] = (int)order[axis];
        return DW_OK;
    }
    case OP_slice:
    case OP_concat:
    case OP_softmax:
    case OP_log_softmax:
        for (int i = 0; i < node->n_in; i++) axes[i] = axis;
        *fits = axis != along;
        return DW_OK;
    case OP_take: {
        const int inserted = ir_in(node, 1)->type.rank;
        axes[0] = axis < along ? axis : axis >= along + inserted ? axis - inserted + 1 : -1;
        axes[1] = axes[0] < 0 ? axis - along : -1;
        return DW_OK;
    }
    case OP_matmul: *fits = find_matmul_axes(node, axis, axes); return DW_OK;
    case OP_layer_norm:
    case OP_rms_norm:
    case OP_rotary:
    case OP_quantize:
    case OP_dequantize:
        *fits = axis != rank - 1;
        align_operands(node, 0, node->n_in, axis, axes, fits);
        return DW_OK;
    case OP_broadcast: align_operands(node, 0, 1, axis, axes, fits); return DW_OK;
    default: break;
    }
    if (traits & OP_TRAIT_POINTWISE) {
        align_operands(node, 0, node->n_in, axis, axes, fits);
    } else {
        *fits = (traits & OP_TRAIT_REDUCE) != 0 && find_reduced_axes(node, axis, axes);
    }
    return DW_OK;
}

/* ---- making --------------------------------------------------------------------------------------------------------------- */

static void move_cursor(ir_graph *graph, const ir_value *value) {
    if (value->kind == IR_RESULT) {
        ir_cursor_after(graph, value->node);
    } else if (graph->first != NULL) {
        ir_cursor_before(graph, graph->first);
    }
}

static dw_status emit_take(const restrictor *to, ir_value *value, int axis, ir_value **last) {
    ir_value *const in[2] = {value, to->last};
    const op_attr attr = op_set_int(OP_ATTR_axis, axis);
    return ir_emit(to->graph, OP_take, 2, in, 1, &attr, last);
}

static dw_status with_ends(const restrictor *to, dim outer, dim *size) {
    TRY_DIM(to->graph->context, *size, dim_mul(to->graph->dims, outer, to->ends));
    return DW_OK;
}

/* The last tokens of a value that is there whole; merged axes are split for it. */
static dw_status emit_last(const restrictor *to, ir_value *value, int axis, ir_value **last) {
    ir_graph *graph = to->graph;
    const op_type *type = &value->type;
    const dim outer = outer_of(to, type->dims[axis]);
    dim split[DW_MAX_RANK + 1], merged[DW_MAX_RANK];
    move_cursor(graph, value);
    if (type->dims[axis] == to->length) return emit_take(to, value, axis, last);
    for (int i = 0; i < type->rank; i++) {
        merged[i] = type->dims[i];
        split[i < axis ? i : i + 1] = type->dims[i];
    }
    TRY(with_ends(to, outer, &merged[axis]));
    split[axis] = outer;
    split[axis + 1] = to->length;
    TRY(ir_emit_reshape(graph, value, type->rank + 1, split, last));
    TRY(emit_take(to, *last, axis + 1, last));
    return ir_emit_reshape(graph, *last, type->rank, merged, last);
}

/* The last token of an operand: its node was restricted before, or it is cut. */
static dw_status last_of(const restrictor *to, ir_value *value, int axis, ir_value **last) {
    need *need = need_of(value);
    if (need->made == NULL) TRY(emit_last(to, value, axis, &need->made));
    *last = need->made;
    return DW_OK;
}

/* node again for the last tokens: operands restricted, the shape with them. */
static dw_status emit_restricted(restrictor *to, ir_node *node, int axis, const int *axes) {
    ir_graph *graph = to->graph;
    ir_value *in[MAX_OPERANDS], *result;
    op_attr attrs[OP_ATTR_COUNT];
    int count = 0;
    for (int i = 0; i < node->n_in; i++) {
        in[i] = ir_in(node, i);
        if (in[i] != NULL && axes[i] >= 0) TRY(last_of(to, in[i], axes[i], &in[i]));
    }
    for (; count < node->attrs.count; count++) {
        attrs[count] = node->attrs.items[count];
        if (attrs[count].id != OP_ATTR_shape) continue;
        dim *shape;
        TRY_NEW(shape, &to->arena, attrs[count].count);
        for (int i = 0; i < attrs[count].count; i++) {
            shape[i] = attrs[count].dims[i];
            if (i == axis) TRY(with_ends(to, outer_of(to, shape[i]), &shape[i]));
        }
        attrs[count].dims = shape;
    }
    ir_cursor_after(graph, node);
    TRY(ir_emit(graph, node->op, node->n_in, in, count, attrs, &result));
    for (int i = 0; i < node->n_out; i++) need_of(node->out[i])->made = result->node->out[i];
    return DW_OK;
}

/* ---- what is needed ---------------------------------------------------------------------------------------------------------- */

static dw_status add_need(restrictor *to, ir_value *value) {
    need *need;
    TRY_NEW(need, &to->arena, 1);
    value->mark = need;
    return DW_OK;
}

static dw_status add_needs(restrictor *to) {
    const ir_graph *graph = to->graph;
    for (size_t i = 0; i < graph->input_count; i++) TRY(add_need(to, graph->inputs[i]));
    for (size_t i = 0; i < graph->param_count; i++) TRY(add_need(to, graph->params[i]));
    for (size_t i = 0; i < graph->state_count; i++) TRY(add_need(to, graph->states[i]));
    for (const ir_node *node = graph->first; node != NULL; node = node->next) {
        for (int i = 0; i < node->n_out; i++) TRY(add_need(to, node->out[i]));
    }
    return DW_OK;
}

static void need_last(ir_value *value, int axis) {
    need *need = need_of(value);
    if (need->last && need->axis != axis) need->whole = true;
    if (need->last) return;
    need->last = true;
    need->axis = axis;
}

/* The axis along which the last token alone of all that node makes is needed; -1: something is needed whole, or nothing is needed. */
static int restricted_axis(const ir_node *node) {
    int axis = -1;
    for (int i = 0; i < node->n_out; i++) {
        const need *need = need_of(node->out[i]);
        if (need->whole || (need->last && axis >= 0 && need->axis != axis)) return -1;
        if (need->last) axis = need->axis;
    }
    return axis;
}

/* Is node to be done for the last token alone, and along which axes of its operands? */
static dw_status is_restricted(const restrictor *to, const ir_node *node, int *axes, bool *restricted) {
    const int axis = restricted_axis(node);
    *restricted = false;
    if (axis < 0 || node->n_in == 0 || node->n_in > MAX_OPERANDS) return DW_OK;
    return find_axes(to, node, axis, axes, restricted);
}

static dw_status spread_needs(const restrictor *to, const ir_node *node) {
    int axes[MAX_OPERANDS];
    bool restricted;
    TRY(is_restricted(to, node, axes, &restricted));
    for (int i = 0; i < node->n_out && !restricted; i++) need_of(node->out[i])->whole = true;
    for (int i = 0; i < node->n_in; i++) {
        if (ir_in(node, i) == NULL) continue;
        if (restricted && axes[i] >= 0) {
            need_last(ir_in(node, i), axes[i]);
        } else {
            need_of(ir_in(node, i))->whole = true;
        }
    }
    return DW_OK;
}

/* ---- the pass ------------------------------------------------------------------------------------------------------------------ */

/* The axis over tokens of an output; -1: it has none. */
static int token_axis(const restrictor *to, const ir_value *value) {
    for (int i = 0; i < value->type.rank; i++) {
        if (value->type.dims[i] == to->length) return i;
    }
    return -1;
}

static dw_status restrict_outputs(restrictor *to, bool *changed) {
    ir_graph *graph = to->graph;
    TRY(add_needs(to));
    for (size_t i = 0; i < graph->state_count; i++) need_of(graph->states[i]->next)->whole = true;
    for (size_t i = 0; i < graph->output_count; i++) {
        ir_value *value = graph->outputs[i].value;
        const int axis = token_axis(to, value);
        if (axis >= 0) need_last(value, axis);
        if (axis < 0) need_of(value)->whole = true;
        *changed = *changed || axis >= 0;
    }
    if (!*changed) return DW_OK;
    for (const ir_node *node = graph->last; node != NULL; node = node->previous) TRY(spread_needs(to, node));
    for (ir_node *node = graph->first, *next; node != NULL; node = next) {
        int axes[MAX_OPERANDS];
        bool restricted;
        next = node->next;
        TRY(is_restricted(to, node, axes, &restricted));
        if (restricted) TRY(emit_restricted(to, node, restricted_axis(node), axes));
    }
    for (size_t i = 0; i < graph->output_count; i++) {
        ir_value *value = graph->outputs[i].value, *last;
        const int axis = token_axis(to, value);
        if (axis < 0) continue;
        TRY(last_of(to, value, axis, &last));
        ir_set_output(graph, i, last);
    }
    ir_cursor_end(graph);
    return DW_OK;
}

static dw_status add_last(restrictor *to) {
    ir_graph *graph = to->graph;
    TRY_DIM(graph->context, to->one, dim_constant(graph->dims, 1));
    TRY_DIM(graph->context, to->ends, dim_symbol(graph->dims, STEP_SYMBOL_ENDS, 1, DIM_UNBOUNDED));
    const op_type type = {.format = DW_FORMAT_i64, .rank = 1, .dims = {to->ends}};
    return ir_add_input(graph, STEP_INPUT_LAST, &type, &to->last);
}

dw_status pass_last_token(ir_graph *graph, bool *changed) {
    *changed = false;
    const ir_value *row = map_find(&graph->names, STEP_INPUT_ROW);
    bool any = false;
    if (row == NULL || map_find(&graph->names, STEP_INPUT_LAST) != NULL) return DW_OK;
    restrictor to = {.graph = graph, .length = row->type.dims[0]};
    for (size_t i = 0; i < graph->output_count; i++) any = any || token_axis(&to, graph->outputs[i].value) >= 0;
    if (!any) return DW_OK;
    TRY(add_last(&to));
    arena_init(&to.arena, graph->context);
    const dw_status status = restrict_outputs(&to, changed);
    arena_free(&to.arena);
    return status;
}
