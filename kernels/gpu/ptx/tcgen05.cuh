/* tcgen05 (PTX ISA, "TensorCore 5th Generation Family Instructions"), one function an instruction: products of tiles in shared memory, issued by one thread, with
 * sums in tensor memory. That is 128 lanes by 512 columns of 32 bits of a block; an address has the lane from bit 16 up. Each warp loads the 32 lanes of its
 * number modulo 4. Functions whose names have `pair` in them are .cta_group::2: two blocks of a cluster, ranks 2 i and 2 i + 1, work together, and one thread of the
 * first issues for both. All functions of a kernel are of one kind. */
#ifndef KERNELS_GPU_PTX_TCGEN05_CUH
#define KERNELS_GPU_PTX_TCGEN05_CUH

#include "kernels/gpu/ptx/mbarrier.cuh"

/* ---- tensor memory: by a whole warp ---- */

/* columns: a power of two from 32 on. Their address is written to shared memory at to. Of a pair a warp of each block does it. */
#define TMEM_MEMORY(name, group)                                                                                                       \
    PTX void tmem##name##_alloc(uint32_t to, uint32_t columns) {                                                                       \
        asm volatile("tcgen05.alloc." group ".sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(to), "r"(columns) : "memory");             \
    }                                                                                                                                  \
    PTX void tmem##name##_relinquish(void) { asm volatile("tcgen05.relinquish_alloc_permit." group ".sync.aligned;" ::: "memory"); }   \
    PTX void tmem##name##_dealloc(uint32_t address, uint32_t columns) {                                                                \
        asm volatile("tcgen05.dealloc." group ".sync.aligned.b32 %0, %1;" ::"r"(address), "r"(columns) : "memory");                    \
    }
TMEM_MEMORY(, "cta_group::1")
TMEM_MEMORY(_pair, "cta_group::2")

/* 16 columns of the thread's lane. The registers are there after tmem_wait_load. */
PTX void tmem_load_x16(uint32_t *r, uint32_t address) {
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x16.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, [%16];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]), "=r"(r[7]), "=r"(r[8]), "=r"(r[9]), "=r"(r[10]),
                   "=r"(r[11]), "=r"(r[12]), "=r"(r[13]), "=r"(r[14]), "=r"(r[15])
                 : "r"(address));
}
PTX void tmem_wait_load(void) { asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory"); }
/* The same, and nothing that reads these registers is moved in front of it, though other loads may be under way. count is known to the compiler. */
PTX void tmem_wait_load_of(uint32_t *r, const int count) {
    tmem_wait_load();
#pragma unroll
    for (int i = 0; i < count; i++) asm volatile("" : "+r"(r[i]));
}
/* 16 columns of the thread's lane, which loads see after tmem_wait_store. */
PTX void tmem_store_x16(uint32_t address, const float *x) {
    asm volatile("tcgen05.st.sync.aligned.32x32b.x16.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16};" ::"r"(address), "f"(x[0]),
                 "f"(x[1]), "f"(x[2]), "f"(x[3]), "f"(x[4]), "f"(x[5]), "f"(x[6]), "f"(x[7]), "f"(x[8]), "f"(x[9]), "f"(x[10]), "f"(x[11]), "f"(x[12]), "f"(x[13]),
                 "f"(x[14]), "f"(x[15])
                 : "memory");
}
PTX void tmem_wait_store(void) { asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory"); }

/* ---- order between threads: around what they synchronise by ---- */

PTX void tcgen05_fence_before(void) { asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory"); }
PTX void tcgen05_fence_after(void) { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }

/* ---- products: by one thread ---- */

/* One arrival at the barrier when all that this thread has issued is done. */
PTX void tcgen05_commit(uint32_t barrier) {
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier) : "memory");
}
/* One at the barrier in the same place of every block of the cluster whose bit is set in blocks. */
PTX void tcgen05_pair_commit(uint32_t barrier, uint16_t blocks) {
    asm volatile("tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;" ::"r"(barrier), "h"(blocks) : "memory");
}

/* Tiles whose rows are 128 bytes of k, swizzled by 128 bytes, 1024 bytes aligned ("Shared memory descriptor": address / 16, 1024 bytes from 8 rows to the next 8,
 * version 1, swizzle 2). One step of 32 bytes along k adds 2. */
PTX uint64_t tcgen05_descriptor(uint32_t address) { return (uint64_t)2 << 61 | (uint64_t)1 << 46 | (uint64_t)64 << 32 | (address & 0x3ffff) >> 4; }
/* Tiles that lie turned: rows of 64 elements of 16 bits along m or n, swizzled by 128 bytes, one row for each of k: 1024 bytes from 8 of k to the next 8, 8192 from 64 elements, of which there are 64 of k, to
 * the next 64. A step of 16 of k adds 128. */
PTX uint64_t tcgen05_turned_descriptor(uint32_t address) { return (uint64_t)2 << 61 | (uint64_t)1 << 46 | (uint64_t)64 << 32 | (uint64_t)512 << 16 | (address & 0x3ffff) >> 4; }
/* 32 rows of 16 bytes, one behind the other: 128 bytes from 8 rows to the next 8. */
PTX uint64_t tcgen05_rows_descriptor(uint32_t address) { return (uint64_t)1 << 46 | (uint64_t)8 << 32 | (address & 0x3ffff) >> 4; }

/* 32 rows of 16 bytes into four columns of each of the four groups of 32 lanes: a 512-byte tile of scales of 128 rows. Of a pair each block's rows into its own columns. */
PTX void tcgen05_copy_scales(uint32_t to, uint64_t rows) {
    asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" ::"r"(to), "l"(rows) : "memory");
}
PTX void tcgen05_pair_copy_scales(uint32_t to, uint64_t rows) {
    asm volatile("tcgen05.cp.cta_group::2.32x128b.warpx4 [%0], %1;" ::"r"(to), "l"(rows) : "memory");
}

/* d += a b^T, or, accumulate being 0, d = a b^T. idesc: "Instruction descriptor". Of a pair a has 128 rows in each block and d their sums; b has half of its rows in each. */
#define TCGEN05_MMA(name, group, kind)                                                                                                  \
    PTX void tcgen05_##name(uint32_t d, uint64_t a, uint64_t b, uint32_t idesc, uint32_t accumulate) {                                  \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\ntcgen05.mma." group ".kind::" kind " [%0], %1, %2, %3, p;\n}" ::"r"(d), \
                     "l"(a), "l"(b), "r"(idesc), "r"(accumulate)                                                                        \
                     : "memory");                                                                                                       \
    }
