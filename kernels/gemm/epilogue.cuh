/* What is done to sums on their way out, in registers: factors and the post list. Every function works on count values of two rows, row and row + 8, in pairs of
 * columns, as wgmma leaves them: value 4 j + 2 i + e is row row + 8 i, column col + 8 j + e, and where j is in the second half of them, jump columns further on.
 * Every step is done with all values before the next one: a thread's loads have nothing between them, and there is one choice of what to do. Stores nothing. */
#ifndef KERNELS_GEMM_EPILOGUE_CUH
#define KERNELS_GEMM_EPILOGUE_CUH

#include "kernels/gpu/epilogue/activations.cuh"
#include "kernels/gpu/ptx/ldst.cuh"
#include "kernels/gemm/arguments.h"

#define INLINE static __device__ __forceinline__

INLINE float load_operand(const matmul_step *step, int64_t at) {
    if (step->format == MATMUL_f32) return ((const float *)step->data)[at];
    uint16_t bits = ((const uint16_t *)step->data)[at];
    return step->format == MATMUL_bf16 ? __uint_as_float((uint32_t)bits << 16) : cvt_f32_f16(bits);
}

/* Of a thread's value. */
INLINE int row_of(int row, const int i) { return row + (i & 2) * 4; }
INLINE int column_of(const int count, int col, int jump, const int i) { return col + i / 4 * 8 + (i & 1) + (i >= count / 2 ? jump : 0); }

/* Words of an operand that are loaded before the first is used: what the sums leave of registers. */
enum { MOST_OPERAND_WORDS = 64 };
INLINE constexpr int operand_words(const int count) { return count > 64 ? 4 : MOST_OPERAND_WORDS; }

INLINE void combine(const matmul_step *step, const int count, float *values, const float *x) {
    if (step->step == MATMUL_POST_mul) {
#pragma unroll
        for (int i = 0; i < count; i++) values[i] *= x[i];
    } else {
#pragma unroll
        for (int i = 0; i < count; i++) values[i] += x[i];
    }
}

/* Two neighbours in a row of an operand whose rows lie in pairs, of 16 bits each. */
INLINE float2 pair_of(const int format, uint32_t bits) {
    if (format == MATMUL_bf16) return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000));
    return make_float2(cvt_f32_f16((uint16_t)bits), cvt_f32_f16((uint16_t)(bits >> 16)));
}

/* An operand of known format, whose rows lie in pairs and reach as far as the values. Loads of 16 bits stay packed until they are used: of up to 64 values, all are under way together. */
INLINE void apply_operand_pairs(const matmul_step *step, const int format, const int count, float *values, int row, int col, int jump) {
    const int size = format == MATMUL_f32 ? 4 : 2, chunk = operand_words(count) * 4 / size;
    const uint8_t *base = (const uint8_t *)(step->data + (row * step->row_stride + col) * size), *below = base + 8 * step->row_stride * size;
#pragma unroll
    for (int first = 0; first < count; first += chunk) {
        const int here = count - first < chunk ? count - first : chunk;
        uint2 words[MOST_OPERAND_WORDS];
#pragma unroll
        for (int i = 0; i < here; i += 2) {
            const uint8_t *at = ((first + i) & 2 ? below : base) + (int64_t)column_of(count, 0, jump, first + i) * size;
            if (size == 4) words[i / 2] = *(const uint2 *)at;
            else words[i / 2].x = *(const uint32_t *)at;
        }
#pragma unroll
        for (int i = 0; i < here; i += 2) {
            const uint2 word = words[i / 2];
            const float2 pair = size == 4 ? make_float2(__uint_as_float(word.x), __uint_as_float(word.y)) : pair_of(format, word.x);
            const float x[2] = {pair.x, pair.y};
            combine(step, 2, values + first + i, x);
        }
    }
}

/* Columns at end or behind it, and rows from rows on, are computed from operands taken as zero. What is there is asked here, where few tiles come by: as places that the compiler knows
 * it would ask in front of every step, of each value, which takes longer than a step. */
INLINE void apply_operand_values(const matmul_step *step, const int count, float *values, int row, int col, int jump, int rows, int end) {
    row = anew(row), col = anew(col);
#pragma unroll
    for (int i = 0; i < count; i++) {
        int r = row_of(row, i), c = column_of(count, col, jump, i);
        float x = r < rows && c < end ? load_operand(step, r * step->row_stride + c * step->col_stride) : 0;
        combine(step, 1, values + i, &x);
    }
}

