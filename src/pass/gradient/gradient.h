/* Gradients: the rules by which the pass derives them (gradient.def), and what a rule is given. Reverse mode over a graph whose modules are one op each
 * (PASS_STAGE_STRUCTURE), before products and norms take in what follows them.
 *
 *     state w f32[4,8] trained                  state w f32[4,8] trained
 *     %1 = matmul x, w                          %1 = matmul x, w
 *     %2 = mean %1 {axes=[0,1]}          ->     %2 = mean %1 {axes=[0,1]}
 *     output loss %2                            %3 = fill {shape=[],value=1,to=f32} phase dgrad
 *                                               ..
 *                                               %8 = matmul x, %7 {at=true} phase wgrad
 *                                               output loss %2
 *                                               output grad.w %8
 *
 * How to write a rule. A pointwise op gets a line of text in gradient.def, in the language of gradient_emit_text. Any other gets a function gradient_<name>, in the file
 * rules_<family>.c, declared by its row. It is called once for a node some result of which has a gradient:
 *
 *     dw_status gradient_transpose(gradient *g, const ir_node *node) {
 *         ir_value *x = ir_in(node, 0), *d = gradient_of(g, node, 0), *made;        d: NULL for a result whose gradient nobody needs (ops with one result always have it)
 *         if (!gradient_wants(g, x)) return DW_OK;                                  nothing trained lies behind x: what is not asked for is not computed
 *         TRY(ir_emit_transpose(g->graph, d, inverse order, &made));                emitted behind all that there is, with the node's origin
 *         return gradient_add(g, x, made);                                          sums the axes along which x was broadcast, and casts to x's format
 *     }
 *
 * d has the type of the result it is the gradient of. The phase of what a rule emits follows from the value it is added to: dgrad, or wgrad where that is a weight; what is shared by
 * several operands belongs to the first. A rule reads operands and results of the forward graph as values; it changes no node, but that it may put one with more results in its place, as
 * attention's does. What it cannot do it refuses by gradient_refuse, with the reason; an operand that is wanted and gets nothing is an error. Each row has lines in
 * tests/pass/gradients.txt, by which its gradient is held against central differences. */
#ifndef PASS_GRADIENT_GRADIENT_H
#define PASS_GRADIENT_GRADIENT_H

#include "pass/pass.h"

typedef struct gradient {
    ir_graph *graph;                /* what is emitted goes to its end */
    arena scratch;
    ir_node *phased;                /* the last node whose phase is set */
    const char *dgrad, *wgrad;      /* the phases, interned */
} gradient;

/* ---- for rules (part.c) ---- */

/* The gradient of a result of the node, the sum over all its uses; NULL: nobody needs it. */
ir_value *gradient_of(const gradient *g, const ir_node *node, int result);
/* Is the gradient of the value needed: has it numbers that depend on something trained? false for NULL, an absent operand. */
bool gradient_wants(const gradient *g, const ir_value *value);
/* d, of the value's shape or what that broadcasts to, becomes a part of its gradient. Nothing happens where it is not wanted. */
dw_status gradient_add(gradient *g, ir_value *value, ir_value *d);
/* UNSUPPORTED: op, module, exported name and why. */
dw_status gradient_refuse(gradient *g, const ir_node *node, const char *why);

/* ---- for the driver (part.c) ---- */

/* From now on gradient_wants. */
dw_status gradient_want(gradient *g, ir_value *value);
/* The parts that a wanted value has, in the order of its uses, one added to the other: its gradient. NULL: it has none. */
dw_status gradient_sum_parts(gradient *g, const ir_value *value, ir_value **sum);
/* How many parts a wanted value has so far. */
size_t gradient_part_count(const ir_value *value);
/* What was emitted since the last call has this phase. */
void gradient_set_phase(gradient *g, const char *phase);

/* ---- emitting (emit.c) ---- */

/* An expression of ops and numbers, as "mul(d,sub(1,mul(y,y)))": d is d, y the node's first result, x0 x1 .. its operands. Where d has 16 bits and there is more than one op, it is computed in
 * f32: a gradient is rounded once. */
dw_status gradient_emit_text(gradient *g, const ir_node *node, const char *expression, size_t length, ir_value *d, ir_value **result);
/* A tensor of value's type whose elements are all number. */
dw_status gradient_emit_full(gradient *g, const ir_value *value, double number, ir_value **result);
/* The sum over axes, ascending, without keeping them. */
dw_status gradient_emit_sum(gradient *g, ir_value *x, int count, const int64_t *axes, ir_value **result);
/* x summed over what makes its shape from dims by broadcasting, so that it has the shape dims. */
dw_status gradient_emit_unbroadcast(gradient *g, ir_value *x, int rank, const dim *dims, ir_value **result);
/* A value that was reduced over axes, spread over them again: to the shape of whole. Where keep, it has them with size 1. */
dw_status gradient_emit_spread(gradient *g, ir_value *x, const ir_value *whole, int count, const int64_t *axes, ir_value **result);
/* The element at size - 1 - i of the axis at i. */
dw_status gradient_emit_reversed(gradient *g, ir_value *x, int axis, ir_value **result);
/* Parts of value's gradient, each a pad of zeros around a piece of it, put together where the pieces lie one behind another and are all of it (tile.c); else NULL. */
dw_status gradient_emit_tiles(gradient *g, const ir_value *value, ir_value *const *parts, size_t count, ir_value **result);
/* A number that shapes decide: a scalar of the format. */
dw_status gradient_emit_count(gradient *g, dim size, dw_format format, ir_value **result);

