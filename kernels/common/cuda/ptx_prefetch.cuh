/* Hints to the second-level cache. */
#ifndef KERNELS_PTX_PREFETCH_CUH
#define KERNELS_PTX_PREFETCH_CUH

#include "kernels/common/cuda/ptx_mbarrier.cuh"

/* So many bytes of global memory are brought there; the address and bytes are multiples of 16. */
PTX void prefetch_bytes(const void *from, uint32_t bytes) { asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory"); }

#endif
