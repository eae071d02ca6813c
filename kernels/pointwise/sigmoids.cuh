/* The functions that the formulas of op/pointwise.def name: tanh, sigmoid and what is made of them in fp32 by few instructions without branches (activations.cuh; tanh to
 * 2 ulp), all else by the C library. On a host, which has no such instructions, all are the C library's. */
#ifndef KERNELS_POINTWISE_SIGMOIDS_CUH
#define KERNELS_POINTWISE_SIGMOIDS_CUH

#include "kernels/gpu/plain/device.cuh"
#include "op/pointwise.h"

#define DOUBLE_NAME(name) name
#define FLOAT_NAME(name) name##f
OP_DEFINE_SIGMOIDS(DEVICE, double, DOUBLE_NAME)
OP_DEFINE_FUNCTIONS(DEVICE, double, DOUBLE_NAME)
OP_DEFINE_FUNCTIONS(DEVICE, float, FLOAT_NAME)
OP_DEFINE_DIVISIONS(DEVICE, float, FLOAT_NAME)
#if defined(__CUDACC__)
#include "kernels/gpu/epilogue/activations.cuh"
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
DEVICE float soft_quick_geluf(float x) { return swish(x, swish_factor(true)); }

/* Slopes. Of gelu: the normal distribution's share below x, which gelu is x times, and x times its density. The share is 0 or 1 long before 1e30, and rcp flushes what is beyond 2^126. */
DEVICE float soft_silu_slopef(float x) {
    const float s = sigmoid(x);
    return s * (1 + x * (1 - s));
}
DEVICE float soft_gelu_slopef(float x) {
    const float near = fminf(fmaxf(x, -1e30f), 1e30f), share = fabsf(x) < 1e-30f ? 0.5f : gelu(near) * rcp(near);
    return fmaf(x * 0.39894228f, ex2(x * x * -0.72134752f), share);
}
/* x sigmoid(u), u = 2 sqrt(2 / pi) (x + 0.044715 x^3), and so sigmoid(u) (1 + x (1 - sigmoid(u)) u'): as a sum, whose second part is 0 where a factor of it is and the others are finite. */
DEVICE float soft_gelu_tanh_slopef(float x) {
    const float square = fminf(x * x, 1e30f), s = sigmoid(x * fmaf(square, 0.07135482f, 1.59576912f));
    return fmaf(s * (1 - s) * x, fmaf(square, 0.21406445f, 1.59576912f), s);
}
DEVICE float soft_quick_gelu_slopef(float x) {
    const float s = sigmoid(x * 1.702f);
    return fmaf(s * (1 - s) * x, 1.702f, s);
}
#else
OP_DEFINE_SIGMOIDS(DEVICE, float, FLOAT_NAME)
OP_DEFINE_SLOPES(DEVICE, float, FLOAT_NAME)
#endif
OP_DEFINE_SLOPES(DEVICE, double, DOUBLE_NAME)

#endif
