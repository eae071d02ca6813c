/* What the files of this layer share. */
#ifndef IR_INTERNAL_H
#define IR_INTERNAL_H

#include "ir/ir.h"

/* The most operands and results that any op has, derived from its row. */
union ir_widest_in {
#define OP(name, min_in, max_in, min_out, max_out, family, attributes, traits, meaning) char name##_in[(max_in) + 1];
#include "op/op.def"
#undef OP
};
union ir_widest_out {
#define OP(name, min_in, max_in, min_out, max_out, family, attributes, traits, meaning) char name##_out[(max_out) + 1];
#include "op/op.def"
#undef OP
};
enum { IR_MAX_IN = sizeof(union ir_widest_in) - 1, IR_MAX_OUT = sizeof(union ir_widest_out) - 1 };

/* ---- node.c ---- */

/* Types of the results of an op: n_out of them are written to out (IR_MAX_OUT of room). */
dw_status ir_infer_results(const ir_graph *graph, op_id op, const op_attrs *attrs, int n_in, ir_value *const *in, int *n_out, op_type *out);
/* Deep copies of attributes into the graph's arena, in ascending order of id; dims move from table from (NULL: they are the graph's already). */
dw_status ir_copy_attrs(ir_graph *graph, const dim_table *from, int count, const op_attr *attrs, op_attrs *copy);
/* A node before the cursor with absent operands and n_out results of the given types, not yet checked. */
dw_status ir_new_node(ir_graph *graph, op_id op, const op_attrs *attrs, int n_in, int n_out, const op_type *out, ir_node **node);
/* An operand that is no longer one of its value's uses. */
void ir_unlink_use(ir_use *use);
/* The rate that the node's results have by its operands, and their update. */
ir_rate ir_rate_of(const ir_node *node);
void ir_update_rate(ir_node *node);
/* ---- weights, text ---- */

/* A weight outside of any ir_weights, in the graph's arena. */
dw_status ir_new_local_weight(ir_graph *graph, const char *name, dw_format format, int rank, const int64_t *dims, ir_weight **weight);
/* Can a param or state of this type begin with that weight? MISMATCH says why not. */
dw_status ir_match_weight(const ir_graph *graph, const op_type *type, const ir_weight *weight);

/* Attributes as in a graph's text but for the braces, "bt=true,post=\"bias\"". attrs has room for OP_ATTR_COUNT; their lists lie in
 * lists, their strings in the graph. */
dw_status ir_parse_attrs(ir_graph *graph, arena *lists, const char *text, op_attr *attrs, int *count);

/* What print.c leaves out or adds. */
typedef struct ir_print_options {
    bool without_origins, without_example;
    bool without_data;         /* consts as params, but for those named const.<n> */
    const int *ids;            /* ids[value->id] is written instead of value->id; NULL: the ids themselves */
} ir_print_options;
dw_status ir_print_with(const ir_graph *graph, const ir_print_options *options, text *text);
/* "%7", or the name, quoted where it must be. */
void ir_print_value(text *text, const ir_value *value);
/* op, result and origin of a node, for messages: "op matmul %7, module "model.up_proj"". */
void ir_print_place(text *text, const ir_node *node);

#endif
