/* What each op does to formulas: views substitute indices, joins choose by range, pointwise ops combine, lookups substitute formulas into
 * the looked-up value. Ops without a rule here end formulas: what they compute depends on activations. */
#include "analysis/value.h"

/* ---- helpers --------------------------------------------------------------------------------------------------------- */

/* The operand's own indices, to be overwritten where an op changes them. */
static void own_indices(value_analysis *analysis, int rank, value_expr *map) {
    for (int i = 0; i < DW_MAX_RANK; i++) map[i] = i < rank ? value_index(analysis, i) : NULL;
}

static value_expr zero_of(value_analysis *analysis, value_class class) {
    switch (class) {
    case VALUE_BOOL: return value_bool(analysis, false);
    case VALUE_INT: return value_int(analysis, 0);
    default: return value_real(analysis, 0);
    }
}

static value_expr number_of(value_analysis *analysis, dw_format format, double number) {
    return value_cast(analysis, value_real(analysis, number), format);
}

static bool is_one(dim size) {
    int64_t constant;
    return dim_is_constant(size, &constant) && constant == 1;
}

/* x < size, for an index x that is never negative. */
static value_expr below(value_analysis *analysis, value_expr x, dim size) {
    const value_expr one = value_int(analysis, 1);
    return value_le_zero(analysis, value_sum(analysis, value_sum(analysis, x, 1, value_size(analysis, size), -1), 1, one, 1));
}

/* An index as take, gather and index read it: negative ones count from the end. */
static value_expr wrap_index(value_analysis *analysis, value_expr x, dim size) {
    const value_expr positive = value_le_zero(analysis, value_scale(analysis, x, dim_constant(analysis->graph->dims, -1)));
    return value_select(analysis, positive, x, value_sum(analysis, x, 1, value_size(analysis, size), 1));
}

/* Does x look into an input (token ids, positions, masks that the caller gives)? */
static bool reads_input(value_expr x) {
    if (x->kind == VALUE_LOOKUP && x->source->kind == IR_INPUT) return true;
    for (int i = 0; i < x->count; i++) {
        if (reads_input(x->args[i])) return true;
    }
    return false;
}

/* An element of a float table at an index that an input gives is an embedding: an activation. */
static bool is_embedding(const value_formula *table, value_expr index) {
    return value_class_of(table->format) == VALUE_REAL && index != NULL && reads_input(index);
}

/* The operand's expression at its indices aligned from the right with those of the result, as broadcasting does. */
static value_expr broadcast_to(value_analysis *analysis, const value_formula *x) {
    value_expr map[DW_MAX_RANK] = {NULL};
    const int shift = analysis->rank - x->rank;
    for (int i = 0; i < x->rank; i++) map[i] = is_one(x->dims[i]) ? value_int(analysis, 0) : value_index(analysis, i + shift);
    return value_substitute(analysis, x->expr, map);
}

/* ---- views ----------------------------------------------------------------------------------------------------------- */

/* One run of axes of equal product: the flat index over the result's axes [out, out_end), split over the operand's [in, in_end). */
static void map_run(value_analysis *analysis, const value_formula *x, int in, int in_end, int out, int out_end, value_expr *map) {
    dim_table *table = analysis->graph->dims;
    value_expr flat = value_int(analysis, 0);
    for (int i = out; i < out_end; i++) {
        const value_expr index = value_index(analysis, i);
        flat = value_sum(analysis, value_scale(analysis, flat, analysis->dims[i]), 1, index, 1);
    }
    for (int i = in_end - 1; i >= in; i--) {
        if (i == in) {
            map[i] = flat;
        } else {
            map[i] = value_mod(analysis, flat, x->dims[i]);
            flat = value_div(analysis, flat, x->dims[i]);
        }
        if (is_one(x->dims[i])) map[i] = value_size(analysis, dim_constant(table, 0));
    }
}

