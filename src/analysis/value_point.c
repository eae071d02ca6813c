/* Pointwise ops on expressions: integers and truths go into the canonical forms of value_make.c, numbers are computed, and what is left
 * stays as the op itself (POINT). */
#include "analysis/value.h"

#include <math.h>

/* ---- numbers ------------------------------------------------------------------------------------------------------- */

bool value_point_number(op_id op, int count, const double *x, double *y) {
    *y = x[0];
    if (op == OP_cast) return true;
    if ((op == OP_floordiv || op == OP_remainder) && x[1] == 0) return false;
    return op_pointwise_value(op, count, x, y);
}

/* The expression of a number of that format, rounded as the format rounds. */
static value_expr make_number(value_analysis *analysis, dw_format format, double number) {
    switch (value_class_of(format)) {
    case VALUE_BOOL: return value_bool(analysis, number != 0);
    case VALUE_INT: return fabs(number) < 9e15 ? value_int(analysis, (int64_t)number) : NULL;
    default: return value_real(analysis, format == DW_FORMAT_f64 ? number : num_decode(format, num_encode(format, number, false)));
    }
}

static value_expr fold(value_analysis *analysis, op_id op, dw_format format, int count, const value_expr *args) {
    double numbers[2], result;
    if (count > 2) return NULL;
    for (int i = 0; i < count; i++) {
        if (!value_is_number(args[i], &numbers[i])) return NULL;
    }
    if (!value_point_number(op, count, numbers, &result)) return NULL;
    return make_number(analysis, format, result);
}

/* ---- conversions ----------------------------------------------------------------------------------------------------- */

static value_expr make_point(value_analysis *analysis, op_id op, dw_format format, int count, const value_expr *args) {
    return value_intern(analysis, &(value_node){.kind = VALUE_POINT, .class = value_class_of(format), .op = op, .format = format,
                                                .count = count, .args = args});
}

/* Integers narrower than 32 bits wrap, so their casts stay. */
static bool is_wide(dw_format format) {
    return format == DW_FORMAT_i64 || format == DW_FORMAT_i32;
}

value_expr value_cast(value_analysis *analysis, value_expr x, dw_format format) {
    if (x == NULL) return NULL;
    const value_class to = value_class_of(format);
    double number;
    if (x->class == to && (to == VALUE_BOOL || (to == VALUE_INT && is_wide(format)))) return x;
    if ((x->kind == VALUE_POINT && x->format == format) || (x->kind == VALUE_LOOKUP && x->source->type.format == format)) return x;
    if (value_is_number(x, &number)) return make_number(analysis, format, number);
    if (x->kind == VALUE_SELECT) {
        const value_expr otherwise = value_cast(analysis, x->args[2], format);
        return value_select(analysis, x->args[0], value_cast(analysis, x->args[1], format), otherwise);
    }
    if (x->class == VALUE_BOOL) {
        return value_select(analysis, x, make_number(analysis, format, 1), make_number(analysis, format, 0));
    }
    if (to == VALUE_BOOL && x->class == VALUE_INT) return value_not(analysis, value_eq_zero(analysis, x));
    if (to == VALUE_BOOL) {
        const value_expr args[2] = {x, value_real(analysis, 0)};
        return args[1] == NULL ? NULL : make_point(analysis, OP_ne, DW_FORMAT_bool, 2, args);
    }
    return make_point(analysis, OP_cast, format, 1, &x);
}

/* The integer that a real expression is exactly (a cast position, a whole number); NULL when it is none for certain. */
static value_expr as_integer(value_analysis *analysis, value_expr x) {
    if (x->class == VALUE_INT) return x;
    if (x->kind == VALUE_CONSTANT && x->class == VALUE_REAL) {
        return x->number == floor(x->number) && fabs(x->number) < 9e15 ? value_int(analysis, (int64_t)x->number) : NULL;
    }
    const bool exact = x->kind == VALUE_POINT && x->op == OP_cast && (x->format == DW_FORMAT_f32 || x->format == DW_FORMAT_f64);
    return exact && x->args[0]->class == VALUE_INT ? x->args[0] : NULL;
}

