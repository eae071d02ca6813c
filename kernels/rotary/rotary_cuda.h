/* The arguments of the GPU rotary embedding. */
#ifndef KERNELS_ROTARY_CUDA_H
#define KERNELS_ROTARY_CUDA_H

#include "kernels/gpu/arguments.h"

typedef struct rotary_arguments {
    cuda_nest nest;               /* rows: out, x, cos, sin */
    cuda_array out, x, cosine, sine;
    int64_t cols, width, out_step, x_step, cosine_step, sine_step;
    int32_t interleaved;
    /* In vectors: */
    int32_t shared;               /* rows that a thread turns by the same angles; the nest counts them as one */
    int64_t out_shared, x_shared; /* from one of them to the next */
} rotary_arguments;

#endif
