/* The arguments of softmax_rows.cu and softmax_long.cu. */
#ifndef KERNELS_SOFTMAX_ROWS_H
#define KERNELS_SOFTMAX_ROWS_H

#include "kernels/gpu/rows/row_chunks.h"

typedef struct softmax_rows_arguments {
    row_division division;        /* operands of the nest: out, x; each row is one part */
    cuda_array out, x;
    int64_t out_step, x_step;
    int32_t is_log;
} softmax_rows_arguments;

typedef struct softmax_long_arguments {
    row_chunks chunks;            /* operands of the nest: out, x */
    cuda_array out, x;
    int64_t out_step, x_step;
    int32_t is_log;
} softmax_long_arguments;

#endif
