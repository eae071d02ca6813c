/* Random graphs for properties that hold of every graph: element-wise ops, views, reductions, casts, selections and products over inputs
 * x0.. of several formats, with one symbol s in 1..8, a param w without data, small constants, and outputs y0.. of any of these. */
#ifndef SUPPORT_RANDOM_GRAPH_H
#define SUPPORT_RANDOM_GRAPH_H

#include "ir/ir.h"

/* The same graph for the same seed and number of states. States k0.. have constant sizes, begin with zeros, and end as any value of their type. */
dw_status random_graph(dw_context *context, uint64_t seed, int states, ir_graph **graph);

#endif
