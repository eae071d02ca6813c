/* Integers known from the shapes: arithmetic on them becomes one size expression, a comparison that their ranges decide becomes a fill.
 *
 *     %1 = size {size=s}
 *     %2 = fill {shape=[],value=2,to=i64}      ->      %1 = size {size=2*s}
 *     %3 = mul %1, %2 */
#include "pass/clean/fold.h"

#include <math.h>

#define EXACT 0x1p53      /* integers up to here are doubles */

dw_status fold_size_of(ir_graph *graph, const ir_value *value, dim *size) {
    *size = NULL;
    double number;
    if (value == NULL || value->type.format != DW_FORMAT_i64) return DW_OK;
    const ir_value *source = value;
    while (source->kind == IR_RESULT && (op_get(source->node->op)->traits & OP_TRAIT_VIEW) != 0) source = source->node->in[0].value;
    const ir_node *node = ir_def(source, OP_size);
    if (node != NULL) {
        *size = op_attr_dim(&node->attrs, OP_ATTR_size);
        return DW_OK;
    }
    if (!fold_number(source, &number) || fabs(number) > EXACT) return DW_OK;
    TRY_DIM(graph->context, *size, dim_constant(graph->dims, (int64_t)number));
    return DW_OK;
}

/* The result of op on a and b; NULL where there is none that holds for all sizes. */
static dim combine(dim_table *dims, op_id op, dim a, dim b) {
    int64_t min, max;
    switch (op) {
    case OP_add: return dim_add(dims, a, b);
    case OP_sub: return dim_sub(dims, a, b);
    case OP_mul: return dim_mul(dims, a, b);
    case OP_minimum: return dim_min(dims, a, b);
    case OP_maximum: return dim_max(dims, a, b);
    case OP_floordiv:
    case OP_remainder:
        dim_range(dims, b, &min, &max);
        if (min <= 0 && max >= 0) return NULL;   /* a division by zero stays the op's own failure */
        return op == OP_floordiv ? dim_floordiv(dims, a, b) : dim_mod(dims, a, b);
    default: return NULL;
    }
}

/* 1 or 0 when a and b compare the same way for all sizes, else -1. */
static int compare(dim_table *dims, op_id op, dim a, dim b) {
    bool is_equal = a == b;
    bool is_less = !is_equal && dim_always_lt(dims, a, b), is_greater = !is_equal && dim_always_lt(dims, b, a);
    bool is_le = is_equal || is_less || dim_always_le(dims, a, b), is_ge = is_equal || is_greater || dim_always_le(dims, b, a);
    switch (op) {
    case OP_eq: return is_equal ? 1 : is_less || is_greater ? 0 : -1;
    case OP_ne: return is_equal ? 0 : is_less || is_greater ? 1 : -1;
    case OP_lt: return is_less ? 1 : is_ge ? 0 : -1;
    case OP_le: return is_le ? 1 : is_greater ? 0 : -1;
    case OP_gt: return is_greater ? 1 : is_le ? 0 : -1;
    case OP_ge: return is_ge ? 1 : is_less ? 0 : -1;
    default: return -1;
    }
}

static dw_status emit_size_as(ir_graph *graph, dim size, const ir_value *like, ir_value **same) {
    int64_t constant;
    if (dim_is_constant(size, &constant)) {
        if (fabs((double)constant) > EXACT) return DW_OK;
        return fold_fill(graph, like, (double)constant, same);
    }
    ir_value *scalar;
    TRY(ir_emit_size(graph, size, &scalar));
    return fold_as(graph, scalar, like, same);
}

dw_status fold_sizes(ir_graph *graph, const ir_node *node, ir_value **same) {
    *same = NULL;
    const ir_value *out = node->out[0];
    dim a = NULL, b = NULL;
    if (node->op == OP_size) {
        a = op_attr_dim(&node->attrs, OP_ATTR_size);
        return dim_is_constant(a, NULL) ? emit_size_as(graph, a, out, same) : DW_OK;
    }
    if (node->n_in < 1 || node->n_in > 2 || (op_get(node->op)->traits & OP_TRAIT_POINTWISE) == 0) return DW_OK;
    TRY(fold_size_of(graph, node->in[0].value, &a));
    if (a == NULL) return DW_OK;
    dim result = NULL;
    if (node->op == OP_neg) {
        TRY_DIM(graph->context, b, dim_constant(graph->dims, 0));
        result = dim_sub(graph->dims, b, a);
    } else if (node->n_in == 2) {
        TRY(fold_size_of(graph, node->in[1].value, &b));
        if (b == NULL) return DW_OK;
        int decided = compare(graph->dims, node->op, a, b);
        if (decided >= 0) return fold_fill(graph, out, decided, same);
        result = combine(graph->dims, node->op, a, b);
        if (result == NULL && base_last_status(graph->context) == DW_NO_MEMORY) return DW_NO_MEMORY;
    }
    return result != NULL ? emit_size_as(graph, result, out, same) : DW_OK;
}
