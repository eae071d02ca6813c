/* What is done to sums on their way out, in registers: factors and the post list. Every function works on values of two rows, row and row + 8, in pairs of
 * columns: value 4 j + 2 i + e is row row + 8 i, column col + 8 j + e, as wgmma leaves them. Stores nothing. */
#ifndef KERNELS_MATMUL_EPILOGUE_SM90_CUH
#define KERNELS_MATMUL_EPILOGUE_SM90_CUH

#include "kernels/common/cuda/ptx_ldst.cuh"
#include "kernels/matmul/matmul_sm90.h"

#define INLINE static __device__ __forceinline__

INLINE float load_operand(const matmul_step *step, int64_t at) {
    if (step->format == MATMUL_f32) return ((const float *)step->data)[at];
    uint16_t bits = ((const uint16_t *)step->data)[at];
    return step->format == MATMUL_bf16 ? __uint_as_float((uint32_t)bits << 16) : cvt_f32_f16(bits);
}

INLINE float relu(float y) { return y < 0 ? 0 : y; }
INLINE float silu(float y) { return __fdividef(y, 1 + __expf(-y)); }
/* erf by a rational argument and the exponential (Abramowitz and Stegun, 7.1.26): within 3e-7, with half of erff's instructions. */
INLINE float erf_short(float x) {
    float z = fabsf(x), t = __fdividef(1, fmaf(0.3275911f, z, 1));
    float sum = fmaf(fmaf(fmaf(fmaf(1.061405429f, t, -1.453152027f), t, 1.421413741f), t, -0.284496736f), t, 0.254829592f) * t;
    return copysignf(fmaf(-sum, __expf(-z * z), 1), x);
}
INLINE float gelu(float y) { return 0.5f * y * (1 + erf_short(y * 0.70710678f)); }
/* tanh by the exponential: its error stays below 1e-6 of the result's magnitude. */
INLINE float tanh_exp(float y) { return 1 - __fdividef(2, 1 + __expf(2 * y)); }
INLINE float gelu_tanh(float y) { return 0.5f * y * (1 + tanh_exp(0.79788456f * (y + 0.044715f * y * y * y))); }

#define EACH_VALUE(expression)                                                                     \
    _Pragma("unroll") for (int i = 0; i < count; i++) {                                            \
        float y = values[i];                                                                       \
        values[i] = (expression);                                                                  \
    }                                                                                              \
    break

/* Two neighbours in a row of an operand whose rows lie in pairs. */
INLINE float2 load_operand_pair(const matmul_step *step, const int format, int64_t at) {
    if (format == MATMUL_f32) return *(const float2 *)((const float *)step->data + at);
    uint32_t bits = *(const uint32_t *)((const uint16_t *)step->data + at);
    if (format == MATMUL_bf16) return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000));
    return make_float2(cvt_f32_f16((uint16_t)bits), cvt_f32_f16((uint16_t)(bits >> 16)));
}

/* All of a thread's values of an operand of known format, whose rows lie in pairs and reach as far: loads that nothing stands between. */
INLINE void load_operand_values(const matmul_step *step, const int format, const int count, float *x, int row, int col) {
    int64_t at = row * step->row_stride + col;
#pragma unroll
    for (int i = 0; i < count; i += 2) {
        float2 pair = load_operand_pair(step, format, at + (i & 2) * 4 * step->row_stride + i / 4 * 8);
        x[i] = pair.x, x[i + 1] = pair.y;
    }
}

/* Columns from col on that lie at end or behind it, and rows from rows on, are computed from operands taken as zero. */
INLINE void apply_operand(const matmul_step *step, const int count, float *values, int row, int col, int rows, int end) {
    bool in_pairs = step->col_stride == 1 && step->row_stride % 2 == 0 && step->data % 8 == 0;
    float x[32];
    if (in_pairs && row + 8 < rows && col + (count / 4 - 1) * 8 + 1 < end) {
        if (step->format == MATMUL_f32) load_operand_values(step, MATMUL_f32, count, x, row, col);
        else if (step->format == MATMUL_bf16) load_operand_values(step, MATMUL_bf16, count, x, row, col);
        else load_operand_values(step, MATMUL_f16, count, x, row, col);
    } else {
#pragma unroll
        for (int i = 0; i < count; i++) {
            int r = row + (i & 2) * 4, c = col + i / 4 * 8 + (i & 1);
            x[i] = r < rows && c < end ? load_operand(step, r * step->row_stride + c * step->col_stride) : 0;
        }
    }
#pragma unroll
    for (int i = 0; i < count; i++) values[i] = step->step == MATMUL_POST_mul ? values[i] * x[i] : values[i] + x[i];
}

