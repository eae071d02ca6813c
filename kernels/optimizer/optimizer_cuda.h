/* The arguments of adamw on a GPU. */
#ifndef KERNELS_OPTIMIZER_CUDA_H
#define KERNELS_OPTIMIZER_CUDA_H

#include "kernels/gpu/arguments.h"

typedef struct optimizer_arguments {
    cuda_nest nest;               /* p, m and v of after, then p, m, v and g of before */
    cuda_array next[3], before[4];
    cuda_array rate, step, scale; /* of one element each; scale only where has_scale */
    double beta1, beta2, eps, decay;
    int32_t has_scale;
} optimizer_arguments;

#endif
