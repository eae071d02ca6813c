/* The statistics of rows in shared memory, in the order of norm_rows.cu's sums: its threads, group of them a row with up to four pieces of 8 elements each, are lanes here, and its warps are taken in turn
 * by the warps that share a row. */
#ifndef KERNELS_GEMM_SKINNY_NORM_SUMS_CUH
#define KERNELS_GEMM_SKINNY_NORM_SUMS_CUH

#include "kernels/gemm/skinny/quantise_unit.cuh"
#include "kernels/gemm/skinny/skinny.h"

INLINE uint4 halves_of_unit(int format, const float x[8]) {
    if (format == MATMUL_bf16) return make_uint4(cvt_bf16x2(x[0], x[1]), cvt_bf16x2(x[2], x[3]), cvt_bf16x2(x[4], x[5]), cvt_bf16x2(x[6], x[7]));
    return make_uint4(cvt_f16x2(x[0], x[1]), cvt_f16x2(x[2], x[3]), cvt_f16x2(x[4], x[5]), cvt_f16x2(x[6], x[7]));
}

/* Threads whose sums there are: four warps of them at least. */
INLINE int norm_threads(const skinny_norm *norm) { return (norm->group + 127) & ~127; }

/* What a warp has of a row: lanes are threads begin + lane of the norm's, and those of begin + stride, ..; data: the row in smem. */
typedef struct norm_part { uint32_t data; int begin, stride, units; } norm_part;

/* Of each part of the row so many sums in order (squares: of squares around mean), added over its lanes, to places of 16 numbers; those of no part become 0. */
INLINE void store_sums(const skinny_norm *norm, int format, const norm_part *p, const bool squares, float mean, uint32_t sums) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int begin = p->begin; begin < norm_threads(norm); begin += p->stride) {
        const int thread = begin + lane;
        float all = 0;
#pragma unroll 1
        for (int i = thread; thread < norm->group && i < p->units; i += norm->group) {
            float x[8], sum;
            floats_of_unit(format, ld_shared_u32x4(p->data + i * 16), x);
            if (norm->centred) {
#pragma unroll
                for (int e = 0; e < 8; e++) x[e] -= mean;
            }
            sum = squares ? x[0] * x[0] : x[0];
#pragma unroll
            for (int e = 1; e < 8; e++) sum = squares ? fmaf(x[e], x[e], sum) : sum + x[e];
            all += sum;
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) all += __shfl_xor_sync(~0u, all, step);
        if (lane == 0) st_shared_f32(sums + begin / 32 * 4, all);
    }
}

INLINE float add_sums(const skinny_norm *norm, uint32_t sums) {
    float x = 0;
#pragma unroll 1
    for (int i = 0; i < norm_threads(norm) / 8; i += 16) {
        const uint4 four = ld_shared_u32x4(sums + i);
        x += __uint_as_float(four.x) + __uint_as_float(four.y) + (__uint_as_float(four.z) + __uint_as_float(four.w));
    }
    return x;
}

#endif
