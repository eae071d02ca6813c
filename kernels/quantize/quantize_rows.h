/* The arguments of quantize_rows.cu. */
#ifndef KERNELS_QUANTIZE_ROWS_H
#define KERNELS_QUANTIZE_ROWS_H

#include "kernels/common/cuda/row_parts.h"

typedef struct quantize_rows_arguments {
    row_division division;        /* operands of the nest: x */
    row_target out;
    cuda_array x;
    uint64_t given;               /* float: the second level, when it is an operand; else 0 */
    int64_t x_step;
} quantize_rows_arguments;

#endif
