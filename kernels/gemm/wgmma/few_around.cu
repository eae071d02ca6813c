/* What is launched around a product of few rows (few.cuh).
 *
 * In front of one whose weights are decoded in registers (decoded.cuh), its rows: a in any format to bf16, exactly or rounded once (docs/formats.md), or NVFP4 to f16, exactly, with the 32 of k that a thread has in the
 * order of the weights' pairs: of the order's 16 bytes each holds the pairs of four lanes, first those of a step's lower 8 of k, then of its upper 8. So the product brings them by TMA, and its
 * threads have nothing to do with a.
 * Behind it, where thread blocks share k: the sums of their parts, in order, and the epilogue; where pieces are few a block's warps share the parts of one. */
#include "kernels/gpu/ptx/cluster.cuh"
#include "kernels/gemm/wgmma/few.h"
#include "kernels/gemm/wgmma/decoded_bits.cuh"
#include "kernels/gemm/wgmma/few_pieces.cuh"

/* ---- rows ---- */

INLINE uint32_t lower_halves(uint32_t x, uint32_t y) { return prmt(x, y, 0x5410); }
INLINE uint32_t upper_halves(uint32_t x, uint32_t y) { return prmt(x, y, 0x7632); }

/* Of neighbours' pairs, 8 of k each. */
INLINE void order_halves(const int bits, const uint4 unit[4], uint4 out[4]) {
    if (bits == 8) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint4 x = unit[2 * i], y = unit[2 * i + 1];
            out[2 * i] = make_uint4(lower_halves(x.x, x.y), lower_halves(x.z, x.w), lower_halves(y.x, y.y), lower_halves(y.z, y.w));
            out[2 * i + 1] = make_uint4(upper_halves(x.x, x.y), upper_halves(x.z, x.w), upper_halves(y.x, y.y), upper_halves(y.z, y.w));
        }
        return;
    }
    out[0] = make_uint4(lower_halves(unit[0].x, unit[0].z), lower_halves(unit[1].x, unit[1].z), lower_halves(unit[2].x, unit[2].z), lower_halves(unit[3].x, unit[3].z));
    out[1] = make_uint4(upper_halves(unit[0].x, unit[0].z), upper_halves(unit[1].x, unit[1].z), upper_halves(unit[2].x, unit[2].z), upper_halves(unit[3].x, unit[3].z));
    out[2] = make_uint4(lower_halves(unit[0].y, unit[0].w), lower_halves(unit[1].y, unit[1].w), lower_halves(unit[2].y, unit[2].w), lower_halves(unit[3].y, unit[3].w));
    out[3] = make_uint4(upper_halves(unit[0].y, unit[0].w), upper_halves(unit[1].y, unit[1].w), upper_halves(unit[2].y, unit[2].w), upper_halves(unit[3].y, unit[3].w));
}

