/* The arguments of the GPU rotary embedding. */
#ifndef KERNELS_ROTARY_CUDA_H
#define KERNELS_ROTARY_CUDA_H

#include "kernels/common/cuda/arguments.h"

typedef struct rotary_arguments {
    cuda_nest nest;               /* rows: out, x, cos, sin */
    cuda_array out, x, cosine, sine;
    int64_t cols, width, out_step, x_step, cosine_step, sine_step;
    int32_t interleaved;
} rotary_arguments;

#endif
