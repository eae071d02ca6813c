/* Arithmetic that C has no word for, one function an instruction. */
#ifndef KERNELS_PTX_MATH_CUH
#define KERNELS_PTX_MATH_CUH

#include "kernels/common/cuda/ptx_mbarrier.cuh"

/* 2^x to 2 ulp; denormal results are 0. */
PTX float ex2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The larger; NaN if either is. */
PTX float max_nan(float x, float y) {
    float z;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}

#endif
