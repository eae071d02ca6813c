/* Elements of an operand's rows in any format, eight at a time, as floats: exact, and times their block scale where scales are codes of 8 bits (where they are
 * fp32, and where a factor belongs to whole rows, they are without). */
#ifndef KERNELS_GEMM_ROWS_CUH
#define KERNELS_GEMM_ROWS_CUH

#include "kernels/gpu/ptx/ldst.cuh"
#include "kernels/gemm/arguments.h"
#include "kernels/gemm/rows.h"
#include "num/small.h"

#define INLINE static __device__ __forceinline__

/* ---- places of scales ---- */

INLINE int64_t scales_of_row(const matmul_scales *x, int row) {
    if (!x->tiled) return (int64_t)(x->row_blocks == 1 ? row : row / 128) * x->row_step;
    int matrix = row < x->matrix_rows ? 0 : row / x->matrix_rows, own = row - matrix * x->matrix_rows;
    return matrix * x->matrix_step + (int64_t)(own / 128) * x->row_step + own % 32 * 16 + own % 128 / 32 * 4;
}

INLINE int64_t scale_index(const matmul_scales *x, int64_t row, int block) {
    block = min(block, x->cols - 1);
    return row + (block >> 2) * x->quad_step + (block & 3);
}

/* ---- dequantising ---- */

INLINE float float_of_bf16(uint32_t code) { return __uint_as_float(code << 16); }

INLINE float float_of_e8m0(uint32_t code) { return __uint_as_float(code == 0 ? 0x00400000 : code == 0xff ? 0x7fffffff : code << 23); }

/* 2^(code - 127), twice: 2^-127 is a subnormal number of bf16. */
INLINE uint32_t pair_of_e8m0(uint32_t code) {
    uint32_t bits = code == 0 ? 0x40 : code == 0xff ? 0x7fff : code << 7;
    return bits << 16 | bits;
}

INLINE uint32_t bf16x2_of_f16x2(uint32_t halves) { return cvt_bf16x2(cvt_f32_f16((uint16_t)halves), cvt_f32_f16((uint16_t)(halves >> 16))); }

INLINE uint32_t pair_of_e4m3(uint32_t codes) { return bf16x2_of_f16x2(cvt_f16x2_e4m3x2((uint16_t)codes)); }
INLINE uint32_t pair_of_e5m2(uint32_t codes) { return bf16x2_of_f16x2(cvt_f16x2_e5m2x2((uint16_t)codes)); }

/* Elements j and j + 4 of a word of e2m1 codes, times 2^-126: a code's three low bits are the low bits of bf16's exponent and the first of its fraction. */
INLINE uint32_t pair_of_e2m1(uint32_t word, const int j) {
    uint32_t signs = word << (12 - 4 * j), rest = j < 2 ? word << (6 - 4 * j) : word >> (4 * j - 6);
    return (signs & 0x80008000) | (rest & 0x01c001c0);
}

INLINE uint32_t word_of(const uint4 x, const int i) { return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w; }

INLINE int format_bits(int format) {
    switch (format) {
    case MATMUL_f32: return 32;
    case MATMUL_f16:
    case MATMUL_bf16: return 16;
    case MATMUL_e3m2:
    case MATMUL_e2m3: return 6;
    case MATMUL_e2m1: return 4;
    default: return 8;
    }
}

/* A code of 6 bits, of the 8 in three units of 16. */
INLINE float float_of_six(int format, uint32_t code) { return format == MATMUL_e3m2 ? small_from_e3m2((int32_t)code) : small_from_e2m3((int32_t)code); }

static __device__ __noinline__ float element_of_row(int format, const uint8_t *row, int at) {
    switch (format) {
    case MATMUL_f32: return ((const float *)row)[at];
    case MATMUL_f16: return cvt_f32_f16(((const uint16_t *)row)[at]);
    case MATMUL_bf16: return float_of_bf16(((const uint16_t *)row)[at]);
    case MATMUL_e4m3: return small_from_e4m3(row[at]);
    case MATMUL_e5m2: return small_from_e5m2(row[at]);
    case MATMUL_e2m1: return small_from_e2m1(row[at / 2] >> (at % 2 * 4) & 15);
    default: break;
    }
    const uint8_t *bytes = row + at / 4 * 3;      /* four codes in three bytes */
    uint32_t four = bytes[0], bit = (uint32_t)at % 4 * 6;
    if (bit > 2) four |= (uint32_t)bytes[1] << 8;
    if (bit > 10) four |= (uint32_t)bytes[2] << 16;
    return float_of_six(format, four >> bit & 63);
}