/* ---- by class of the operands ------------------------------------------------------------------------------------------ */

static value_expr compare_integers(value_analysis *analysis, op_id op, value_expr x, value_expr y) {
    const value_expr difference = value_sum(analysis, x, 1, y, -1), reverse = value_sum(analysis, y, 1, x, -1);
    const value_expr one = value_int(analysis, 1);
    switch (op) {
    case OP_eq: return value_eq_zero(analysis, difference);
    case OP_ne: return value_not(analysis, value_eq_zero(analysis, difference));
    case OP_le: return value_le_zero(analysis, difference);
    case OP_lt: return value_le_zero(analysis, value_sum(analysis, difference, 1, one, 1));
    case OP_ge: return value_le_zero(analysis, reverse);
    default: return value_le_zero(analysis, value_sum(analysis, reverse, 1, one, 1));
    }
}

static bool is_comparison(op_id op) {
    return op == OP_eq || op == OP_ne || op == OP_lt || op == OP_le || op == OP_gt || op == OP_ge;
}

static value_expr point_integers(value_analysis *analysis, op_id op, dw_format format, int count, const value_expr *args) {
    const value_expr x = args[0], y = count > 1 ? args[1] : NULL;
    double number;
    switch (op) {
    case OP_neg: return value_scale(analysis, x, dim_constant(analysis->graph->dims, -1));
    case OP_not: return value_sum(analysis, value_int(analysis, -1), 1, x, -1);
    case OP_add: return value_sum(analysis, x, 1, y, 1);
    case OP_sub: return value_sum(analysis, x, 1, y, -1);
    case OP_mul:
        if (x->kind == VALUE_AFFINE && x->count == 0) return value_scale(analysis, y, x->size);
        if (y->kind == VALUE_AFFINE && y->count == 0) return value_scale(analysis, x, y->size);
        break;
    case OP_floordiv:
        if (y->kind == VALUE_AFFINE && y->count == 0) return value_div(analysis, x, y->size);
        break;
    case OP_remainder:
        if (y->kind == VALUE_AFFINE && y->count == 0) return value_mod(analysis, x, y->size);
        break;
    case OP_minimum:
    case OP_maximum: {
        dim low, high;
        const value_expr difference = value_sum(analysis, x, 1, y, -1);
        if (difference != NULL && value_range(analysis, difference, &low, &high)) {
            const dim zero = dim_constant(analysis->graph->dims, 0);
            if (zero != NULL && dim_always_le(analysis->graph->dims, high, zero)) return op == OP_minimum ? x : y;
            if (zero != NULL && dim_always_le(analysis->graph->dims, zero, low)) return op == OP_minimum ? y : x;
        }
        break;
    }
    case OP_pow:
        if (value_is_number(y, &number) && number == 1) return x;
        break;
    default: break;
    }
    if (analysis->status != DW_OK) return NULL;
    return make_point(analysis, op, format, count, args);
}

static value_expr point_truths(value_analysis *analysis, op_id op, int count, const value_expr *args) {
    const value_expr x = args[0], y = count > 1 ? args[1] : NULL;
    switch (op) {
    case OP_not: return value_not(analysis, x);
    case OP_and:
    case OP_mul:
    case OP_minimum: return value_and(analysis, x, y);
    case OP_or:
    case OP_add:
    case OP_maximum: return value_or(analysis, x, y);
    case OP_eq: return value_select(analysis, x, y, value_not(analysis, y));
    case OP_xor:
    case OP_ne: return value_select(analysis, x, value_not(analysis, y), y);
    case OP_le: return value_or(analysis, value_not(analysis, x), y);
    case OP_ge: return value_or(analysis, x, value_not(analysis, y));
    case OP_lt: return value_and(analysis, value_not(analysis, x), y);
    case OP_gt: return value_and(analysis, x, value_not(analysis, y));
    default: return NULL;
    }
}

