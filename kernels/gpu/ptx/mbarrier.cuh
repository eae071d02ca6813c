/* mbarrier instructions (PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier"), one function each. Barriers are 8 bytes of
 * shared memory, named by their 32-bit address. A phase ends when all arrivals and all announced bytes have come; who waits names the phase's parity. */
#ifndef KERNELS_GPU_PTX_MBARRIER_CUH
#define KERNELS_GPU_PTX_MBARRIER_CUH

#include <stdint.h>

#define PTX static __device__ __forceinline__

PTX uint32_t shared_address(const void *pointer) { return (uint32_t)__cvta_generic_to_shared(pointer); }

PTX void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/* Makes initialised barriers visible to the other blocks of the cluster and to the copy engine. */
PTX void fence_mbarrier_init(void) { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

PTX void mbarrier_arrive(uint32_t barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }

/* barrier: an address in the cluster's window, see cluster_map. */
PTX void mbarrier_arrive_cluster(uint32_t barrier) { asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory"); }

PTX void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

PTX uint32_t mbarrier_try_wait(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done;
}

/* Whether the phase has ended, without waiting for it. */
PTX bool mbarrier_test_wait(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done != 0;
}

PTX void mbarrier_wait(uint32_t barrier, uint32_t parity) {
    while (!mbarrier_try_wait(barrier, parity)) {}
}

#endif
