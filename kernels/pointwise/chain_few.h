/* Chains of few elements: what the kernel (chain_few.cu) is given. */
#ifndef KERNELS_CHAIN_FEW_H
#define KERNELS_CHAIN_FEW_H

#include "kernels/pointwise/chain_cuda.h"

enum { FEW_RANK = 4, FEW_SLOTS = CHAIN_OPERANDS + CHAIN_STEPS };   /* slots of a thread: operands, then results */
enum { FEW_RESIDENT = 8 };        /* blocks of a multiprocessor: of as many elements as the chip has threads for at a time */

/* round(function(a, b)), each read from a slot, or a number. Functions are POINTWISE_*, of which POINTWISE_COUNT is a itself, and: */
enum {
    FEW_SELECT = POINTWISE_COUNT + 1,                              /* a != 0 ? b : c */
    FEW_SUM, FEW_SOFTMAX                                           /* of a, over a line: in steps on the values of one alone (kernels/scan) */
};
enum { FEW_NUMBER = 255 };                                         /* in place of a slot */
typedef struct few_code {
    uint8_t function, rounds;     /* to this format; CUDA_f32: not at all */
    uint8_t from[CHAIN_READS], unused[3];
    float numbers[CHAIN_READS];
} few_code;

typedef struct chain_few_arguments {
    uint32_t elements, operands, count, rank;
    uint32_t dims[FEW_RANK];      /* the last runs fastest; those in front that are not there are 1 */
    cuda_array out, in[CHAIN_OPERANDS];
    int32_t strides[1 + CHAIN_OPERANDS][FEW_RANK];   /* in bytes */
    few_code codes[CHAIN_STEPS];
} chain_few_arguments;

#endif
