/* The arguments of dropout on a GPU. */
#ifndef KERNELS_DROPOUT_CUDA_H
#define KERNELS_DROPOUT_CUDA_H

#include "kernels/gpu/arguments.h"

typedef struct dropout_arguments {
    cuda_array x, out, draw;      /* x and out side by side */
    int64_t count;
    uint64_t threshold;
    double factor;
    uint32_t site;
    int32_t is_double;            /* x is f64: the factor is no number of fp32 */
} dropout_arguments;

#endif
