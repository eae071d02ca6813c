/* Loads of boxes that say nothing of the second-level cache, one function an instruction; see tma.cuh, and tma_pair.cuh of those of pairs. A hint is two registers that are filled for each load. */
#ifndef KERNELS_GPU_PTX_TMA_PLAIN_CUH
#define KERNELS_GPU_PTX_TMA_PLAIN_CUH

#include "kernels/gpu/ptx/tma.cuh"

PTX void tma_bring_2d(uint32_t to, const tensor_map *map, uint32_t barrier, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y) : "memory");
}
PTX void tma_bring_3d(uint32_t to, const tensor_map *map, uint32_t barrier, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

PTX void tma_pair_bring_2d(uint32_t to, const tensor_map *map, uint32_t barrier, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y)
                 : "memory");
}
PTX void tma_pair_bring_3d(uint32_t to, const tensor_map *map, uint32_t barrier, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y),
                 "r"(z)
                 : "memory");
}
PTX void tma_pair_bring_2d_multicast(uint32_t to, const tensor_map *map, uint32_t barrier, int x, int y, uint16_t blocks) {
    asm volatile("cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to), "l"(map), "r"(barrier),
                 "r"(x), "r"(y), "h"(blocks)
                 : "memory");
}
PTX void tma_pair_bring_3d_multicast(uint32_t to, const tensor_map *map, uint32_t barrier, int x, int y, int z, uint16_t blocks) {
    asm volatile("cp.async.bulk.tensor.3d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to), "l"(map), "r"(barrier),
                 "r"(x), "r"(y), "r"(z), "h"(blocks)
                 : "memory");
}

#endif