static bool is_exactly(value_expr x, double number) {
    return x->kind == VALUE_CONSTANT && x->number == number;
}

static value_expr point_reals(value_analysis *analysis, op_id op, dw_format format, int count, const value_expr *args) {
    const value_expr x = args[0], y = count > 1 ? args[1] : NULL;
    if (is_comparison(op)) {
        const value_expr a = as_integer(analysis, x), b = as_integer(analysis, y);
        if (a != NULL && b != NULL) return compare_integers(analysis, op, a, b);
        if (analysis->status != DW_OK) return NULL;
    }
    if (op == OP_add && is_exactly(x, 0)) return y;
    if ((op == OP_add || op == OP_sub) && is_exactly(y, 0)) return x;
    if (op == OP_mul && is_exactly(x, 1)) return y;
    if ((op == OP_mul || op == OP_div) && is_exactly(y, 1)) return x;
    return make_point(analysis, op, format, count, args);
}

/* ---- all ops --------------------------------------------------------------------------------------------------------- */

/* Is args[at] a choice that the op may be moved into: are the others numbers, or choices by the same condition? */
static bool may_lift(int count, const value_expr *args, int at) {
    double number;
    for (int i = 0; i < count; i++) {
        const bool same = args[i]->kind == VALUE_SELECT && args[i]->args[0] == args[at]->args[0];
        if (!same && !value_is_number(args[i], &number)) return false;
    }
    return true;
}

static value_expr lift(value_analysis *analysis, op_id op, dw_format format, int count, const value_expr *args, int at) {
    const value_expr condition = args[at]->args[0];
    value_expr arms[2];
    for (int arm = 0; arm < 2; arm++) {
        value_expr inner[2];
        for (int i = 0; i < count; i++) inner[i] = args[i]->kind == VALUE_SELECT && args[i]->args[0] == condition ? args[i]->args[arm + 1] : args[i];
        arms[arm] = value_point(analysis, op, format, count, inner);
    }
    return value_select(analysis, condition, arms[0], arms[1]);
}

value_expr value_point(value_analysis *analysis, op_id op, dw_format format, int count, const value_expr *args) {
    for (int i = 0; i < count; i++) {
        if (args[i] == NULL) return NULL;
    }
    if (op == OP_cast) return value_cast(analysis, args[0], format);
    if (op == OP_where) {
        const value_expr no = value_cast(analysis, args[2], format), yes = value_cast(analysis, args[1], format);
        return value_select(analysis, value_cast(analysis, args[0], DW_FORMAT_bool), yes, no);
    }
    if (count > 2) return NULL;

    const value_expr folded = fold(analysis, op, format, count, args);
    if (folded != NULL || analysis->status != DW_OK) return folded;
    for (int i = 0; i < count; i++) {
        if (args[i]->kind == VALUE_SELECT && may_lift(count, args, i)) return lift(analysis, op, format, count, args, i);
    }

    value_class class = args[0]->class;
    for (int i = 1; i < count; i++) class = args[i]->class > class ? args[i]->class : class;
    if (!is_comparison(op) && value_class_of(format) > class) class = value_class_of(format);
    value_expr same[2] = {NULL};
    for (int i = 0; i < count; i++) {
        const dw_format wanted = class == VALUE_INT ? DW_FORMAT_i64 : class == VALUE_REAL && !is_comparison(op) ? format : DW_FORMAT_f64;
        same[i] = args[i]->class == class ? args[i] : value_cast(analysis, args[i], wanted);
        if (same[i] == NULL) return NULL;
    }
    if (class == VALUE_BOOL) return point_truths(analysis, op, count, same);
    if (class == VALUE_REAL) return point_reals(analysis, op, format, count, same);
    if (is_comparison(op)) return compare_integers(analysis, op, same[0], same[1]);
    return point_integers(analysis, op, format, count, same);
}
