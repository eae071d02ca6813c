/* The arguments that all GPU kernels of mqa_logits have: read by their host halves, which fill them in, and by the device halves. Plain C that nvcc takes, too. */
#ifndef KERNELS_MQA_LOGITS_ARGUMENTS_H
#define KERNELS_MQA_LOGITS_ARGUMENTS_H

#include "kernels/gpu/arguments.h"

#ifdef __cplusplus
#define MQA_ALIGNED(bytes) alignas(bytes)
#else
#define MQA_ALIGNED(bytes) _Alignas(bytes)
#endif

/* Who sees what, and where results go. Strides in elements. */
typedef struct mqa_arguments {
    cuda_array weights, factor, start, end, table, out;
    int64_t weight_strides[3], factor_strides[2], start_strides[2], end_strides[2], table_strides[2], out_strides[3];
    int64_t batches, queries, heads, keys, width;   /* keys: positions of a batch */
    int64_t page, pages;          /* with a table: keys of a page, pages of k; else 0 */
    float scale;
    int32_t has_factor, has_start, has_end, has_table;
    cuda_fault_place fault;
} mqa_arguments;

#endif
