/* Chains of at most one function and one sum or product (chain_short.cu): how a chain is known to be one, and what the kernel is given. */
#ifndef KERNELS_CHAIN_SHORT_H
#define KERNELS_CHAIN_SHORT_H

#include "kernels/pointwise/pointwise_cuda.h"

enum { CHAIN_SHORT_VECTORS = 2 };                                /* of a thread at a time */
enum { CHAIN_SHORT_ALONE, CHAIN_SHORT_TIMES, CHAIN_SHORT_PLUS }; /* what is done with y */

/* out = function(x), rounded, with y: all of one length, side by side. */
typedef struct chain_short_arguments {
    cuda_array out, x, y;
    int64_t vectors;
    int32_t function;             /* POINTWISE_COUNT: x itself */
    int32_t rounds;               /* what the function gives, to this format; CUDA_f32: not at all */
    int32_t with;                 /* CHAIN_SHORT_* */
} chain_short_arguments;

#endif
