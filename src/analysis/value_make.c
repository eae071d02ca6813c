/* Makers of index, integer and logical expressions, each in the one form that equal meanings share where that is cheap: integers are
 * affine sums with a choice, if any, outside; comparisons are "affine <= 0" and "affine == 0"; negation sits on the leaves. */
#include "analysis/value.h"

/* ---- plain nodes --------------------------------------------------------------------------------------------------- */

value_class value_class_of(dw_format format) {
    switch (num_info(format)->class) {
    case NUM_BOOL: return VALUE_BOOL;
    case NUM_UNSIGNED:
    case NUM_SIGNED: return VALUE_INT;
    default: return VALUE_REAL;
    }
}

value_expr value_bool(value_analysis *analysis, bool truth) {
    return value_intern(analysis, &(value_node){.kind = VALUE_CONSTANT, .class = VALUE_BOOL, .number = truth ? 1 : 0});
}

value_expr value_real(value_analysis *analysis, double number) {
    return value_intern(analysis, &(value_node){.kind = VALUE_CONSTANT, .class = VALUE_REAL, .number = number});
}

value_expr value_size(value_analysis *analysis, dim size) {
    if (size == NULL) return value_failed(analysis);
    return value_intern(analysis, &(value_node){.kind = VALUE_AFFINE, .class = VALUE_INT, .size = size});
}

value_expr value_int(value_analysis *analysis, int64_t number) {
    return value_size(analysis, dim_constant(analysis->graph->dims, number));
}

value_expr value_index(value_analysis *analysis, int axis) {
    int64_t size;
    if (dim_is_constant(analysis->dims[axis], &size) && size == 1) return value_int(analysis, 0);
    return value_intern(analysis, &(value_node){.kind = VALUE_INDEX, .class = VALUE_INT, .axis = axis});
}

value_expr value_bound(value_analysis *analysis, dim size) {
    return value_intern(analysis, &(value_node){.kind = VALUE_BOUND, .class = VALUE_INT, .size = size});
}

value_expr value_lookup(value_analysis *analysis, const ir_value *source, value_class class, int count, const value_expr *args) {
    for (int i = 0; i < count; i++) {
        if (args[i] == NULL) return NULL;
    }
    return value_intern(analysis, &(value_node){.kind = VALUE_LOOKUP, .class = class, .source = source, .count = count, .args = args});
}

bool value_is_number(value_expr x, double *number) {
    if (x == NULL) return false;
    if (x->kind == VALUE_CONSTANT) {
        *number = x->number;
        return true;
    }
    int64_t integer;
    if (x->kind != VALUE_AFFINE || x->count != 0 || !dim_is_constant(x->size, &integer)) return false;
    *number = (double)integer;
    return true;
}

static bool is_true(value_expr x) {
    return x->kind == VALUE_CONSTANT && x->number != 0;
}

static bool is_false(value_expr x) {
    return x->kind == VALUE_CONSTANT && x->number == 0;
}

/* ---- affine sums --------------------------------------------------------------------------------------------------- */

/* An affine sum under construction: constant + sum of factors[i] * atoms[i], atoms ascending by id. */
typedef struct terms {
    int count;
    value_expr atoms[2 * VALUE_MAX_TERMS];
    dim factors[2 * VALUE_MAX_TERMS];
    dim constant;
} terms;

/* terms += factor * x. false: failure or too many terms. */
static bool add_terms(value_analysis *analysis, terms *sum, value_expr x, dim factor) {
    dim_table *table = analysis->graph->dims;
    const dim one = dim_constant(table, 1);
    const bool affine = x->kind == VALUE_AFFINE;
    if (affine) {
        sum->constant = dim_add(table, sum->constant, dim_mul(table, x->size, factor));
        if (sum->constant == NULL) return value_failed(analysis), false;
    }
    for (int i = 0; i < (affine ? x->count : 1); i++) {
        const value_expr atom = affine ? x->args[i] : x;
        const dim term = dim_mul(table, affine ? x->factors[i] : one, factor);
        if (term == NULL) return value_failed(analysis), false;
        int at = 0;
        while (at < sum->count && sum->atoms[at]->id < atom->id) at++;
        if (at < sum->count && sum->atoms[at] == atom) {
            sum->factors[at] = dim_add(table, sum->factors[at], term);
            if (sum->factors[at] == NULL) return value_failed(analysis), false;
            continue;
        }
        if (sum->count == VALUE_MAX_TERMS) return false;
        for (int j = sum->count++; j > at; j--) {
            sum->atoms[j] = sum->atoms[j - 1];
            sum->factors[j] = sum->factors[j - 1];
        }
        sum->atoms[at] = atom;
        sum->factors[at] = term;
    }
    return true;
}

