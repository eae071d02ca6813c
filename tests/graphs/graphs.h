/* Random graphs and what must hold of each: made from a seed (make*.c), filled by the names of their values (data.c), held against the references on every
 * instruction set or a device (steps.c) within bounds (bounds.c), before and after each pass (passes.c) and cut over ranks (ranks.c), and made small where something does not hold (shrink.c). */
#ifndef GRAPHS_H
#define GRAPHS_H

#include "engine/engine.h"
#include "support/evaluate.h"

/* ---- making (make.c) ---- */

/* Lines of tests/conform, one call each, and graphs of tests/pass/cases, from which some nodes are taken; and the graphs of found, which did not hold once. */
typedef struct graphs_corpus {
    int line_count, case_count, found_count;
    const char **lines, **cases, **found;
} graphs_corpus;

typedef struct maker maker;
/* One way to add nodes to a graph. Fails, leaving the graph as it is or with nodes that nothing reads, where its choices do not fit together. */
typedef dw_status (*maker_recipe)(maker *m);

enum { MAKER_VALUES = 256, MAKER_SIZES = 4 };
struct maker {
    dw_context *context;
    ir_graph *graph;
    const graphs_corpus *corpus;
    arena arena;
    uint64_t seed, counter;
    op_id only;                   /* the op that at least one node is to be of; OP_COUNT: any */
    ir_value *values[MAKER_VALUES];
    int count, names;
    dim sizes[MAKER_SIZES];       /* what axes often have, the first one a symbol now and then */
    dw_format format;             /* what floating-point values often have */
};

/* The same graph for the same seed. */
dw_status graphs_make(dw_context *context, const graphs_corpus *corpus, uint64_t seed, op_id only, ir_graph **graph);

/* Draws. */
int draw(maker *m, int count);                                  /* 0 .. count - 1 */
bool chance(maker *m, int percent);
#define DRAW_OF(m, array) ((array)[draw((m), (int)COUNT_OF(array))])
dim sized(maker *m, int64_t size);
dw_format draw_float(maker *m);
/* A type of these dims. */
op_type type_of(dw_format format, int rank, const dim *dims);
/* Values. */
void keep(maker *m, ir_value *value);                           /* later nodes may read it */
ir_value *any_value(maker *m);
ir_value *value_of_format(maker *m, dw_format format);          /* NULL: none was met */
ir_value *value_of_rank(maker *m, int least);                   /* of floating-point numbers; NULL: none was met */
/* A value of that type: one that is there, or a new input or param (is_weight: a param), seen through a view now and then. role is what data.c goes by. */
dw_status source(maker *m, const char *role, const op_type *type, bool is_weight, ir_value **value);
dw_status new_source(maker *m, const char *role, const op_type *type, bool is_weight, ir_value **value);
/* Emits and keeps all results. */
dw_status emit(maker *m, op_id op, int n_in, ir_value *const *in, int n_attrs, const op_attr *attrs, ir_value **result);
dw_status emit_1(maker *m, op_id op, ir_value *x, ir_value **y);
dw_status emit_2(maker *m, op_id op, ir_value *x, ir_value *z, ir_value **y);
dw_status emit_with_number(maker *m, op_id op, ir_value *x, double number, ir_value **y);    /* op(x, number) */
dw_status emit_transposed(maker *m, ir_value *x, ir_value **y);                              /* the last two axes */
dw_status emit_reduction(maker *m, op_id op, ir_value *x, ir_value **y);                     /* along the last axis, which stays with size 1 */

/* make_ops.c, make_spelled.c, make_lines.c: the recipes, with what share of the nodes each makes */
typedef struct maker_row { const char *name; int weight; maker_recipe run; } maker_row;
const maker_row *maker_row_at(int index);                       /* NULL past the last */
dw_status make_any_of(maker *m, op_id op);                      /* a node of that op on any operands */
dw_status make_line(maker *m);
dw_status make_case(maker *m);
#define RECIPE(name, weight) dw_status make_##name(maker *m);
#include "tests/graphs/recipe.def"
#undef RECIPE

dw_status graphs_corpus_read(arena *arena, graphs_corpus *corpus);

/* ---- data (data.c) ---- */

/* Fills a tensor of element or block format; what with says its name: "index9.i3" holds integers from 0 to 8. See data.c. */
dw_status graphs_fill(dw_context *context, const dw_tensor *tensor, const char *name, uint64_t seed);
/* Data for all params without any, in memory of the graph's. */
dw_status graphs_give_weights(ir_graph *graph, uint64_t seed);
/* A size for each symbol, the same for the same seed, name and turn. */
void graphs_sizes(const ir_graph *graph, uint64_t seed, int turn, int64_t *symbols);

/* ---- holding ---- */

typedef struct checks {
    dw_context *context;
    pool *pool;                   /* of one thread */
    const char *device_name;      /* "sim:h200"; NULL: the levels of the CPU */
    device *device;
    const char *levels[8];
    int level_count;
    bool counting;                /* not while shrinking */
    int64_t *rows_met, *passes_met, *fusions_met, *ops_met;   /* by kernel_at, pass_get, row of fuse.def, op */
    int64_t steps, vague;         /* results compared, and those of them whose bound was wider than a tenth of them */
    /* of the last graph that did not hold: */
    char kind[160];               /* what, without numbers: shrinking keeps it */
    text words;                   /* and in full */
} checks;

/* Does everything hold of this graph? *meant: false when the references themselves refuse it (an index outside of its axis). */
bool checks_hold(checks *c, const char *graph, uint64_t seed, bool *meant);
bool checks_fail(checks *c, const char *kind, const char *format, ...) BASE_PRINTF(3, 4);   /* false */
/* passes.c */
bool graphs_is_meant(checks *c, const ir_graph *graph, uint64_t seed);          /* can the references run it, at both sizes? */
bool checks_passes(checks *c, const ir_graph *graph, uint64_t seed);
int graphs_fusion_count(void);
const char *graphs_fusion_name(int index);
/* The precision that a graph of that seed is compiled in; NULL: as it is. */
const char *graphs_precision(uint64_t seed);
/* ranks.c */
bool checks_ranks(checks *c, const ir_graph *graph, uint64_t seed);
/* steps.c */
bool checks_steps(checks *c, const ir_graph *graph, const char *device, uint64_t seed);

/* A tensor of zeros in an arena; data aligned to 64. */
dw_status graphs_tensor(arena *arena, dw_format format, dw_scale_layout layout, int rank, const int64_t *dims, dw_tensor *tensor);
bool is_number(dw_format format);                               /* floating-point, in blocks or not */

/* ---- shrinking (shrink.c) ---- */

/* The smallest graph found, in text, of which the same does not hold as c->kind says. */
void graphs_shrink(checks *c, uint64_t seed, text *graph);

#endif
