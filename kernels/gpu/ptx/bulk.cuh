/* Bulk copies: bytes without a tensor map, one function an instruction. Addresses and sizes are multiples of 16. */
#ifndef KERNELS_GPU_PTX_BULK_CUH
#define KERNELS_GPU_PTX_BULK_CUH

#include "kernels/gpu/ptx/mbarrier.cuh"

/* Into shared memory; the barrier gets the bytes. */
PTX void bulk_load(uint32_t to, uint64_t from, uint32_t bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

#endif
