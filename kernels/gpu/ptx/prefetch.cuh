/* Asking for lines of global memory ahead of reads, into the first-level cache (PTX ISA 9.7.9.16): a hint. */
#ifndef KERNELS_GPU_PTX_PREFETCH_CUH
#define KERNELS_GPU_PTX_PREFETCH_CUH

#include "kernels/gpu/ptx/mbarrier.cuh"

PTX void prefetch_l1(uint64_t address) { asm volatile("prefetch.global.L1 [%0];" ::"l"(address)); }

#endif
