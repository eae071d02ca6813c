/* What a way's run is made of, by what its row in ways.def says that it does not do itself: operands dequantised in front, the kernel, its result quantised behind. One launch or several, one
 * workspace and one estimate. */
#ifndef KERNEL_COMPOSE_H
#define KERNEL_COMPOSE_H

#include "kernels/kernels.h"

typedef struct composed {
    const kernel_way *way;
    bool quantises;                   /* its result is made in blocks behind it */
    unsigned dequantises;             /* bit i: operand i is dequantised in front */
    const kernel_run *kernel;         /* what the kernel itself is asked for, */
    const kernel_run *product;        /* the same with operands as they come */
    quantised_runs result;
    dequantised_runs operands;
} composed;

/* c and run stay where they are. */
void compose(const kernel_way *way, const kernel_run *run, composed *c);
/* Seconds of all launches, between those of a run. */
double composed_seconds(const composed *c);
/* Bytes for all of it; of a plain result so many rows at most. */
size_t composed_workspace(const composed *c, int64_t most_rows);
dw_status composed_shape(const composed *c, kernel_launcher *launcher);
/* What goes around the kernel, in words. */
void composed_describe(const composed *c, text *words);

/* A problem as the kernel of a way sees it. */
typedef struct composed_problem {
    kernel_problem kernel;
    op_type result, operands[2];
    const op_type *in[KERNEL_MAX_OPERANDS], *out;
} composed_problem;
/* c stays where it is. */
void compose_problem(const kernel_way *way, const kernel_problem *problem, composed_problem *c);

#endif
