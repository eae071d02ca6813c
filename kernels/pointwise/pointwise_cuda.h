/* The arguments of the pointwise GPU kernels. */
#ifndef KERNELS_POINTWISE_CUDA_H
#define KERNELS_POINTWISE_CUDA_H

#include "kernels/gpu/arguments.h"

/* The functions that device code knows: every pointwise op but cast and where, by the op's name. */
enum {
#define OP_EACH_POINTWISE(name, kind) POINTWISE_##name,
#include "op/pointwise.def"
    POINTWISE_COUNT
};

typedef struct pointwise_arguments {
    cuda_nest nest;               /* out, x, y, z */
    cuda_array out, in[3];
    cuda_fault_place fault;
    int32_t function, is_bool;
    int32_t steps[4];             /* of a vector's elements in out, x, y, z: 1, or 0 where one element serves all */
    int64_t elements;             /* of a nest of one axis, whose last vector may be short */
} pointwise_arguments;

#endif
