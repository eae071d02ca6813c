/* Abstract values: what a value of the graph is, as a formula over its own indices.
 *
 * A formula names the element at index i0, i1, .. of a value: a constant, an affine sum of indices and sizes, a comparison, a choice
 * between two formulas, an element of an input or weight at indices that are formulas, and so on. Causal masks, windows, padding and
 * positions come out as formulas however they are spelled; activations (results of matrix products, norms, embeddings of token ids)
 * have none. Expressions are hash-consed: equal expressions are one pointer. The analysis reads the graph and never changes it.
 * A formula is of formulas, so these call each other: value.c (of a value of the graph), value_rules.c (of an op), value_make.c (of its parts, folded), value_point.c
 * (of a pointwise op on constants). */
#ifndef ANALYSIS_VALUE_H
#define ANALYSIS_VALUE_H

#include "ir/ir.h"

typedef enum value_class { VALUE_BOOL, VALUE_INT, VALUE_REAL } value_class;
typedef enum value_kind {
    VALUE_CONSTANT,   /* of BOOL (0 or 1) and REAL: number */
    VALUE_AFFINE,     /* of INT: size + sum of factors[i] * args[i]; args ascend by id and are no AFFINE, no SELECT */
    VALUE_INDEX,      /* of INT: the value's index along axis */
    VALUE_BOUND,      /* of INT: the running index of the SCAN around it, which runs below size */
    VALUE_LE,         /* of BOOL: args[0] <= 0 */
    VALUE_EQ,         /* of BOOL: args[0] == 0 */
    VALUE_AND,        /* of BOOL */
    VALUE_OR,
    VALUE_NOT,
    VALUE_SELECT,     /* args[0] ? args[1] : args[2] */
    VALUE_LOOKUP,     /* source[args..], source being an input or a param */
    VALUE_SCAN,       /* of INT: the sum of args[0] over BOUND = 0..args[1] */
    VALUE_POINT       /* the pointwise op of the graph on args, rounded to format */
} value_kind;

typedef struct value_node value_node;
typedef const value_node *value_expr;
struct value_node {
    value_kind kind;
    value_class class;
    int id;                       /* in order of making */
    op_id op;                     /* of POINT */
    dw_format format;             /* of POINT */
    int axis;                     /* of INDEX */
    double number;                /* of CONSTANT */
    dim size;                     /* of AFFINE and BOUND */
    const dim *factors;           /* of AFFINE */
    const ir_value *source;       /* of LOOKUP */
    int count;
    const value_expr *args;
    int weight;                   /* nodes, counted as a tree */
    unsigned axes;                /* bit d: INDEX d occurs */
    bool bound;                   /* BOUND occurs outside a SCAN */
    uint64_t hash;
};

typedef struct value_formula {
    dw_format format;
    int rank;
    dim dims[DW_MAX_RANK];
    value_expr expr;
} value_formula;

enum { VALUE_MAX_WEIGHT = 400, VALUE_MAX_TERMS = 16 };

typedef struct value_analysis value_analysis;

/* Formulas of all values of the graph as it is now; values made later have none. */
dw_status value_analyse(ir_graph *graph, value_analysis **analysis);
void value_analysis_destroy(value_analysis *analysis);                       /* NULL is allowed */
/* NULL: the value has no formula. */
const value_formula *value_of(const value_analysis *analysis, const ir_value *value);
/* Why value has no formula: the node where formulas end on the way to it, and a few words. NULL when it has one. */
const ir_node *value_stop(const value_analysis *analysis, const ir_value *value, const char **reason);

/* ---- making expressions (value_make.c, value_point.c) ---- */

/* The makers return NULL when an argument is NULL, when the result is too large to be worth having, or on failure (value_status). They
 * simplify; sizes of the axes, where simplifying needs them, are those given last by value_set_scope. */