/* Walks both shapes and closes a run wherever the products meet. */
static value_expr rule_reshape(value_analysis *analysis, const value_formula *x) {
    dim_table *table = analysis->graph->dims;
    value_expr map[DW_MAX_RANK] = {NULL};
    int in = 0, out = 0;
    while (in < x->rank || out < analysis->rank) {
        const int first_in = in, first_out = out;
        dim product_in = dim_constant(table, 1), product_out = product_in;
        do {
            const bool more_in = in < x->rank, more_out = out < analysis->rank;
            if (!more_in && !more_out) break;
            const bool in_lags = more_in && (!more_out || dim_divide_exact(table, product_out, product_in) != NULL);
            const bool out_lags = more_out && (!more_in || dim_divide_exact(table, product_in, product_out) != NULL);
            if (in_lags || !out_lags) {
                if (more_in) product_in = dim_mul(table, product_in, x->dims[in++]);
            }
            if (out_lags || !in_lags) {
                if (more_out) product_out = dim_mul(table, product_out, analysis->dims[out++]);
            }
            if (product_in == NULL || product_out == NULL) return value_failed(analysis);
        } while (product_in != product_out);
        map_run(analysis, x, first_in, in, first_out, out, map);
    }
    return value_substitute(analysis, x->expr, map);
}

static value_expr rule_transpose(value_analysis *analysis, const ir_node *node, const value_formula *x) {
    const int64_t *order;
    const int rank = op_attr_ints(&node->attrs, OP_ATTR_order, &order);
    value_expr map[DW_MAX_RANK] = {NULL};
    for (int i = 0; i < rank; i++) map[order[i]] = value_index(analysis, i);
    return value_substitute(analysis, x->expr, map);
}

static value_expr rule_slice(value_analysis *analysis, const ir_node *node, const value_formula *x) {
    const int axis = (int)ir_int(node, OP_ATTR_axis);
    value_expr map[DW_MAX_RANK];
    own_indices(analysis, x->rank, map);
    const dim step = dim_constant(analysis->graph->dims, ir_int(node, OP_ATTR_step));
    const value_expr start = value_size(analysis, op_attr_dim(&node->attrs, OP_ATTR_start));
    map[axis] = value_sum(analysis, start, 1, value_scale(analysis, value_index(analysis, axis), step), 1);
    return map[axis] == NULL ? NULL : value_substitute(analysis, x->expr, map);
}

/* ---- joins ----------------------------------------------------------------------------------------------------------- */

static value_expr rule_concat(value_analysis *analysis, const ir_node *node, const value_formula *const *in) {
    dim_table *table = analysis->graph->dims;
    const int axis = (int)ir_int(node, OP_ATTR_axis);
    const value_expr index = value_index(analysis, axis);
    dim ends[64], end = dim_constant(table, 0);
    for (int i = 0; i < node->n_in; i++) {
        end = ends[i] = dim_add(table, end, in[i]->dims[axis]);
        if (end == NULL) return value_failed(analysis);
    }
    value_expr joined = NULL;
    for (int i = node->n_in - 1; i >= 0; i--) {
        value_expr map[DW_MAX_RANK];
        own_indices(analysis, in[i]->rank, map);
        map[axis] = is_one(in[i]->dims[axis]) ? value_int(analysis, 0)
                                              : value_sum(analysis, index, 1, value_size(analysis, dim_sub(table, ends[i], in[i]->dims[axis])), -1);
        if (map[axis] == NULL) return NULL;
        const value_expr part = value_substitute(analysis, in[i]->expr, map);
        joined = joined == NULL ? part : value_select(analysis, below(analysis, index, ends[i]), part, joined);
        if (joined == NULL) return NULL;
    }
    return joined;
}

static value_expr rule_pad(value_analysis *analysis, const ir_node *node, const value_formula *x) {
    dim_table *table = analysis->graph->dims;
    const dim *before;
    const int rank = op_attr_dims(&node->attrs, OP_ATTR_before, &before);
    const value_expr padding = number_of(analysis, x->format, ir_real(node, OP_ATTR_value));
    value_expr map[DW_MAX_RANK] = {NULL}, inside = value_bool(analysis, true);
    for (int i = 0; i < rank; i++) {
        const value_expr start = value_size(analysis, before[i]);
        map[i] = value_sum(analysis, value_index(analysis, i), 1, start, -1);
        inside = value_and(analysis, inside, value_le_zero(analysis, value_sum(analysis, start, 1, value_index(analysis, i), -1)));
        inside = value_and(analysis, inside, below(analysis, value_index(analysis, i), dim_add(table, before[i], x->dims[i])));
        if (map[i] == NULL) return NULL;
        if (is_one(x->dims[i])) map[i] = value_int(analysis, 0);
    }
    return value_select(analysis, inside, value_substitute(analysis, x->expr, map), padding);
}

