/* The arguments of softmax_rows.cu. */
#ifndef KERNELS_SOFTMAX_ROWS_H
#define KERNELS_SOFTMAX_ROWS_H

#include "kernels/common/cuda/row_parts.h"

typedef struct softmax_rows_arguments {
    row_division division;        /* operands of the nest: out, x; each row is one part */
    cuda_array out, x;
    int64_t out_step, x_step;
    int32_t is_log;
} softmax_rows_arguments;

#endif
