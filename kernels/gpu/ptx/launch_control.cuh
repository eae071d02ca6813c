/* Cluster launch control (PTX ISA, "clusterlaunchcontrol"; sm_100 and later), one function an instruction: a running cluster asks for one that was not launched yet, and does its work. */
#ifndef KERNELS_GPU_PTX_LAUNCH_CONTROL_CUH
#define KERNELS_GPU_PTX_LAUNCH_CONTROL_CUH

#include "kernels/gpu/ptx/mbarrier.cuh"

/* 16 bytes will come to response, and be counted by barrier, in the same places of every block of the cluster. Both are addresses of this block's shared memory. */
PTX void launch_claim(uint32_t response, uint32_t barrier) {
    asm volatile("clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.multicast::cluster::all.b128 [%0], [%1];" ::"r"(response), "r"(barrier) : "memory");
}

/* blockIdx.x of the first block of the cluster that a response grants; -1: it grants none. That may be so while clusters are pending, which are then launched by the hardware: who asked has nothing
 * more to do, but not all is done. */
PTX int launch_claimed(uint32_t response) {
    int first;
    asm volatile("{\n.reg .pred p;\n.reg .b128 r;\n.reg .b32 x;\nld.shared.b128 r, [%1];\nmov.b32 x, 0xffffffff;\n"
                 "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, r;\n@p clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {x, _, _, _}, r;\nmov.b32 %0, x;\n}"
                 : "=r"(first)
                 : "r"(response)
                 : "memory");
    return first;
}

/* As mbarrier_arrive_expect, at a barrier in the cluster's window. */
PTX void mbarrier_arrive_expect_cluster(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

#endif