static value_expr make_affine(value_analysis *analysis, terms *sum) {
    int kept = 0;
    for (int i = 0; i < sum->count; i++) {
        int64_t factor;
        if (dim_is_constant(sum->factors[i], &factor) && factor == 0) continue;
        sum->atoms[kept] = sum->atoms[i];
        sum->factors[kept++] = sum->factors[i];
    }
    sum->count = kept;
    int64_t constant, factor;
    if (kept == 1 && dim_is_constant(sum->constant, &constant) && constant == 0 && dim_is_constant(sum->factors[0], &factor) && factor == 1) {
        return sum->atoms[0];
    }
    return value_intern(analysis, &(value_node){.kind = VALUE_AFFINE, .class = VALUE_INT, .size = sum->constant, .count = kept,
                                                .args = sum->atoms, .factors = sum->factors});
}

value_expr value_sum(value_analysis *analysis, value_expr x, int64_t factor_x, value_expr y, int64_t factor_y) {
    if (x == NULL || y == NULL) return NULL;
    if (x->kind == VALUE_SELECT || y->kind == VALUE_SELECT) {
        const value_expr condition = x->kind == VALUE_SELECT ? x->args[0] : y->args[0];
        const bool in_x = x->kind == VALUE_SELECT && x->args[0] == condition, in_y = y->kind == VALUE_SELECT && y->args[0] == condition;
        return value_select(analysis, condition,
                            value_sum(analysis, in_x ? x->args[1] : x, factor_x, in_y ? y->args[1] : y, factor_y),
                            value_sum(analysis, in_x ? x->args[2] : x, factor_x, in_y ? y->args[2] : y, factor_y));
    }
    dim_table *table = analysis->graph->dims;
    const dim zero = dim_constant(table, 0), fx = dim_constant(table, factor_x), fy = dim_constant(table, factor_y);
    if (zero == NULL || fx == NULL || fy == NULL) return value_failed(analysis);
    terms sum = {.constant = zero};
    if (!add_terms(analysis, &sum, x, fx) || !add_terms(analysis, &sum, y, fy)) return NULL;
    return make_affine(analysis, &sum);
}

value_expr value_scale(value_analysis *analysis, value_expr x, dim factor) {
    if (x == NULL) return NULL;
    if (factor == NULL) return value_failed(analysis);
    if (x->kind == VALUE_SELECT) {
        const value_expr otherwise = value_scale(analysis, x->args[2], factor);
        return value_select(analysis, x->args[0], value_scale(analysis, x->args[1], factor), otherwise);
    }
    const dim zero = dim_constant(analysis->graph->dims, 0);
    if (zero == NULL) return value_failed(analysis);
    terms sum = {.constant = zero};
    if (!add_terms(analysis, &sum, x, factor)) return NULL;
    return make_affine(analysis, &sum);
}

/* ---- bounds -------------------------------------------------------------------------------------------------------- */

static bool always_le(value_analysis *analysis, dim a, dim b) {
    return a != NULL && b != NULL && dim_always_le(analysis->graph->dims, a, b);
}

static bool affine_range(value_analysis *analysis, value_expr x, dim *low, dim *high) {
    dim_table *table = analysis->graph->dims;
    *low = *high = x->size;
    for (int i = 0; i < x->count; i++) {
        dim atom_low, atom_high;
        int64_t min, max;
        dim_range(table, x->factors[i], &min, &max);
        if ((min < 0 && max > 0) || !value_range(analysis, x->args[i], &atom_low, &atom_high)) return false;
        const dim at_low = dim_mul(table, x->factors[i], min >= 0 ? atom_low : atom_high);
        const dim at_high = dim_mul(table, x->factors[i], min >= 0 ? atom_high : atom_low);
        if (at_low == NULL || at_high == NULL) return value_failed(analysis), false;
        *low = dim_add(table, *low, at_low);
        *high = dim_add(table, *high, at_high);
        if (*low == NULL || *high == NULL) return value_failed(analysis), false;
    }
    return true;
}

