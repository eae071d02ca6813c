/* The arguments and sizes of attention in three products of tf32: read by its host half, which fills them in, and by the device half. Plain C that nvcc takes, too. */
#ifndef KERNELS_ATTENTION_TF32X3_TF32X3_H
#define KERNELS_ATTENTION_TF32X3_TF32X3_H

#include "kernels/attention/arguments.h"

enum { TF32X3_MOST_QUERIES = 128, TF32X3_MOST_KEYS = 32 };                            /* of a tile, and of a block */
enum { TF32X3_VIEW_BYTES = TF32X3_MOST_QUERIES * 16 + 2 * TF32X3_MOST_KEYS };         /* of smem: what each query sees, whether each key's page is there */

typedef struct attention_tf32x3_arguments {
    attention_arguments call;
    cuda_array lse;               /* [b,h,s], where has_lse */
    int64_t lse_strides[3];
    int32_t has_lse;
    float sink_scale;             /* of a sink beside scores that are not scaled */
} attention_tf32x3_arguments;

#endif
