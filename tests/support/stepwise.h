/* A causal graph beside its step graph (pass_incremental): the same tokens run whole and in chunks. */
#ifndef SUPPORT_STEPWISE_H
#define SUPPORT_STEPWISE_H

#include "ir/ir.h"

enum { STEPWISE_BATCH = 2, STEPWISE_ROOM = 16 };   /* the symbol b where there is one; how many tokens fit into the caches */

/* Random inputs of as many tokens as all chunks have (at most STEPWISE_ROOM), by the references. *error is the largest of all chunks and outputs
 * over the sequence: |whole - step| / |whole|. The prelude, NULL
 * for none, runs once. A step that gives the last token alone is held against the last token of each chunk. */
dw_status stepwise_compare(const ir_graph *whole, const ir_graph *step, const ir_graph *prelude, int count, const int64_t *chunks, double *error);

#endif