INLINE void apply_step(const matmul_step *step, const int count, float *values, int row, int col, int rows, int end) {
    switch (step->step) {
    case MATMUL_POST_bias:
    case MATMUL_POST_add:
    case MATMUL_POST_mul: apply_operand(step, count, values, row, col, rows, end); break;
    case MATMUL_POST_relu: EACH_VALUE(relu(y));
    case MATMUL_POST_silu: EACH_VALUE(silu(y));
    case MATMUL_POST_gelu: EACH_VALUE(gelu(y));
    case MATMUL_POST_gelu_tanh: EACH_VALUE(gelu_tanh(y));
    case MATMUL_POST_tanh: EACH_VALUE(tanh_exp(y));
    case MATMUL_POST_sigmoid: EACH_VALUE(__fdividef(1, 1 + __expf(-y)));
    }
}

#define EACH_PAIR(activation)                                                                      \
    _Pragma("unroll") for (int i = 0; i < count; i++) values[i] = activation(values[i]) * up[i];   \
    break

INLINE void apply_halving(int step, const int count, float *values, const float *up) {
    switch (step) {
    case MATMUL_POST_swiglu: EACH_PAIR(silu);
    case MATMUL_POST_geglu: EACH_PAIR(gelu);
    case MATMUL_POST_geglu_tanh: EACH_PAIR(gelu_tanh);
    case MATMUL_POST_reglu: EACH_PAIR(relu);
    }
}

INLINE float factor_at(uint64_t factors, int64_t at, bool is_there) { return is_there ? ((const float *)factors)[at] : 1; }

INLINE void apply_factors(const matmul_epilogue *e, const int count, float *values, int row, int col, int rows, int end) {
    float all = e->alpha;
    for (int i = 0; i < 2; i++)
        if (e->alpha_at[i] != 0) all *= *(const float *)e->alpha_at[i];
    float of_rows[2] = {all, all};
    if (e->row_factors != 0)
        for (int i = 0; i < 2; i++) of_rows[i] *= factor_at(e->row_factors, row + 8 * i, row + 8 * i < rows);
#pragma unroll
    for (int i = 0; i < count; i++) values[i] *= of_rows[i >> 1 & 1];
    if (e->col_factors == 0) return;
#pragma unroll
    for (int i = 0; i < count; i++) {
        int c = col + i / 4 * 8 + (i & 1);
        values[i] *= factor_at(e->col_factors, c, c < end);
    }
}

/* Steps from number done on. up: the values of columns col + half, where a step halves. end: columns of the result. */
INLINE void apply_steps(const matmul_epilogue *e, int done, const int count, float *values, float *up, int row, int col, int rows, int end) {
    bool halves = e->halving >= 0;
    int first = halves ? e->halving : e->count;
#pragma unroll 1
    for (int i = done; i < first; i++) apply_step(&e->steps[i], count, values, row, col, rows, halves ? end + e->half : end);
    if (!halves) return;
#pragma unroll 1
    for (int i = done; i < first; i++) apply_step(&e->steps[i], count, up, row, col + e->half, rows, end + e->half);
    apply_halving(e->steps[first].step, count, values, up);
#pragma unroll 1
    for (int i = first + 1; i < e->count; i++) apply_step(&e->steps[i], count, values, row, col, rows, end);
}

/* Sums to results. */
INLINE void epilogue_apply(const matmul_epilogue *e, const int count, float *values, float *up, int row, int col, int rows, int end) {
    apply_factors(e, count, values, row, col, rows, e->halving >= 0 ? end + e->half : end);
    if (e->halving >= 0) apply_factors(e, count, up, row, col + e->half, rows, end + e->half);
    apply_steps(e, 0, count, values, up, row, col, rows, end);
}

#endif
