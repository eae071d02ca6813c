/* The oracle: a graph run node by node by the ops' references, every value kept. Slow and plain; what runs faster is held against it. */
#ifndef SUPPORT_EVALUATE_H
#define SUPPORT_EVALUATE_H

#include "ir/ir.h"

typedef struct evaluation evaluation;

/* The graph must outlive the evaluation and stay as it is. Statuses and messages go to the graph's context. */
dw_status evaluation_create(const ir_graph *graph, evaluation **evaluation);
void evaluation_destroy(evaluation *evaluation);                        /* NULL is allowed */

/* The value of a symbol that the shapes of inputs do not tell. NOT_FOUND when the graph has no such symbol. */
dw_status evaluation_set_symbol(evaluation *evaluation, const char *name, int64_t value);
/* The data of an input, of a param (instead of its weight), or what a state begins with. Borrowed until the evaluation ends.
 * Binding again replaces; a symbol that an input's shape told before is told anew by the next run. */
dw_status evaluation_bind(evaluation *evaluation, const char *name, const dw_tensor *tensor);
/* A new contiguous tensor of zeros, owned by the evaluation and bound to name, for the caller to fill. */
dw_status evaluation_bind_new(evaluation *evaluation, const char *name, int rank, const int64_t *dims, dw_tensor *tensor);
/* Random data, the same for the same seed and name, for every input, and every param and trained state without a weight, that is not bound yet: floating-point
 * numbers are normal, integers 0 or 1. Symbols without a value get a small one within their range. */
dw_status evaluation_bind_random(evaluation *evaluation, uint64_t seed);

/* Runs all nodes once. The next values of states are what the following run begins with. */
dw_status evaluation_run(evaluation *evaluation);
/* The same of several ranks, node by node: evaluations of one graph, in the order of the ranks along the one axis that its collectives are over. Each has its place by evaluation_set_symbol. */
dw_status evaluation_run_ranks(int count, evaluation *const *ranks);
/* Are results of that op elements of operands, or integers, so that nothing is rounded? */
bool evaluation_keeps_elements(op_id op);
/* In the following runs every floating-point result that a node computes moves by that many last places of its format, up or down by seed, by up to as many where the seed is odd: what
 * rounding at other points than these would do. Results that are chosen, moved or made of nothing stay. 0 places: no more. */
void evaluation_perturb(evaluation *evaluation, uint64_t seed, double places);
/* The largest finite element, without its sign; 0 where there is none. */
double evaluation_largest(const dw_tensor *t);
/* How much of a result docs/formats.md allows products and attention to lose, where numbers lie below fp32's least normal one: 2^-126 for each term of a sum, and what of an
 * operand in an MX format lies below it. 0 for other ops. */
double evaluation_lost(const op_call *call);
/* States begin anew with their weights, bindings or zeros. */
void evaluation_reset(evaluation *evaluation);

/* Of the last run, valid until the next but one; NULL when there is no such value. A state has the value that the run began with. */
const dw_tensor *evaluation_value(const evaluation *evaluation, const ir_value *value);
const dw_tensor *evaluation_output(const evaluation *evaluation, const char *name);
/* The state's value after the last run. */
const dw_tensor *evaluation_state(const evaluation *evaluation, const char *name);
/* Values of all symbols, by index in the graph's dim table. */
const int64_t *evaluation_symbols(const evaluation *evaluation);

/* Are shape, format and every element equal? NaNs are equal to each other; -0 is not 0. */
bool tensor_is_same(const dw_tensor *a, const dw_tensor *b);
/* |a - b| / |b| over all elements: 0 for equal tensors, infinity for other shapes, or where one of two elements alone is not finite. */
double tensor_error(const dw_tensor *a, const dw_tensor *b);

#endif
