/* wgmma (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions"): d [64,n] fp32 in registers += a [64,k] b [n,k]^T, issued by the four warps of a
 * warpgroup. Shared operands are named by descriptors of tiles whose rows are 128 bytes of k, swizzled by 128 bytes, 1024 bytes aligned. Thread t of the
 * warpgroup holds, of d, rows 16 (t / 32) + t / 4 % 8 and 8 further, columns 8 j + 2 (t % 4) and the next: d[4 j + 0, 1] of the first row,
 * d[4 j + 2, 3] of the second. accumulate 0: d is written, not added to. Between wgmma_fence and the wait for their group the registers are not ours. */
#ifndef KERNELS_GPU_PTX_WGMMA_CUH
#define KERNELS_GPU_PTX_WGMMA_CUH

#include "kernels/gpu/ptx/mbarrier.cuh"

PTX void wgmma_fence(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
PTX void wgmma_commit(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
#define wgmma_wait(pending) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory")

/* PTX ISA, "Matrix Descriptor Format": address / 16, 1024 bytes from 8 rows to the next 8, swizzle of 128 bytes. One step of 32 bytes along k adds 2. */
PTX uint64_t wgmma_descriptor(uint32_t address) { return (uint64_t)1 << 62 | (uint64_t)64 << 32 | (uint64_t)1 << 16 | (address & 0x3ffff) >> 4; }

/* Of an operand [k,n] whose rows are 128 bytes of n: columns chunk_bytes further from 64 to the next 64. One step of 16 rows of k adds 128. */
PTX uint64_t wgmma_descriptor_columns(uint32_t address, uint32_t chunk_bytes) {
    return (uint64_t)1 << 62 | (uint64_t)64 << 32 | (uint64_t)(chunk_bytes >> 4) << 16 | (address & 0x3ffff) >> 4;
}

#define WGMMA_D8 \
    "%0, %1, %2, %3"
#define WGMMA_D16 \
    "%0, %1, %2, %3, %4, %5, %6, %7"
#define WGMMA_D32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_D64 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
    "%24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_D128 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
    "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, " \
    "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_D192 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
    "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, " \
    "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, " \
    "%68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, " \
    "%90, %91, %92, %93, %94, %95"
#define WGMMA_D256 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
    "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, " \
    "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, " \
    "%68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, " \
    "%90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, " \
    "%110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

#define WGMMA_IO4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA_IO8(d, i) WGMMA_IO4(d, i), WGMMA_IO4(d, i + 4)
#define WGMMA_IO16(d, i) WGMMA_IO8(d, i), WGMMA_IO8(d, i + 8)
#define WGMMA_IO32(d, i) WGMMA_IO16(d, i), WGMMA_IO16(d, i + 16)
#define WGMMA_IO64(d, i) WGMMA_IO32(d, i), WGMMA_IO32(d, i + 32)
#define WGMMA_IO96(d, i) WGMMA_IO64(d, i), WGMMA_IO32(d, i + 64)
#define WGMMA_IO128(d, i) WGMMA_IO64(d, i), WGMMA_IO64(d, i + 64)

/* a and b in shared memory. tail: what the instruction takes behind the two scale factors; a16, accumulate: numbers of the operands behind d's. */
#define WGMMA_SHARED(n, k, name, type, count, a, b, accumulates, tail)                                                                  \
    PTX void wgmma_n##n##_##name(float *d, uint64_t a_tile, uint64_t b_tile, int accumulate) {                                          \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " accumulates ", 0;\n"                                                          \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k" #k ".f32." type "." type " {" WGMMA_D##n "}, " a ", " b ", p, 1, 1" tail ";\n}" \
                     : WGMMA_IO##count(d, 0)                                                                                            \
                     : "l"(a_tile), "l"(b_tile), "r"(accumulate));                                                                      \
    }
#define WGMMA_SHARED_TYPES(n, count, a, b, accumulates)                                                                                 \
    WGMMA_SHARED(n, 16, bf16, "bf16", count, a, b, accumulates, ", 0, 0")                                                               \
    WGMMA_SHARED(n, 16, f16, "f16", count, a, b, accumulates, ", 0, 0")                                                                 \
    WGMMA_SHARED(n, 32, e4m3, "e4m3", count, a, b, accumulates, "")
WGMMA_SHARED_TYPES(16, 8, "%8", "%9", "%10")
WGMMA_SHARED_TYPES(32, 16, "%16", "%17", "%18")
WGMMA_SHARED_TYPES(64, 32, "%32", "%33", "%34")
WGMMA_SHARED_TYPES(128, 64, "%64", "%65", "%66")
WGMMA_SHARED_TYPES(192, 96, "%96", "%97", "%98")
WGMMA_SHARED_TYPES(256, 128, "%128", "%129", "%130")

