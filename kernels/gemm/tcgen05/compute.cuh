/* What the epilogue computes of a thread's TCGEN05_CHUNK values, two at a time: one instruction gives two results, and a warp that stores is alone on its scheduler, so its instructions are what an epilogue takes. Activations
 * are the scalar functions of epilogue.cuh, operation by operation, so bits are the same as theirs: GELU's are those of gelu_short, as in the tiles by wgmma, not those of gelu in activations.cuh. Loads and stores nothing. */
#ifndef KERNELS_GEMM_TCGEN05_COMPUTE_CUH
#define KERNELS_GEMM_TCGEN05_COMPUTE_CUH

#include "kernels/gpu/ptx/pairs.cuh"
#include "kernels/gemm/epilogue.cuh"

enum { TCGEN05_CHUNK = 16 };

#define EACH_COLUMN _Pragma("unroll") for (int i = 0; i < TCGEN05_CHUNK; i++)
#define EACH_PAIR_OF_COLUMNS _Pragma("unroll") for (int i = 0; i < TCGEN05_CHUNK; i += 2)

INLINE f32_pair pair_at(const float *values, const int i) { return pair_of_f32(values[i], values[i + 1]); }
INLINE void put_pair(float *values, const int i, f32_pair pair) {
    const float2 of = f32_of_pair(pair);
    values[i] = of.x, values[i + 1] = of.y;
}
INLINE f32_pair both(float x) { return pair_of_f32(x, x); }

/* ---- activations ---- */

INLINE f32_pair ex2_pair(f32_pair x) {
    const float2 of = f32_of_pair(x);
    return pair_of_f32(ex2(of.x), ex2(of.y));
}
INLINE f32_pair rcp_pair(f32_pair x) {
    const float2 of = f32_of_pair(x);
    return pair_of_f32(rcp(of.x), rcp(of.y));
}
INLINE f32_pair relu_pair(f32_pair y) {
    const float2 of = f32_of_pair(y);
    return pair_of_f32(relu(of.x), relu(of.y));
}
INLINE f32_pair sigmoid_pair(f32_pair y) { return rcp_pair(add_f32x2(both(1), ex2_pair(mul_f32x2(y, both(-1.44269504f))))); }
INLINE f32_pair swish_pair(f32_pair y, float factor) { return mul_f32x2(y, rcp_pair(add_f32x2(both(1), ex2_pair(mul_f32x2(y, both(factor)))))); }
INLINE f32_pair silu_pair(f32_pair y) { return swish_pair(y, swish_factor(false)); }
INLINE f32_pair tanh_pair(f32_pair y) { return fma_f32x2(both(-2), rcp_pair(add_f32x2(both(1), ex2_pair(mul_f32x2(y, both(2.88539008f))))), both(1)); }
INLINE f32_pair gelu_tanh_pair(f32_pair y) {
    const f32_pair u = fma_f32x2(mul_f32x2(y, y), both(-0.10294324f), both(-2.30220820f));
    return mul_f32x2(y, rcp_pair(add_f32x2(both(1), ex2_pair(mul_f32x2(y, u)))));
}
/* gelu_short. */
INLINE f32_pair gelu_pair(f32_pair y) {
    const float c[] = {-1.0000033378601074f, -1.1510180234909058f, -0.459526389837265f, -0.05222080647945404f, 0.0072296070866286755f, -0.0004925052053295076f};
    const f32_pair z = y & 0x7fffffff7fffffffull;
    f32_pair p = both(c[5]);
#pragma unroll
    for (int i = 4; i >= 0; i--) p = fma_f32x2(p, z, both(c[i]));
    const f32_pair above = fma_f32x2(ex2_pair(p), both(-1), both(0.5f));
    return mul_f32x2(y, add_f32x2(both(0.5f), (above & 0x7fffffff7fffffffull) | (y & 0x8000000080000000ull)));
}

/* ---- of all values of a thread ---- */

INLINE void multiply_all(float *values, float factor) { EACH_PAIR_OF_COLUMNS put_pair(values, i, mul_f32x2(pair_at(values, i), both(factor))); }
INLINE void multiply_each(float *values, const float *x) { EACH_PAIR_OF_COLUMNS put_pair(values, i, mul_f32x2(pair_at(values, i), pair_at(x, i))); }
INLINE void add_each(float *values, const float *x) { EACH_PAIR_OF_COLUMNS put_pair(values, i, add_f32x2(pair_at(values, i), pair_at(x, i))); }

#define EACH_BY(activation)                                                                         \
    EACH_PAIR_OF_COLUMNS put_pair(values, i, activation##_pair(pair_at(values, i)));                \
    break
INLINE void activate(int step, float *values) {
    switch (step) {
    case MATMUL_POST_relu: EACH_BY(relu);
    case MATMUL_POST_silu:
    case MATMUL_POST_quick_gelu: {
        const float factor = swish_factor(step == MATMUL_POST_quick_gelu);
        EACH_PAIR_OF_COLUMNS put_pair(values, i, swish_pair(pair_at(values, i), factor));
        break;
    }
    case MATMUL_POST_gelu: EACH_BY(gelu);
    case MATMUL_POST_gelu_tanh: EACH_BY(gelu_tanh);
    case MATMUL_POST_tanh: EACH_BY(tanh);
    default: EACH_BY(sigmoid);
    }
}
#undef EACH_BY

#define EACH_GATED_BY(activation)                                                                   \
    EACH_PAIR_OF_COLUMNS put_pair(values, i, mul_f32x2(activation##_pair(pair_at(values, i)), pair_at(up, i))); \
    break
/* A step that joins columns: its values' activation times the others. */
INLINE void gate(int step, float *values, const float *up) {
    switch (step) {
    case MATMUL_POST_swiglu: EACH_GATED_BY(silu);
    case MATMUL_POST_geglu: EACH_GATED_BY(gelu);
    case MATMUL_POST_geglu_tanh: EACH_GATED_BY(gelu_tanh);
    case MATMUL_POST_reglu: EACH_GATED_BY(relu);
    }
}
#undef EACH_GATED_BY

#endif
