/* Keys and values in blocks within rows (fp8_1x128, MX, nvfp4) in the arguments of GPU attentions that read them. They lie as a whole, and the strides of k and v count elements of that. Plain C that nvcc
 * takes, too. */
#ifndef KERNELS_ATTENTION_IN_BLOCKS_H
#define KERNELS_ATTENTION_IN_BLOCKS_H

#include "kernels/gpu/arguments.h"

typedef struct attention_blocks {
    cuda_rows k, v;
    int32_t in_blocks;            /* else k and v are as the call's own fields say */
    int32_t values_apart;         /* v is, though k is in blocks, as it may be beside a q in blocks */
} attention_blocks;

#endif
