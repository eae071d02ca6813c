/* Conversions of fp32 to pairs of 8 and 4 bits, one function an instruction: nearest even, saturated; the first value in the lower half. NaN gives the NaN without a
 * sign, or the largest value where there is none. */
#ifndef KERNELS_GPU_PTX_SMALL_CUH
#define KERNELS_GPU_PTX_SMALL_CUH

#include "kernels/gpu/ptx/mbarrier.cuh"

PTX uint16_t cvt_e4m3x2(float low, float high) {
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}
PTX uint16_t cvt_e5m2x2(float low, float high) {
    uint16_t pair;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}

#if defined(__CUDA_ARCH_FAMILY_SPECIFIC__) && __CUDA_ARCH__ >= 1000
#define PTX_HAS_SMALL_CVT
/* A byte. */
PTX uint32_t cvt_e2m1x2(float low, float high) {
    uint32_t pair;
    asm("{\n.reg .b8 pair;\ncvt.rn.satfinite.e2m1x2.f32 pair, %1, %2;\nmov.b32 %0, {pair, pair, pair, pair};\n}" : "=r"(pair) : "f"(high), "f"(low));
    return pair & 0xff;
}
#endif

#endif
