/* mma.sync (PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type"): d [16,8] fp32 += a [16,16] b [8,16]^T, by one warp. Lane l has, with
 * g = l / 4 and t = l % 4, of d rows g and g + 8 (d[0, 1] and d[2, 3]), columns 2 t and the next; of a rows g and g + 8 in turn, pairs of k 2 t (a[0], a[1]) and 8
 * further (a[2], a[3]); of b column g, the same pairs (b_low, b_high). Any order of k will do that is the same in a and b. */
#ifndef KERNELS_GPU_PTX_MMA_CUH
#define KERNELS_GPU_PTX_MMA_CUH

#include "kernels/gpu/ptx/mbarrier.cuh"

#define PTX_MMA(name, type)                                                                                                              \
    PTX void name(float *d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b_low, uint32_t b_high) {                       \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                                    \
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b_low), "r"(b_high));                                                     \
    }
PTX_MMA(mma_bf16, "bf16")
PTX_MMA(mma_f16, "f16")

/* The same of tf32, "Matrix Fragments for mma.m16n8k8", which are fp32 of which the last 13 bits are not read: a [16,8], b [8,8]^T; of a rows g and g + 8 in turn, k t (a[0], a[1]) and 4 further (a[2], a[3]); of b column g, the same k. */
PTX void mma_tf32(float *d, const uint32_t *a, uint32_t b_low, uint32_t b_high) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_low), "r"(b_high));
}

#endif
