/* Of attention by tcgen05: results in blocks, the heads of a query side by side, by the threads that correct: of a row each, as it lies staged, so rows that were done once more are as others. Bit for bit
 * what a quantiser makes of the staged results. */
#ifndef KERNELS_ATTENTION_TCGEN05_BLOCKS_CUH
#define KERNELS_ATTENTION_TCGEN05_BLOCKS_CUH

#include "kernels/attention/tcgen05/place.cuh"
#include "kernels/gpu/ptx/small.cuh"
#include "kernels/quantize/scales.cuh"

enum { PIECE = 8 };               /* staged results that are read at a time */

/* Results [8 piece, 8 piece + 8) of a row. */
INLINE void read_piece(const attention_arguments *p, uint32_t out, int row_of_tile, int piece, float *values) {
    const uint4 words = ld_shared_u32x4(out + piece / PIECE * ATTEND_COLUMN_BYTES + row_of_tile * ROW_BYTES + ((piece % PIECE ^ row_of_tile % 8) << 4));
    const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        values[2 * i] = p->out.format == CUDA_bf16 ? __uint_as_float(pairs[i] << 16) : cvt_f32_f16((uint16_t)pairs[i]);
        values[2 * i + 1] = p->out.format == CUDA_bf16 ? __uint_as_float(pairs[i] & 0xffff0000) : cvt_f32_f16((uint16_t)(pairs[i] >> 16));
    }
}

/* The largest magnitude of a block; NaN if one is. */
INLINE float largest_of_block(const attention_arguments *p, uint32_t out, int row_of_tile, int first, int pieces) {
    float most = 0;
#pragma unroll 1
    for (int i = 0; i < pieces; i++) {
        float values[PIECE];
        read_piece(p, out, row_of_tile, first + i, values);
#pragma unroll
        for (int k = 0; k < PIECE; k++) most = max_nan(most, fabsf(values[k]));
    }
    return most;
}

INLINE void store_codes(const attention_arguments *p, uint32_t out, int row_of_tile, int first, int pieces, float inverse, uint64_t to) {
#pragma unroll 1
    for (int i = 0; i < pieces; i++) {
        float x[PIECE];
        read_piece(p, out, row_of_tile, first + i, x);
        const uint32_t low = cvt_e4m3x2(x[0] * inverse, x[1] * inverse) | (uint32_t)cvt_e4m3x2(x[2] * inverse, x[3] * inverse) << 16;
        const uint32_t high = cvt_e4m3x2(x[4] * inverse, x[5] * inverse) | (uint32_t)cvt_e4m3x2(x[6] * inverse, x[7] * inverse) << 16;
        *(uint2 *)(to + i * PIECE) = make_uint2(low, high);
    }
}

/* A thread's row. */
INLINE void store_blocks(const attention_tcgen05_arguments *g, const attend_unit *u, int query, uint32_t out, int row_of_tile) {
    const attention_arguments *p = &g->call;
    const attend_blocks *b = &g->blocks;
    const int batch = batch_of(g, u), head = head_of(g, u), count = (int)p->value_width / b->block, pieces = b->block / PIECE, first = head * count;
    const int64_t row = batch * p->queries + query;
    if (query >= (int)p->queries) return;
#pragma unroll 1
    for (int i = 0; i < count; i++) {
        const float most = largest_of_block(p, out, row_of_tile, i * pieces, pieces);
        const int32_t code = rules_mx_scale(most, largest_code(CUDA_e4m3), 0);
        if (b->block == 128) ((float *)b->scales)[row * b->scales_of_row + first + i] = fp8_scale(most);
        else ((uint8_t *)b->scales)[row * b->scales_of_row + first + i] = (uint8_t)code;
        store_codes(p, out, row_of_tile, i * pieces, pieces, b->block == 128 ? fp8_inverse(most) : rules_mx_inverse(code), p->out.data + row * b->out_row_bytes + (first + i) * b->block);
    }
}

#endif