static bool point_range(value_analysis *analysis, value_expr x, dim *low, dim *high) {
    dim_table *table = analysis->graph->dims;
    dim lows[2], highs[2];
    switch (x->op) {
    case OP_remainder: {
        double divisor;
        if (!value_is_number(x->args[1], &divisor) || divisor <= 0) return false;
        *low = dim_constant(table, 0);
        *high = dim_constant(table, (int64_t)divisor - 1);
        break;
    }
    case OP_floordiv: {
        double divisor;
        if (!value_is_number(x->args[1], &divisor) || divisor <= 0 || !value_range(analysis, x->args[0], lows, highs)) return false;
        const dim by = dim_constant(table, (int64_t)divisor);
        *low = dim_floordiv(table, lows[0], by);
        *high = dim_floordiv(table, highs[0], by);
        break;
    }
    case OP_minimum:
    case OP_maximum:
        for (int i = 0; i < 2; i++) {
            if (!value_range(analysis, x->args[i], &lows[i], &highs[i])) return false;
        }
        *low = x->op == OP_minimum ? dim_min(table, lows[0], lows[1]) : dim_max(table, lows[0], lows[1]);
        *high = x->op == OP_minimum ? dim_min(table, highs[0], highs[1]) : dim_max(table, highs[0], highs[1]);
        break;
    default: return false;
    }
    if (*low == NULL || *high == NULL) return value_failed(analysis), false;
    return true;
}

bool value_range(value_analysis *analysis, value_expr x, dim *low, dim *high) {
    dim_table *table = analysis->graph->dims;
    dim lows[2], highs[2];
    switch (x->kind) {
    case VALUE_INDEX:
        if (x->axis >= analysis->rank) return false;
        *low = dim_constant(table, 0);
        *high = dim_sub(table, analysis->dims[x->axis], dim_constant(table, 1));
        break;
    case VALUE_BOUND:
        *low = dim_constant(table, 0);
        *high = dim_sub(table, x->size, dim_constant(table, 1));
        break;
    case VALUE_AFFINE: return affine_range(analysis, x, low, high);
    case VALUE_SELECT:
        for (int i = 0; i < 2; i++) {
            if (x->class != VALUE_INT || !value_range(analysis, x->args[i + 1], &lows[i], &highs[i])) return false;
        }
        *low = dim_min(table, lows[0], lows[1]);
        *high = dim_max(table, highs[0], highs[1]);
        break;
    case VALUE_POINT: return x->class == VALUE_INT && point_range(analysis, x, low, high);
    default: return false;
    }
    if (*low == NULL || *high == NULL) return value_failed(analysis), false;
    return true;
}

/* ---- division ------------------------------------------------------------------------------------------------------ */

/* x = quotient * divisor + rest with 0 <= rest < divisor for certain. false: unknown. */
static bool split_terms(value_analysis *analysis, value_expr x, dim divisor, value_expr *quotient, value_expr *rest) {
    dim_table *table = analysis->graph->dims;
    const dim zero = dim_constant(table, 0);
    if (zero == NULL) return value_failed(analysis), false;
    terms whole = {.constant = zero}, part = {.constant = zero};
    const bool affine = x->kind == VALUE_AFFINE;
    for (int i = 0; i < (affine ? x->count : 1); i++) {
        const value_expr atom = affine ? x->args[i] : x;
        const dim factor = affine ? x->factors[i] : dim_constant(table, 1);
        const dim exact = dim_divide_exact(table, factor, divisor);
        if (!add_terms(analysis, exact != NULL ? &whole : &part, atom, exact != NULL ? exact : factor)) return false;
    }
    if (affine) {
        const dim exact = dim_divide_exact(table, x->size, divisor);
        if (exact != NULL) {
            whole.constant = exact;
        } else {
            part.constant = x->size;
        }
    }
    *quotient = make_affine(analysis, &whole);
    *rest = make_affine(analysis, &part);
    dim low, high;
    if (*quotient == NULL || *rest == NULL || !value_range(analysis, *rest, &low, &high)) return false;
    return always_le(analysis, zero, low) && dim_always_lt(table, high, divisor);
}

