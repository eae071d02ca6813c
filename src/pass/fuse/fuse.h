/* The parts of the pass that fuses structure (fuse.c): one function per row of fuse.def, and what they share. */
#ifndef PASS_FUSE_FUSE_H
#define PASS_FUSE_FUSE_H

#include "pass/pass.h"

/* Is node the root of that pattern? Then it is rewritten and *changed set. Nodes that are removed: node itself and those before it. What takes their place is emitted
 * before anything is replaced, so that a failure changes nothing. */
typedef dw_status (*fuse_function)(ir_graph *graph, ir_node *node, bool *changed);

#define FUSE(name, part, meaning) dw_status fuse_##name(ir_graph *graph, ir_node *node, bool *changed);
#include "pass/fuse/fuse.def"
#undef FUSE

/* Of the pass merge: formats are chosen by then. */
dw_status fuse_norm_quantize(ir_graph *graph, ir_node *node, bool *changed);
dw_status fuse_linear_quantize(ir_graph *graph, ir_node *node, bool *changed);

/* ---- rewriting (attempt.c, match.c) ---- */

/* One rewrite. It emits its new nodes before it replaces anything. If those do not check, they are removed, the graph is as before, and a note says so. Missing memory, a
 * caller's request to stop, and what cannot be undone remain errors. */
typedef struct fuse_attempt {
    ir_graph *graph;
    const char *fusion, *module;    /* module: NULL for none */
    int first_id;                   /* of what is emitted */
    size_t params;                  /* that there were */
} fuse_attempt;
fuse_attempt fuse_begin(ir_graph *graph, const char *fusion, const ir_node *node);
/* The nodes are in an order where operands come first. status: what the rewrite gave. */
dw_status fuse_end(const fuse_attempt *attempt, dw_status status);

/* One function over the nodes that there are now and are used; what it emits is seen the next time. fusion: its name in notes. */
dw_status fuse_each(ir_graph *graph, const char *fusion, fuse_function run, bool *changed);

/* same takes value's place, and what nothing uses any more is removed. Values of another type stay as they are: then same is removed. */
dw_status fuse_replace(ir_graph *graph, ir_value *value, ir_value *same, bool *changed);
/* New nodes go before root and have the origin of telling. */
void fuse_cursor(ir_graph *graph, ir_node *root, const ir_node *telling);

/* ---- matching (match.c) ---- */

bool fuse_is_in_graph(const ir_graph *graph, const ir_node *node);   /* or was it removed? */
bool fuse_is_used(const ir_graph *graph, const ir_node *node);
bool fuse_is_single_use(const ir_graph *graph, const ir_value *value);
/* The node of that op that makes value, if nothing else uses value. */
ir_node *fuse_def_single(const ir_graph *graph, const ir_value *value, op_id op);
/* What a quantize makes of its operand, in a format whose scales depend on a block within a row alone and are not searched for: then whoever has the block has all, and may
 * make it from its result in via. COUNT: it is none. */
dw_format fuse_blocks(const ir_node *quantize);
bool fuse_is_float(dw_format format);                       /* an element format of at least 16 bits */
/* Is node a pointwise op each of whose operands is repeated along an axis of the result, as a sum of a row and a column is? (outer.c) */
bool fuse_is_outer(const ir_node *node);
/* Below casts that lose nothing. */
ir_value *fuse_skip_widening(ir_value *value);
/* A number of the program's own, which no weight decides. */
bool fuse_own_number(const ir_value *value, double *number);
/* Is value that number, but for rounding to 1e-6 of it? */
bool fuse_is_number(const ir_value *value, double number);
/* Of a two-operand node: *other is the operand besides the one that is number. */
bool fuse_with_number(const ir_node *node, double *number, ir_value **other);
bool fuse_last_axis(const ir_value *value, int64_t *size);  /* false when it is symbolic or the value a scalar */
/* The vector [n] that value is, once broadcast along the last axis to a shape of that rank; NULL when it is none. May emit a reshape. */
dw_status fuse_column(ir_graph *graph, ir_value *value, dim n, ir_value **column);

/* Elements [start, end) of the last axis of source, every step-th; a value that is no slice is all of itself. */
typedef struct fuse_span { ir_value *source; int64_t start, end, step; } fuse_span;
bool fuse_span_of(ir_value *value, fuse_span *span);

/* A product with a weight: matmul or grouped_matmul whose b is constant. NULL when value is none, or has other uses. */
ir_node *fuse_linear(const ir_graph *graph, const ir_value *value);
/* Is there nothing but column operands in its post list, and no step that halves? */
bool fuse_has_plain_post(ir_graph *graph, const ir_node *linear);
/* The same product with one more post step, operand NULL when the step takes none, before root. NULL when there is no room. */
dw_status fuse_add_post(ir_graph *graph, const ir_node *linear, ir_node *root, op_post step, ir_value *operand, ir_value **result);

/* root becomes the product with that step, if there is room. */
dw_status fuse_post_step(ir_graph *graph, const ir_node *linear, ir_node *root, op_post step, ir_value *operand, bool *changed);
/* The step that halves and begins with that activation; OP_POST_COUNT when there is none. */
op_post fuse_gated_step(op_post activation);

/* The scores that p is the softmax of along the last axis, by the op or as e^x / sum e^x; NULL when it is none. (softmax.c) */
ir_value *fuse_softmax_operand(const ir_value *p);

#endif
