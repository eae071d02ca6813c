/* The parts of the pass precision: caches of keys and values, what stays in 16 bits, and what parts tell of layers. */
#ifndef PASS_PRECISION_TOLD_H
#define PASS_PRECISION_TOLD_H

#include "pass/pass.h"

/* Where the policy has a rule for role:cache: the caches of a cached step get its format, and in a whole graph the keys and values of causal attention are rounded to it (caches.c). */
dw_status precision_caches(ir_graph *graph, const pass_options *options);
/* narrow.c. Is the value one of that format, seen through widening casts and views; and that one, before the graph's cursor. */
bool precision_is_narrow(const ir_value *value, dw_format format);
dw_status precision_emit_narrow(ir_graph *graph, ir_value *value, dw_format format, ir_value **made);
/* In a graph with gradients: may the result of a product of bf16, which is f32, be rounded to bf16? */
bool precision_gives_narrow(const ir_graph *graph, const ir_node *product);
/* In a graph with gradients: the result of a pointwise op of such a value, which products and sums alone read, is rounded once for all of them. */
dw_status precision_round(ir_graph *graph, ir_node *node);
/* In a graph with gradients: a sum, and cross_entropy or its gradient, read as bf16 what was bf16. */
dw_status precision_sum(ir_graph *graph, ir_node *node);
dw_status precision_loss(ir_graph *graph, ir_node *node);
/* Where it has one for role:scores: queries and keys of attention (scores.c). */
dw_status precision_scores(ir_graph *graph, const pass_options *options);
/* made, a lowered layer's result or the result itself, takes the result's place, but where layers are looked at alone, beside the graph as it is; where layers are probed, it is. */
dw_status precision_take_place(ir_graph *graph, const pass_options *options, const char *layer, ir_value *result, ir_value *made);
/* The same of an attention, which is probed under its module's name, what is lowered of it, and its number. */
dw_status precision_take_attention(ir_graph *graph, const pass_options *options, ir_node *attention, const char *what, int number, ir_value *made);
/* A line of the report, if there is one. */
void precision_report(const pass_options *options, const char *layer, const char *role, const char *precision, const char *rule);

#endif
