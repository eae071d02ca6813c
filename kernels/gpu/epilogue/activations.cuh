/* Activations of fp32 values by few instructions, with the hardware's approximate exponential and reciprocal (2 ulp and 1 ulp; denormals are 0). Each is within
 * 1e-6 of max(1, |y|) of the exact one. */
#ifndef KERNELS_GPU_EPILOGUE_ACTIVATIONS_CUH
#define KERNELS_GPU_EPILOGUE_ACTIVATIONS_CUH

#include "kernels/gpu/ptx/math.cuh"

#define ACTIVATION static __device__ __forceinline__

ACTIVATION float relu(float y) { return y < 0 ? 0 : y; }
ACTIVATION float sigmoid(float y) { return rcp(1 + ex2(y * -1.44269504f)); }
/* y sigmoid(s y), of the factor -s log2(e): that of silu, or of quick_gelu. */
ACTIVATION float swish(float y, float factor) { return y * rcp(1 + ex2(y * factor)); }
ACTIVATION float swish_factor(bool is_quick_gelu) { return is_quick_gelu ? -2.45546696f : -1.44269504f; }
ACTIVATION float silu(float y) { return swish(y, swish_factor(false)); }
ACTIVATION float tanh_exp(float y) { return fmaf(-2, rcp(1 + ex2(y * 2.88539008f)), 1); }

/* y times the normal distribution's share below y. The share below -|y| is 2^p(|y|); p was fitted so that max(|y|, 0.5) times the share's error is least: 1.2e-8. */
ACTIVATION float gelu(float y) {
    const float c[] = {-0.9999999403953552f, -1.1511082649230957f, -0.4591820538043976f, -0.05257819592952728f, 0.007185799069702625f,
                       -0.00023312075063586235f, -0.00014549681509379297f, 3.066296631004661e-05f, -2.096594243994332e-06f};
    float z = fabsf(y), p = c[8];
#pragma unroll
    for (int i = 7; i >= 0; i--) p = fmaf(p, z, c[i]);
    return y * (0.5f + copysignf(0.5f - ex2(p), y));
}

/* y (1 + tanh(u)) / 2 is y / (1 + exp(-2 u)), u = sqrt(2 / pi) (y + 0.044715 y^3); the factors hold log2(e). */
ACTIVATION float gelu_tanh(float y) { return y * rcp(1 + ex2(y * fmaf(y * y, -0.10294324f, -2.30220820f))); }

#endif
