/* The arguments of norm_rows.cu and norm_dense.cu, and of norm_long.cu. */
#ifndef KERNELS_NORM_ROWS_H
#define KERNELS_NORM_ROWS_H

#include "kernels/gpu/rows/row_chunks.h"

/* A row's moments wait for all of it: seconds more than a pass over it, on an H200 in models' runs (bench/results/h200/models.md). */
#define NORM_MOMENTS_S 1.1e-6

/* Of norm_dense.cu, by pieces of a thread, and whether there is a residual: registers, and threads that a multiprocessor has room for with them. */
#define NORM_DENSE_REGISTERS(pieces, sum) ((pieces) == 3 && !(sum) ? 80 : 96)
#define NORM_DENSE_THREADS(pieces, sum) ((pieces) == 3 && !(sum) ? 768 : 640)

typedef struct norm_rows_arguments {
    row_division division;        /* operands of the nest: out, x, sum, residual; each row is one part */
    row_target out;
    cuda_array x, sum, residual, weight, bias;
    int64_t x_step, sum_step, residual_step, weight_step, bias_step;
    int32_t has_residual, has_weight, has_bias, centred;
    int32_t columns_are_constant; /* no launch of the run writes weight or bias */
    float by_count, eps;          /* by_count: 1 / elements of a row */
    row_target plain;             /* where has_plain: of a result in blocks the numbers as well; then it is the nest's out */
    int32_t has_plain;
} norm_rows_arguments;

typedef struct norm_long_arguments {
    row_chunks chunks;            /* operands of the nest: out, x, sum, residual */
    row_target out;
    cuda_array x, sum, residual, weight, bias;
    int64_t x_step, sum_step, residual_step, weight_step, bias_step;
    int32_t has_residual, has_weight, has_bias, centred;
    float by_count, eps;
} norm_long_arguments;

#endif
