/* Bulk copies: bytes without a tensor map, one function an instruction. Addresses and sizes are multiples of 16. */
#ifndef KERNELS_GPU_PTX_BULK_CUH
#define KERNELS_GPU_PTX_BULK_CUH

#include "kernels/gpu/ptx/mbarrier.cuh"

/* Into shared memory; the barrier gets the bytes. */
PTX void bulk_load(uint32_t to, uint64_t from, uint32_t bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

/* The same with a policy of policy.cuh. */
PTX void bulk_load_policy(uint32_t to, uint64_t from, uint32_t bytes, uint32_t barrier, uint64_t policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier), "l"(policy) : "memory");
}

/* Out of shared memory, as part of the thread's bulk group (tma_commit, tma_wait): written there, or added to the numbers there, each at once. */
PTX void bulk_store(uint64_t to, uint32_t from, uint32_t bytes) { asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory"); }
PTX void bulk_add_f32(uint64_t to, uint32_t from, uint32_t bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}

/* Between what others wrote to global memory, as this thread has seen, and bulk copies there, in either order. */
PTX void fence_proxy_async_global(void) { asm volatile("fence.proxy.async.global;" ::: "memory"); }

#endif
