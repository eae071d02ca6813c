/* What was fused for speed is taken apart again, so that each gradient has one rule: post lists of products, chains, norms with a residual.
 *
 *     %1 = matmul x, w, c {post="bias,gelu"}             %1 = matmul x, w {to=f32}        (f32: where x is narrower, as steps compute in it)
 *     %2 = chain %1 {steps="mul(x0,f32:2);exp(t0)"}      %2 = add %1, c
 *                                                 ->     %3 = gelu %2
 *                                                        %4 = fill {shape=[],value=2,to=f32}
 *                                                        %5 = mul %3, %4
 *                                                        %6 = exp %5
 */
#include "pass/gradient/gradient.h"

enum { MAX_OPERANDS = 16 };

static void replace_node(ir_graph *graph, ir_node *node, ir_value *made) { ir_replace(graph, ir_out(node), made); }

/* ---- chains ---- */

static dw_status emit_read(ir_graph *graph, const ir_node *node, const op_chain_read *read, ir_value *const *steps, ir_value **value) {
    switch (read->kind) {
    case OP_CHAIN_OPERAND: return *value = ir_in(node, read->index), DW_OK;
    case OP_CHAIN_STEP: return *value = steps[read->index], DW_OK;
    case OP_CHAIN_NUMBER: break;
    }
    return ir_emit_scalar(graph, read->format, read->number, value);
}

static dw_status open_chain(ir_graph *graph, ir_node *node) {
    dw_format formats[OP_CHAIN_OPERANDS];
    ir_value *steps[OP_CHAIN_STEPS], *in[OP_CHAIN_READS];
    op_chain chain;
    for (int i = 0; i < node->n_in; i++) formats[i] = ir_in(node, i)->type.format;
    TRY(op_chain_parse(graph->context, ir_attr_text(node, OP_ATTR_steps), node->n_in, formats, &chain));
    for (int i = 0; i < chain.count; i++) {
        const op_chain_step *step = &chain.steps[i];
        const op_attr to = op_set_format(OP_ATTR_to, step->to);
        for (int j = 0; j < step->n_in; j++) TRY(emit_read(graph, node, &step->in[j], steps, &in[j]));
        TRY(ir_emit(graph, step->op, step->n_in, in, step->op == OP_cast, &to, &steps[i]));
    }
    /* A chain whose operands broadcast has their common shape, and so has its last step. */
    ir_value *made = steps[chain.count - 1];
    TRY(ir_emit_broadcast(graph, made, ir_out(node)->type.rank, ir_out(node)->type.dims, &made));
    replace_node(graph, node, made);
    return ir_remove(graph, node);
}

/* ---- post lists ---- */

/* Columns [0, n/2) or [n/2, n). */
static dw_status emit_half(ir_graph *graph, ir_value *x, int half, ir_value **result) {
    const int axis = x->type.rank - 1;
    dim two, middle, zero;
    TRY_DIM(graph->context, two, dim_constant(graph->dims, 2));
    TRY_DIM(graph->context, zero, dim_constant(graph->dims, 0));
    TRY_DIM(graph->context, middle, dim_floordiv(graph->dims, x->type.dims[axis], two));
    return ir_emit_slice(graph, x, axis, half == 0 ? zero : middle, half == 0 ? middle : x->type.dims[axis], 1, result);
}

static dw_status emit_step(ir_graph *graph, op_post step, ir_value *y, ir_value *operand, ir_value **result) {
    const op_id op = op_post_op(step);
    ir_value *u;
    if (operand != NULL) {
        TRY(ir_emit_cast(graph, operand, y->type.format, &operand));
        return ir_emit_2(graph, op, y, operand, result);
    }
    if (!op_post_halves(step)) return ir_emit_1(graph, op, y, result);
    TRY(emit_half(graph, y, 1, &u));
    TRY(emit_half(graph, y, 0, &y));
    TRY(ir_emit_1(graph, op, y, &y));
    return ir_emit_2(graph, OP_mul, y, u, result);
}

/* Of grouped_matmul: the group of each row, [t] or what broadcasts to it; the number of groups for rows in none. */
static dw_status emit_groups(ir_graph *graph, const ir_node *node, ir_value **result) {
    static const int64_t axis[] = {1};
    ir_value *offsets = ir_in(node, 2), *rows;
    dim shape[] = {ir_in(node, 0)->type.dims[0], NULL}, zero;
    TRY_DIM(graph->context, shape[1], dim_constant(graph->dims, 1));
    TRY_DIM(graph->context, zero, dim_constant(graph->dims, 0));
    const op_attr attrs[] = {op_set_dim(OP_ATTR_start, zero), op_set_int(OP_ATTR_step, 1), op_set_dim(OP_ATTR_length, shape[0]), op_set_format(OP_ATTR_to, DW_FORMAT_i32)}, axes = op_set_ints(OP_ATTR_axes, 1, axis);
    TRY(ir_emit(graph, OP_iota, 0, NULL, COUNT_OF(attrs), attrs, &rows));
    TRY(ir_emit_reshape(graph, rows, 2, shape, &rows));
    TRY(ir_emit_2(graph, OP_ge, rows, offsets, &rows));
    return ir_emit(graph, OP_sum, 1, &rows, 1, &axes, result);      /* how many groups end in front of it */
}