static value_expr divide(value_analysis *analysis, op_id op, value_expr x, dim divisor) {
    if (x == NULL) return NULL;
    if (divisor == NULL) return value_failed(analysis);
    if (x->kind == VALUE_SELECT) {
        return value_select(analysis, x->args[0], divide(analysis, op, x->args[1], divisor), divide(analysis, op, x->args[2], divisor));
    }
    value_expr quotient, rest;
    if (split_terms(analysis, x, divisor, &quotient, &rest)) return op == OP_floordiv ? quotient : rest;
    if (analysis->status != DW_OK) return NULL;
    const value_expr args[2] = {x, value_size(analysis, divisor)};
    if (args[1] == NULL) return NULL;
    return value_intern(analysis, &(value_node){.kind = VALUE_POINT, .class = VALUE_INT, .op = op, .format = DW_FORMAT_i64, .count = 2, .args = args});
}

value_expr value_div(value_analysis *analysis, value_expr x, dim divisor) {
    return divide(analysis, OP_floordiv, x, divisor);
}

value_expr value_mod(value_analysis *analysis, value_expr x, dim divisor) {
    return divide(analysis, OP_remainder, x, divisor);
}

/* ---- comparisons and logic ------------------------------------------------------------------------------------------- */

/* |y| + rest <= 0 becomes y + rest <= 0 and -y + rest <= 0. NULL when x holds no such term. */
static value_expr open_absolute(value_analysis *analysis, value_expr x) {
    if (x->kind != VALUE_AFFINE) return NULL;
    for (int i = 0; i < x->count; i++) {
        int64_t factor;
        const value_expr atom = x->args[i];
        if (atom->kind != VALUE_POINT || atom->op != OP_abs || !dim_is_constant(x->factors[i], &factor) || factor != 1) continue;
        const value_expr rest = value_sum(analysis, x, 1, atom, -1);
        const value_expr above = value_le_zero(analysis, value_sum(analysis, rest, 1, atom->args[0], -1));
        return value_and(analysis, value_le_zero(analysis, value_sum(analysis, rest, 1, atom->args[0], 1)), above);
    }
    return NULL;
}

value_expr value_le_zero(value_analysis *analysis, value_expr x) {
    if (x == NULL) return NULL;
    if (x->kind == VALUE_SELECT) {
        const value_expr otherwise = value_le_zero(analysis, x->args[2]);
        return value_select(analysis, x->args[0], value_le_zero(analysis, x->args[1]), otherwise);
    }
    const value_expr opened = open_absolute(analysis, x);
    if (opened != NULL) return opened;
    dim low, high;
    if (value_range(analysis, x, &low, &high)) {
        dim_table *table = analysis->graph->dims;
        if (always_le(analysis, high, dim_constant(table, 0))) return value_bool(analysis, true);
        if (always_le(analysis, dim_constant(table, 1), low)) return value_bool(analysis, false);
    }
    return value_intern(analysis, &(value_node){.kind = VALUE_LE, .class = VALUE_BOOL, .count = 1, .args = &x});
}

value_expr value_eq_zero(value_analysis *analysis, value_expr x) {
    if (x == NULL) return NULL;
    if (x->kind == VALUE_SELECT) {
        const value_expr otherwise = value_eq_zero(analysis, x->args[2]);
        return value_select(analysis, x->args[0], value_eq_zero(analysis, x->args[1]), otherwise);
    }
    dim low, high;
    if (value_range(analysis, x, &low, &high)) {
        dim_table *table = analysis->graph->dims;
        const dim zero = dim_constant(table, 0), one = dim_constant(table, 1), minus = dim_constant(table, -1);
        if (always_le(analysis, one, low) || always_le(analysis, high, minus)) return value_bool(analysis, false);
        if (low == zero && high == zero) return value_bool(analysis, true);
    }
    int64_t factor;
    if (x->kind == VALUE_AFFINE && x->count > 0 && dim_is_constant(x->factors[0], &factor) && factor < 0) {
        x = value_scale(analysis, x, dim_constant(analysis->graph->dims, -1));
        if (x == NULL) return NULL;
    }
    return value_intern(analysis, &(value_node){.kind = VALUE_EQ, .class = VALUE_BOOL, .count = 1, .args = &x});
}

