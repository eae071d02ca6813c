/* Rows of an operand in any format, and where their block scales lie: what kernels that dequantise operands are given of them. Plain C that nvcc takes, too. */
#ifndef KERNELS_GEMM_ROWS_H
#define KERNELS_GEMM_ROWS_H

#include <stdint.h>

/* The scale of row r and column block c lies at (place of r) + (c / 4) * quad_step + c % 4. */
typedef struct matmul_scales {
    uint64_t data;
    int32_t cols;                 /* column blocks of a row that are there */
    int32_t row_step, quad_step;  /* in scales */
    int32_t tiled;                /* rows lie as tile128x4 has them, and row_step is of 128 rows */
    int32_t row_blocks;           /* rows that share a scale: 1 or 128 */
    int32_t matrix_rows;          /* tiled: rows of a matrix, each of which begins with a tile of its own */
    int64_t matrix_step;
} matmul_scales;

typedef struct matmul_rows {
    uint64_t data;
    int64_t row_bytes;
    int32_t format;               /* of elements: f32, bf16, f16, or one of 8, 6 and 4 bits */
    int32_t scale;                /* of block scales; MATMUL_FORMAT_COUNT: none, or a factor of whole rows */
    int32_t block;                /* columns of a block */
    matmul_scales scales;
} matmul_rows;

#endif
