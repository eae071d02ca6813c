/* Words of global memory by which thread blocks of a grid wait for each other, one function an instruction. */
#ifndef KERNELS_GPU_PTX_GLOBAL_CUH
#define KERNELS_GPU_PTX_GLOBAL_CUH

#include "kernels/gpu/ptx/mbarrier.cuh"

/* What the word was before. Orders nothing else. */
PTX uint32_t atom_add_relaxed(uint32_t *word, uint32_t x) {
    uint32_t before;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(x) : "memory");
    return before;
}

/* What the word was before. All that the thread, and those that it has waited for, wrote is seen by who finds its addition there in the same way, and by who waits for that. */
PTX uint32_t atom_add_acq_rel(uint32_t *word, uint32_t x) {
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(x) : "memory");
    return before;
}

/* Behind all that the thread, and those that it has waited for, wrote: seen by who reads the word with ld_acquire. */
PTX void red_add_release(uint32_t *word, uint32_t x) { asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(word), "r"(x) : "memory"); }

PTX uint32_t ld_acquire(const uint32_t *word) {
    uint32_t x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(word) : "memory");
    return x;
}

/* Lets others go first, for about so long. */
PTX void nanosleep(uint32_t ns) { asm volatile("nanosleep.u32 %0;" ::"r"(ns)); }

#endif