static value_expr rule_slice_scatter(value_analysis *analysis, const ir_node *node, const value_formula *x, const value_formula *y) {
    dim_table *table = analysis->graph->dims;
    const int axis = (int)ir_int(node, OP_ATTR_axis);
    const dim start = op_attr_dim(&node->attrs, OP_ATTR_start);
    if (ir_int(node, OP_ATTR_step) != 1) return NULL;
    const value_expr index = value_index(analysis, axis), first = value_size(analysis, start);
    value_expr map[DW_MAX_RANK];
    own_indices(analysis, y->rank, map);
    map[axis] = is_one(y->dims[axis]) ? value_int(analysis, 0) : value_sum(analysis, index, 1, first, -1);
    if (map[axis] == NULL) return NULL;
    const value_expr before_end = below(analysis, index, dim_add(table, start, y->dims[axis]));
    const value_expr inside = value_and(analysis, value_le_zero(analysis, value_sum(analysis, first, 1, index, -1)), before_end);
    return value_select(analysis, inside, value_substitute(analysis, y->expr, map), x->expr);
}

static value_expr rule_triangle(value_analysis *analysis, const ir_node *node, const value_formula *x) {
    if (analysis->rank < 2) return NULL;
    const value_expr row = value_index(analysis, analysis->rank - 2);
    const value_expr difference = value_sum(analysis, value_index(analysis, analysis->rank - 1), 1, row, -1);
    const value_expr offset = value_size(analysis, op_attr_dim(&node->attrs, OP_ATTR_offset));
    const value_expr beyond = node->op == OP_tril ? value_sum(analysis, difference, 1, offset, -1) : value_sum(analysis, offset, 1, difference, -1);
    return value_select(analysis, value_le_zero(analysis, beyond), x->expr, zero_of(analysis, x->expr->class));
}

/* ---- lookups --------------------------------------------------------------------------------------------------------- */

/* take: the axis is replaced by the axes of the index. */
static value_expr rule_take(value_analysis *analysis, const ir_node *node, const value_formula *x, const value_formula *at, const char **reason) {
    const int axis = (int)ir_int(node, OP_ATTR_axis);
    value_expr map[DW_MAX_RANK] = {NULL}, index_map[DW_MAX_RANK] = {NULL};
    for (int i = 0; i < at->rank; i++) index_map[i] = value_index(analysis, axis + i);
    const value_expr index = value_substitute(analysis, at->expr, index_map);
    if (is_embedding(x, index)) {
        *reason = "it is an embedding of what the caller gives";
        return NULL;
    }
    for (int i = 0; i < axis; i++) map[i] = value_index(analysis, i);
    for (int i = axis + 1; i < x->rank; i++) map[i] = value_index(analysis, i + at->rank - 1);
    map[axis] = wrap_index(analysis, index, x->dims[axis]);
    return map[axis] == NULL ? NULL : value_substitute(analysis, x->expr, map);
}

static value_expr rule_gather(value_analysis *analysis, const ir_node *node, const value_formula *x, const value_formula *at, const char **reason) {
    const int axis = (int)ir_int(node, OP_ATTR_axis);
    value_expr map[DW_MAX_RANK];
    own_indices(analysis, x->rank, map);
    if (is_embedding(x, at->expr)) {
        *reason = "it is gathered where the caller says";
        return NULL;
    }
    map[axis] = wrap_index(analysis, at->expr, x->dims[axis]);
    return map[axis] == NULL ? NULL : value_substitute(analysis, x->expr, map);
}

