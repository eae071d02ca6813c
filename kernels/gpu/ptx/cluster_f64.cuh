/* Doubles in the shared memory of a cluster's blocks, one function an instruction. */
#ifndef KERNELS_GPU_PTX_CLUSTER_F64_CUH
#define KERNELS_GPU_PTX_CLUSTER_F64_CUH

#include "kernels/gpu/ptx/cluster.cuh"

/* address: in the cluster's window, see cluster_map. */
PTX double ld_cluster_f64(uint32_t address) {
    double x;
    asm volatile("ld.shared::cluster.f64 %0, [%1];" : "=d"(x) : "r"(address) : "memory");
    return x;
}

#endif
