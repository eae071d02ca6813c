/* Scales of blocks on GPUs, from their largest magnitudes, bit for bit as num has them (rules.h): for whoever holds a block. */
#ifndef KERNELS_QUANTIZE_SCALES_CUH
#define KERNELS_QUANTIZE_SCALES_CUH

#include "kernels/gpu/plain/device.cuh"

#define INLINE static __device__ __forceinline__

INLINE float largest_code(int element) {
    return element == CUDA_e4m3 ? 448.0f : element == CUDA_e5m2 ? 57344.0f : element == CUDA_e3m2 ? 28.0f : element == CUDA_e2m3 ? 7.5f : 6.0f;
}

/* FP8's scale of a block, and what its elements are multiplied by. */
INLINE float fp8_scale(float amax) { return rules_is_nan(amax) ? NOT_A_NUMBER : rules_fp8_bounded(amax) / 448.0f; }
INLINE float fp8_inverse(float amax) { return rules_is_nan(amax) ? NOT_A_NUMBER : 448.0f / rules_fp8_bounded(amax); }

#endif
