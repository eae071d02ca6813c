/* Results of Hopper's products, as wgmma leaves them, in blocks of e4m3 along a row, with fp32 scales for 128 columns or powers of two for 32: from registers to memory, bit for bit what a
 * quantiser makes of the same results. A block's columns lie in the four lanes of a quad, which find its largest magnitude by shuffles and give each other 16 codes that
 * lie side by side. Each step is done with all of a thread's values before the next, without a branch between them: two warps to a scheduler hide no latency. */
#ifndef KERNELS_QUANTIZE_BLOCKS_WGMMA_CUH
#define KERNELS_QUANTIZE_BLOCKS_WGMMA_CUH

#include "kernels/gpu/ptx/ldst.cuh"
#include "kernels/gpu/ptx/math.cuh"
#include "kernels/gpu/ptx/small.cuh"
#include "kernels/quantize/scales.cuh"

/* Where they go, and what they are: codes and scales of rows, strides in elements; format: what is quantised, f32, bf16 or f16; block: 128, scales in fp32, or 32, in e8m0. */
typedef struct block_results {
    uint64_t out, scales;
    int64_t out_row_stride, scale_row_stride;
    int format, block;
} block_results;

/* A thread's part of a wave: two rows, row and row + 8, of four blocks of 32 columns. */
enum { WAVE_VALUES = 64, WAVE_COLS = 128, BLOCKS = 4, BLOCK_COLS = 32, BLOCK_VALUES = 16 };

/* To the format that is quantised; what lies behind the last column does not count. */
INLINE void round_values(int format, float *values, int lane, int col, int end) {
    if (format == CUDA_bf16) {
#pragma unroll
        for (int i = 0; i < WAVE_VALUES; i += 2) {
            uint32_t pair = cvt_bf16x2(values[i], values[i + 1]);
            values[i] = __uint_as_float(pair << 16), values[i + 1] = __uint_as_float(pair & 0xffff0000);
        }
    } else if (format == CUDA_f16) {
#pragma unroll
        for (int i = 0; i < WAVE_VALUES; i += 2) {
            uint32_t pair = cvt_f16x2(values[i], values[i + 1]);
            values[i] = cvt_f32_f16((uint16_t)pair), values[i + 1] = cvt_f32_f16((uint16_t)(pair >> 16));
        }
    }
    if (col + WAVE_COLS <= end) return;
#pragma unroll
    for (int i = 0; i < WAVE_VALUES; i++)
        if (col + i / 4 * 8 + (i & 1) + lane * 2 >= end) values[i] = 0;
}

/* Of this thread's columns of each block, in both rows; NaN if any is. */
INLINE void largest_magnitudes(const float *values, float most[BLOCKS][2]) {
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        most[b][0] = most[b][1] = 0;
#pragma unroll
        for (int i = 0; i < BLOCK_VALUES; i++) most[b][i >> 1 & 1] = max_nan(most[b][i >> 1 & 1], fabsf(values[b * BLOCK_VALUES + i]));
    }
}

/* One scale for 128 columns: lane i of a quad makes that of row i. inverse: what values are multiplied by. */
INLINE void make_row_scales(const block_results *to, float most[BLOCKS][2], int lane, int row, int col, int rows, int end, float inverse[BLOCKS][2]) {
    const int r = row + lane % 2 * 8;
    float all[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        all[i] = max_nan(max_nan(most[0][i], most[1][i]), max_nan(most[2][i], most[3][i]));
        all[i] = max_nan(all[i], __shfl_xor_sync(~0u, all[i], 1));
        all[i] = max_nan(all[i], __shfl_xor_sync(~0u, all[i], 2));
    }
    const float mine = lane % 2 == 0 ? all[0] : all[1], by = fp8_inverse(mine), scale = fp8_scale(mine);
    if (lane < 2 && r < rows && col < end) ((float *)to->scales)[r * to->scale_row_stride + col / WAVE_COLS] = scale;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        inverse[0][i] = __shfl_sync(~0u, by, i, 4);
#pragma unroll
        for (int b = 1; b < BLOCKS; b++) inverse[b][i] = inverse[0][i];
    }
}

