/* The copy engine: boxes of tensor maps into and out of shared memory, one function an instruction. Loads end by bytes on an mbarrier, stores by bulk
 * groups of the thread that issued them. */
#ifndef KERNELS_GPU_PTX_TMA_CUH
#define KERNELS_GPU_PTX_TMA_CUH

#include "kernels/gpu/ptx/mbarrier.cuh"

/* A tensor map as the driver encodes it, a kernel parameter (__grid_constant__). */
typedef struct tensor_map { __align__(128) uint64_t opaque[16]; } tensor_map;

/* L2 policies of cache_hint: what is read once gives way to what is read again. */
enum tma_cache : uint64_t { TMA_EVICT_NORMAL = 0x1000000000000000, TMA_EVICT_FIRST = 0x12F0000000000000, TMA_EVICT_LAST = 0x14F0000000000000 };

PTX void tma_prefetch(const tensor_map *map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

PTX void tma_load_2d(uint32_t to, const tensor_map *map, uint32_t barrier, int x, int y, uint64_t cache) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "l"(cache)
                 : "memory");
}

PTX void tma_load_4d(uint32_t to, const tensor_map *map, uint32_t barrier, int x, int y, int z, int w, uint64_t cache) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "l"(cache)
                 : "memory");
}

/* Into the same place of every block of the cluster whose bit is set in blocks; each block's own barrier gets the bytes. */
PTX void tma_load_2d_multicast(uint32_t to, const tensor_map *map, uint32_t barrier, int x, int y, uint16_t blocks, uint64_t cache) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
                 "[%0], [%1, {%3, %4}], [%2], %5, %6;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "h"(blocks), "l"(cache)
                 : "memory");
}

PTX void tma_store_2d(const tensor_map *map, uint32_t from, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(from), "r"(x), "r"(y) : "memory");
}

PTX void tma_store_4d(const tensor_map *map, uint32_t from, int x, int y, int z, int w) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map), "r"(from), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}

PTX void tma_commit(void) { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/* Until all but pending groups of this thread have read their shared memory, */
#define tma_wait_read(pending) asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory")
/* .. and have written. */
#define tma_wait(pending) asm volatile("cp.async.bulk.wait_group %0;" ::"n"(pending) : "memory")

/* Ordinary accesses to shared memory before this come before the engine's (and wgmma's) after it. */
PTX void fence_proxy_async(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#endif
