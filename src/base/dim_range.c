/* Bounds of symbolic dimensions by interval arithmetic, and proofs of a <= b on top of them. */
#include "base/dim_node.h"

#define PROOF_DEPTH 4   /* functions replaced by a bound of theirs, one after the other */

/* An end at INT64_MIN (lower) or INT64_MAX (upper) is no bound. */
typedef struct range { int64_t min, max; } range;

static range range_of(const dim_table *table, dim d);

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* a * b, saturated; 0 times an open end is 0. */
static int64_t saturated_product(int64_t a, int64_t b) {
    int64_t result;
    if (a == 0 || b == 0) return 0;
    bool is_open = a == INT64_MIN || a == INT64_MAX || b == INT64_MIN || b == INT64_MAX;
    if (!is_open && base_mul_i64(a, b, &result)) return result;
    return (a < 0) == (b < 0) ? INT64_MAX : INT64_MIN;
}

static int64_t saturated_sum(int64_t a, int64_t b) {
    int64_t result;
    if (base_add_i64(a, b, &result)) return result;
    return a < 0 ? INT64_MIN : INT64_MAX;
}

static range add_ranges(range a, range b) {
    range sum = {saturated_sum(a.min, b.min), saturated_sum(a.max, b.max)};
    if (a.min == INT64_MIN || b.min == INT64_MIN) sum.min = INT64_MIN;
    if (a.max == INT64_MAX || b.max == INT64_MAX) sum.max = INT64_MAX;
    return sum;
}

static range multiply_ranges(range a, range b) {
    int64_t corners[4] = {saturated_product(a.min, b.min), saturated_product(a.min, b.max), saturated_product(a.max, b.min),
                          saturated_product(a.max, b.max)};
    range product = {corners[0], corners[0]};
    for (int i = 1; i < 4; i++) {
        product.min = smaller(product.min, corners[i]);
        product.max = larger(product.max, corners[i]);
    }
    return product;
}

static int64_t negated(int64_t a) { return a == INT64_MIN ? INT64_MAX : a == INT64_MAX ? INT64_MIN : -a; }

static range negate_range(range a) { return (range){negated(a.max), negated(a.min)}; }

static range floordiv_range(range a, range b) {
    if (b.max < 0) {
        a = negate_range(a);
        b = negate_range(b);
    }
    if (b.min > 0) {
        range result = {a.min, a.max};
        if (a.min != INT64_MIN) result.min = smaller(floor_divide(a.min, b.min), floor_divide(a.min, b.max));
        if (a.max != INT64_MAX) result.max = larger(floor_divide(a.max, b.min), floor_divide(a.max, b.max));
        return result;
    }
    int64_t most = larger(larger(a.max, negated(a.min)), 0);   /* |a / b| <= |a| for any integer b but 0 */
    most = larger(most, 1);                                    /* and floor(1 / -2) is -1 */
    return (range){negated(most), most};
}

static range mod_range(range a, range b) {
    range result = {0, 0};
    if (b.max > 0) {
        result.max = b.max == INT64_MAX ? INT64_MAX : b.max - 1;
        if (a.min >= 0 && b.min > 0) result.max = smaller(result.max, a.max);
    }
    if (b.min < 0) {
        result.min = b.min == INT64_MIN ? INT64_MIN : b.min + 1;
        if (a.max <= 0 && b.max < 0) result.min = larger(result.min, a.min);
    }
    return result;
}

static range atom_range(const dim_table *table, const atom *atom) {
    if (atom->kind == DIM_SYMBOL) return (range){table->symbols[atom->symbol].min, table->symbols[atom->symbol].max};
    range a = range_of(table, atom->a);
    range b = range_of(table, atom->b);
    switch (atom->kind) {
    case DIM_FLOORDIV: return floordiv_range(a, b);
    case DIM_MOD: return mod_range(a, b);
    case DIM_MIN: return (range){smaller(a.min, b.min), smaller(a.max, b.max)};
    case DIM_MAX: return (range){larger(a.min, b.min), larger(a.max, b.max)};
    default: return (range){INT64_MIN, INT64_MAX};
    }
}

