/* The arguments of quantize_rows.cu. */
#ifndef KERNELS_QUANTIZE_ROWS_H
#define KERNELS_QUANTIZE_ROWS_H

#include "kernels/common/cuda/row_parts.h"

typedef struct quantize_rows_arguments {
    row_division division;        /* operands of the nest: x */
    row_target out;
    cuda_array x;
    uint64_t given;               /* float: the second level, when it is an operand; else 0 */
    uint64_t amax;                /* int32: bits of the tensor's largest magnitude, zero before its launch; 0 where no scale depends on it */
    int64_t x_step;
} quantize_rows_arguments;

#endif