TCGEN05_MMA(mma_f16, "cta_group::1", "f16")
TCGEN05_MMA(mma_f8, "cta_group::1", "f8f6f4")
TCGEN05_MMA(pair_mma_f16, "cta_group::2", "f16")
TCGEN05_MMA(pair_mma_f8, "cta_group::2", "f8f6f4")

/* The same of operands with block scales at scales_a and scales_b in tensor memory: of a pair a block has those of its own rows of a, and those of all rows of b. */
#define TCGEN05_MMA_SCALED(name, group, kind)                                                                                           \
    PTX void tcgen05_##name(uint32_t d, uint64_t a, uint64_t b, uint32_t idesc, uint32_t scales_a, uint32_t scales_b, uint32_t accumulate) { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\ntcgen05.mma." group ".kind::" kind " [%0], %1, %2, %3, [%4], [%5], p;\n}" ::"r"(d), \
                     "l"(a), "l"(b), "r"(idesc), "r"(scales_a), "r"(scales_b), "r"(accumulate)                                          \
                     : "memory");                                                                                                       \
    }
TCGEN05_MMA_SCALED(mma_mxf8, "cta_group::1", "mxf8f6f4.block_scale.block32")
TCGEN05_MMA_SCALED(mma_mxf4, "cta_group::1", "mxf4.block_scale.block32")
TCGEN05_MMA_SCALED(mma_nvf4, "cta_group::1", "mxf4nvf4.block_scale.block16")
TCGEN05_MMA_SCALED(pair_mma_mxf8, "cta_group::2", "mxf8f6f4.block_scale.block32")
TCGEN05_MMA_SCALED(pair_mma_mxf4, "cta_group::2", "mxf4.block_scale.block32")
TCGEN05_MMA_SCALED(pair_mma_nvf4, "cta_group::2", "mxf4nvf4.block_scale.block16")

#endif
