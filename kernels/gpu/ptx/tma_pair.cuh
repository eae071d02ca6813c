/* Loads of boxes for pairs of thread blocks (.cta_group::2), one function an instruction; see tma.cuh. The bytes of a block's box may be counted by the barrier of
 * either block of its pair: barrier is an address in the cluster's window (cluster_map). */
#ifndef KERNELS_GPU_PTX_TMA_PAIR_CUH
#define KERNELS_GPU_PTX_TMA_PAIR_CUH

#include "kernels/gpu/ptx/tma.cuh"

PTX void tma_pair_load_2d(uint32_t to, const tensor_map *map, uint32_t barrier, int x, int y, uint64_t cache) {
    asm volatile("cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "l"(cache)
                 : "memory");
}

PTX void tma_pair_load_3d(uint32_t to, const tensor_map *map, uint32_t barrier, int x, int y, int z, uint64_t cache) {
    asm volatile("cp.async.bulk.tensor.3d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "l"(cache)
                 : "memory");
}

/* Into the same place of every block of the cluster whose bit is set in blocks. All of the bytes of a pair are counted by the barrier of its block that barrier names. */
PTX void tma_pair_load_2d_multicast(uint32_t to, const tensor_map *map, uint32_t barrier, int x, int y, uint16_t blocks, uint64_t cache) {
    asm volatile("cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
                 "[%0], [%1, {%3, %4}], [%2], %5, %6;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "h"(blocks), "l"(cache)
                 : "memory");
}

PTX void tma_pair_load_3d_multicast(uint32_t to, const tensor_map *map, uint32_t barrier, int x, int y, int z, uint16_t blocks, uint64_t cache) {
    asm volatile("cp.async.bulk.tensor.3d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
                 "[%0], [%1, {%3, %4, %5}], [%2], %6, %7;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(blocks), "l"(cache)
                 : "memory");
}

#endif