/* Of 32 codes of 8 bits with one scale, in e8m0. */
INLINE void order_bytes(const int bits, const int codes, const uint32_t words[8], uint32_t scale, uint4 out[4]) {
    uint32_t odd = odd_scales(codes, scale), pairs[16];
#pragma unroll
    for (int i = 0; i < 8; i++) odd |= odd_codes(codes, words[i]);
    const bool is_odd = (odd & DECODED_ODD) != 0;
    const uint32_t factor = is_odd ? pair_of_e8m0(scale) : (scale + decoded_bias(codes)) << 7 | (scale + decoded_bias(codes)) << 23;
#pragma unroll
    for (int i = 0; i < 16; i++) {          /* of b of 4 bits elements j and j + 4 of two words make a pair */
        const uint32_t low = words[i / 4 * 2], high = words[i / 4 * 2 + 1];
        const uint32_t word = bits == 8 ? words[i / 2] : i / 2 % 2 == 0 ? lower_halves(low, high) : upper_halves(low, high);
        pairs[i] = mul_bf16x2(is_odd ? odd_pair(codes, word, i % 2) : raw_pair(codes, word, i % 2), factor);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        out[i] = bits == 8 ? make_uint4(pairs[i / 2 * 8 + i % 2], pairs[i / 2 * 8 + 2 + i % 2], pairs[i / 2 * 8 + 4 + i % 2], pairs[i / 2 * 8 + 6 + i % 2])
                           : make_uint4(pairs[i], pairs[4 + i], pairs[8 + i], pairs[12 + i]);
}

/* Of 32 codes of e2m1, times a factor for each 16. */
INLINE void order_nibbles(const int bits, const uint4 words, const uint32_t factors[2], uint4 out[4]) {
    uint32_t pairs[4][4];
#pragma unroll
    for (int unit = 0; unit < 4; unit++)
#pragma unroll
        for (int j = 0; j < 4; j++) pairs[unit][j] = mul_bf16x2(mul_bf16x2(pair_of_e2m1(word_of(words, unit), j), 0x7e807e80), factors[unit / 2]);   /* 2^126 */
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t *x = pairs[i / 2 * 2], *y = pairs[i / 2 * 2 + 1];
        if (bits == 4) out[i] = make_uint4(pairs[0][i], pairs[1][i], pairs[2][i], pairs[3][i]);
        else out[i] = make_uint4(lower_halves(x[i % 2], x[i % 2 + 2]), upper_halves(x[i % 2], x[i % 2 + 2]), lower_halves(y[i % 2], y[i % 2 + 2]), upper_halves(y[i % 2], y[i % 2 + 2]));
    }
}

/* Of 32 codes of e2m1 as halves: times a factor for each 16, 64 times theirs. */
INLINE void order_halves_of_codes(const uint4 words, const uint32_t factors[2], uint4 out[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t pairs[4];
#pragma unroll
        for (int unit = 0; unit < 4; unit++) pairs[unit] = mul_f16x2(halves_of_e2m1(word_of(words, unit), i / 2, i % 2), factors[unit / 2]);
        out[i] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
}

/* Block scale number block of a row. */
INLINE uint32_t scale_code(const matmul_rows *a, int64_t row, int block) { return ((const uint8_t *)a->scales.data)[row + (block >> 2) * a->scales.quad_step + (block & 3)]; }

/* Of bytes that lie anywhere. */
INLINE uint32_t word_at(const void *from, int i) {
    const uint8_t *x = (const uint8_t *)from + 4 * i;
    return x[0] | x[1] << 8 | x[2] << 16 | (uint32_t)x[3] << 24;
}

INLINE void order_rows(const few_rows_arguments *g, const int bits, const bool halves) {
    const int items = g->k / FEW_ITEM, number = blockIdx.x * FEW_ROWS_THREADS + threadIdx.x, row = number / items, item = number - row * items;
    const matmul_rows *a = &g->a;
    uint4 out[4];
    grid_release();
    grid_wait();
    if (row >= g->m) return;
    const int64_t scales = scales_of_row(&a->scales, row);
    const bool is_whole = ((a->data | (uint64_t)a->row_bytes) & 15) == 0;
    const uint4 *from = (const uint4 *)((const uint8_t *)a->data + row * a->row_bytes + (int64_t)item * (FEW_ITEM / 8) * format_bits(a->format));
    if (halves) {
        uint32_t factors[2];
        const uint4 words = is_whole ? from[0] : make_uint4(word_at(from, 0), word_at(from, 1), word_at(from, 2), word_at(from, 3));
#pragma unroll
        for (int i = 0; i < 2; i++) factors[i] = halves_of_scale(scale_code(a, scales, 2 * item + i));
        order_halves_of_codes(words, factors, out);
    } else if (is_whole && (a->format == MATMUL_e4m3 || a->format == MATMUL_e5m2)) {
        const uint4 low = from[0], high = from[1];
        const uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}, scale = a->scale == MATMUL_e8m0 ? scale_code(a, scales, item) : 127;   /* 1 */
        if (a->format == MATMUL_e4m3) order_bytes(bits, DECODED_MXFP8, words, scale, out);
        else order_bytes(bits, DECODED_MXFP8_E5M2, words, scale, out);
    } else if (is_whole && a->format == MATMUL_e2m1) {
        uint32_t factors[2];
        if (a->scale == MATMUL_e8m0) factors[0] = factors[1] = pair_of_e8m0(scale_code(a, scales, item));
        else factors[0] = pair_of_e4m3_scale(scale_code(a, scales, 2 * item)), factors[1] = pair_of_e4m3_scale(scale_code(a, scales, 2 * item + 1));
        order_nibbles(bits, from[0], factors, out);
    } else {
        uint4 unit[4];
        if (is_whole && a->format == MATMUL_bf16) {
#pragma unroll
            for (int i = 0; i < 4; i++) unit[i] = from[i];
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float x[8];
                load_unit(a, row, scales, is_aligned(a), item * FEW_ITEM + i * 8, g->k, x);
                unit[i] = make_uint4(cvt_bf16x2(x[0], x[1]), cvt_bf16x2(x[2], x[3]), cvt_bf16x2(x[4], x[5]), cvt_bf16x2(x[6], x[7]));
            }
        }
        order_halves(bits, unit, out);
    }
    uint4 *to = (uint4 *)g->to + (int64_t)number * 4;
