/* What the two halves of cuda_matmul share. */
#ifndef BENCH_CUDA_MATMUL_H
#define BENCH_CUDA_MATMUL_H

#include "kernels/gemm/arguments.h"

/* A matrix in any format: scales per block of block_rows x block_cols elements (0: all of that axis), and a second level (0: none, 1: one, 2: per row). */
typedef struct bench_operand {
    uint64_t data, scales, second;
    int32_t element, scale_format, second_kind;
    int32_t block_rows, block_cols;
    int64_t row_stride, scale_stride;
} bench_operand;

typedef struct bench_reference {
    matmul_epilogue epilogue;
    bench_operand a, b;
    int64_t m, n, k, row_step;
    int64_t guard;                /* bytes behind the result that must stay 0xff */
    int64_t out_bytes;            /* of an element */
    uint64_t out, result;
} bench_reference;

#endif