/* index: neighbouring axes from axis on are replaced by the common axes of the index tensors. */
static value_expr rule_index(value_analysis *analysis, const ir_node *node, const value_formula *const *in, const char **reason) {
    const int axis = (int)ir_int(node, OP_ATTR_axis), count = node->n_in - 1;
    const value_formula *x = in[0];
    int common = 0;
    for (int i = 1; i <= count; i++) common = in[i]->rank > common ? in[i]->rank : common;
    value_expr map[DW_MAX_RANK] = {NULL};
    for (int i = 0; i < x->rank; i++) {
        if (i < axis) {
            map[i] = value_index(analysis, i);
        } else if (i >= axis + count) {
            map[i] = value_index(analysis, i - count + common);
        } else {
            const value_formula *at = in[i - axis + 1];
            value_expr index_map[DW_MAX_RANK] = {NULL};
            for (int j = 0; j < at->rank; j++) {
                index_map[j] = is_one(at->dims[j]) ? value_int(analysis, 0) : value_index(analysis, axis + common - at->rank + j);
            }
            const value_expr index = value_substitute(analysis, at->expr, index_map);
            if (is_embedding(x, index)) {
                *reason = "it is looked up where the caller says";
                return NULL;
            }
            map[i] = wrap_index(analysis, index, x->dims[i]);
        }
        if (map[i] == NULL) return NULL;
    }
    return value_substitute(analysis, x->expr, map);
}

/* ---- scans ----------------------------------------------------------------------------------------------------------- */

/* A running sum: of what does not vary along the axis it is a product; of what the caller gives it stays a SCAN. */
static value_expr rule_cumsum(value_analysis *analysis, const ir_node *node, const value_formula *x) {
    const int axis = (int)ir_int(node, OP_ATTR_axis);
    const value_expr element = value_cast(analysis, x->expr, DW_FORMAT_i64), index = value_index(analysis, axis);
    if (x->expr->class == VALUE_REAL || element == NULL) return NULL;
    const value_expr one = value_int(analysis, ir_bool(node, OP_ATTR_exclusive) ? 0 : 1);
    if (element->axes & 1u << axis) {
        return value_scan(analysis, element, axis, value_sum(analysis, index, 1, value_sum(analysis, one, 1, value_int(analysis, 1), -1), 1));
    }
    const value_expr args[2] = {value_sum(analysis, index, 1, one, 1), element};
    return value_point(analysis, OP_mul, DW_FORMAT_i64, 2, args);
}

/* ---- all ops ----------------------------------------------------------------------------------------------------------- */

static value_expr rule_pointwise(value_analysis *analysis, const ir_node *node, const value_formula *const *in) {
    value_expr args[3];
    if (node->n_in > 3) return NULL;
    for (int i = 0; i < node->n_in; i++) args[i] = broadcast_to(analysis, in[i]);
    return value_point(analysis, node->op, ir_out(node)->type.format, node->n_in, args);
}

value_expr value_rule(value_analysis *analysis, const ir_node *node, const value_formula *const *in, const char **reason) {
    const dw_format format = ir_out(node)->type.format;
    if (dw_format_is_block(format)) return NULL;
    *reason = "its formula is too large";
    switch (node->op) {
    case OP_fill: return number_of(analysis, format, ir_real(node, OP_ATTR_value));
    case OP_iota: {
        const value_expr start = value_size(analysis, op_attr_dim(&node->attrs, OP_ATTR_start));
        const dim step = dim_constant(analysis->graph->dims, ir_int(node, OP_ATTR_step));
        return value_cast(analysis, value_sum(analysis, start, 1, value_scale(analysis, value_index(analysis, 0), step), 1), format);
    }
    case OP_size: return value_size(analysis, op_attr_dim(&node->attrs, OP_ATTR_size));
    case OP_reshape: return rule_reshape(analysis, in[0]);
    case OP_transpose: return rule_transpose(analysis, node, in[0]);
    case OP_broadcast: return broadcast_to(analysis, in[0]);
    case OP_slice: return rule_slice(analysis, node, in[0]);
    case OP_concat: return rule_concat(analysis, node, in);
    case OP_pad: return rule_pad(analysis, node, in[0]);
    case OP_slice_scatter: return rule_slice_scatter(analysis, node, in[0], in[1]);
    case OP_tril:
    case OP_triu: return rule_triangle(analysis, node, in[0]);
    case OP_take: return rule_take(analysis, node, in[0], in[1], reason);
    case OP_gather: return rule_gather(analysis, node, in[0], in[1], reason);
    case OP_index: return rule_index(analysis, node, in, reason);
    case OP_cumsum: return rule_cumsum(analysis, node, in[0]);
    default:
        if (op_get(node->op)->traits & OP_TRAIT_POINTWISE) return rule_pointwise(analysis, node, in);
        *reason = "it has no formula over indices";
        return NULL;
    }
}
