/* The arguments of cross_entropy and its gradient on a GPU. */
#ifndef KERNELS_LOSS_CUDA_H
#define KERNELS_LOSS_CUDA_H

#include "kernels/gpu/arguments.h"

typedef struct loss_arguments {
    cuda_nest nest;                   /* rows: labels, logits, then loss and lse, or the gradient, lse and d */
    cuda_array labels, logits, made, lse, d;
    int64_t count, step, made_step;   /* classes; from one to the next, in logits and in the gradient, */
    int64_t columns;                  /* which has so many: behind the classes zeros */
    int64_t ignore;
    double smoothing;
    int32_t has_ignore;
} loss_arguments;

#endif