/* Elements of 16 bits of which a lies as [k,m], b as [k,n], or both: see wgmma_descriptor_columns. */
#define WGMMA_TURNED(n, count, a, b, accumulates)                                                                                       \
    WGMMA_SHARED(n, 16, bf16_a_turned, "bf16", count, a, b, accumulates, ", 1, 0")                                                      \
    WGMMA_SHARED(n, 16, bf16_b_turned, "bf16", count, a, b, accumulates, ", 0, 1")                                                      \
    WGMMA_SHARED(n, 16, bf16_both_turned, "bf16", count, a, b, accumulates, ", 1, 1")                                                   \
    WGMMA_SHARED(n, 16, f16_a_turned, "f16", count, a, b, accumulates, ", 1, 0")                                                        \
    WGMMA_SHARED(n, 16, f16_b_turned, "f16", count, a, b, accumulates, ", 0, 1")                                                        \
    WGMMA_SHARED(n, 16, f16_both_turned, "f16", count, a, b, accumulates, ", 1, 1")
WGMMA_TURNED(64, 32, "%32", "%33", "%34")
WGMMA_TURNED(128, 64, "%64", "%65", "%66")
WGMMA_TURNED(192, 96, "%96", "%97", "%98")
WGMMA_TURNED(256, 128, "%128", "%129", "%130")

/* a in registers: of each k16 step, pairs of k 2 (t % 4) of the two rows of d, then pairs 8 further. */
#define WGMMA_REGISTERS(n, type, count, a, b, accumulates)                                                                              \
    PTX void wgmma_n##n##_##type##_registers(float *d, const uint32_t *a_pairs, uint64_t b_tile, int accumulate) {                      \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " accumulates ", 0;\n"                                                          \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #type "." #type " {" WGMMA_D##n "}, {" a "}, " b ", p, 1, 1, 0;\n}" \
                     : WGMMA_IO##count(d, 0)                                                                                            \
                     : "r"(a_pairs[0]), "r"(a_pairs[1]), "r"(a_pairs[2]), "r"(a_pairs[3]), "l"(b_tile), "r"(accumulate));               \
    }
WGMMA_REGISTERS(8, bf16, 4, "%4, %5, %6, %7", "%8", "%9")
WGMMA_REGISTERS(16, bf16, 8, "%8, %9, %10, %11", "%12", "%13")
WGMMA_REGISTERS(32, bf16, 16, "%16, %17, %18, %19", "%20", "%21")
WGMMA_REGISTERS(64, bf16, 32, "%32, %33, %34, %35", "%36", "%37")
WGMMA_REGISTERS(128, bf16, 64, "%64, %65, %66, %67", "%68", "%69")
WGMMA_REGISTERS(16, f16, 8, "%8, %9, %10, %11", "%12", "%13")
WGMMA_REGISTERS(32, f16, 16, "%16, %17, %18, %19", "%20", "%21")
WGMMA_REGISTERS(64, f16, 32, "%32, %33, %34, %35", "%36", "%37")
WGMMA_REGISTERS(128, f16, 64, "%64, %65, %66, %67", "%68", "%69")

/* The same with b [k,n], see wgmma_descriptor_columns. */
#define WGMMA_COLUMNS(n, type, count, a, b, accumulates)                                                                                \
    PTX void wgmma_n##n##_##type##_columns(float *d, const uint32_t *a_pairs, uint64_t b_tile, int accumulate) {                        \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " accumulates ", 0;\n"                                                          \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #type "." #type " {" WGMMA_D##n "}, {" a "}, " b ", p, 1, 1, 1;\n}" \
                     : WGMMA_IO##count(d, 0)                                                                                            \
                     : "r"(a_pairs[0]), "r"(a_pairs[1]), "r"(a_pairs[2]), "r"(a_pairs[3]), "l"(b_tile), "r"(accumulate));               \
    }
#define WGMMA_COLUMNS_TYPES(n, count, a, b, accumulates)                                                                                \
    WGMMA_COLUMNS(n, bf16, count, a, b, accumulates)                                                                                    \
    WGMMA_COLUMNS(n, f16, count, a, b, accumulates)
WGMMA_COLUMNS_TYPES(64, 32, "%32, %33, %34, %35", "%36", "%37")
WGMMA_COLUMNS_TYPES(128, 64, "%64, %65, %66, %67", "%68", "%69")
WGMMA_COLUMNS_TYPES(256, 128, "%128, %129, %130, %131", "%132", "%133")

#endif
