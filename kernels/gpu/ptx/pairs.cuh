/* Arithmetic on pairs of fp32 in one instruction (sm_100 and later; PTX ISA, ".f32x2"), one function each. It takes one slot of issue for two results. */
#ifndef KERNELS_GPU_PTX_PAIRS_CUH
#define KERNELS_GPU_PTX_PAIRS_CUH

#include "kernels/gpu/ptx/mbarrier.cuh"

typedef uint64_t f32_pair;

PTX f32_pair pair_of_f32(float low, float high) {
    f32_pair x;
    asm("mov.b64 %0, {%1, %2};" : "=l"(x) : "f"(low), "f"(high));
    return x;
}
PTX float2 f32_of_pair(f32_pair x) {
    float2 y;
    asm("mov.b64 {%0, %1}, %2;" : "=f"(y.x), "=f"(y.y) : "l"(x));
    return y;
}
PTX uint2 u32_of_pair(f32_pair x) {
    uint2 y;
    asm("mov.b64 {%0, %1}, %2;" : "=r"(y.x), "=r"(y.y) : "l"(x));
    return y;
}

/* x * y + z. */
PTX f32_pair fma_f32x2(f32_pair x, f32_pair y, f32_pair z) {
    f32_pair w;
    asm("fma.rn.f32x2 %0, %1, %2, %3;" : "=l"(w) : "l"(x), "l"(y), "l"(z));
    return w;
}
PTX f32_pair mul_f32x2(f32_pair x, f32_pair y) {
    f32_pair z;
    asm("mul.rn.f32x2 %0, %1, %2;" : "=l"(z) : "l"(x), "l"(y));
    return z;
}
PTX f32_pair add_f32x2(f32_pair x, f32_pair y) {
    f32_pair z;
    asm("add.rn.f32x2 %0, %1, %2;" : "=l"(z) : "l"(x), "l"(y));
    return z;
}
/* Rounded towards minus infinity. */
PTX f32_pair add_down_f32x2(f32_pair x, f32_pair y) {
    f32_pair z;
    asm("add.rm.f32x2 %0, %1, %2;" : "=l"(z) : "l"(x), "l"(y));
    return z;
}

#endif