INLINE void apply_operand(const matmul_step *step, const int count, float *values, int row, int col, int jump, int rows, int end) {
    bool in_pairs = step->col_stride == 1 && step->row_stride % 2 == 0 && step->data % 8 == 0 && jump % 2 == 0;
    bool reaches = row + 8 < rows && column_of(count, col, jump, count - 1) < end;
    if (!in_pairs || !reaches) apply_operand_values(step, count, values, row, col, jump, rows, end);
    else if (step->format == MATMUL_f32) apply_operand_pairs(step, MATMUL_f32, count, values, row, col, jump);
    else if (step->format == MATMUL_bf16) apply_operand_pairs(step, MATMUL_bf16, count, values, row, col, jump);
    else apply_operand_pairs(step, MATMUL_f16, count, values, row, col, jump);
}

/* gelu of activations.cuh with three coefficients less, within 6e-7 of max(1, |y|): tensor cores wait for registers that this reads. */
INLINE float gelu_short(float y) {
    const float c[] = {-1.0000033378601074f, -1.1510180234909058f, -0.459526389837265f, -0.05222080647945404f, 0.0072296070866286755f, -0.0004925052053295076f};
    float z = fabsf(y), p = c[5];
#pragma unroll
    for (int i = 4; i >= 0; i--) p = fmaf(p, z, c[i]);
    return y * (0.5f + copysignf(0.5f - ex2(p), y));
}

/* One code for both, whose factor is chosen when it runs. */
INLINE void apply_swish(bool is_quick_gelu, const int count, float *values) {
    const float factor = swish_factor(is_quick_gelu);
#pragma unroll
    for (int i = 0; i < count; i++) values[i] = swish(values[i], factor);
}

#define EACH_VALUE(activation)                                                                     \
    _Pragma("unroll") for (int i = 0; i < count; i++) values[i] = activation(values[i]);           \
    break

INLINE void apply_step(const matmul_step *step, const int count, float *values, int row, int col, int jump, int rows, int end) {
    switch (step->step) {
    case MATMUL_POST_bias:
    case MATMUL_POST_add:
    case MATMUL_POST_mul: apply_operand(step, count, values, row, col, jump, rows, end); break;
    case MATMUL_POST_relu: EACH_VALUE(relu);
    case MATMUL_POST_silu:
    case MATMUL_POST_quick_gelu: apply_swish(step->step == MATMUL_POST_quick_gelu, count, values); break;
    case MATMUL_POST_gelu: EACH_VALUE(gelu_short);
    case MATMUL_POST_gelu_tanh: EACH_VALUE(gelu_tanh);
    case MATMUL_POST_tanh: EACH_VALUE(tanh_exp);
    case MATMUL_POST_sigmoid: EACH_VALUE(sigmoid);
    }
}

#define EACH_PAIR(activation)                                                                      \
    _Pragma("unroll") for (int i = 0; i < count; i++) values[i] = activation(values[i]) * up[i];   \
    break

INLINE void apply_halving(int step, const int count, float *values, const float *up) {
    switch (step) {
    case MATMUL_POST_swiglu: EACH_PAIR(silu);
    case MATMUL_POST_geglu: EACH_PAIR(gelu_short);
    case MATMUL_POST_geglu_tanh: EACH_PAIR(gelu_tanh);
    case MATMUL_POST_reglu: EACH_PAIR(relu);
    }
}

INLINE float factor_at(uint64_t factors, int64_t at, bool is_there) { return is_there ? ((const float *)factors)[at] : 1; }

INLINE void apply_factors(const matmul_epilogue *e, const int count, float *values, int row, int col, int jump, int rows, int end) {
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
        int c = column_of(count, col, jump, i);
        values[i] *= factor_at(e->col_factors, c, c < end);
    }
}

/* Steps from number done on. Where one halves, the second half of values are of columns half further on, and afterwards only the first half count. end: columns of
 * the sums. */
INLINE void apply_steps(const matmul_epilogue *e, int done, const int count, float *values, int row, int col, int jump, int rows, int end) {
    int first = e->halving >= 0 ? e->halving : e->count;
#pragma unroll 1
    for (int i = done; i < first; i++) apply_step(&e->steps[i], count, values, row, col, jump, rows, end);
    if (e->halving < 0) return;
    apply_halving(e->steps[first].step, count / 2, values, values + count / 2);
#pragma unroll 1
    for (int i = first + 1; i < e->count; i++) apply_step(&e->steps[i], count / 2, values, row, col, 0, rows, e->half);
}

#endif
