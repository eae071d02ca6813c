/* The arguments of the streaming attention kernel: read by its host half, which fills them in, and by the device half. Plain C that nvcc takes, too. */
#ifndef KERNELS_ATTENTION_SPLITKV_SPLITKV_H
#define KERNELS_ATTENTION_SPLITKV_SPLITKV_H

#include "kernels/attention/arguments.h"

enum { SPLITKV_WARPS = 4, SPLITKV_SPLITS = 16 };   /* of a block; blocks that share a query's keys at most */

typedef struct attention_splitkv_arguments {
    attention_arguments call;
    int32_t splits;               /* blocks of a cluster */
    int32_t parts;                /* blocks, by heads, of the heads that share k and v */
} attention_splitkv_arguments;

#endif
