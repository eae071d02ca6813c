/* The arguments of the GPU softmax. */
#ifndef KERNELS_SOFTMAX_CUDA_H
#define KERNELS_SOFTMAX_CUDA_H

#include "kernels/gpu/arguments.h"

typedef struct softmax_arguments {
    cuda_nest nest;               /* lines: out, x */
    cuda_array out, x;
    int64_t count, out_step, x_step;
    int32_t is_log;
} softmax_arguments;

#endif
