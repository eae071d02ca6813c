/* The arguments of adamw and accumulate on a GPU. */
#ifndef KERNELS_OPTIMIZER_CUDA_H
#define KERNELS_OPTIMIZER_CUDA_H

#include "kernels/gpu/arguments.h"
#include "op/optimizer.h"

typedef struct optimizer_arguments {
    cuda_nest nest;               /* p, m and v of after, then p, m, v and g of before */
    cuda_array next[3], before[4];
    cuda_array rate, step, scale; /* of one element each; scale only where has_scale */
    double beta1, beta2, eps, decay;
    int32_t has_scale;
} optimizer_arguments;

/* Parameters of one launch, each of them vectors side by side. */
typedef struct optimizer_list {
    cuda_array next[UPDATES_ADAMW][3], before[UPDATES_ADAMW][4];
    int64_t first[UPDATES_ADAMW + 1];   /* vector of each parameter; behind the last all of them */
    cuda_array rate, step, scale;
    double beta1, beta2, eps, decay;
    int32_t has_scale;
} optimizer_list;

typedef struct sums_arguments {
    cuda_nest nest;               /* next, sum, g */
    cuda_array next, sum, g, factor;
} sums_arguments;

typedef struct sums_list {
    cuda_array next[UPDATES_SUMS], sum[UPDATES_SUMS], g[UPDATES_SUMS], factor;
    int64_t first[UPDATES_SUMS + 1];
} sums_list;

#endif