/* ---- the rows ---- */

typedef dw_status (*gradient_rule)(gradient *g, const ir_node *node);

typedef struct gradient_row {
    gradient_rule rule;             /* NULL: no gradient flows, or it is refused, or text says it */
    const char *text;               /* for each operand an expression, separated by '|', or '-' where no gradient flows */
    const char *refused;            /* why there is no rule */
} gradient_row;

/* Of every op. All members are NULL where no gradient flows. */
const gradient_row *gradient_row_of(op_id op);

#define GRADIENT_STOP(name, what)
#define GRADIENT_TEXT(name, what)
#define GRADIENT_RULE(name, what) dw_status gradient_##what(gradient *g, const ir_node *node);
#define GRADIENT_REFUSED(name, what)
#define GRADIENT(name, kind, what) GRADIENT_##kind(name, what)
#include "pass/gradient/gradient.def"
#undef GRADIENT
#undef GRADIENT_STOP
#undef GRADIENT_TEXT
#undef GRADIENT_RULE
#undef GRADIENT_REFUSED

/* ---- what is detached (detach.c) ---- */

#define GRADIENT_DETACHED "detached."
typedef struct gradient_cuts { size_t count; const char **items; } gradient_cuts;   /* names, of inputs and of outputs */
/* Each detached value that depends on something trained, or on an input where patterns ask for some, becomes an output, and an input in its place; and the other way around. Ids and orders are
 * dense; behind rejoin, orders alone. */
dw_status gradient_cut(ir_graph *graph, const char *inputs, arena *scratch, gradient_cuts *cuts);
dw_status gradient_rejoin(ir_graph *graph, const gradient_cuts *cuts);

/* ---- what is kept (recompute.c, again.c) ---- */

typedef enum gradient_level {
#define RECOMPUTE(name, meaning) GRADIENT_RECOMPUTE_##name,
#include "pass/gradient/recompute.def"
#undef RECOMPUTE
} gradient_level;

typedef struct gradient_recompute_rule { const char *pattern; gradient_level level; } gradient_recompute_rule;
typedef struct gradient_recompute {
    gradient_level rest;            /* of what no rule matches */
    size_t count;
    gradient_recompute_rule *items;
} gradient_recompute;

/* Of "blocks.0.* = none, block" in the arena; NULL: none. SYNTAX and NOT_FOUND quote what they are about. */
dw_status gradient_read_recompute(arena *arena, const char *words, gradient_recompute *rules);
/* NOT_FOUND: a pattern matches no node. */
dw_status gradient_check_recompute(const ir_graph *graph, const gradient_recompute *rules);
gradient_level gradient_recompute_of(const gradient_recompute *rules, const ir_node *node);
/* Of a graph with its backward part: what the rules let be made again is, and what is forced. Ids and orders are not dense then. */
dw_status gradient_make_again(ir_graph *graph, const gradient_recompute *rules, ir_node *const *forced, size_t forced_count);

/* ---- merge.c ---- */

/* The projections of one attention by trained weights become one product. */
dw_status gradient_merge(ir_graph *graph);

/* ---- logits in parts (chunk.c) ---- */

enum { GRADIENT_CHUNKS = 64, GRADIENT_COLUMNS = 1024 };      /* at most */

typedef struct gradient_part {
    ir_node *loss, **made;          /* the cross_entropy of the rows, and what is made of them in front of it, from the product on */
    int made_count;
} gradient_part;
typedef struct gradient_chunked { int count; gradient_part *parts; } gradient_chunked;
typedef struct gradient_chunks {
    size_t count;
    gradient_chunked *items;        /* a loss each */
    ir_node **again;                /* what has to be made again, as the whole loss is needed before its gradient */
    size_t again_count, again_capacity;
} gradient_chunks;

/* Each cross_entropy that alone reads a product with a matrix becomes count of them, over rows that are made a multiple of so many columns long (0, 1: as they are); where it cannot, the graph's note GRADIENT_LOGITS_WHOLE says why. */
#define GRADIENT_LOGITS_WHOLE "logits.whole"
dw_status gradient_chunk(ir_graph *graph, int count, int multiple, arena *scratch, gradient_chunks *chunks);
/* Is the part of a gradient one product or sum of the gradient of logits? */
bool gradient_is_of_logits(const ir_value *part);
/* Each part's gradient comes directly behind its loss. Orders are dense, ids are not. */
dw_status gradient_order_chunks(ir_graph *graph, arena *scratch, gradient_chunks *chunks);

/* ---- the pass ---- */

/* Nodes with post lists, chains and norms with a residual become the ops that they are made of (open.c). Ids and orders are left dense. */
dw_status gradient_open(ir_graph *graph);
/* Outputs grad.<name> for each trained state of the graph, and for each floating-point input that patterns (NULL: none) take: the gradient of the output loss, a floating-point value of one element.
 * Marks of values are used. */
dw_status gradient_derive(ir_graph *graph, const ir_output *loss, const char *inputs);
/* The input is floating-point, of 16 bits or more, and one of the comma-separated patterns takes its name (part.c). */
bool gradient_is_asked_for(const ir_value *input, const char *inputs);

#endif
