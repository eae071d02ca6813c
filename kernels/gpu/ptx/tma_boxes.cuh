/* Loads of boxes of three and five axes, one function an instruction; see tma.cuh. */
#ifndef KERNELS_GPU_PTX_TMA_BOXES_CUH
#define KERNELS_GPU_PTX_TMA_BOXES_CUH

#include "kernels/gpu/ptx/tma.cuh"

PTX void tma_load_3d(uint32_t to, const tensor_map *map, uint32_t barrier, int x, int y, int z, uint64_t cache) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "l"(cache)
                 : "memory");
}

PTX void tma_load_5d(uint32_t to, const tensor_map *map, uint32_t barrier, int x, int y, int z, int w, int v, uint64_t cache) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v), "l"(cache)
                 : "memory");
}

#endif
