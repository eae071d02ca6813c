/* Rows held in registers, for kernels that read a row once and write it once: which thread holds what, loads and stores of 16 bytes, sums and maxima over a row.
 *
 *     a part of a row:   piece 0 of threads 0, 1, .., group - 1 | piece 1 of threads 0, 1, .. | ..       PIECE elements each, fp32 in reg
 *
 * Parts of up to 32 threads lie side by side in a warp; larger ones have a block each. Every thread runs through every step, as lanes exchange numbers; elements
 * behind a row's end are zero. Sums are fp32 by a fixed tree, the same in all threads. Operands that do not lie in pieces of 16 bytes are read one by one. */
#ifndef KERNELS_CUDA_ROW_PARTS_CUH
#define KERNELS_CUDA_ROW_PARTS_CUH

#include "kernels/common/cuda/device.cuh"
#include "kernels/common/cuda/ptx_ldst.cuh"
#include "kernels/common/cuda/ptx_math.cuh"
#include "kernels/common/cuda/row_parts.h"

#define INLINE static __device__ __forceinline__
#define EACH_PIECE(c) _Pragma("unroll") for (int c = 0; c < pieces; c++)
#define EACH_OF_PIECE(i) _Pragma("unroll") for (int i = 0; i < PIECE; i++)

/* Where this thread works; cols: of the part's end. A thread without a part has cols 0. */
typedef struct row_place {
    int row, cols, first;         /* first: the column of its piece 0 */
    int group;
} row_place;

INLINE int piece_col(const row_place *p, int c) { return p->first + c * p->group * PIECE; }

/* Parts are counted through; blocks take group-many at a time. */
INLINE int parts_of_block(const row_division *d) { return (int)blockDim.x / d->group; }

INLINE row_place place_part(const row_division *d, int64_t part) {
    row_place p = {0, 0, 0, d->group};
    p.first = ((int)threadIdx.x & (d->group <= 32 ? d->group - 1 : ~0)) * PIECE;
    part += d->group <= 32 ? (int)threadIdx.x / d->group : 0;
    if (part >= (int64_t)d->rows * d->parts) return p;
    p.row = d->parts == 1 ? (int)part : (int)((uint32_t)part / (uint32_t)d->parts);
    int begin = ((int)part - p.row * d->parts) * d->part_cols;
    p.first += begin;
    p.cols = min(d->cols, begin + d->part_cols);
    return p;
}

/* ---- elements ---- */

INLINE float element_at(const cuda_array *array, int64_t at) {
    if (array->format == CUDA_f32) return ((const float *)array->data)[at];
    uint16_t bits = ((const uint16_t *)array->data)[at];
    return array->format == CUDA_bf16 ? __uint_as_float((uint32_t)bits << 16) : cvt_f32_f16(bits);
}

INLINE void unpack_pair(int format, uint32_t pair, float *x) {
    x[0] = format == CUDA_bf16 ? __uint_as_float(pair << 16) : cvt_f32_f16((uint16_t)pair);
    x[1] = format == CUDA_bf16 ? __uint_as_float(pair & 0xffff0000) : cvt_f32_f16((uint16_t)(pair >> 16));
}

INLINE void unpack_halves(int format, uint4 halves, float *x) {
    unpack_pair(format, halves.x, x);
    unpack_pair(format, halves.y, x + 2);
    unpack_pair(format, halves.z, x + 4);
    unpack_pair(format, halves.w, x + 6);
}

INLINE bool lies_in_pieces(const cuda_array *array, int64_t at, int64_t step) { return step == 1 && (array->data + (uint64_t)at * array->element_bytes) % 16 == 0; }

/* Of a row that begins at element at. halves: of 16 bits, which the kernel knows. All loads are on their way before the first one is used. */
INLINE void load_pieces(const int pieces, const bool halves, const cuda_array *array, int64_t at, int64_t step, const row_place *p, float x[][PIECE]) {
    if (lies_in_pieces(array, at, step) && p->cols % PIECE == 0) {
        const uint4 *from = (const uint4 *)(array->data + (uint64_t)at * (halves ? 2 : 4));
        uint4 words[PIECES_MOST][2];
        EACH_PIECE(c) {
            int col = piece_col(p, c);
            words[c][0] = words[c][1] = make_uint4(0, 0, 0, 0);
            if (col >= p->cols) continue;
            words[c][0] = from[halves ? col / 8 : col / 4];
            if (!halves) words[c][1] = from[col / 4 + 1];
        }
        if (halves && array->format == CUDA_bf16) {
            EACH_PIECE(c) unpack_halves(CUDA_bf16, words[c][0], x[c]);
        } else if (halves) {
            EACH_PIECE(c) unpack_halves(CUDA_f16, words[c][0], x[c]);
        } else {
            EACH_PIECE(c) EACH_OF_PIECE(i) {
                const uint4 *w = &words[c][i / 4];
                x[c][i] = __uint_as_float(i % 4 == 0 ? w->x : i % 4 == 1 ? w->y : i % 4 == 2 ? w->z : w->w);
            }
        }
        return;
    }
    EACH_PIECE(c) EACH_OF_PIECE(i) {
        int col = piece_col(p, c) + i;
        x[c][i] = col < p->cols ? element_at(array, at + col * step) : 0;
    }
}

