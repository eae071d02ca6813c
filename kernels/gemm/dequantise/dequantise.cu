/* y [rows,k] bf16 (gmem) = codes times block scales (gmem), exactly: what the tile kernel for bf16 multiplies where an operand is quantised in blocks, or has rows
 * that TMA cannot take. A thread makes 8 numbers of a row at a time, 16 bytes; nothing is shared. Elements that are no bf16 number times their
 * scale (beyond its range) are rounded once.
 *
 * A code times an fp32 scale is no bf16 number, but the sum of two of them to within 2^-18 of it: two planes, one behind the other along k, with which the other operand, in bf16, lies twice:
 *
 *     a [m,k]   ->  a | a         b [n,k]  ->  bf16(b) | bf16(b - bf16(b))
 *
 * Speed: README.md. */
#include "kernels/gemm/dequantise/dequantise.h"
#include "kernels/gemm/rows.cuh"

/* Has no row of a the matrix of b in which row row of it lies? */
INLINE bool is_unused(const dequantise_arguments *g, int row) {
    const int32_t *offsets = (const int32_t *)g->groups.offsets;
    int group = row / g->group_rows;
    return offsets[group] <= (group > 0 && g->groups.apart == 0 ? offsets[group - 1] : 0);
}

/* Where the fp32 scales of a row begin: blocks of rows begin anew with each matrix. */
INLINE int64_t wide_scales_of_row(const matmul_scales *x, int row) {
    int matrix = row / x->matrix_rows, own = row - matrix * x->matrix_rows;
    return matrix * x->matrix_step + (int64_t)(own / x->row_blocks) * x->row_step;
}

/* The block scale of fp32 of elements at..at + 7 of a row. */
INLINE float wide_scale(const matmul_rows *x, int64_t scales, int at) { return ((const float *)x->scales.data)[scale_index(&x->scales, scales, at / x->block)]; }

INLINE float finite_or_zero(float x) { return (__float_as_uint(x) & 0x7f800000) == 0x7f800000 ? 0 : x; }

INLINE uint4 pack_unit(const float y[DEQUANTISE_UNIT]) { return make_uint4(cvt_bf16x2(y[0], y[1]), cvt_bf16x2(y[2], y[3]), cvt_bf16x2(y[4], y[5]), cvt_bf16x2(y[6], y[7])); }

/* The second plane beside the first one: of operand 1 what is left, of operand 0 the same again. What is not finite counts in the first plane alone: times a second part of any sign, or of zero, it would be no number. */
INLINE uint4 second_plane(const int operand, const uint4 first, float y[DEQUANTISE_UNIT]) {
#pragma unroll
    for (int j = 0; j < DEQUANTISE_UNIT; j++) {
        uint32_t pair = word_of(first, j / 2);
        y[j] = finite_or_zero(operand == 0 ? y[j] : y[j] - __uint_as_float(j % 2 == 0 ? pair << 16 : pair & 0xffff0000));
    }
    return pack_unit(y);
}

INLINE void dequantise_rows(const dequantise_arguments *g, const int operand, int block, int blocks) {
    const matmul_rows *x = &g->rows[operand];
    int units = (g->k + DEQUANTISE_UNIT - 1) / DEQUANTISE_UNIT, across = 1 << g->across, down = DEQUANTISE_THREADS >> g->across;
    bool aligned = is_aligned(x);
    for (int row = block * down + (threadIdx.x >> g->across); row < g->count[operand]; row += blocks * down) {
        bool grouped = operand == 1 && g->group_rows > 0;
        int from = grouped ? g->groups.first * g->group_rows + row : row;
        if (grouped && from % g->group_rows >= g->group_spill && is_unused(g, from)) continue;
        int64_t scales = x->scale == MATMUL_FORMAT_COUNT ? 0 : x->scale == MATMUL_f32 ? wide_scales_of_row(&x->scales, from) : scales_of_row(&x->scales, from);
        uint4 *to = (uint4 *)g->to[operand] + (int64_t)row * units * g->planes;
#pragma unroll 2
        for (int unit = threadIdx.x & (across - 1); unit < units; unit += across) {
            float y[DEQUANTISE_UNIT];
            load_unit(x, from, scales, aligned, unit * DEQUANTISE_UNIT, g->k, y);
            if (x->scale == MATMUL_f32) {
                float scale = wide_scale(x, scales, unit * DEQUANTISE_UNIT);
#pragma unroll
                for (int j = 0; j < DEQUANTISE_UNIT; j++) y[j] *= scale;
            }
            const uint4 first = pack_unit(y);
            to[unit] = first;
            if (g->planes > 1) to[units + unit] = second_plane(operand, first, y);
        }
    }
}

extern "C" __global__ void __launch_bounds__(DEQUANTISE_THREADS) matmul_decode(const __grid_constant__ dequantise_arguments g) {
    if ((int)blockIdx.x < g.blocks[0]) dequantise_rows(&g, 0, blockIdx.x, g.blocks[0]);
    else dequantise_rows(&g, 1, blockIdx.x - g.blocks[0], g.blocks[1]);
}