#pragma unroll
    for (int i = 0; i < 4; i++) to[i] = out[i];
}

extern "C" __global__ void __launch_bounds__(FEW_ROWS_THREADS) matmul_few_rows(const __grid_constant__ few_rows_arguments arguments) {
    if (arguments.halves) order_rows(&arguments, 4, true);
    else if (arguments.bits == 8) order_rows(&arguments, 8, false);
    else order_rows(&arguments, 4, false);
}

/* ---- parts ---- */

extern "C" __global__ void __launch_bounds__(FEW_JOIN_THREADS, 4) matmul_few_join(const __grid_constant__ few_join_arguments arguments) {
    enum { WARPS = FEW_JOIN_THREADS / 32 };
    __shared__ float others[WARPS - 1][8][32];
    const few_join_arguments *g = &arguments;
    const int lane = threadIdx.x % 32, number = (blockIdx.x * WARPS + threadIdx.x / 32) / g->shares, own = threadIdx.x / 32 % g->shares;
    const int each = g->rows / FEW_PIECE * PIECES_ACROSS, tile = number / each, share = (g->splits + g->shares - 1) / g->shares, end = min(g->splits, (own + 1) * share);
    const few_piece piece = piece_of(&g->epilogue, tile * (g->epilogue.halving >= 0 ? FEW_ROWS / 2 : FEW_ROWS), number - tile * each);
    const float *parts = (const float *)g->parts + ((int64_t)tile * g->splits * g->rows + piece.row + lane / 4) * FEW_ROWS + lane % 4 * 2;
    float values[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    grid_release();
    grid_wait();
    if (number >= g->pieces || piece.row >= g->m) return;
#pragma unroll 4
    for (int part = own * share; part < end; part++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float2 two = *(const float2 *)(parts + ((int64_t)part * g->rows + j % 2 * 8) * FEW_ROWS + (j / 2 == 0 ? piece.first : piece.other));
            values[2 * j] += two.x, values[2 * j + 1] += two.y;
        }
    if (g->shares > 1) {                   /* all of the block have the piece */
#pragma unroll
        for (int i = 0; i < 8 && own > 0; i++) others[own - 1][i][lane] = values[i];
        __syncthreads();
        if (own > 0) return;
#pragma unroll
        for (int i = 0; i < 8; i++) values[i] = (values[i] + others[0][i][lane]) + (others[1][i][lane] + others[2][i][lane]);
    }
    finish_piece(&g->epilogue, &piece, values, g->m, g->n);
}
