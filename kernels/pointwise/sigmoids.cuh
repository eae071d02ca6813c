/* tanh, sigmoid and what is made of them, for pointwise_cuda.def: fp32 by few instructions without branches (activations.cuh; tanh to 2 ulp), double by the C library. On a host,
 * which has no such instructions, both are the C library's. */
#ifndef KERNELS_POINTWISE_SIGMOIDS_CUH
#define KERNELS_POINTWISE_SIGMOIDS_CUH

#include "kernels/common/cuda/device.cuh"

#define DEFINE_SIGMOIDS(REAL, F)                                                                                                                          \
    DEVICE REAL F(soft_tanh)(REAL x) { return F(tanh)(x); }                                                                                               \
    DEVICE REAL F(soft_sigmoid)(REAL x) { return 1 / (1 + F(exp)(-x)); }                                                                                  \
    DEVICE REAL F(soft_silu)(REAL x) { return x / (1 + F(exp)(-x)); }                                                                                     \
    DEVICE REAL F(soft_gelu)(REAL x) { return x * (1 + F(erf)(x * (REAL)0.70710678118654752440)) / 2; }                                                   \
    DEVICE REAL F(soft_gelu_tanh)(REAL x) { return x * (1 + F(tanh)((REAL)0.79788456080286535588 * (x + (REAL)0.044715 * x * x * x))) / 2; }

#define DOUBLE_NAME(name) name
DEFINE_SIGMOIDS(double, DOUBLE_NAME)
#if defined(__CUDACC__)
#include "kernels/common/cuda/activations.cuh"
/* Near 0, where 1 - 2 / (1 + e^2x) loses what is small, an odd polynomial, fitted so that its relative error below 0.55 is least: 4e-8. */
DEVICE float soft_tanhf(float x) {
    const float square = x * x, far = copysignf(tanh_exp(fabsf(x)), x);
    const float near = fmaf(fmaf(fmaf(0.01643738f, square, -0.05267169f), square, 0.13320723f), square, -0.33332947f);
    return fabsf(x) < 0.55f ? fmaf(x * square, near, x) : far;
}
DEVICE float soft_sigmoidf(float x) { return sigmoid(x); }
DEVICE float soft_siluf(float x) { return silu(x); }
DEVICE float soft_geluf(float x) { return gelu(x); }
DEVICE float soft_gelu_tanhf(float x) { return gelu_tanh(x); }
#else
#define FLOAT_NAME(name) name##f
DEFINE_SIGMOIDS(float, FLOAT_NAME)
#endif

#endif
