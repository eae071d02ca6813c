/* Symbolic dimensions: interned sums of products of atoms, their arithmetic and evaluation. What floor division, modulus, minimum and
 * maximum fold to is in dim_fold.c, bounds are in dim_range.c, the text form in dim_text.c. */
#include "base/dim_node.h"

#include <assert.h>
#include <string.h>

#define FIRST_BUCKETS 64

int64_t floor_divide(int64_t a, int64_t b) {
    int64_t quotient = a / b;
    return quotient - (a % b != 0 && (a < 0) != (b < 0));
}

int64_t floor_modulo(int64_t a, int64_t b) {
    if (b == -1) return 0;   /* INT64_MIN % -1 overflows */
    int64_t rest = a % b;
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

/* ---- order ---------------------------------------------------------------------------------------------------------------- */

int compare_atoms(const atom *a, const atom *b) {
    if (a == b) return 0;
    if (a->kind != b->kind) return a->kind < b->kind ? -1 : 1;
    if (a->kind == DIM_SYMBOL) return strcmp(a->name, b->name);
    int order = compare_dims(a->a, b->a);
    return order != 0 ? order : compare_dims(a->b, b->b);
}

int compare_products(const product *a, const product *b) {
    if (a == b) return 0;
    if (a->degree != b->degree) return a->degree > b->degree ? -1 : 1;
    for (int i = 0; i < a->degree; i++) {
        int order = compare_atoms(a->atoms[i], b->atoms[i]);
        if (order != 0) return order;
    }
    return 0;
}

int compare_dims(dim a, dim b) {
    if (a == b) return 0;
    for (int i = 0; i < a->term_count && i < b->term_count; i++) {
        int order = compare_products(a->terms[i].product, b->terms[i].product);
        if (order != 0) return order;
        if (a->terms[i].coefficient != b->terms[i].coefficient) {
            return a->terms[i].coefficient < b->terms[i].coefficient ? -1 : 1;
        }
    }
    return a->term_count < b->term_count ? -1 : 1;
}

/* ---- interning ------------------------------------------------------------------------------------------------------------ */

static interned *first_of(const intern_table *interns, uint64_t hash) {
    return interns->size == 0 ? NULL : interns->buckets[hash & (interns->size - 1)];
}

static void link_in(intern_table *interns, interned *item) {
    interned **bucket = &interns->buckets[item->hash & (interns->size - 1)];
    item->next = *bucket;
    *bucket = item;
}

/* Adds an item that is not there. */
static dw_status intern_add(dim_table *table, intern_table *interns, interned *item) {
    if (interns->count >= interns->size) {
        intern_table grown = {.count = interns->count, .size = interns->size == 0 ? FIRST_BUCKETS : 2 * interns->size};
        TRY_NEW(grown.buckets, &table->arena, grown.size);
        for (size_t i = 0; i < interns->size; i++) {
            for (interned *at = interns->buckets[i]; at != NULL;) {
                interned *next = at->next;
                link_in(&grown, at);
                at = next;
            }
        }
        *interns = grown;
    }
    link_in(interns, item);
    interns->count++;
    return DW_OK;
}

static dw_status product_intern(dim_table *table, const atom *const *atoms, int degree, const product **result) {
    uint64_t hash = base_hash(atoms, (size_t)degree * sizeof *atoms, (uint64_t)degree);
    for (interned *at = first_of(&table->products, hash); at != NULL; at = at->next) {
        const product *found = (const product *)at;
        if (at->hash == hash && found->degree == degree && memcmp(found->atoms, atoms, (size_t)degree * sizeof *atoms) == 0) {
            *result = found;
            return DW_OK;
        }
    }
    product *made;
    TRY_NEW(made, &table->arena, 1);
    made->interned.hash = hash;
    made->degree = degree;
    for (int i = 0; i < degree; i++) {
        made->atoms[i] = atoms[i];
        made->weight += atoms[i]->weight;
        if (atoms[i]->depth > made->depth) made->depth = atoms[i]->depth;
    }
    made->term = (term){1, made};
    made->dim.term_count = 1;
    made->dim.terms = &made->term;
    TRY(intern_add(table, &table->products, &made->interned));
    *result = made;
    return DW_OK;
}

/* wanted has everything but its interned part and as_dim. */
static dw_status atom_intern(dim_table *table, const atom *wanted, const atom **result) {
    const void *key[4] = {(const void *)(uintptr_t)wanted->kind, wanted->a, wanted->b, (const void *)(uintptr_t)wanted->symbol};
    uint64_t hash = base_hash(key, sizeof key, 0);
    for (interned *at = first_of(&table->atoms, hash); at != NULL; at = at->next) {
        const atom *found = (const atom *)at;
        if (found->kind == wanted->kind && found->a == wanted->a && found->b == wanted->b && found->symbol == wanted->symbol) {
            *result = found;
            return DW_OK;
        }
    }
    atom *made;
    TRY_NEW(made, &table->arena, 1);
    *made = *wanted;
    made->interned.hash = hash;
    const atom *alone[1] = {made};
    const product *product;
    TRY(product_intern(table, alone, 1, &product));
    made->as_dim = &product->dim;
    TRY(intern_add(table, &table->atoms, &made->interned));
    *result = made;
    return DW_OK;
}

static void measure(dim d, int *depth, int *weight) {
    for (int i = 0; i < d->term_count; i++) {
        if (d->terms[i].product->depth > *depth) *depth = d->terms[i].product->depth;
        *weight += d->terms[i].product->weight;
    }
}

dim dim_atom(dim_table *table, dim_kind kind, dim a, dim b) {
    int depth = 0, weight = 1;
    measure(a, &depth, &weight);
    measure(b, &depth, &weight);
    if (++depth > DEPTH_MAX || weight > WEIGHT_MAX) {
        base_fail(table->context, DW_LIMIT, "dimension: divisions, min and max nested %d deep over %d symbols; at most %d and %d", depth,
                  weight, DEPTH_MAX, WEIGHT_MAX);
        return NULL;
    }
    atom wanted = {.kind = kind, .depth = depth, .weight = weight, .symbol = -1, .a = a, .b = b};
    const atom *made;
    return atom_intern(table, &wanted, &made) == DW_OK ? made->as_dim : NULL;
}

/* ---- sums in the making --------------------------------------------------------------------------------------------------- */

/* Sorts the terms, merges those of one product and drops zeros. */
static dw_status poly_normalise(dim_table *table, poly *poly) {
    int count = 0;
    for (int i = 0; i < poly->count; i++) {
        term moving = poly->terms[i];
        int at = count;
        int order = 1;
        while (at > 0 && (order = compare_products(poly->terms[at - 1].product, moving.product)) > 0) at--;
        if (at > 0 && order == 0) {
            int64_t *coefficient = &poly->terms[at - 1].coefficient;
            if (!base_add_i64(*coefficient, moving.coefficient, coefficient)) {
                return base_fail(table->context, DW_LIMIT, "dimension: the sum of the coefficients %lld and %lld does not fit 64 bits",
                                 (long long)*coefficient, (long long)moving.coefficient);
            }
            continue;
        }
        memmove(&poly->terms[at + 1], &poly->terms[at], (size_t)(count - at) * sizeof(term));
        poly->terms[at] = moving;
        count++;
    }
    poly->count = 0;
    for (int i = 0; i < count; i++) {
        if (poly->terms[i].coefficient == INT64_MIN) {   /* has no negative, and is no token of the text form */
            return base_fail(table->context, DW_LIMIT, "dimension: the coefficient %lld does not fit 64 bits with its negative",
                             (long long)INT64_MIN);
        }
        if (poly->terms[i].coefficient != 0) poly->terms[poly->count++] = poly->terms[i];
    }
    return DW_OK;
}

dw_status poly_add(dim_table *table, poly *poly, int64_t coefficient, const product *product) {
    if (poly->count == TERMS_MAX) TRY(poly_normalise(table, poly));
    if (poly->count == TERMS_MAX) return base_fail(table->context, DW_LIMIT, "dimension: a sum of more than %d terms", TERMS_MAX);
    poly->terms[poly->count++] = (term){coefficient, product};
    return DW_OK;
}

dim poly_intern(dim_table *table, poly *poly) {
    if (poly_normalise(table, poly) != DW_OK) return NULL;
    if (poly->count == 1 && poly->terms[0].coefficient == 1) return &poly->terms[0].product->dim;
    size_t bytes = (size_t)poly->count * sizeof(term);
    uint64_t hash = base_hash(poly->terms, bytes, 0);
    for (interned *at = first_of(&table->dims, hash); at != NULL; at = at->next) {
        dim found = (dim)at;
        if (at->hash == hash && found->term_count == poly->count && memcmp(found->terms, poly->terms, bytes) == 0) return found;
    }
    struct dim_node *made = arena_new(&table->arena, 1, sizeof *made + bytes);
    if (made == NULL) return NULL;
    term *terms = (term *)(made + 1);
    if (bytes > 0) memcpy(terms, poly->terms, bytes);
    *made = (struct dim_node){.interned.hash = hash, .term_count = poly->count, .terms = terms};
    return intern_add(table, &table->dims, &made->interned) == DW_OK ? made : NULL;
}

static dw_status product_multiply(dim_table *table, const product *a, const product *b, const product **result) {
    if (a->degree + b->degree > DEGREE_MAX) {
        return base_fail(table->context, DW_LIMIT, "dimension: a product of more than %d factors", DEGREE_MAX);
    }
    const atom *atoms[DEGREE_MAX];
    int degree = 0, from_b = 0;
    for (int i = 0; i < a->degree; i++) {
        while (from_b < b->degree && compare_atoms(b->atoms[from_b], a->atoms[i]) < 0) atoms[degree++] = b->atoms[from_b++];
        atoms[degree++] = a->atoms[i];
    }
    while (from_b < b->degree) atoms[degree++] = b->atoms[from_b++];
    return product_intern(table, atoms, degree, result);
}

/* The product without the atoms of divisor; *quotient is NULL, with OK, when it lacks one of them. */
static dw_status product_divide(dim_table *table, const product *product, const struct product *divisor, const struct product **quotient) {
    *quotient = NULL;
    const atom *atoms[DEGREE_MAX];
    int degree = 0, matched = 0;
    for (int i = 0; i < product->degree; i++) {
        if (matched < divisor->degree && divisor->atoms[matched] == product->atoms[i]) {
            matched++;
        } else {
            atoms[degree++] = product->atoms[i];
        }
    }
    return matched == divisor->degree ? product_intern(table, atoms, degree, quotient) : DW_OK;
}

/* poly += factor * d * product */
static dw_status poly_add_multiple(dim_table *table, poly *poly, int64_t factor, dim d, const product *product) {
    for (int i = 0; i < d->term_count; i++) {
        const struct product *multiplied;
        int64_t coefficient;
        TRY(product_multiply(table, d->terms[i].product, product, &multiplied));
        if (!base_mul_i64(factor, d->terms[i].coefficient, &coefficient)) {
            return base_fail(table->context, DW_LIMIT, "dimension: the coefficient %lld * %lld does not fit 64 bits", (long long)factor,
                             (long long)d->terms[i].coefficient);
        }
        TRY(poly_add(table, poly, coefficient, multiplied));
    }
    return DW_OK;
}

dw_status dim_divide_with_rest(dim_table *table, dim a, dim b, dim *quotient, dim *rest) {
    *quotient = *rest = NULL;
    const term *lead = &b->terms[0];
    poly left = {.count = a->term_count}, quotients = {.count = 0}, rests = {.count = 0};
    memcpy(left.terms, a->terms, (size_t)a->term_count * sizeof(term));
    while (left.count > 0) {
        term first = left.terms[0];
        const product *product = NULL;
        if (first.coefficient % lead->coefficient == 0) {
            TRY(product_divide(table, first.product, lead->product, &product));
        }
        if (product == NULL) {
            TRY(poly_add(table, &rests, first.coefficient, first.product));
            left.count--;
            memmove(left.terms, left.terms + 1, (size_t)left.count * sizeof(term));
            continue;
        }
        int64_t factor = first.coefficient / lead->coefficient;
        TRY(poly_add(table, &quotients, factor, product));
        TRY(poly_add_multiple(table, &left, -factor, b, product));
        TRY(poly_normalise(table, &left));
    }
    TRY_DIM(table->context, *quotient, poly_intern(table, &quotients));
    TRY_DIM(table->context, *rest, poly_intern(table, &rests));
    return DW_OK;
}

/* ---- tables and symbols ----------------------------------------------------------------------------------------------------- */

dw_status dim_table_create(dw_context *context, dim_table **result) {
    *result = NULL;
    arena arena;
    arena_init(&arena, context);
    dim_table *table;
    TRY_NEW(table, &arena, 1);
    table->context = context;
    table->arena = arena;
    map_init(&table->symbol_indices, &table->arena);
    const product *one;
    poly none = {.count = 0};
    dw_status status = product_intern(table, NULL, 0, &one);
    if (status == DW_OK) {
        table->one = &one->dim;
        table->zero = poly_intern(table, &none);
        if (table->zero == NULL) status = base_last_status(context);
    }
    if (status != DW_OK) {
        dim_table_destroy(table);
        return status;
    }
    *result = table;
    return DW_OK;
}

void dim_table_destroy(dim_table *table) {
    if (table == NULL) return;
    arena held = table->arena;   /* the table lies in it */
    arena_free(&held);
}

dim dim_constant(dim_table *table, int64_t value) {
    poly poly = {.count = 1, .terms[0] = {value, table->one->terms[0].product}};
    return poly_intern(table, &poly);
}

static bool is_symbol_name(const char *name) {
    if (name[0] >= '0' && name[0] <= '9') return false;
    if (name[strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.$")] != '\0') return false;
    return name[0] != '\0' && name[0] != '.' && name[0] != '$' && strcmp(name, "inf") != 0 && strcmp(name, "nan") != 0;
}

static dw_status check_range(dim_table *table, const char *name, int64_t min, int64_t max) {
    if (min <= max) return DW_OK;
    return base_fail(table->context, DW_INVALID, "dimension %s: the range from %lld to %lld is empty", name, (long long)min,
                     (long long)max);
}

static dw_status symbol_add(dim_table *table, const char *name, int64_t min, int64_t max) {
    if (!is_symbol_name(name)) {
        return base_fail(table->context, DW_INVALID, "dimension: \"%s\" cannot name a symbol; use letters, digits, '_', '.' and '$'", name);
    }
    TRY(check_range(table, name, min, max));
    symbol *symbols = arena_grow(&table->arena, table->symbols, table->symbol_count, &table->symbol_capacity, sizeof *symbols);
    if (symbols == NULL) return DW_NO_MEMORY;
    table->symbols = symbols;
    atom wanted = {.kind = DIM_SYMBOL, .depth = 1, .weight = 1, .symbol = (int)table->symbol_count};
    wanted.name = arena_text(&table->arena, name);
    if (wanted.name == NULL) return DW_NO_MEMORY;
    const atom *made;
    TRY(atom_intern(table, &wanted, &made));
    TRY(map_set(&table->symbol_indices, name, (void *)(uintptr_t)(table->symbol_count + 1)));
    symbols[table->symbol_count++] = (symbol){made, min, max};
    return DW_OK;
}

dim dim_symbol(dim_table *table, const char *name, int64_t min, int64_t max) {
    int index = dim_symbol_find(table, name);
    if (index < 0) {
        if (symbol_add(table, name, min, max) != DW_OK) return NULL;
        index = (int)table->symbol_count - 1;
    }
    return table->symbols[index].atom->as_dim;
}

int dim_symbol_count(const dim_table *table) { return (int)table->symbol_count; }

const char *dim_symbol_name(const dim_table *table, int index) { return table->symbols[index].atom->name; }

int dim_symbol_find(const dim_table *table, const char *name) {
    return (int)(uintptr_t)map_find(&table->symbol_indices, name) - 1;
}

void dim_symbol_range(const dim_table *table, int index, int64_t *min, int64_t *max) {
    *min = table->symbols[index].min;
    *max = table->symbols[index].max;
}

dw_status dim_symbol_set_range(dim_table *table, int index, int64_t min, int64_t max) {
    symbol *symbol = &table->symbols[index];
    TRY(check_range(table, symbol->atom->name, min, max));
    if (min < symbol->min || max > symbol->max) {
        return base_fail(table->context, DW_INVALID, "dimension %s: the range from %lld to %lld is not within that from %lld to %lld",
                         symbol->atom->name, (long long)min, (long long)max, (long long)symbol->min, (long long)symbol->max);
    }
    symbol->min = min;
    symbol->max = max;
    return DW_OK;
}

/* ---- arithmetic ----------------------------------------------------------------------------------------------------------- */

/* a + factor * b */
static dim add_multiple(dim_table *table, dim a, int64_t factor, dim b) {
    if (a == NULL || b == NULL) return NULL;
    poly poly = {.count = a->term_count};
    memcpy(poly.terms, a->terms, (size_t)a->term_count * sizeof(term));
    if (poly_add_multiple(table, &poly, factor, b, table->one->terms[0].product) != DW_OK) return NULL;
    return poly_intern(table, &poly);
}

dim dim_add(dim_table *table, dim a, dim b) { return add_multiple(table, a, 1, b); }

dim dim_sub(dim_table *table, dim a, dim b) { return add_multiple(table, a, -1, b); }

dim dim_mul(dim_table *table, dim a, dim b) {
    if (a == NULL || b == NULL) return NULL;
    poly poly = {.count = 0};
    for (int i = 0; i < a->term_count; i++) {
        if (poly_add_multiple(table, &poly, a->terms[i].coefficient, b, a->terms[i].product) != DW_OK) return NULL;
    }
    return poly_intern(table, &poly);
}

dim dim_product(dim_table *table, const dim *dims, int count) {
    dim result = table->one;
    for (int i = 0; i < count; i++) result = dim_mul(table, result, dims[i]);
    return result;
}

dw_status dim_divide(dim_table *table, dim a, dim b, dim *quotient) {
    *quotient = NULL;
    if (a == NULL || b == NULL) return base_last_status(table->context);
    if (b->term_count == 0) return DW_OK;
    dim rest;
    dw_status status = dim_divide_with_rest(table, a, b, quotient, &rest);
    if (status == DW_OK && rest->term_count == 0) return DW_OK;
    *quotient = NULL;
    return status == DW_LIMIT ? DW_OK : status;   /* a quotient that cannot be written is as good as none */
}

dim dim_divide_exact(dim_table *table, dim a, dim b) {
    dim quotient = NULL;
    if (a != NULL && b != NULL) (void)dim_divide(table, a, b, &quotient);
    return quotient;
}

/* ---- taking apart --------------------------------------------------------------------------------------------------------- */

bool dim_is_constant(dim d, int64_t *value) {
    if (d->term_count > 1 || (d->term_count == 1 && d->terms[0].product->degree > 0)) return false;
    if (value != NULL) *value = d->term_count == 0 ? 0 : d->terms[0].coefficient;
    return true;
}

const atom *dim_as_atom(dim d) {
    if (d->term_count != 1 || d->terms[0].coefficient != 1 || d->terms[0].product->degree != 1) return NULL;
    return d->terms[0].product->atoms[0];
}

bool dim_is_symbol(dim d, int *index) {
    const atom *atom = dim_as_atom(d);
    if (atom == NULL || atom->kind != DIM_SYMBOL) return false;
    if (index != NULL) *index = atom->symbol;
    return true;
}

bool dim_is_settled(dim d) {
    for (int i = 0; i < d->term_count; i++) {
        const product *product = d->terms[i].product;
        for (int k = 0; k < product->degree; k++) {
            const atom *atom = product->atoms[k];
            if (atom->kind == DIM_SYMBOL ? strncmp(atom->name, DIM_RANK, strlen(DIM_RANK)) != 0 : !dim_is_settled(atom->a) || !dim_is_settled(atom->b)) return false;
        }
    }
    return true;
}

dim_kind dim_kind_of(dim d) {
    if (dim_is_constant(d, NULL)) return DIM_CONSTANT;
    const atom *atom = dim_as_atom(d);
    if (atom != NULL) return atom->kind;
    return d->term_count == 1 ? DIM_PRODUCT : DIM_SUM;
}

int dim_term_count(dim d) { return d->term_count; }

void dim_term(dim d, int index, int64_t *coefficient, dim *product) {
    assert(index >= 0 && index < d->term_count);
    *coefficient = d->terms[index].coefficient;
    *product = &d->terms[index].product->dim;
}

int dim_factor_count(dim product) {
    assert(product->term_count <= 1);
    return product->term_count == 0 ? 0 : product->terms[0].product->degree;
}

dim dim_factor(dim product, int index) {
    assert(index >= 0 && index < dim_factor_count(product));
    return product->terms[0].product->atoms[index]->as_dim;
}

void dim_operands(dim d, dim *a, dim *b) {
    const atom *atom = dim_as_atom(d);
    assert(atom != NULL && atom->kind != DIM_SYMBOL);
    *a = atom->a;
    *b = atom->b;
}

/* ---- evaluation and rewriting ----------------------------------------------------------------------------------------------- */

static dw_status eval_atom(dw_context *context, const atom *atom, const int64_t *values, int64_t *result) {
    if (atom->kind == DIM_SYMBOL) {
        *result = values[atom->symbol];
        return DW_OK;
    }
    int64_t a, b;
    TRY(dim_eval(context, atom->a, values, &a));
    TRY(dim_eval(context, atom->b, values, &b));
    if (atom->kind == DIM_MIN || atom->kind == DIM_MAX) {
        *result = (a < b) == (atom->kind == DIM_MIN) ? a : b;
        return DW_OK;
    }
    if (b == 0) return base_fail(context, DW_INVALID, "dimension: %lld is divided by zero", (long long)a);
    if (a == INT64_MIN && b == -1 && atom->kind == DIM_FLOORDIV) {
        return base_fail(context, DW_LIMIT, "dimension: %lld / -1 does not fit 64 bits", (long long)a);
    }
    *result = atom->kind == DIM_FLOORDIV ? floor_divide(a, b) : floor_modulo(a, b);
    return DW_OK;
}

dw_status dim_eval(dw_context *context, dim d, const int64_t *values, int64_t *result) {
    int64_t sum = 0;
    for (int i = 0; i < d->term_count; i++) {
        int64_t value = d->terms[i].coefficient;
        const product *product = d->terms[i].product;
        bool fits = true;
        for (int j = 0; j < product->degree; j++) {
            int64_t factor = 0;
            TRY(eval_atom(context, product->atoms[j], values, &factor));
            fits = fits && base_mul_i64(value, factor, &value);
        }
        if (!fits || !base_add_i64(sum, value, &sum)) {
            return base_fail(context, DW_LIMIT, "dimension: its value does not fit 64 bits; bind smaller sizes");
        }
    }
    *result = sum;
    return DW_OK;
}

static dim rewrite_atom(dim_table *table, const dim_table *from, const atom *atom, const dim *replacement) {
    if (atom->kind == DIM_SYMBOL) {
        if (replacement != NULL && replacement[atom->symbol] != NULL) return replacement[atom->symbol];
        const symbol *symbol = &from->symbols[atom->symbol];
        return dim_symbol(table, atom->name, symbol->min, symbol->max);
    }
    dim a = dim_rewrite(table, from, atom->a, replacement);
    dim b = a == NULL ? NULL : dim_rewrite(table, from, atom->b, replacement);
    switch (atom->kind) {
    case DIM_FLOORDIV: return dim_floordiv(table, a, b);
    case DIM_MOD: return dim_mod(table, a, b);
    case DIM_MIN: return dim_min(table, a, b);
    case DIM_MAX: return dim_max(table, a, b);
    default: break;
    }
    assert(!"an atom is a symbol or a function");
    return NULL;
}

dim dim_rewrite(dim_table *table, const dim_table *from, dim d, const dim *replacement) {
    if (d == NULL) return NULL;
    dim sum = table->zero;
    for (int i = 0; i < d->term_count && sum != NULL; i++) {
        const product *product = d->terms[i].product;
        dim value = dim_constant(table, d->terms[i].coefficient);
        for (int j = 0; j < product->degree && value != NULL; j++) {
            value = dim_mul(table, value, rewrite_atom(table, from, product->atoms[j], replacement));
        }
        sum = dim_add(table, sum, value);
    }
    return sum;
}