static value_expr make_logic(value_analysis *analysis, value_kind kind, value_expr x, value_expr y) {
    const value_expr args[2] = {x->id < y->id ? x : y, x->id < y->id ? y : x};
    return value_intern(analysis, &(value_node){.kind = kind, .class = VALUE_BOOL, .count = 2, .args = args});
}

/* Is x one of the parts that whole, a nest of kind, is made of? */
static bool is_part(value_expr x, value_expr whole, value_kind kind) {
    if (whole == x) return true;
    return whole->kind == kind && (is_part(x, whole->args[0], kind) || is_part(x, whole->args[1], kind));
}

value_expr value_and(value_analysis *analysis, value_expr x, value_expr y) {
    if (x == NULL || y == NULL) return NULL;
    if (is_true(x) || is_false(y) || is_part(y, x, VALUE_AND)) return is_true(x) || is_false(y) ? y : x;
    if (is_true(y) || is_false(x)) return x;
    return make_logic(analysis, VALUE_AND, x, y);
}

value_expr value_or(value_analysis *analysis, value_expr x, value_expr y) {
    if (x == NULL || y == NULL) return NULL;
    if (is_false(x) || is_true(y) || is_part(y, x, VALUE_OR)) return is_false(x) || is_true(y) ? y : x;
    if (is_false(y) || is_true(x)) return x;
    return make_logic(analysis, VALUE_OR, x, y);
}

value_expr value_not(value_analysis *analysis, value_expr x) {
    if (x == NULL) return NULL;
    value_expr other;   /* made first: what is made depends on the order, which C leaves open among arguments */
    switch (x->kind) {
    case VALUE_CONSTANT: return value_bool(analysis, x->number == 0);
    case VALUE_NOT: return x->args[0];
    case VALUE_LE: return value_le_zero(analysis, value_sum(analysis, value_int(analysis, 1), 1, x->args[0], -1));
    case VALUE_AND:
        other = value_not(analysis, x->args[1]);
        return value_or(analysis, value_not(analysis, x->args[0]), other);
    case VALUE_OR:
        other = value_not(analysis, x->args[1]);
        return value_and(analysis, value_not(analysis, x->args[0]), other);
    case VALUE_SELECT:
        other = value_not(analysis, x->args[2]);
        return value_select(analysis, x->args[0], value_not(analysis, x->args[1]), other);
    default: return value_intern(analysis, &(value_node){.kind = VALUE_NOT, .class = VALUE_BOOL, .count = 1, .args = &x});
    }
}

/* ---- choice -------------------------------------------------------------------------------------------------------- */

/* Does the condition leave one value to one index (i <= 0, i == c)? */
static bool pins_index(value_expr condition, int *axis, dim *pinned, value_analysis *analysis) {
    if (condition->kind != VALUE_LE && condition->kind != VALUE_EQ) return false;
    const value_expr x = condition->args[0];
    const value_expr atom = x->kind == VALUE_AFFINE && x->count == 1 ? x->args[0] : x;
    int64_t factor, constant = 0;
    if (atom->kind != VALUE_INDEX) return false;
    if (x->kind == VALUE_AFFINE &&
        (!dim_is_constant(x->factors[0], &factor) || factor != 1 || !dim_is_constant(x->size, &constant))) return false;
    if (condition->kind == VALUE_LE && constant != 0) return false;
    *axis = atom->axis;
    *pinned = dim_constant(analysis->graph->dims, -constant);
    return *pinned != NULL;
}

value_expr value_select(value_analysis *analysis, value_expr condition, value_expr yes, value_expr no) {
    if (condition == NULL || yes == NULL || no == NULL) return NULL;
    if (condition->kind == VALUE_CONSTANT) return condition->number != 0 ? yes : no;
    if (condition->kind == VALUE_NOT) return value_select(analysis, condition->args[0], no, yes);
    if (yes->kind == VALUE_SELECT && yes->args[0] == condition) yes = yes->args[1];
    if (no->kind == VALUE_SELECT && no->args[0] == condition) no = no->args[2];
    int axis;
    dim pinned;
    if (pins_index(condition, &axis, &pinned, analysis) && (yes->axes & 1u << axis)) {
        value_expr map[DW_MAX_RANK] = {NULL};
        map[axis] = value_size(analysis, pinned);
        yes = value_substitute(analysis, yes, map);
        if (yes == NULL) return NULL;
    }
    if (yes == no) return yes;
    if (yes->class == VALUE_BOOL) {
        if (is_true(yes)) return value_or(analysis, condition, no);
        if (is_false(yes)) return value_and(analysis, value_not(analysis, condition), no);
        if (is_true(no)) return value_or(analysis, value_not(analysis, condition), yes);
        if (is_false(no)) return value_and(analysis, condition, yes);
    }
    const value_expr args[3] = {condition, yes, no};
    return value_intern(analysis, &(value_node){.kind = VALUE_SELECT, .class = yes->class, .count = 3, .args = args});
}