/* A row of a matrix with one for each group, for each row of the product. */
static dw_status emit_of_group(ir_graph *graph, ir_value *groups, ir_value *operand, ir_value **result) {
    const op_attr axis = op_set_int(OP_ATTR_axis, 0);
    ir_value *last;
    dim size = operand->type.dims[0], one;
    TRY_DIM(graph->context, one, dim_constant(graph->dims, 1));
    TRY_DIM(graph->context, size, dim_sub(graph->dims, size, one));
    TRY(ir_emit_size(graph, size, &last));
    TRY(ir_emit_2(graph, OP_minimum, groups, last, &groups));
    return ir_emit(graph, OP_take, 2, (ir_value *[]){operand, groups}, 1, &axis, result);
}

/* Rows in no group are 0, whatever steps would make of them. */
static dw_status emit_in_groups(ir_graph *graph, ir_value *groups, const ir_value *offsets, ir_value *y, ir_value **result) {
    dim shape[] = {y->type.dims[0], NULL};
    ir_value *is, *count, *zero;
    TRY_DIM(graph->context, shape[1], dim_constant(graph->dims, 1));
    TRY(ir_emit_size(graph, offsets->type.dims[0], &count));
    TRY(ir_emit_2(graph, OP_lt, groups, count, &is));
    TRY(ir_emit_reshape(graph, is, 2, shape, &is));
    TRY(ir_emit_scalar(graph, y->type.format, 0, &zero));
    return ir_emit(graph, OP_where, 3, (ir_value *[]){is, y, zero}, 0, NULL, result);
}

/* Steps compute with the sums, so a narrow result is rounded behind them. */
static dw_status open_post(ir_graph *graph, ir_node *node) {
    const int operands = node->op == OP_matmul ? 2 : 3;
    const dw_format format = ir_out(node)->type.format, wide = dw_format_bits(format) < 32 ? DW_FORMAT_f32 : format;
    op_post_list list;
    TRY(op_post_parse(graph->context, ir_attr_text(node, OP_ATTR_post), &list));
    if (list.count == 0 || dw_format_is_block(format) || ir_int(node, OP_ATTR_padded) > 0) return DW_OK;
    ir_value *in[3], *made, *groups = NULL;
    op_attr attrs[OP_ATTR_COUNT];
    int count = 0, next = operands;
    if (node->op == OP_grouped_matmul) TRY(emit_groups(graph, node, &groups));
    for (int i = 0; i < operands; i++) in[i] = ir_in(node, i);
    for (int i = 0; i < node->attrs.count; i++) {
        const op_attr_id id = node->attrs.items[i].id;
        if (id != OP_ATTR_post && id != OP_ATTR_to) attrs[count++] = node->attrs.items[i];
    }
    attrs[count++] = op_set_format(OP_ATTR_to, wide);
    TRY(ir_emit(graph, node->op, operands, in, count, attrs, &made));
    for (int i = 0; i < list.count; i++) {
        ir_value *operand = op_post_operand_of(list.steps[i]) != OP_POST_NONE ? ir_in(node, next++) : NULL;
        if (operand != NULL && groups != NULL && op_post_operand_of(list.steps[i]) == OP_POST_COLUMN && operand->type.rank == 2) TRY(emit_of_group(graph, groups, operand, &operand));
        TRY(emit_step(graph, list.steps[i], made, operand, &made));
    }
    TRY(ir_emit_cast(graph, made, format, &made));
    if (groups != NULL) TRY(emit_in_groups(graph, groups, ir_in(node, 2), made, &made));
    replace_node(graph, node, made);
    return ir_remove(graph, node);
}

/* ---- norms ---- */

static dw_status open_residual(ir_graph *graph, ir_node *node) {
    const int at = node->op == OP_layer_norm ? 3 : 2;
    if (node->n_in <= at || ir_in(node, at) == NULL) return DW_OK;
    ir_value *in[3], *sum, *made;
    int count = at;
    TRY(ir_emit_2(graph, OP_add, ir_in(node, 0), ir_in(node, at), &sum));
    in[0] = sum;
    for (int i = 1; i < at; i++) in[i] = ir_in(node, i);
    while (in[count - 1] == NULL) count--;
    TRY(ir_emit(graph, node->op, count, in, node->attrs.count, node->attrs.items, &made));
    ir_replace(graph, node->out[0], made);
    ir_replace(graph, node->out[1], sum);
    return ir_remove(graph, node);
}

dw_status gradient_open(ir_graph *graph) {
    for (ir_node *node = graph->first, *next; node != NULL; node = next) {
        next = node->next;
        ir_cursor_before(graph, node);
        switch (node->op) {
        case OP_chain: TRY(open_chain(graph, node)); break;
        case OP_matmul:
        case OP_grouped_matmul: TRY(open_post(graph, node)); break;
        case OP_layer_norm:
        case OP_rms_norm: TRY(open_residual(graph, node)); break;
        default: break;
        }
    }
    ir_cursor_end(graph);
    graph->origin = (ir_origin){0};
    ir_renumber(graph);
    return DW_OK;
}
