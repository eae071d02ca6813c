/* The arguments of loss_rows.cu. */
#ifndef KERNELS_LOSS_ROWS_H
#define KERNELS_LOSS_ROWS_H

#include "kernels/gpu/arguments.h"

/* Threads of a block; pieces that a thread has of a row at a time are PIECES_MOST. */
enum { LOSS_THREADS = 512 };

typedef struct loss_rows_arguments {
    cuda_nest nest;                   /* rows: labels, logits, then loss and lse, or the gradient, lse and d */
    cuda_array labels, logits, made, lse, d;
    int64_t step, made_step;          /* from one class to the next, in logits and in the gradient */
    int64_t ignore;
    int32_t count;                    /* classes */
    int32_t has_ignore;
    double smoothing;
} loss_rows_arguments;

#endif
