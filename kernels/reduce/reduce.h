/* Reductions: what the parts for real numbers and for integers share. */
#ifndef REDUCE_H
#define REDUCE_H

#include "kernel/kernel.h"
#include "kernels/cpu/nest.h"
#include "kernels/cpu/rows.h"

typedef struct reduce_job {
    const cpu_rows *rows;
    op_id op;
    bool finite;                  /* of an index: the attribute */
    const dw_tensor *x, *out;
    cpu_nest outer;               /* over results: out, x */
    cpu_nest inner;               /* over the elements of one result: x. Row-major, so that an index counts them in order */
    int64_t count;                /* of those */
} reduce_job;

/* Visits the elements of one result in order, in pieces that lie one step apart: visit(piece offset, step, count). false ends it. */
typedef bool (*reduce_piece)(void *state, int64_t offset, int64_t step, int64_t count);
void reduce_elements(const reduce_job *job, int64_t offset, reduce_piece piece, void *state);

/* A line of results; arguments of cpu_nest_run. */
void reduce_reals(void *job, const int64_t *offset, int64_t count);
void reduce_columns(void *job, const int64_t *offset, int64_t count);    /* results side by side whose elements lie row by row */
void reduce_integers(void *job, const int64_t *offset, int64_t count);

static inline bool reduce_finds_index(op_id op) { return op == OP_argmax || op == OP_argmin; }

#endif
