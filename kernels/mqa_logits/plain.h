/* The arguments of the plain mqa_logits. */
#ifndef KERNELS_MQA_LOGITS_PLAIN_H
#define KERNELS_MQA_LOGITS_PLAIN_H

#include "kernels/mqa_logits/arguments.h"

enum { MQA_PLAIN_KEYS = CUDA_THREADS };   /* of a block */

typedef struct mqa_plain_arguments {
    mqa_arguments call;
    cuda_rows q, k;               /* heads of a query; keys of a batch, or of a page */
    int64_t q_strides[2], k_stride;
    int64_t key_rows;             /* keys of a batch, or of a page, as they lie in k */
} mqa_plain_arguments;

#endif
