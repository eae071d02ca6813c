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

/* Where the part's row begins in each of the nest's first count operands. */
INLINE void part_offsets(const row_division *d, const row_place *p, const int count, int64_t *at) {
    if (d->nest.rank <= 1) {
#pragma unroll
        for (int k = 0; k < count; k++) at[k] = p->row * d->nest.strides[k][0];
    } else {
        nest_offsets(&d->nest, p->row, count, at);
    }
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

INLINE uint32_t pack_pair(int format, float low, float high) { return format == CUDA_bf16 ? cvt_bf16x2(low, high) : cvt_f16x2(low, high); }

INLINE uint4 pack_halves(int format, const float *x) {
    return make_uint4(pack_pair(format, x[0], x[1]), pack_pair(format, x[2], x[3]), pack_pair(format, x[4], x[5]), pack_pair(format, x[6], x[7]));
}

/* Rounded to that format, of 16 bits. */
INLINE void round_pieces(const int pieces, int format, float x[][PIECE]) {
    if (format == CUDA_bf16) EACH_PIECE(c) unpack_halves(CUDA_bf16, pack_halves(CUDA_bf16, x[c]), x[c]);
    else EACH_PIECE(c) unpack_halves(CUDA_f16, pack_halves(CUDA_f16, x[c]), x[c]);
}

/* What is behind the end of the row becomes zero again. */
INLINE void zero_tail(const int pieces, const row_place *p, float x[][PIECE]) {
    if (p->first + ((pieces - 1) * p->group + 1) * PIECE <= p->cols) return;
    EACH_PIECE(c) EACH_OF_PIECE(i) x[c][i] = piece_col(p, c) + i < p->cols ? x[c][i] : 0;
}

/* Do the pieces of a row that begins at element at lie in 16 bytes each, or two times 16? */
INLINE bool lies_in_pieces(uint64_t data, int element_bytes, int64_t at, int64_t step, const row_place *p) {
    return step == 1 && ((data + (uint64_t)at * element_bytes) % 16 | p->cols % PIECE) == 0;
}

/* Pieces element by element: in loops that are not unrolled, as they are rare and should take few registers, so elements move through the piece. */
INLINE void turn_pieces(const int pieces, float x[][PIECE]) {
    EACH_PIECE(c) {
        float first = x[c][0];
#pragma unroll
        for (int i = 1; i < PIECE; i++) x[c][i - 1] = x[c][i];
        x[c][PIECE - 1] = first;
    }
}
INLINE void load_elements(const int pieces, const cuda_array *array, int64_t at, int64_t step, const row_place *p, float x[][PIECE]) {
    EACH_PIECE(c) EACH_OF_PIECE(i) x[c][i] = 0;
#pragma unroll 1
    for (int i = 0; i < PIECE; i++) {
        EACH_PIECE(c) x[c][0] = piece_col(p, c) + i < p->cols ? element_at(array, at + (piece_col(p, c) + i) * step) : 0;
        turn_pieces(pieces, x);
    }
}
INLINE void store_elements(const int pieces, uint64_t data, int format, int64_t at, int64_t step, const row_place *p, float x[][PIECE]) {
#pragma unroll 1
    for (int i = 0; i < PIECE; i++) {
        EACH_PIECE(c) {
            int col = piece_col(p, c) + i;
            if (col >= p->cols) continue;
            if (format == CUDA_f32) ((float *)data)[at + col * step] = x[c][0];
            else ((uint16_t *)data)[at + col * step] = (uint16_t)pack_pair(format, x[c][0], 0);
        }
        turn_pieces(pieces, x);
    }
}

/* All pieces of a row that begins at element at; f32 or halves, which are bf16 or f16. All loads are on their way before the first one is used. */
INLINE void load_f32(const int pieces, const float *from, const row_place *p, float x[][PIECE]) {
    EACH_PIECE(c) {
        float4 a = make_float4(0, 0, 0, 0), b = a;
        if (piece_col(p, c) < p->cols) {
            const float4 *piece = (const float4 *)(from + piece_col(p, c));
            a = piece[0], b = piece[1];
        }
        x[c][0] = a.x, x[c][1] = a.y, x[c][2] = a.z, x[c][3] = a.w, x[c][4] = b.x, x[c][5] = b.y, x[c][6] = b.z, x[c][7] = b.w;
    }
}
INLINE void load_halves(const int pieces, int format, const uint16_t *from, const row_place *p, float x[][PIECE]) {
    uint4 words[PIECES_MOST];
    EACH_PIECE(c) words[c] = piece_col(p, c) < p->cols ? *(const uint4 *)(from + piece_col(p, c)) : make_uint4(0, 0, 0, 0);
    if (format == CUDA_bf16) EACH_PIECE(c) unpack_halves(CUDA_bf16, words[c], x[c]);
    else EACH_PIECE(c) unpack_halves(CUDA_f16, words[c], x[c]);
}
INLINE void load_pieces(const int pieces, const bool halves, const cuda_array *array, int64_t at, int64_t step, const row_place *p, float x[][PIECE]) {
    if (!lies_in_pieces(array->data, halves ? 2 : 4, at, step, p)) {
        load_elements(pieces, array, at, step, p, x);
    } else if (halves) {
        load_halves(pieces, array->format, (const uint16_t *)array->data + at, p, x);
    } else {
        load_f32(pieces, (const float *)array->data + at, p, x);
    }
}

/* All pieces of a row that begins at element at, in any of the formats. */
INLINE void store_pieces(const int pieces, uint64_t data, int format, int64_t at, int64_t step, const row_place *p, float x[][PIECE]) {
    if (!lies_in_pieces(data, format == CUDA_f32 ? 4 : 2, at, step, p)) {
        store_elements(pieces, data, format, at, step, p, x);
    } else if (format == CUDA_f32) {
        EACH_PIECE(c) {
            float4 *to = (float4 *)((float *)data + at + piece_col(p, c));
            if (piece_col(p, c) >= p->cols) continue;
            to[0] = make_float4(x[c][0], x[c][1], x[c][2], x[c][3]);
            to[1] = make_float4(x[c][4], x[c][5], x[c][6], x[c][7]);
        }
    } else {
        EACH_PIECE(c) if (piece_col(p, c) < p->cols) *(uint4 *)((uint16_t *)data + at + piece_col(p, c)) = pack_halves(format, x[c]);
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