dw_status value_status(const value_analysis *analysis);
void value_set_scope(value_analysis *analysis, int rank, const dim *dims);
value_expr value_bool(value_analysis *analysis, bool truth);
value_expr value_real(value_analysis *analysis, double number);
value_expr value_int(value_analysis *analysis, int64_t number);
value_expr value_size(value_analysis *analysis, dim size);
value_expr value_index(value_analysis *analysis, int axis);                 /* 0 along an axis of size 1 */
/* factor_x * x + factor_y * y */
value_expr value_sum(value_analysis *analysis, value_expr x, int64_t factor_x, value_expr y, int64_t factor_y);
value_expr value_scale(value_analysis *analysis, value_expr x, dim factor);
value_expr value_div(value_analysis *analysis, value_expr x, dim divisor);  /* floor */
value_expr value_mod(value_analysis *analysis, value_expr x, dim divisor);
value_expr value_le_zero(value_analysis *analysis, value_expr x);
value_expr value_eq_zero(value_analysis *analysis, value_expr x);
value_expr value_and(value_analysis *analysis, value_expr x, value_expr y);
value_expr value_or(value_analysis *analysis, value_expr x, value_expr y);
value_expr value_not(value_analysis *analysis, value_expr x);
value_expr value_select(value_analysis *analysis, value_expr condition, value_expr yes, value_expr no);
value_expr value_bound(value_analysis *analysis, dim size);
value_expr value_lookup(value_analysis *analysis, const ir_value *source, value_class class, int count, const value_expr *args);
value_expr value_scan(value_analysis *analysis, value_expr body, int axis, value_expr last);   /* body over the scope's axis */
/* A pointwise op of the graph; args are converted as the op needs it. */
value_expr value_point(value_analysis *analysis, op_id op, dw_format format, int count, const value_expr *args);
value_expr value_cast(value_analysis *analysis, value_expr x, dw_format format);
/* x with INDEX d replaced by map[d] where map[d] is not NULL. */
value_expr value_substitute(value_analysis *analysis, value_expr x, const value_expr *map);
/* The body of a SCAN with INDEX axis for BOUND; NULL also when that index occurs in it already. */
value_expr value_open_scan(value_analysis *analysis, value_expr scan, int axis);
value_class value_class_of(dw_format format);
/* Is x that number everywhere? */
bool value_is_number(value_expr x, double *number);
/* The bounds of an INT as sizes within the scope; false when unknown. */
bool value_range(value_analysis *analysis, value_expr x, dim *low, dim *high);

/* ---- reading expressions (value_text.c) ---- */

/* Where the numbers of an evaluation come from. */
typedef struct value_env {
    const int64_t *symbols;                /* of the graph's dim table */
    int64_t index[DW_MAX_RANK];
    int64_t bound;
    /* The element of an input or param; NULL: params' own data, and inputs fail. */
    dw_status (*load)(void *owner, const ir_value *source, const int64_t *index, double *number);
    void *owner;
} value_env;
dw_status value_eval(const value_analysis *analysis, value_expr x, value_env *env, double *number);
void value_print(text *text, const value_analysis *analysis, value_expr x);

/* ---- formulas become ops again (value_emit.c) ---- */

/* A value of that format whose elements are x, emitted at the graph's cursor. It has rank axes: of size dims[d] where INDEX d occurs in x,
 * else of size 1. *value is NULL when x has no ops (a SCAN up to anything but an index). */
dw_status value_emit(value_analysis *analysis, value_expr x, int rank, const dim *dims, dw_format format, ir_value **value);

/* ---- inside value*.c ---- */

/* Makes the node that is like probe unless there is one; args and factors are copied. NULL when it would be too large, or on failure. */
value_expr value_intern(value_analysis *analysis, const value_node *probe);
/* Records the status of the failure that just happened and returns NULL. */
value_expr value_failed(value_analysis *analysis);

typedef struct value_record {
    const ir_value *value;
    const value_formula *formula;
    const ir_node *stop;
    const char *reason;
} value_record;

struct value_analysis {
    ir_graph *graph;
    arena arena;
    dw_status status;
    int rank;                              /* the scope */
    dim dims[DW_MAX_RANK];
    const value_node **nodes;              /* slots of the hash table */
    size_t node_count, slot_count;
    value_record *records;                 /* by address of the value */
    size_t record_count, record_slots;
};

/* The formula of one node's first result from its operands' (value_rules.c); NULL with *reason when it has none. */
value_expr value_rule(value_analysis *analysis, const ir_node *node, const value_formula *const *in, const char **reason);
/* One pointwise op on numbers, in double. false: not an op that it knows. */
bool value_point_number(op_id op, int count, const double *x, double *y);

#endif
