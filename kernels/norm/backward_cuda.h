/* The arguments of the gradients of norms on a GPU. */
#ifndef KERNELS_NORM_BACKWARD_CUDA_H
#define KERNELS_NORM_BACKWARD_CUDA_H

#include "kernels/gpu/arguments.h"

typedef struct norm_backward_arguments {
    cuda_nest nest;                   /* rows: dx, x, dy, plus */
    cuda_array dx, x, dy, weight, plus, dweight, dbias;
    double *statistics;               /* [rows][2] in the workspace: mean and 1 / root */
    int64_t cols, steps[4];           /* steps along a row, as the nest's */
    int64_t weight_step, dweight_step, dbias_step;
    double eps;
    int32_t centred, has_weight, has_plus;
} norm_backward_arguments;

#endif
