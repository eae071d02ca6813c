/* What the fast GPU products have among their arguments: the epilogue, rows in groups. Read by the host halves, which fill them in, and by the device halves. Plain C that nvcc takes, too. */
#ifndef KERNELS_GEMM_ARGUMENTS_H
#define KERNELS_GEMM_ARGUMENTS_H

#include "kernels/gpu/arguments.h"

#ifdef __cplusplus
#define MATMUL_ALIGNED(bytes) alignas(bytes)
#else
#define MATMUL_ALIGNED(bytes) _Alignas(bytes)
#endif

/* Steps of a post list, and formats by their place in format.def, as enum constants without the rest of the library. */
enum {
#define OP_POST(name, operand, halves, meaning) MATMUL_POST_##name,
#include "op/post.def"
#undef OP_POST
    MATMUL_POST_COUNT
};
enum {
#define DW_ELEMENT(name, bits, class, exponent, mantissa, bias, infinity, nan, max, doc) MATMUL_##name,
#define DW_BLOCK(name, element, scale, rows, cols, second, doc) MATMUL_##name,
#include "deepwell/format.def"
#undef DW_ELEMENT
#undef DW_BLOCK
    MATMUL_FORMAT_COUNT
};

enum { MATMUL_STEPS = 8 };

/* One step: its operand x at data + row * row_stride + col * col_stride, in elements of f32, bf16 or f16. */
typedef struct matmul_step {
    uint64_t data;
    int64_t row_stride, col_stride;
    int32_t step, format;
} matmul_step;

/* What becomes of a finished sum y of row r and column c, in fp32 and in this order: times alpha; times each factor that is there (alpha_at[i][0],
 * row_factors[r], col_factors[c]); through the steps; rounded once to the format of out. half: n / 2 when step number halving joins columns c and c + half. */
typedef struct matmul_epilogue {
    float alpha;
    int32_t count, halving;       /* halving: -1, or the number of the step that halves */
    int32_t out_format;           /* f32, bf16, f16 */
    int32_t by_tma;            /* 1: out's rows are multiples of 16 bytes, and its tensor map is there; 0: stores of single elements */
    int32_t half;
    int32_t block;                /* 0, or: out is in blocks of so many e4m3 along a row, made of the result in out_format: 128, scales in fp32; 32, scales in e8m0; or of e2m1: 16, scales in e4m3 */
    int64_t out_row_stride;       /* elements */
    uint64_t out;
    uint64_t scales;              /* of out in blocks */
    int64_t scale_row_stride;
    uint64_t alpha_at[2], row_factors, col_factors;   /* addresses of floats, or 0 */
    matmul_step steps[MATMUL_STEPS];
} matmul_epilogue;

/* Groups whose rows only the device knows: rows [offsets[g - 1], offsets[g]) of a, or [g apart, g apart + offsets[g]), times matrix g of b, for g from first to end - 1. */
typedef struct matmul_groups {
    uint64_t offsets;             /* int32, ascending, none beyond m; or from 0 to apart: else a fault */
    int32_t first, end;
    int32_t clears;               /* 1: rows of no group become zeros */
    int32_t apart;                /* 0; or of padded groups the rows from one to the next, of which the first offsets[g] are group g's */
    cuda_fault_place fault;
} matmul_groups;

#endif
