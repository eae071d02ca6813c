/* Copies that say how long the second-level cache should keep what they read (PTX ISA 9.7.9.18). */
#ifndef KERNELS_GPU_PTX_POLICY_CUH
#define KERNELS_GPU_PTX_POLICY_CUH

#include "kernels/gpu/ptx/mbarrier.cuh"

/* What is read once gives way before all else: to instructions, arguments and activations, which the next launches want. */
PTX uint64_t policy_first(void) {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* 16 bytes into shared memory (valid 16; or zeros, valid 0) that leave no trace in L1. */
PTX void cp_async_policy(uint32_t to, const void *from, int valid, uint64_t policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from), "r"(valid), "l"(policy) : "memory");
}

/* 16 bytes that leave no trace in L1. */
PTX uint4 ld_global_policy(const void *from, uint64_t policy) {
    uint4 x;
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(from), "l"(policy) : "memory");
    return x;
}

#endif