/* One for 32: lane b of a quad makes those of block b. */
INLINE void make_block_scales(const block_results *to, float most[BLOCKS][2], int lane, int row, int col, int rows, int end, float inverse[BLOCKS][2]) {
    const bool high = lane & 2, odd = lane & 1;
    float by[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float two[2];
#pragma unroll
        for (int b = 0; b < 2; b++) two[b] = max_nan(high ? most[b + 2][i] : most[b][i], __shfl_xor_sync(~0u, high ? most[b][i] : most[b + 2][i], 2));
        const float mine = max_nan(odd ? two[1] : two[0], __shfl_xor_sync(~0u, odd ? two[0] : two[1], 1));
        const int32_t code = rules_mx_scale(mine, largest_code(CUDA_e4m3), 0);
        const int r = row + i * 8;
        by[i] = rules_mx_inverse(code);
        if (r < rows && col + lane * BLOCK_COLS < end) ((uint8_t *)to->scales)[r * to->scale_row_stride + col / BLOCK_COLS + lane] = (uint8_t)code;
    }
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int i = 0; i < 2; i++) inverse[b][i] = __shfl_sync(~0u, by[i], b, 4);
}

/* Codes of half h of block b in row i: two of this lane's columns among the half's first eight, and two among its last. */
INLINE uint32_t half_codes(const float *values, float inverse[BLOCKS][2], const int b, const int h, const int i) {
    const float *v = values + b * BLOCK_VALUES + h * 8 + i * 2;
    const float by = inverse[b][i];
    return cvt_e4m3x2(v[0] * by, v[1] * by) | (uint32_t)cvt_e4m3x2(v[4] * by, v[5] * by) << 16;
}

/* Word i of lane j of a quad becomes word j of lane i. */
INLINE void exchange(uint32_t *low, uint32_t *high, bool is_high, int lanes) {
    uint32_t got = __shfl_xor_sync(~0u, is_high ? *low : *high, lanes);
    *low = is_high ? got : *low;
    *high = is_high ? *high : got;
}
INLINE void transpose_quad(uint32_t *words, int lane) {
    exchange(&words[0], &words[1], lane & 1, 1);
    exchange(&words[2], &words[3], lane & 1, 1);
    exchange(&words[0], &words[2], lane & 2, 2);
    exchange(&words[1], &words[3], lane & 2, 2);
}

/* 16 codes of a row from column c on, one by one, in little code. */
INLINE void store_bytes(uint8_t *to, uint4 codes, int c, int end) {
#pragma unroll 1
    for (int i = 0; i < 16; i++) {
        uint32_t word = i < 4 ? codes.x : i < 8 ? codes.y : i < 12 ? codes.z : codes.w;
        if (c + i < end) to[i] = (uint8_t)(word >> (i % 4 * 8));
    }
}

/* The quad's lanes store 64 codes of a row at a time, 16 each. */
INLINE void store_codes(const block_results *to, const float *values, float inverse[BLOCKS][2], int lane, int row, int col, int rows, int end) {
    uint4 codes[4];
#pragma unroll
    for (int s = 0; s < 4; s++) {   /* row s / 2, columns 64 (s % 2) on */
        uint32_t words[4];
#pragma unroll
        for (int j = 0; j < 4; j++) words[j] = half_codes(values, inverse, s % 2 * 2 + j / 2, j % 2, s / 2);
        transpose_quad(words, lane);
        codes[s] = make_uint4(prmt(words[0], words[1], 0x5410), prmt(words[2], words[3], 0x5410), prmt(words[0], words[1], 0x7632), prmt(words[2], words[3], 0x7632));
    }
    const bool in_words = anew((int)to->out | (int)to->out_row_stride) % 16 == 0;
#pragma unroll
    for (int s = 0; s < 4; s++) {
        const int r = row + s / 2 * 8, c = col + s % 2 * 64 + lane * 16;
        uint8_t *at = (uint8_t *)to->out + r * to->out_row_stride + c;
        if (in_words && r < rows && c < end) *(uint4 *)at = codes[s];
        if (!in_words && r < rows) store_bytes(at, codes[s], c, end);
    }
}

/* Columns [col, col + 128) of a wave, of those that lie before end, row the thread's first. What depends on the lane is made here each time: kept
 * from tile to tile it would take registers of the products. */
INLINE void store_blocks(const block_results *to, float *values, int row, int col, int rows, int end) {
    const int lane = anew((int)threadIdx.x) & 3;
    float most[BLOCKS][2], inverse[BLOCKS][2];
    round_values(to->format, values, lane, col, end);
    largest_magnitudes(values, most);
    if (to->block == WAVE_COLS) make_row_scales(to, most, lane, row, col, rows, end, inverse);
    else make_block_scales(to, most, lane, row, col, rows, end, inverse);
    store_codes(to, values, inverse, lane, row, col, rows, end);
}

#endif
