/* The arguments of the GPU norms. */
#ifndef KERNELS_NORM_CUDA_H
#define KERNELS_NORM_CUDA_H

#include "kernels/gpu/arguments.h"

/* Rows along the last axis. */
typedef struct norm_arguments {
    cuda_nest nest;               /* rows: out, x, sum, residual */
    cuda_array out, x, sum, residual, weight, bias;
    int64_t cols, out_step, x_step, sum_step, residual_step, weight_step, bias_step;
    int32_t has_residual, has_weight, has_bias, centred;
    double eps;
} norm_arguments;

/* A block for each batch element and group. */
typedef struct group_norm_arguments {
    cuda_nest group;              /* the elements of one: out, x */
    cuda_array out, x, weight, bias;
    int64_t batches, groups, channels, per_channel;   /* channels of a group, elements of a channel */
    int64_t out_batch, out_channel, x_batch, x_channel, weight_step, bias_step;
    int32_t has_weight, has_bias;
    double eps;
} group_norm_arguments;

#endif
