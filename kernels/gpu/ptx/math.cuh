/* Arithmetic that C has no word for, one function an instruction. */
#ifndef KERNELS_GPU_PTX_MATH_CUH
#define KERNELS_GPU_PTX_MATH_CUH

#include "kernels/gpu/ptx/mbarrier.cuh"

/* x, of which the compiler knows nothing: what is made of it in a loop is made there again rather than kept in a register. */
PTX int anew(int x) {
    asm volatile("" : "+r"(x));
    return x;
}

/* The other way round: x is held in a register rather than made again where it is used. */
PTX float held(float x) {
    asm volatile("" : "+f"(x));
    return x;
}

/* All 64 bits of a product. */
PTX uint64_t mul_wide(uint32_t x, uint32_t y) {
    uint64_t z;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(z) : "r"(x), "r"(y));
    return z;
}

/* 2^x to 2 ulp; denormal results are 0. */
PTX float ex2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The logarithm of x to base 2: of x from a half to 2 within 2^-22, of others to 2 ulp; denormal arguments are 0. */
PTX float lg2(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 1 / x to 1 ulp; denormal arguments and results are 0. */
PTX float rcp(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The larger; NaN if either is. */
PTX float max_nan(float x, float y) {
    float z;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}

/* Of each half the larger magnitude, under a sign that means nothing; NaN if either is. */
PTX uint32_t max_abs_bf16x2(uint32_t x, uint32_t y) {
    uint32_t z;
    asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    return z;
}
PTX uint32_t max_abs_f16x2(uint32_t x, uint32_t y) {
    uint32_t z;
    asm("max.NaN.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    return z;
}
/* x * y + z of each half, rounded once; the smaller of each half, which is the other one where one is a NaN. */
PTX uint32_t fma_bf16x2(uint32_t x, uint32_t y, uint32_t z) {
    uint32_t w;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(w) : "r"(x), "r"(y), "r"(z));
    return w;
}
PTX uint32_t min_bf16x2(uint32_t x, uint32_t y) {
    uint32_t z;
    asm("min.bf16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    return z;
}

#endif