/* ---- scans --------------------------------------------------------------------------------------------------------- */

static value_expr make_scan(value_analysis *analysis, value_expr body, value_expr last) {
    if (body == NULL || last == NULL) return NULL;
    const value_expr args[2] = {body, last};
    return value_intern(analysis, &(value_node){.kind = VALUE_SCAN, .class = VALUE_INT, .count = 2, .args = args});
}

value_expr value_scan(value_analysis *analysis, value_expr body, int axis, value_expr last) {
    if (body == NULL || body->bound) return NULL;
    value_expr map[DW_MAX_RANK] = {NULL};
    map[axis] = value_bound(analysis, analysis->dims[axis]);
    if (map[axis] == NULL) return NULL;
    return make_scan(analysis, value_substitute(analysis, body, map), last);
}

/* ---- substitution ---------------------------------------------------------------------------------------------------- */

/* What stands for each INDEX, and for BOUND outside of scans; NULL: itself. */
typedef struct substitution {
    const value_expr *indices;
    value_expr bound;
} substitution;

static value_expr substitute(value_analysis *analysis, value_expr x, const substitution *by);

static value_expr substitute_affine(value_analysis *analysis, value_expr x, const substitution *by) {
    value_expr sum = value_size(analysis, x->size);
    for (int i = 0; i < x->count; i++) {
        sum = value_sum(analysis, sum, 1, value_scale(analysis, substitute(analysis, x->args[i], by), x->factors[i]), 1);
    }
    return sum;
}

static value_expr substitute(value_analysis *analysis, value_expr x, const substitution *by) {
    if (x == NULL) return NULL;
    bool touched = x->bound && by->bound != NULL;
    for (int i = 0; i < DW_MAX_RANK && by->indices != NULL; i++) touched |= (x->axes & 1u << i) && by->indices[i] != NULL;
    if (!touched) return x;
    if (x->kind == VALUE_INDEX) return by->indices[x->axis];
    if (x->kind == VALUE_BOUND) return by->bound;
    if (x->kind == VALUE_AFFINE) return substitute_affine(analysis, x, by);
    const substitution inside = {.indices = by->indices};
    value_expr args[DW_MAX_RANK];
    for (int i = 0; i < x->count; i++) {
        args[i] = substitute(analysis, x->args[i], x->kind == VALUE_SCAN && i == 0 ? &inside : by);
        if (args[i] == NULL) return NULL;
    }
    switch (x->kind) {
    case VALUE_LE: return value_le_zero(analysis, args[0]);
    case VALUE_EQ: return value_eq_zero(analysis, args[0]);
    case VALUE_AND: return value_and(analysis, args[0], args[1]);
    case VALUE_OR: return value_or(analysis, args[0], args[1]);
    case VALUE_NOT: return value_not(analysis, args[0]);
    case VALUE_SELECT: return value_select(analysis, args[0], args[1], args[2]);
    case VALUE_LOOKUP: return value_lookup(analysis, x->source, x->class, x->count, args);
    case VALUE_SCAN: return make_scan(analysis, args[0], args[1]);
    case VALUE_POINT: return value_point(analysis, x->op, x->format, x->count, args);
    default: return x;
    }
}

value_expr value_substitute(value_analysis *analysis, value_expr x, const value_expr *map) {
    return substitute(analysis, x, &(substitution){.indices = map});
}

value_expr value_open_scan(value_analysis *analysis, value_expr scan, int axis) {
    const value_expr body = scan->args[0];
    if (body->axes & 1u << axis) return NULL;
    return substitute(analysis, body, &(substitution){.bound = value_index(analysis, axis)});
}