static range range_of(const dim_table *table, dim d) {
    range sum = {0, 0};
    for (int i = 0; i < d->term_count; i++) {
        range value = {1, 1};
        const product *product = d->terms[i].product;
        for (int j = 0; j < product->degree;) {
            range factor = atom_range(table, product->atoms[j]);
            int power = 1;
            while (j + power < product->degree && product->atoms[j + power] == product->atoms[j]) power++;
            range powered = factor;
            for (int k = 1; k < power; k++) powered = multiply_ranges(powered, factor);
            if (power % 2 == 0) powered.min = larger(powered.min, 0);
            value = multiply_ranges(value, powered);
            j += power;
        }
        int64_t coefficient = d->terms[i].coefficient;
        sum = add_ranges(sum, multiply_ranges(value, (range){coefficient, coefficient}));
    }
    return sum;
}

/* ---- sums of one product and of floors of it ---- */

/* slope * product + [low, high], each over scale. */
typedef struct slanted { const product *product; int64_t scale, slope, low, high; } slanted;

static bool add_scaled(int64_t *sum, int64_t a, int64_t b) {
    int64_t part;
    return base_mul_i64(a, b, &part) && base_add_i64(*sum, part, sum);
}

/* a = slope * product + rest; false where a is no such sum. */
static bool split_line(dim a, slanted *line, int64_t *slope, int64_t *rest) {
    *slope = *rest = 0;
    for (int i = 0; i < a->term_count; i++) {
        const product *product = a->terms[i].product;
        if (product->degree == 0) {
            *rest = a->terms[i].coefficient;
            continue;
        }
        if (line->product == NULL) line->product = product;
        if (line->product != product) return false;
        *slope = a->terms[i].coefficient;
    }
    return true;
}

static bool is_floor(const product *product, int64_t *divisor) {
    const atom *atom = product->degree == 1 ? product->atoms[0] : NULL;
    return atom != NULL && atom->kind == DIM_FLOORDIV && dim_is_constant(atom->b, divisor) && *divisor > 0;
}

/* A floor has the linear bounds (a - (divisor - 1)) / divisor <= . <= a / divisor. */
static bool add_floor(slanted *line, const product *floor, int64_t coefficient, int64_t divisor) {
    int64_t slope, rest, least, most;
    if (line->scale % divisor != 0 || !split_line(floor->atoms[0]->a, line, &slope, &rest)) return false;
    const int64_t share = line->scale / divisor;
    if (!base_mul_i64(coefficient, share, &coefficient) || !base_add_i64(rest, -(divisor - 1), &least)) return false;
    most = rest;
    return add_scaled(&line->slope, coefficient, slope) && add_scaled(&line->low, coefficient, coefficient > 0 ? least : most) && add_scaled(&line->high, coefficient, coefficient > 0 ? most : least);
}

static bool find_slanted(dim d, slanted *line) {
    enum { MOST = 1 << 20 };
    bool has_floor = false;
    int64_t divisor;
    *line = (slanted){.scale = 1};
    for (int i = 0; i < d->term_count; i++) {
        if (!is_floor(d->terms[i].product, &divisor)) continue;
        has_floor = true;
        if (line->scale % divisor != 0 && (divisor > MOST / line->scale)) return false;
        if (line->scale % divisor != 0) line->scale *= divisor;
    }
    for (int i = 0; has_floor && i < d->term_count; i++) {
        const product *product = d->terms[i].product;
        const int64_t coefficient = d->terms[i].coefficient;
        if (is_floor(product, &divisor)) {
            if (!add_floor(line, product, coefficient, divisor)) return false;
        } else if (product->degree == 0) {
            if (!add_scaled(&line->low, coefficient, line->scale) || !add_scaled(&line->high, coefficient, line->scale)) return false;
        } else {
            if (line->product == NULL) line->product = product;
            if (line->product != product || !add_scaled(&line->slope, coefficient, line->scale)) return false;
        }
    }
    return has_floor && line->product != NULL;
}

/* n - floor(7 n / 8), where what is taken off goes with what it is taken off from: at most (n + 7) / 8, not n. */
static range slanted_range(const dim_table *table, dim d, range wide) {
    slanted line;
    if (!find_slanted(d, &line)) return wide;
    const range n = range_of(table, &line.product->dim), product = multiply_ranges(n, (range){line.slope, line.slope});
    const range all = add_ranges(product, (range){line.low, line.high});
    if (all.min != INT64_MIN) wide.min = larger(wide.min, negated(floor_divide(negated(all.min), line.scale)));
    if (all.max != INT64_MAX) wide.max = smaller(wide.max, floor_divide(all.max, line.scale));
    return wide;
}

