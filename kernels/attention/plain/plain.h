/* The arguments of the plain attention: read by its host half, which fills them in, and by the device half. Plain C that nvcc takes, too. */
#ifndef KERNELS_ATTENTION_PLAIN_PLAIN_H
#define KERNELS_ATTENTION_PLAIN_PLAIN_H

#include "kernels/attention/arguments.h"
#include "kernels/attention/in_blocks.h"

typedef struct attention_plain_arguments {
    attention_arguments call;
    attention_blocks blocks;
    cuda_rows q;                  /* where q is in blocks */
    int64_t q_in_blocks;
    cuda_array lse;               /* [b,h,s], where has_lse */
    int64_t lse_strides[3];
    int32_t has_lse;
} attention_plain_arguments;

#endif
