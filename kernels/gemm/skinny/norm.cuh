/* layer_norm and rms_norm of a's rows by the product that reads them, bit for bit as kernels/norm/norm_rows.cu has them: with few rows each thread block does that for itself, and a launch is
 * saved. Rows come to smem as they lie, are read there for the statistics and once more to be scaled, and then all else reads them there. Sums are those of norm_rows.cu: its threads, group of them
 * a row with up to four pieces of 8 elements each, are lanes here, and its warps are taken in turn by the warps that share a row. */
#ifndef KERNELS_GEMM_SKINNY_NORM_CUH
#define KERNELS_GEMM_SKINNY_NORM_CUH

#include "kernels/gemm/skinny/norm_sums.cuh"

/* Where weight and bias, and then the sums, lie behind the rows. */
INLINE uint32_t norm_columns(const skinny_arguments *g) {
    extern __shared__ __align__(1024) uint8_t shared[];
    return shared_address(shared) + g->norm.at + g->m * g->k * 2;
}
INLINE int column_bytes(const skinny_arguments *g) { return g->k * (g->norm.columns == MATMUL_f32 ? 4 : 2); }
INLINE uint32_t norm_sums(const skinny_arguments *g) { return norm_columns(g) + ((g->norm.weight != 0) + (g->norm.bias != 0)) * column_bytes(g); }

INLINE void bring_unit(uint32_t to, const uint8_t *from) {
    if (((uint64_t)from & 15) == 0) cp_async(to, from, 16, 16);
    else copy_bytes(to, from, 16);
}

/* Weight and bias on their way to smem, before anything else is. */
INLINE void fetch_columns(const skinny_arguments *g, const skinny_shape s) {
    uint32_t to = norm_columns(g);
#pragma unroll 1
    for (int i = 0; i < 2; i++) {
        const uint8_t *from = (const uint8_t *)(i == 0 ? g->norm.weight : g->norm.bias);
        if (from == NULL) continue;
#pragma unroll 1
        for (int at = threadIdx.x * 16; at < column_bytes(g); at += thread_count(s) * 16) bring_unit(to + at, from + at);
        to += column_bytes(g);
    }
}

/* Eight of a column's numbers, from unit i on. */
INLINE void load_column(const skinny_arguments *g, uint32_t column, int i, float y[8]) {
    if (g->norm.columns != MATMUL_f32) {
        floats_of_unit(g->norm.columns, ld_shared_u32x4(column + i * 16), y);
        return;
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint4 four = ld_shared_u32x4(column + i * 32 + half * 16);
#pragma unroll
        for (int j = 0; j < 4; j++) y[half * 4 + j] = __uint_as_float(word_of(four, j));
    }
}

/* All rows; a barrier behind it. Warps without a row wait with the others. */
INLINE void normalise_rows(const skinny_arguments *g, const skinny_shape s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const int warp = threadIdx.x / 32, each = warp_count(s) >> (31 - __clz(2 * g->m - 1)), row = warp / each, first = warp % each * 32 + threadIdx.x % 32, step = each * 32;
    const bool has_row = row < g->m;
    const norm_part p = {shared_address(shared) + g->norm.at + row * g->k * 2, has_row ? warp % each * 32 : SKINNY_NORM_PARTS * 32, step, has_row ? g->k / 8 : 0};
    const uint8_t *from = (const uint8_t *)g->a.data + row * g->a.row_bytes;
    const uint32_t columns = norm_columns(g), sums = norm_sums(g) + row * (3 * SKINNY_NORM_PARTS * 4), squares = sums + SKINNY_NORM_PARTS * 4, rest = squares + SKINNY_NORM_PARTS * 4;
    float mean = 0, low = 0;
#pragma unroll 1
    for (int i = first; i < p.units; i += step) bring_unit(p.data + i * 16, from + i * 16);
    cp_async_commit();
    cp_async_wait(0);
    __syncthreads();
    if (g->norm.centred) {
        store_sums(&g->norm, g->a.format, &p, false, 0, sums);
        __syncthreads();
        mean = has_row ? add_sums(&g->norm, sums) * g->norm.by_count : 0;
        store_sums(&g->norm, g->a.format, &p, false, mean, rest);
    }
    store_sums(&g->norm, g->a.format, &p, true, mean, squares);
    __syncthreads();
    if (g->norm.centred && has_row) low = add_sums(&g->norm, rest) * g->norm.by_count;
    const float variance = (has_row ? add_sums(&g->norm, squares) : 0) * g->norm.by_count - low * low, scale = rsqrtf((variance < 0 ? 0 : variance) + g->norm.eps), shift = -low * scale;
#pragma unroll 1
    for (int i = first; i < p.units; i += step) {
        float x[8], y[8];
        floats_of_unit(g->a.format, ld_shared_u32x4(p.data + i * 16), x);
#pragma unroll
        for (int e = 0; e < 8; e++) x[e] = fmaf(g->norm.centred ? x[e] - mean : x[e], scale, shift);
        if (g->norm.weight != 0) {
            load_column(g, columns, i, y);
#pragma unroll
            for (int e = 0; e < 8; e++) x[e] *= y[e];
        }
        if (g->norm.bias != 0) {
            load_column(g, columns + (g->norm.weight != 0 ? column_bytes(g) : 0), i, y);
#pragma unroll
            for (int e = 0; e < 8; e++) x[e] += y[e];
        }
        st_shared_u32x4(p.data + i * 16, halves_of_unit(g->a.format, x));
    }
    __syncthreads();
}

#endif
