/* What chips of the sm_100 family have for weights that are read once, one function an instruction: numbers of 4 bits to halves, and loads of 32 bytes. Images of other chips have none of it. */
#ifndef KERNELS_GPU_PTX_DECODE_CUH
#define KERNELS_GPU_PTX_DECODE_CUH

#include "kernels/gpu/ptx/policy.cuh"

#if defined(__CUDA_ARCH_FAMILY_SPECIFIC__) && __CUDA_ARCH__ >= 1000
#define PTX_HAS_DECODE

/* Two e2m1 codes, those of a word's byte number byte, exactly; the lower one in the lower half. */
PTX uint32_t cvt_f16x2_e2m1x2(uint32_t word, const int byte) {
    uint32_t pair;
#define CONVERT(own) asm("{\n.reg .b8 b0, b1, b2, b3;\nmov.b32 {b0, b1, b2, b3}, %1;\ncvt.rn.f16x2.e2m1x2 %0, " own ";\n}" : "=r"(pair) : "r"(word))
    if (byte == 0) CONVERT("b0");
    else if (byte == 1) CONVERT("b1");
    else if (byte == 2) CONVERT("b2");
    else CONVERT("b3");
#undef CONVERT
    return pair;
}

/* 32 bytes at a multiple of as many that leave no trace in L1. */
typedef struct global_wide { uint4 low, high; } global_wide;
PTX global_wide ld_global_policy_wide(const void *from, uint64_t policy) {
    global_wide x;
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"
                 : "=r"(x.low.x), "=r"(x.low.y), "=r"(x.low.z), "=r"(x.low.w), "=r"(x.high.x), "=r"(x.high.y), "=r"(x.high.z), "=r"(x.high.w)
                 : "l"(from), "l"(policy)
                 : "memory");
    return x;
}
#endif

#endif
