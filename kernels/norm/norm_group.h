/* The arguments of norm_group.cu. */
#ifndef KERNELS_NORM_GROUP_H
#define KERNELS_NORM_GROUP_H

#include "kernels/gpu/rows/row_parts.h"

enum { GROUP_CHUNK = PIECE * PIECES_MOST * CUDA_THREADS };   /* elements that a block keeps */

/* x and out [items, length]: a group of an element of the batch lies side by side; chunks of it have a block each. */
typedef struct group_rows_arguments {
    cuda_array x, out, weight, bias;
    uint64_t partial;             /* double[items][chunks][2]: the sum of a chunk, and its squares around its own mean */
    int64_t items, weight_step, bias_step;
    int32_t groups, length, chunks;
    int32_t channels, per_channel;    /* channels of a group, elements of a channel */
    int32_t has_weight, has_bias;
    double eps;
} group_rows_arguments;

#endif
