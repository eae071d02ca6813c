/* The arguments of the GPU scans, sorts and counts. */
#ifndef KERNELS_SCAN_CUDA_H
#define KERNELS_SCAN_CUDA_H

#include "kernels/common/cuda/arguments.h"

typedef struct cumsum_arguments {
    cuda_nest nest;               /* lines: out, x */
    cuda_array out, x;
    int64_t count, out_step, x_step;
    int32_t exclusive;
} cumsum_arguments;

typedef struct order_arguments {
    cuda_nest nest;               /* lines: values, x, indices */
    cuda_array values, x, indices;
    int64_t count, length, values_step, x_step, indices_step;
    int32_t descending;
} order_arguments;

typedef struct bincount_arguments {
    cuda_nest nest;               /* x */
    cuda_array out, x;
    int64_t length, out_step;
} bincount_arguments;

#endif
