/* A causal graph beside its step graph (pass_incremental): the same tokens run whole and in chunks. */
#ifndef SUPPORT_STEPWISE_H
#define SUPPORT_STEPWISE_H

#include "ir/ir.h"

enum { STEPWISE_TEXTS = 2, STEPWISE_ROOM = 32, STEPWISE_PAGES = 8 };   /* the batch where it is a symbol; how many tokens fit into the caches, and in how many pages of each text */

/* Random texts of as many tokens as all chunks have (at most STEPWISE_ROOM), by the references: whole as a batch, and by the step in one run for each
 * chunk, which has that many tokens of the first text and the chunk from the other end of the list of the second, so that the two are never
 * as far. A step that serves one text at a time does one after the other. *error is the largest of all runs and outputs over the sequence:
 * |whole - step| / |whole|. The prelude, NULL for none, runs once for each text. A step that gives last tokens alone is held against those. */
dw_status stepwise_compare(const ir_graph *whole, const ir_graph *step, const ir_graph *prelude, int count, const int64_t *chunks, double *error);

#endif
