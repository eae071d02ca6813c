/* Clusters, named barriers, register budgets and election of a thread, one function an instruction. */
#ifndef KERNELS_GPU_PTX_CLUSTER_CUH
#define KERNELS_GPU_PTX_CLUSTER_CUH

#include "kernels/gpu/ptx/mbarrier.cuh"

PTX uint32_t cluster_rank(void) {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

PTX uint32_t cluster_blocks(void) {
    uint32_t blocks;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
    return blocks;
}

/* The number of the cluster along x of the grid. */
PTX uint32_t cluster_number(void) {
    uint32_t number;
    asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(number));
    return number;
}

/* The same place in the shared memory of block rank of the cluster. */
PTX uint32_t cluster_map(uint32_t address, uint32_t rank) {
    uint32_t mapped;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
    return mapped;
}

/* An arrival at a barrier in the cluster's window, behind what this thread has written in the cluster's shared memory; and the wait of a thread that reads it. */
PTX void mbarrier_release_cluster(uint32_t barrier) { asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory"); }
PTX void mbarrier_acquire_cluster(uint32_t barrier, uint32_t parity) {
    for (uint32_t done = 0; !done;)
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
}

PTX void cluster_arrive(void) { asm volatile("barrier.cluster.arrive.aligned;" ::: "memory"); }
PTX void cluster_arrive_relaxed(void) { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
PTX void cluster_wait(void) { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

/* Of threads threads, a multiple of 32; number 0 is __syncthreads. */
PTX void barrier_sync(int number, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory"); }

/* Counted by the barrier, without waiting for it. */
PTX void barrier_arrive(int number, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory"); }

/* Registers of each thread of the warpgroup from here on: multiples of 8, the kernel having a limit at its entry. */
#define setmaxnreg_dec(registers) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers))
#define setmaxnreg_inc(registers) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers))

/* True in one thread of the warp. */
PTX uint32_t elect_one(void) {
    uint32_t elected;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
    return elected;
}

/* Waits for the kernels before this one, where it was allowed to begin early. */
PTX void grid_wait(void) { asm volatile("griddepcontrol.wait;" ::: "memory"); }

/* The kernel after this one may begin, once all blocks of this one have come here or ended; it waits in its own grid_wait. */
PTX void grid_release(void) { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

#endif
