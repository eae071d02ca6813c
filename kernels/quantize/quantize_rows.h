/* The arguments of quantize_rows.cu, quantize_long.cu and quantize_squares.cu. */
#ifndef KERNELS_QUANTIZE_ROWS_H
#define KERNELS_QUANTIZE_ROWS_H

#include "kernels/gpu/rows/row_chunks.h"

typedef struct quantize_rows_arguments {
    row_division division;        /* operands of the nest: x */
    row_target out;
    cuda_array x;
    uint64_t given;               /* float: the second level, when it is an operand; else 0 */
    uint64_t amax;                /* int32: bits of the tensor's largest magnitude, zero before its launch; 0 where no scale depends on it */
    int64_t x_step;
} quantize_rows_arguments;

typedef struct quantize_long_arguments {
    row_chunks chunks;            /* operands of the nest: x */
    row_target out;
    cuda_array x;
    int64_t x_step;
} quantize_long_arguments;

typedef struct quantize_squares_arguments {
    cuda_nest matrices;           /* of x */
    cuda_array x;
    cuda_rows out;
    int64_t row_stride, x_step;
    int32_t rows, cols;           /* of a matrix */
} quantize_squares_arguments;

#endif
