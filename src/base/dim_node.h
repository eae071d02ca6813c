/* The inside of symbolic dimensions, shared by dim.c, dim_fold.c, dim_range.c and dim_text.c and by nobody else.
 * A dim may hold dims, so these call each other: dim.c (sums and products), dim_fold.c (functions of dims), dim_range.c (bounds, by which functions fold).
 *
 * A dim is a sum of terms; a term is a coefficient times a product; a product is a sorted list of atoms; an atom is a symbol or a
 * function of two dims. Atoms, products and dims are interned: equal ones are one pointer. Their order is by structure and by the
 * symbols' names, never by time or address, so that what is printed does not depend on how it came about. */
#ifndef BASE_DIM_NODE_H
#define BASE_DIM_NODE_H

#include "base/base.h"

#define TERMS_MAX 256     /* of one dim */
#define DEGREE_MAX 16     /* atoms in one product */
#define DEPTH_MAX 64      /* of atoms in atoms; bounds the depth of every recursion here, */
#define WEIGHT_MAX 2000   /* of an atom: the atoms in its text, shared ones counted each time; bounds the time of every recursion */

/* What an intern table holds begins with this. */
typedef struct interned {
    struct interned *next;
    uint64_t hash;
} interned;

typedef struct atom {
    interned interned;
    dim_kind kind;            /* SYMBOL, FLOORDIV, MOD, MIN or MAX */
    int depth, weight;        /* 1 for a symbol */
    int symbol;               /* of SYMBOL: its index and name */
    const char *name;
    dim a, b;                 /* of the others */
    dim as_dim;               /* 1 * this */
} atom;

typedef struct product product;

typedef struct term {
    int64_t coefficient;      /* not 0, not INT64_MIN */
    const product *product;
} term;

struct dim_node {
    interned interned;
    int term_count;           /* 0: the constant 0 */
    const term *terms;        /* sorted by compare_products, each product once */
};

struct product {
    interned interned;
    struct dim_node dim;      /* 1 * this product */
    term term;                /* of that dim */
    int degree;               /* 0: the constant 1 */
    int depth, weight;        /* the greatest and the sum over the atoms */
    const atom *atoms[DEGREE_MAX];   /* sorted by compare_atoms */
};

typedef struct intern_table {
    interned **buckets;       /* [size], size a power of two */
    size_t count, size;
} intern_table;

typedef struct symbol {
    const atom *atom;
    int64_t min, max;
} symbol;

struct dim_table {
    dw_context *context;
    arena arena;
    intern_table atoms, products, dims;
    map symbol_indices;       /* name -> 1 + index, as a pointer */
    symbol *symbols;
    size_t symbol_count, symbol_capacity;
    dim zero, one;
};

/* A dim that is being made. */
typedef struct poly {
    int count;
    term terms[TERMS_MAX];
} poly;

/* dim.c. Orders: negative when a comes first. Symbols by name before other atoms; products of higher degree first. */
int compare_atoms(const atom *a, const atom *b);
int compare_products(const product *a, const product *b);
int compare_dims(dim a, dim b);
int64_t floor_divide(int64_t a, int64_t b);   /* b is not 0; not INT64_MIN / -1 */
int64_t floor_modulo(int64_t a, int64_t b);   /* b is not 0 */
/* The atom that a dim is, or NULL. */
const atom *dim_as_atom(dim d);
/* The atom kind(a, b) as a dim, unfolded. */
dim dim_atom(dim_table *table, dim_kind kind, dim a, dim b);
/* coefficient * product added to a poly; unsorted until poly_intern. */
dw_status poly_add(dim_table *table, poly *poly, int64_t coefficient, const product *product);
/* Sorts, merges equal products, drops zeros, and finds or makes the dim. */
dim poly_intern(dim_table *table, poly *poly);
/* a = quotient * b + rest, where the leading term of b (not 0) divides no term of rest. */
dw_status dim_divide_with_rest(dim_table *table, dim a, dim b, dim *quotient, dim *rest);

/* dim_range.c. As dim_always_le and dim_always_lt, but with NO_MEMORY as a status. */
dw_status dim_prove_le(dim_table *table, dim a, dim b, bool *proven);
dw_status dim_prove_lt(dim_table *table, dim a, dim b, bool *proven);

#endif
