/* What floor division, modulus, minimum and maximum of symbolic dimensions fold to. Each rule holds for all integers (b not 0), or is
 * proven from the ranges of the symbols. */
#include "base/dim_node.h"

#define OPERANDS_MAX 32   /* of one min or max, nested ones counted together */

static int64_t gcd(int64_t a, int64_t b) {   /* of magnitudes; neither is INT64_MIN */
    a = a < 0 ? -a : a;
    b = b < 0 ? -b : b;
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static dim negate(dim_table *table, dim d) { return dim_sub(table, table->zero, d); }

static bool is_leading_negative(dim d) { return d->term_count > 0 && d->terms[0].coefficient < 0; }

/* When floor(a / divisor) is one number over the whole range of a: that number. divisor > 0 */
static bool has_one_quotient(const dim_table *table, dim a, int64_t divisor, int64_t *quotient) {
    int64_t min, max;
    dim_range(table, a, &min, &max);
    if (min == INT64_MIN || max == INT64_MAX) return false;
    *quotient = floor_divide(min, divisor);
    return floor_divide(max, divisor) == *quotient;
}

/* a = divisor * quotient + rest by coefficients: the rest's constant lies in [0, divisor), its other coefficients in
 * (-divisor, divisor). */
static dw_status split_by(dim_table *table, dim a, int64_t divisor, dim *quotient, dim *rest) {
    poly quotients = {.count = 0}, rests = {.count = 0};
    for (int i = 0; i < a->term_count; i++) {
        term term = a->terms[i];
        bool is_constant = term.product->degree == 0;
        int64_t whole = is_constant ? floor_divide(term.coefficient, divisor) : term.coefficient / divisor;
        TRY(poly_add(table, &quotients, whole, term.product));
        TRY(poly_add(table, &rests, term.coefficient - whole * divisor, term.product));
    }
    TRY_DIM(table->context, *quotient, poly_intern(table, &quotients));
    TRY_DIM(table->context, *rest, poly_intern(table, &rests));
    return DW_OK;
}

/* The greatest divisor of the given one and of all coefficients but the constant. */
static int64_t common_factor(dim a, int64_t divisor) {
    for (int i = 0; i < a->term_count; i++) {
        if (a->terms[i].product->degree > 0) divisor = gcd(divisor, a->terms[i].coefficient);
    }
    return divisor;
}

static int64_t constant_of(dim a) {
    if (a->term_count == 0 || a->terms[a->term_count - 1].product->degree > 0) return 0;
    return a->terms[a->term_count - 1].coefficient;
}

/* The greatest product with coefficient that divides every term of a and b, for b with a symbol in it. */
static dim common_monomial(dim_table *table, dim a, dim b) {
    int64_t coefficient = 0;
    const atom *atoms[DEGREE_MAX];
    int degree = b->terms[0].product->degree;
    for (int i = 0; i < degree; i++) atoms[i] = b->terms[0].product->atoms[i];
    for (int i = 0; i < a->term_count + b->term_count; i++) {
        const term *term = i < a->term_count ? &a->terms[i] : &b->terms[i - a->term_count];
        coefficient = gcd(coefficient, term->coefficient);
        int kept = 0, at = 0;
        for (int j = 0; j < degree; j++) {   /* both are sorted */
            while (at < term->product->degree && compare_atoms(term->product->atoms[at], atoms[j]) < 0) at++;
            if (at < term->product->degree && term->product->atoms[at] == atoms[j]) {
                atoms[kept++] = atoms[j];
                at++;
            }
        }
        degree = kept;
    }
    dim common = dim_constant(table, coefficient);
    for (int i = 0; i < degree; i++) common = dim_mul(table, common, atoms[i]->as_dim);
    return common;
}

/* ---- floor division ------------------------------------------------------------------------------------------------------- */

static dim floordiv_constant(dim_table *table, dim a, int64_t divisor) {
    dim quotient, rest;
    if (split_by(table, a, divisor, &quotient, &rest) != DW_OK) return NULL;
    dim by = dim_constant(table, divisor);
    if (quotient != table->zero) return dim_add(table, quotient, dim_floordiv(table, rest, by));

    /* floor(-x / c) is -ceil(x / c): one form for both ways to write a rounded-up division */
    if (is_leading_negative(a)) {
        return negate(table, dim_floordiv(table, dim_sub(table, dim_constant(table, divisor - 1), a), by));
    }
    int64_t common = common_factor(a, divisor);
    if (common > 1) {
        dim scaled;   /* the constant loses what cannot carry over */
        if (split_by(table, a, common, &scaled, &rest) != DW_OK) return NULL;
        return dim_floordiv(table, scaled, dim_constant(table, divisor / common));
    }
    /* floor((floor(x / m) + k) / c) is floor((x + k * m) / (m * c)) */
    int64_t inner_divisor, added, product;
    int64_t constant = constant_of(a);
    dim inner = dim_sub(table, a, dim_constant(table, constant));
    if (inner == NULL) return NULL;
    const atom *atom = dim_as_atom(inner);
    if (atom != NULL && atom->kind == DIM_FLOORDIV && dim_is_constant(atom->b, &inner_divisor) && inner_divisor > 0 &&
        base_mul_i64(constant, inner_divisor, &added) && base_mul_i64(divisor, inner_divisor, &product)) {
        return dim_floordiv(table, dim_add(table, atom->a, dim_constant(table, added)), dim_constant(table, product));
    }
    return dim_atom(table, DIM_FLOORDIV, a, by);
}

static dim floordiv_symbolic(dim_table *table, dim a, dim b) {
    dim quotient, rest;
    if (dim_divide_with_rest(table, a, b, &quotient, &rest) != DW_OK) return NULL;
    if (quotient != table->zero) return dim_add(table, quotient, dim_floordiv(table, rest, b));
    dim common = common_monomial(table, a, b);
    if (common == NULL) return NULL;
    if (common != table->one) {
        dim smaller_a, smaller_b;
        if (dim_divide(table, a, common, &smaller_a) != DW_OK || dim_divide(table, b, common, &smaller_b) != DW_OK) return NULL;
        return dim_floordiv(table, smaller_a, smaller_b);
    }
    dim whole = dim_atom(table, DIM_FLOORDIV, a, b);
    if (whole == NULL) return NULL;
    int64_t min, max;
    dim_range(table, whole, &min, &max);
    return min == max ? dim_constant(table, min) : whole;
}

/* 0 <= a < b? */
static dw_status is_below(dim_table *table, dim a, dim b, bool *below) {
    TRY(dim_prove_le(table, table->zero, a, below));
    return *below ? dim_prove_lt(table, a, b, below) : DW_OK;
}

static dim fail_division(dim_table *table, const char *kind) {
    base_fail(table->context, DW_INVALID, "dimension: %s by zero", kind);
    return NULL;
}

dim dim_floordiv(dim_table *table, dim a, dim b) {
    if (a == NULL || b == NULL) return NULL;
    if (b == table->zero) return fail_division(table, "division");
    if (is_leading_negative(b)) return dim_floordiv(table, negate(table, a), negate(table, b));
    dim quotient;
    if (dim_divide(table, a, b, &quotient) != DW_OK) return NULL;
    if (quotient != NULL) return quotient;

    int64_t divisor, only;
    if (dim_is_constant(b, &divisor)) {
        if (has_one_quotient(table, a, divisor, &only)) return dim_constant(table, only);
        return floordiv_constant(table, a, divisor);
    }
    bool below;
    if (is_below(table, a, b, &below) != DW_OK) return NULL;
    return below ? table->zero : floordiv_symbolic(table, a, b);
}

/* ---- modulus -------------------------------------------------------------------------------------------------------------- */

/* a with every term k * (x mod m) where divisor divides k * m replaced by k * x, which is the same modulo divisor. */
static dim without_inner_moduli(dim_table *table, dim a, int64_t divisor) {
    dim result = a;
    for (int i = 0; i < a->term_count && result != NULL; i++) {
        const product *product = a->terms[i].product;
        int64_t inner, step;
        if (product->degree != 1 || product->atoms[0]->kind != DIM_MOD || !dim_is_constant(product->atoms[0]->b, &inner)) continue;
        if (!base_mul_i64(inner, a->terms[i].coefficient, &step) || step % divisor != 0) continue;
        dim change = dim_sub(table, product->atoms[0]->a, &product->dim);
        result = dim_add(table, result, dim_mul(table, dim_constant(table, a->terms[i].coefficient), change));
    }
    return result;
}

static dim mod_constant(dim_table *table, dim a, int64_t divisor) {
    dim by = dim_constant(table, divisor);
    dim plain = without_inner_moduli(table, a, divisor);
    if (plain != a) return dim_mod(table, plain, by);
    dim quotient, rest;
    if (split_by(table, a, divisor, &quotient, &rest) != DW_OK) return NULL;
    if (quotient != table->zero) return dim_mod(table, rest, by);
    int64_t common = common_factor(a, divisor);
    if (common > 1) {   /* (g * x + k) mod (g * c) is g * ((x + floor(k / g)) mod c) + k mod g */
        dim scaled;
        if (split_by(table, a, common, &scaled, &rest) != DW_OK) return NULL;
        dim small = dim_mod(table, scaled, dim_constant(table, divisor / common));
        return dim_add(table, dim_mul(table, dim_constant(table, common), small), rest);
    }
    return dim_atom(table, DIM_MOD, a, by);
}

static dim mod_symbolic(dim_table *table, dim a, dim b) {
    dim quotient, rest;
    if (dim_divide_with_rest(table, a, b, &quotient, &rest) != DW_OK) return NULL;
    if (quotient != table->zero) return dim_mod(table, rest, b);
    dim common = common_monomial(table, a, b);
    if (common == NULL) return NULL;
    if (common != table->one) {
        dim smaller_a, smaller_b;
        if (dim_divide(table, a, common, &smaller_a) != DW_OK || dim_divide(table, b, common, &smaller_b) != DW_OK) return NULL;
        return dim_mul(table, common, dim_mod(table, smaller_a, smaller_b));
    }
    return dim_atom(table, DIM_MOD, a, b);
}

dim dim_mod(dim_table *table, dim a, dim b) {
    if (a == NULL || b == NULL) return NULL;
    if (b == table->zero) return fail_division(table, "remainder of a division");
    if (is_leading_negative(b)) return negate(table, dim_mod(table, negate(table, a), negate(table, b)));
    dim quotient;
    if (dim_divide(table, a, b, &quotient) != DW_OK) return NULL;
    if (quotient != NULL) return table->zero;

    int64_t divisor, only;
    if (dim_is_constant(b, &divisor)) {
        if (has_one_quotient(table, a, divisor, &only)) return dim_sub(table, a, dim_mul(table, dim_constant(table, only), b));
        return mod_constant(table, a, divisor);
    }
    bool below;
    if (is_below(table, a, b, &below) != DW_OK) return NULL;
    return below ? a : mod_symbolic(table, a, b);
}

/* ---- minimum and maximum -------------------------------------------------------------------------------------------------- */

typedef struct operands {
    int count;
    dim list[OPERANDS_MAX];   /* sorted by compare_dims, none known to be bounded by another */
} operands;

/* *better: is a chosen over b whatever the symbols are? */
static dw_status is_chosen(dim_table *table, dim_kind kind, dim a, dim b, bool *better) {
    return kind == DIM_MIN ? dim_prove_le(table, a, b, better) : dim_prove_le(table, b, a, better);
}

static dw_status operands_add(dim_table *table, dim_kind kind, operands *operands, dim d) {
    const atom *atom = dim_as_atom(d);
    if (atom != NULL && atom->kind == kind) {
        TRY(operands_add(table, kind, operands, atom->a));
        return operands_add(table, kind, operands, atom->b);
    }
    for (int i = 0; i < operands->count; i++) {
        bool is_better;
        TRY(is_chosen(table, kind, operands->list[i], d, &is_better));
        if (is_better) return DW_OK;
    }
    int kept = 0;
    for (int i = 0; i < operands->count; i++) {
        bool is_worse;
        TRY(is_chosen(table, kind, d, operands->list[i], &is_worse));
        if (!is_worse) operands->list[kept++] = operands->list[i];
    }
    operands->count = kept;
    if (kept == OPERANDS_MAX) {
        return base_fail(table->context, DW_LIMIT, "dimension: a min or max of more than %d operands", OPERANDS_MAX);
    }
    int at = operands->count++;
    for (; at > 0 && compare_dims(operands->list[at - 1], d) > 0; at--) operands->list[at] = operands->list[at - 1];
    operands->list[at] = d;
    return DW_OK;
}

static dim choose(dim_table *table, dim_kind kind, dim a, dim b) {
    if (a == NULL || b == NULL) return NULL;
    operands operands = {.count = 0};
    if (operands_add(table, kind, &operands, a) != DW_OK || operands_add(table, kind, &operands, b) != DW_OK) return NULL;
    dim result = operands.list[operands.count - 1];
    for (int i = operands.count - 2; i >= 0 && result != NULL; i--) result = dim_atom(table, kind, operands.list[i], result);
    return result;
}

dim dim_min(dim_table *table, dim a, dim b) { return choose(table, DIM_MIN, a, b); }

dim dim_max(dim_table *table, dim a, dim b) { return choose(table, DIM_MAX, a, b); }
