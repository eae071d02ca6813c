/* a of skinny.cuh as a quantiser in front of the product would have made it, from elements in bf16 or f16: with few rows each thread block does that for itself (quantise_unit.cuh), and a launch is
 * saved. Where a scale serves a row, its largest magnitude is found first, by the warps of the row. */
#ifndef KERNELS_GEMM_SKINNY_QUANTISE_CUH
#define KERNELS_GEMM_SKINNY_QUANTISE_CUH

#include "kernels/gemm/skinny/quantise_unit.cuh"

/* Warps that look at a row: all of them share the rows. */
INLINE int row_warps(int warps, int rows) { return warps >> (31 - __clz(2 * rows - 1)); }

/* Of each row its warps' largest magnitudes, [warp], at amax in smem; a barrier behind it. all: the batch has the only row, each warp a part. */
INLINE void find_row_amax(const skinny_arguments *g, const skinny_shape s, uint32_t amax, const narrow_batch *batch, bool all) {
    const int warp = threadIdx.x / 32, each = row_warps(warp_count(s), g->m), row = warp / each, units = (g->k + 7) / 8;
    const bool whole = is_whole(g, s);
    uint32_t most = 0;
#pragma unroll
    for (int j = 0; all && j < NARROW_TOGETHER; j++) {
        float x[8];
        floats_of_unit(g->a.format, batch->raw[j], x);
        most = max(most, largest_for_row(g->quantised, x));
    }
    for (int i = (warp % each) * 32 + threadIdx.x % 32; !all && row < g->m && i < units;) {
        uint4 raw[4];
#pragma unroll
        for (int j = 0; j < 4; j++, i += each * 32) {
            const uint8_t *data = rows_of_a(g, s) + row * g->a.row_bytes;
            raw[j] = make_uint4(0, 0, 0, 0);
            if (i < units) raw[j] = whole ? raw_unit(16, data + (int64_t)i * 16) : gather_unit(16, data, i * 8, min(8, g->k - i * 8));
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float x[8];
            floats_of_unit(g->a.format, raw[j], x);
            most = max(most, largest_for_row(g->quantised, x));
        }
    }
    most = redux_max(most);
    if (threadIdx.x % 32 == 0) st_shared_u32(amax + warp * 4, most);
    __syncthreads();
}

INLINE float row_amax(const skinny_arguments *g, const skinny_shape s, uint32_t amax, int row) {
    const int each = row_warps(warp_count(s), g->m);
    uint32_t most = 0;
    for (int i = 0; i < each; i++) most = max(most, ld_shared_u32(amax + (row * each + i) * 4));
    return __uint_as_float(most);
}

#endif
