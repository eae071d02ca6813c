/* Graphs: made from a file, from text, or node by node. What a graph means is in docs/ops.md; how its text looks in docs/text.md. */
#ifndef DEEPWELL_GRAPH_H
#define DEEPWELL_GRAPH_H

#include "deepwell/format.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dw_graph dw_graph;

#ifdef __cplusplus
}
#endif
#endif