void dim_range(const dim_table *table, dim d, int64_t *min, int64_t *max) {
    range range = slanted_range(table, d, range_of(table, d));
    *min = range.min;
    *max = range.max;
}

/* Only NO_MEMORY goes up: where a proof's expressions pass a limit there is no proof. */
static dw_status give_up(dim_table *table) {
    return base_last_status(table->context) == DW_NO_MEMORY ? DW_NO_MEMORY : DW_OK;
}

static dw_status prove_positive_sum(dim_table *table, dim d, int depth, bool *proven);

/* Proves d >= 0 with coefficient * atom, the i-th term of d, replaced by coefficient * bound, which is no larger. */
static dw_status prove_with(dim_table *table, dim d, int i, dim bound, int depth, bool *proven) {
    dim change = dim_sub(table, bound, &d->terms[i].product->dim);
    dim replaced = dim_add(table, d, dim_mul(table, dim_constant(table, d->terms[i].coefficient), change));
    return replaced == NULL ? give_up(table) : prove_positive_sum(table, replaced, depth - 1, proven);
}

/* The same for coefficient * floor(a / divisor): times divisor the floor has the linear bounds a - (divisor - 1) <= . <= a. */
static dw_status prove_with_floor(dim_table *table, dim d, int i, const atom *floor, int64_t divisor, int depth, bool *proven) {
    int64_t coefficient = d->terms[i].coefficient;
    dim scale = dim_constant(table, coefficient % divisor == 0 ? 1 : divisor);
    dim factor = dim_constant(table, coefficient % divisor == 0 ? coefficient / divisor : coefficient);
    dim term = dim_mul(table, dim_constant(table, coefficient), floor->as_dim);
    dim rest = dim_mul(table, scale, dim_sub(table, d, term));
    dim bound = coefficient > 0 ? dim_sub(table, floor->a, dim_constant(table, divisor - 1)) : floor->a;
    dim replaced = dim_add(table, rest, dim_mul(table, factor, bound));
    return replaced == NULL ? give_up(table) : prove_positive_sum(table, replaced, depth - 1, proven);
}

/* d >= 0? By its range, else with one function of it replaced by a bound of that function. */
static dw_status prove_positive_sum(dim_table *table, dim d, int depth, bool *proven) {
    *proven = range_of(table, d).min >= 0;
    for (int i = 0; i < d->term_count && depth > 0 && !*proven; i++) {
        if (d->terms[i].product->degree != 1) continue;
        const atom *atom = d->terms[i].product->atoms[0];
        bool is_positive = d->terms[i].coefficient > 0;
        int64_t divisor;
        bool has_divisor = atom->b != NULL && dim_is_constant(atom->b, &divisor) && divisor > 0;
        if (atom->kind == (is_positive ? DIM_MAX : DIM_MIN)) {
            TRY(prove_with(table, d, i, atom->a, depth, proven));
            if (!*proven) TRY(prove_with(table, d, i, atom->b, depth, proven));
        } else if (atom->kind == DIM_FLOORDIV && has_divisor) {
            TRY(prove_with_floor(table, d, i, atom, divisor, depth, proven));
        } else if (atom->kind == DIM_MOD && !is_positive && range_of(table, atom->a).min >= 0 && range_of(table, atom->b).min > 0) {
            TRY(prove_with(table, d, i, atom->a, depth, proven));
        }
    }
    return DW_OK;
}

dw_status dim_prove_le(dim_table *table, dim a, dim b, bool *proven) {
    *proven = a == b;
    if (*proven) return DW_OK;
    dim difference = dim_sub(table, b, a);
    return difference == NULL ? give_up(table) : prove_positive_sum(table, difference, PROOF_DEPTH, proven);
}

dw_status dim_prove_lt(dim_table *table, dim a, dim b, bool *proven) {
    *proven = false;
    dim next = dim_add(table, a, table->one);
    return next == NULL ? give_up(table) : dim_prove_le(table, next, b, proven);
}

bool dim_always_le(dim_table *table, dim a, dim b) {
    bool proven = false;
    return a != NULL && b != NULL && dim_prove_le(table, a, b, &proven) == DW_OK && proven;
}

bool dim_always_lt(dim_table *table, dim a, dim b) {
    bool proven = false;
    return a != NULL && b != NULL && dim_prove_lt(table, a, b, &proven) == DW_OK && proven;
}