/* The same of one piece, of any of the formats. */
INLINE void load_piece(const cuda_array *array, int64_t step, const row_place *p, int c, float *x) {
    int col = piece_col(p, c);
    if (lies_in_pieces(array, 0, step) && p->cols % PIECE == 0) {
        EACH_OF_PIECE(i) x[i] = 0;
        if (col >= p->cols) return;
        if (array->format == CUDA_f32) {
            float4 a = ((const float4 *)array->data)[col / 4], b = ((const float4 *)array->data)[col / 4 + 1];
            x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
        } else {
            unpack_halves(array->format, ((const uint4 *)array->data)[col / 8], x);
        }
        return;
    }
    EACH_OF_PIECE(i) x[i] = col + i < p->cols ? element_at(array, (col + i) * step) : 0;
}

INLINE uint32_t pack_pair(int format, float low, float high) { return format == CUDA_bf16 ? cvt_bf16x2(low, high) : cvt_f16x2(low, high); }

/* Rounded to that format, of 16 bits. */
INLINE void round_piece(int format, float *x) {
    for (int i = 0; i < PIECE; i += 2) unpack_pair(format, pack_pair(format, x[i], x[i + 1]), x + i);
}

/* One piece of a row that begins at element at, in any of the formats. */
INLINE void store_piece(uint64_t data, int format, int64_t at, int64_t step, const row_place *p, int c, const float *x) {
    int col = piece_col(p, c), size = format == CUDA_f32 ? 4 : 2;
    bool in_pieces = step == 1 && (data + (uint64_t)at * size) % 16 == 0 && p->cols % PIECE == 0;
    if (in_pieces && col >= p->cols) return;
    if (in_pieces && format == CUDA_f32) {
        float4 *to = (float4 *)(data + (uint64_t)(at + col) * 4);
        to[0] = make_float4(x[0], x[1], x[2], x[3]);
        to[1] = make_float4(x[4], x[5], x[6], x[7]);
    } else if (in_pieces) {
        *(uint4 *)(data + (uint64_t)(at + col) * 2) =
            make_uint4(pack_pair(format, x[0], x[1]), pack_pair(format, x[2], x[3]), pack_pair(format, x[4], x[5]), pack_pair(format, x[6], x[7]));
    } else {
        EACH_OF_PIECE(i) {
            if (col + i >= p->cols) continue;
            if (format == CUDA_f32) ((float *)data)[at + (col + i) * step] = x[i];
            else ((uint16_t *)data)[at + (col + i) * step] = (uint16_t)pack_pair(format, x[i], 0);
        }
    }
}

/* ---- over the threads of a part: every thread gets the result ---- */

/* Room for one number of each warp. Two reductions one after the other need different ones. */
typedef struct row_room { float of_warp[ROW_THREADS_MOST / 32]; } row_room;

INLINE float row_sum(float x, int group, row_room *room) {
    for (int step = min(group, 32) / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    if (group <= 32) return x;
    if (threadIdx.x % 32 == 0) room->of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int i = 0; i < group / 32; i++) x += room->of_warp[i];
    return x;
}

/* The largest; NaN if any is. */
INLINE float lanes_max(float x, int lanes) {
    for (int step = lanes / 2; step > 0; step /= 2) x = max_nan(x, __shfl_xor_sync(~0u, x, step));
    return x;
}

INLINE float row_max(float x, int group, row_room *room) {
    x = lanes_max(x, min(group, 32));
    if (group <= 32) return x;
    if (threadIdx.x % 32 == 0) room->of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    for (int i = 0; i < group / 32; i++) x = max_nan(x, room->of_warp[i]);
    return x;
}

#endif
