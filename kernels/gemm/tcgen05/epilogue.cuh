/* What is done to sums on their way out, in registers: factors, the post list, and stores. A thread has one row and TCGEN05_CHUNK neighbouring columns, as
 * tcgen05.ld 32x32b gives them. The functions of one number are epilogue.cuh's. */
#ifndef KERNELS_GEMM_TCGEN05_EPILOGUE_CUH
#define KERNELS_GEMM_TCGEN05_EPILOGUE_CUH

#include "kernels/gemm/epilogue.cuh"
#include "kernels/gemm/tcgen05/tcgen05.h"

enum { TCGEN05_CHUNK = 16 };

#define EACH_COLUMN _Pragma("unroll") for (int i = 0; i < TCGEN05_CHUNK; i++)

/* Columns at end or behind it are computed from operands taken as 0. */
INLINE void row_operand(const matmul_step *step, float *values, int row, int col, int end) {
    EACH_COLUMN {
        float x = col + i < end ? load_operand(step, row * step->row_stride + (col + i) * step->col_stride) : 0;
        values[i] = step->step == MATMUL_POST_mul ? values[i] * x : values[i] + x;
    }
}

INLINE float row_function(int step, float y) {
    switch (step) {
    case MATMUL_POST_relu: return relu(y);
    case MATMUL_POST_silu: return silu(y);
    case MATMUL_POST_gelu: return gelu(y);
    case MATMUL_POST_gelu_tanh: return gelu_tanh(y);
    case MATMUL_POST_tanh: return tanh_exp(y);
    default: return sigmoid(y);
    }
}

INLINE void row_step(const matmul_step *step, float *values, int row, int col, int end) {
    bool takes = step->step == MATMUL_POST_bias || step->step == MATMUL_POST_add || step->step == MATMUL_POST_mul;
    if (takes) row_operand(step, values, row, col, end);
    else EACH_COLUMN values[i] = row_function(step->step, values[i]);
}

INLINE void row_factors(const matmul_epilogue *e, float *values, int row, int col, int end) {
    float all = e->alpha;
    for (int i = 0; i < 2; i++)
        if (e->alpha_at[i] != 0) all *= *(const float *)e->alpha_at[i];
    if (e->row_factors != 0) all *= factor_at(e->row_factors, row, true);
    EACH_COLUMN values[i] *= e->col_factors != 0 ? all * factor_at(e->col_factors, col + i, col + i < end) : all;
}

/* Sums to results. up: those of half as many columns further on, where a step halves. end: columns of the result. row is one of the result's. */
INLINE void row_epilogue(const matmul_epilogue *e, float *values, float *up, int row, int col, int end) {
    bool halves = e->halving >= 0;
    row_factors(e, values, row, col, end);
    if (halves) row_factors(e, up, row, col + e->half, end + e->half);
#pragma unroll 1
    for (int i = 0; i < e->count; i++) {
        if (i == e->halving) {
            apply_halving(e->steps[i].step, TCGEN05_CHUNK, values, up);
            halves = false;
            continue;
        }
        row_step(&e->steps[i], values, row, col, end);
        if (halves) row_step(&e->steps[i], up, row, col + e->half, end + e->half);
    }
}

INLINE void row_store(const matmul_epilogue *e, const float *values, int row, int col, int end) {
    int64_t at = row * e->out_row_stride + col;
    EACH_COLUMN {
        if (col + i >= end) continue;
        if (e->out_format == MATMUL_f32) ((float *)e->out)[at + i] = values[i];
        else ((uint16_t *)e->out)[at + i] = (uint16_t)(e->out_format == MATMUL_bf16 ? cvt_bf16x2(values[i], 0) : cvt_f16x2(values[i], 0));
    }
}

#endif
