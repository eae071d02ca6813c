/* y [rows,k] bf16 (gmem) = codes times block scales (gmem), exactly: what the tile kernel for bf16 multiplies where an operand is quantised in blocks, or has rows
 * that TMA cannot take. A thread makes 8 numbers of a row at a time, 16 bytes; nothing is shared. Elements that are no bf16 number times their
 * scale (beyond its range) are rounded once. Speed: README.md. */
#include "kernels/gemm/dequantise/dequantise.h"
#include "kernels/gemm/rows.cuh"

/* Has no row of a the matrix of b in which row row of it lies? */
INLINE bool is_unused(const dequantise_arguments *g, int row) {
    const int32_t *offsets = (const int32_t *)g->groups.offsets;
    int group = row / g->group_rows;
    return offsets[group] <= (group > 0 ? offsets[group - 1] : 0);
}

INLINE void dequantise_rows(const dequantise_arguments *g, const int operand, int block, int blocks) {
    const matmul_rows *x = &g->rows[operand];
    int units = (g->k + DEQUANTISE_UNIT - 1) / DEQUANTISE_UNIT, across = 1 << g->across, down = DEQUANTISE_THREADS >> g->across;
    bool aligned = is_aligned(x);
    for (int row = block * down + (threadIdx.x >> g->across); row < g->count[operand]; row += blocks * down) {
        bool grouped = operand == 1 && g->group_rows > 0;
        int from = grouped ? g->groups.first * g->group_rows + row : row;
        if (grouped && from % g->group_rows >= g->group_spill && is_unused(g, from)) continue;
        int64_t scales = x->scale == MATMUL_FORMAT_COUNT ? 0 : scales_of_row(&x->scales, from);
        uint4 *to = (uint4 *)g->to[operand] + (int64_t)row * units;
#pragma unroll 2
        for (int unit = threadIdx.x & (across - 1); unit < units; unit += across) {
            float y[DEQUANTISE_UNIT];
            load_unit(x, from, scales, aligned, unit * DEQUANTISE_UNIT, g->k, y);
            to[unit] = make_uint4(cvt_bf16x2(y[0], y[1]), cvt_bf16x2(y[2], y[3]), cvt_bf16x2(y[4], y[5]), cvt_bf16x2(y[6], y[7]));
        }
    }
}

extern "C" __global__ void __launch_bounds__(DEQUANTISE_THREADS) matmul_decode(const __grid_constant__ dequantise_arguments g) {
    if ((int)blockIdx.x < g.blocks[0]) dequantise_rows(&g, 0, blockIdx.x, g.blocks[0]);
    else dequantise_rows(&g, 1, blockIdx.x - g.blocks[0], g.blocks[1]);
}
