/* Elementary functions of one float, as expressions without branches or calls, so that loops over them vectorise.
 * Polynomials are weighted least-squares fits, iterated towards minimax; errors beside double, over all floats, are at each function and
 * tested by tests/kernel/test_math.c. Needs -fno-trapping-math to vectorise; does not set errno. */
#ifndef KERNELS_CPU_MATH_H
#define KERNELS_CPU_MATH_H

#include <stdint.h>
#include <string.h>

#if defined(__FMA__)
#define CPU_FMA(a, b, c) __builtin_fmaf(a, b, c)
#else
#define CPU_FMA(a, b, c) ((a) * (b) + (c))
#endif

static inline int32_t cpu_bits(float value) {
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float cpu_float(int32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* if_true where condition is 1, by masks: compilers keep it in vectors. */
static inline float cpu_select(int condition, float if_true, float if_false) {
    int32_t no = cpu_bits(if_false);
    return cpu_float(no ^ ((cpu_bits(if_true) ^ no) & -condition));
}

static inline float cpu_abs(float x) { return cpu_float(cpu_bits(x) & 0x7fffffff); }
static inline float cpu_copysign(float magnitude, float sign) { return cpu_float((cpu_bits(magnitude) & 0x7fffffff) | (cpu_bits(sign) & INT32_MIN)); }

/* 2^n for n from -126 to 127; some number for any other n, as a NaN on its way brings. */
static inline float cpu_power_of_two(int32_t n) { return cpu_float((int32_t)((uint32_t)(n + 127) << 23)); }

/* e^x within 1.5 ulp (subnormal results within one step); infinity above 88.72, 0 below -103.98, NaN for NaN. */
static inline float cpu_exp(float x) {
    const float magic = 12582912.0f;   /* 1.5 * 2^23: adding it rounds to an integer, which is then in the low bits */
    x = cpu_select(x > 89.0f, 89.0f, x);
    x = cpu_select(x < -105.0f, -105.0f, x);
    float shifted = CPU_FMA(x, 1.44269504f, magic);
    float n = shifted - magic;
    float r = CPU_FMA(n, -0.693359375f, x);          /* ln 2 in two parts; the first has 10 bits, so n times it is exact */
    r = CPU_FMA(n, 2.12194440e-4f, r);
    float p = 1.97903413e-4f;
    p = CPU_FMA(p, r, 1.39446591e-3f);
    p = CPU_FMA(p, r, 8.33349675e-3f);
    p = CPU_FMA(p, r, 4.16662954e-2f);
    p = CPU_FMA(p, r, 1.66666657e-1f);
    p = CPU_FMA(p, r, 0.5f);
    p = CPU_FMA(p, r * r, r) + 1.0f;
    int32_t exponent = cpu_bits(shifted) - cpu_bits(magic), half = exponent >> 1;   /* in two steps: 2^n itself may be out of range */
    return p * cpu_power_of_two(half) * cpu_power_of_two(exponent - half);
}

/* 1 / (1 + e^-x) within 2.5 ulp; 0 below -88.72, where e^-x is infinite and the result would be subnormal. */
static inline float cpu_sigmoid(float x) { return 1.0f / (1.0f + cpu_exp(-x)); }

/* x * sigmoid(x) within 3 ulp; -0 below -88.72. */
static inline float cpu_silu(float x) { return x / (1.0f + cpu_exp(-x)); }

/* tanh(x) within 2.5 ulp; 0 for -0. */
static inline float cpu_tanh(float x) {
    float t = cpu_abs(x), s = x * x;
    float p = 2.14760634e-3f;
    p = CPU_FMA(p, s, -8.18274729e-3f);
    p = CPU_FMA(p, s, 2.17029955e-2f);
    p = CPU_FMA(p, s, -5.39472103e-2f);
    p = CPU_FMA(p, s, 1.33332103e-1f);
    p = CPU_FMA(p, s, -3.33333313e-1f);
    float small = CPU_FMA(p * s, x, x);
    float large = 1.0f - 2.0f / (cpu_exp(2.0f * t) + 1.0f);
    return cpu_select(t > 0.625f, cpu_copysign(large, x), small);
}

/* erf(x) within 2 ulp. */
static inline float cpu_erf(float x) {
    float t = cpu_abs(x), s = x * x;
    float p = 8.36956915e-5f;
    p = CPU_FMA(p, s, -8.14258121e-4f);
    p = CPU_FMA(p, s, 5.20102168e-3f);
    p = CPU_FMA(p, s, -2.68593933e-2f);
    p = CPU_FMA(p, s, 1.12836957e-1f);
    p = CPU_FMA(p, s, -3.76126349e-1f);
    p = CPU_FMA(p, s, 1.28379166e-1f);
    float small = CPU_FMA(p, x, x);
    float u = cpu_select(t > 3.95f, 3.95f, t);      /* erf is 1 from there on */
    float q = -2.11138194e-5f;
    q = CPU_FMA(q, u, 4.34679620e-4f);
    q = CPU_FMA(q, u, -4.17211466e-3f);
    q = CPU_FMA(q, u, 2.51221955e-2f);
    q = CPU_FMA(q, u, -1.08284369e-1f);
    q = CPU_FMA(q, u, -6.33343041e-1f);
    q = CPU_FMA(q, u, -1.12951684f);
    q = CPU_FMA(q, u, 1.75084642e-4f);
    float large = 1.0f - cpu_exp(q);
    return cpu_select(t > 0.92f, cpu_copysign(large, x), small);
}

/* x * (1 + erf(x / sqrt 2)) / 2 within 2^-22 of |x|: x times the normal distribution's share below it. The share below -|x| is 2^p(|x|), with the polynomial of the GPU's gelu
 * (kernels/gpu/epilogue/activations.cuh): half of what erf takes. */
static inline float cpu_gelu(float x) {
    const float magic = 12582912.0f;   /* as in cpu_exp */
    float z = cpu_abs(x);
    float p = -2.096594243994332e-6f;
    p = CPU_FMA(p, z, 3.066296631004661e-5f);
    p = CPU_FMA(p, z, -1.4549681509379297e-4f);
    p = CPU_FMA(p, z, -2.3312075063586235e-4f);
    p = CPU_FMA(p, z, 7.185799069702625e-3f);
    p = CPU_FMA(p, z, -5.257819592952728e-2f);
    p = CPU_FMA(p, z, -0.4591820538043976f);
    p = CPU_FMA(p, z, -1.1511082649230957f);
    p = CPU_FMA(p, z, -0.9999999403953552f);
    p = p < -126.0f ? -126.0f : p;     /* NaN stays */
    float shifted = p + magic, r = p - (shifted - magic);
    float q = 1.53533591e-4f;
    q = CPU_FMA(q, r, 1.33988750e-3f);
    q = CPU_FMA(q, r, 9.61843692e-3f);
    q = CPU_FMA(q, r, 5.55033237e-2f);
    q = CPU_FMA(q, r, 0.240226477f);
    q = CPU_FMA(q, r, 0.693147182f);
    q = CPU_FMA(q, r, 1.0f);
    float share = q * cpu_power_of_two(cpu_bits(shifted) - cpu_bits(magic));
    return x * (0.5f + cpu_copysign(0.5f - share, x));
}

/* x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2, as x * sigmoid of twice the argument: within 2^-22 of |x|. */
static inline float cpu_gelu_tanh(float x) {
    float u = 1.59576912f * CPU_FMA(0.044715f * x, x * x, x);
    return x / (1.0f + cpu_exp(-u));
}

/* x * sigmoid(1.702 x) within 2^-22 of |x|. */
static inline float cpu_quick_gelu(float x) { return x / (1.0f + cpu_exp(-1.702f * x)); }

static inline float cpu_relu(float x) { return cpu_select(x < 0.0f, 0.0f, x); }   /* NaN stays */

#endif