INLINE void floats_of_halves(uint32_t halves, float *x) { x[0] = cvt_f32_f16((uint16_t)halves), x[1] = cvt_f32_f16((uint16_t)(halves >> 16)); }

/* Elements at..at + 7 of a row that holds all of them in aligned memory. */
INLINE void read_unit(int format, const uint8_t *row, int at, float x[8]) {
    if (format == MATMUL_f32) {
        float4 low = *(const float4 *)(row + (int64_t)at * 4), high = *(const float4 *)(row + (int64_t)at * 4 + 16);
        x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w, x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
    } else if (format == MATMUL_bf16 || format == MATMUL_f16) {
        uint4 raw = *(const uint4 *)(row + (int64_t)at * 2);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t two = word_of(raw, j);
            if (format == MATMUL_f16) floats_of_halves(two, x + 2 * j);
            else x[2 * j] = __uint_as_float(two << 16), x[2 * j + 1] = __uint_as_float(two & 0xffff0000);
        }
    } else if (format == MATMUL_e4m3 || format == MATMUL_e5m2) {
        uint2 raw = *(const uint2 *)(row + at);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t codes = (j < 2 ? raw.x : raw.y) >> (j % 2 * 16);
            floats_of_halves(format == MATMUL_e4m3 ? cvt_f16x2_e4m3x2((uint16_t)codes) : cvt_f16x2_e5m2x2((uint16_t)codes), x + 2 * j);
        }
    } else if (format == MATMUL_e2m1) {
        uint32_t word = *(const uint32_t *)(row + at / 2);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t pair = pair_of_e2m1(word, j);
            x[j] = __uint_as_float(pair << 16) * 0x1p126f, x[j + 4] = __uint_as_float(pair & 0xffff0000) * 0x1p126f;
        }
    } else {
        const uint16_t *units = (const uint16_t *)(row + at / 4 * 3);
        uint64_t codes = units[0] | (uint64_t)units[1] << 16 | (uint64_t)units[2] << 32;
#pragma unroll
        for (int j = 0; j < 8; j++) x[j] = float_of_six(format, (uint32_t)(codes >> (6 * j)) & 63);
    }
}

/* Do read_unit's reads lie as their widths want it? */
INLINE bool is_aligned(const matmul_rows *x) {
    int bits = format_bits(x->format), width = bits >= 16 ? 16 : bits == 8 ? 8 : bits == 6 ? 2 : 4;
    return ((x->data | (uint64_t)x->row_bytes) & (width - 1)) == 0;
}

/* scales: scales_of_row. */
INLINE float block_scale(const matmul_rows *x, int64_t scales, int at) {
    uint8_t code = ((const uint8_t *)x->scales.data)[scale_index(&x->scales, scales, at / x->block)];
    return x->scale == MATMUL_e8m0 ? float_of_e8m0(code) : cvt_f32_f16((uint16_t)cvt_f16x2_e4m3x2(code));
}

/* Elements at..at + 7 of a row of k, zeros behind its end. */
INLINE void load_unit(const matmul_rows *x, int row, int64_t scales, bool aligned, int at, int k, float y[8]) {
    const uint8_t *data = (const uint8_t *)x->data + row * x->row_bytes;
    if (at + 8 <= k && aligned) {
        read_unit(x->format, data, at, y);
    } else {
#pragma unroll
        for (int j = 0; j < 8; j++) y[j] = at + j < k ? element_of_row(x->format, data, at + j) : 0;
    }
    if (x->scale != MATMUL_e8m0 && x->scale != MATMUL_e4m3) return;
    float scale = at < k ? block_scale(x, scales, at) : 0;
#pragma unroll
    for (int j = 0; j < 8; j++) y[j] *= scale;
}

#endif
