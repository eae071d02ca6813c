/* What all lanes of a warp compute together and C has no word for, one function an instruction. */
#ifndef KERNELS_GPU_PTX_WARP_CUH
#define KERNELS_GPU_PTX_WARP_CUH

#include "kernels/gpu/ptx/mbarrier.cuh"

/* The largest of the 32. */
PTX uint32_t redux_max(uint32_t x) {
    uint32_t y;
    asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(y) : "r"(x));
    return y;
}

/* The least of the 32. */
PTX uint32_t redux_min(uint32_t x) {
    uint32_t y;
    asm volatile("redux.sync.min.u32 %0, %1, 0xffffffff;" : "=r"(y) : "r"(x));
    return y;
}

/* The sum of the 32. */
PTX uint32_t redux_add(uint32_t x) {
    uint32_t y;
    asm volatile("redux.sync.add.u32 %0, %1, 0xffffffff;" : "=r"(y) : "r"(x));
    return y;
}

#endif
