/* dequantize of elements of 8 and 4 bits into rows that lie side by side: sixteen a thread, which have one scale. The numbers are those of quantize.cu's quantize_back: element times
 * scale, and that times the second level where there is one. Resources: no shared memory. Speed: README.md. */
#include "kernels/gpu/rows/row_parts.cuh"
#include "kernels/quantize/quantize_cuda.h"

/* e2m1 in f16: sign, exponent and mantissa where f16 has its lowest exponents, of which 2^14 makes the right ones. */
INLINE float from_e2m1(uint32_t code) { return cvt_f32_f16((uint16_t)((code & 8) << 12 | (code & 7) << 9)) * 16384.0f; }

INLINE void from_bytes(const cuda_rows *rows, uint32_t codes, float *x) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const uint16_t two = (uint16_t)(codes >> (16 * k));
        unpack_pair(CUDA_f16, rows->format == CUDA_e4m3 ? cvt_f16x2_e4m3x2(two) : cvt_f16x2_e5m2x2(two), x + 2 * k);
    }
}

/* Eight elements to the result. */
INLINE void store_eight(const cuda_array *out, int64_t at, const float *x) {
    if (out->format == CUDA_f32) {
        float4 *to = (float4 *)((float *)out->data + at);
        to[0] = make_float4(x[0], x[1], x[2], x[3]);
        to[1] = make_float4(x[4], x[5], x[6], x[7]);
    } else if (out->format == CUDA_bf16) {
        *(uint4 *)((uint16_t *)out->data + at) = pack_halves(CUDA_bf16, x);
    } else {
        *(uint4 *)((uint16_t *)out->data + at) = pack_halves(CUDA_f16, x);
    }
}

/* rows_scale by divisions of 32 bits, which rows and columns have here. */
INLINE float scale_at(const cuda_rows *rows, uint32_t row, uint32_t col) {
    const uint32_t matrix = row / (uint32_t)rows->matrix_rows, row_block = (row - matrix * (uint32_t)rows->matrix_rows) / (uint32_t)rows->block_rows, col_block = col / (uint32_t)rows->block_cols;
    int64_t at = matrix * rows->scale_rows * rows->scale_cols;
    if (rows->tiled) at += (int64_t)(row_block / 128 * (uint32_t)((rows->scale_cols + 3) / 4) + col_block / 4) * 512 + row_block % 32 * 16 + row_block % 128 / 32 * 4 + col_block % 4;
    else at += row_block * rows->scale_cols + col_block;
    if (rows->scale_format == CUDA_f32) return ((const float *)rows->scales)[at];
    const uint8_t code = ((const uint8_t *)rows->scales)[at];
    return rows->scale_format == CUDA_e8m0 ? small_from_e8m0(code) : small_from_e4m3(code);
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS) dequantize_vectors(const __grid_constant__ dequantize_arguments arguments) {
    const dequantize_arguments *a = &arguments;
    grid_release();
    grid_wait();
    const uint32_t vectors = (uint32_t)(a->cols / DEQUANTIZE_WIDTH);
    for (int64_t item = item_first(); item < a->rows * vectors; item += item_step()) {
        const int64_t row = a->rows * vectors <= UINT32_MAX ? (int64_t)((uint32_t)item / vectors) : item / vectors, col = (item - row * vectors) * DEQUANTIZE_WIDTH;
        const uint8_t *codes = (const uint8_t *)a->x.data + row * a->x.row_bytes;
        float x[DEQUANTIZE_WIDTH];
        int64_t at[1];
        if (a->x.format == CUDA_e2m1) {
            const uint2 words = *(const uint2 *)(codes + col / 2);
#pragma unroll
            for (int i = 0; i < PIECE; i++) x[i] = from_e2m1(words.x >> (4 * i) & 15), x[PIECE + i] = from_e2m1(words.y >> (4 * i) & 15);
        } else {
            const uint4 words = *(const uint4 *)(codes + col);
            from_bytes(&a->x, words.x, x);
            from_bytes(&a->x, words.y, x + 4);
            from_bytes(&a->x, words.z, x + 8);
            from_bytes(&a->x, words.w, x + 12);
        }
        const float scale = scale_at(&a->x, (uint32_t)row, (uint32_t)col);
#pragma unroll
        for (int i = 0; i < DEQUANTIZE_WIDTH; i++) x[i] *= scale;
        if (a->x.second_kind != 0) {
            const float second = rows_second(&a->x, row);
#pragma unroll
            for (int i = 0; i < DEQUANTIZE_WIDTH; i++) x[i] *= second;
        }
        nest_offsets(&a->nest, row, 1, at);
        store_eight(&a->out, at[0] + col, x);
        store_eight(&a->out, at[0] + col + PIECE, x + PIECE);
    }
}
