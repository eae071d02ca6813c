/* Rows held in registers, for kernels that read a row once and write it once: which thread holds what, loads and stores of 16 bytes, sums and maxima over a row.
 *
 *     a part of a row:   piece 0 of threads 0, 1, .., group - 1 | piece 1 of threads 0, 1, .. | ..       PIECE elements each, fp32 in reg
 *
 * Parts of up to 32 threads lie side by side in a warp; larger ones have a block each. Every thread runs through every step, as lanes exchange numbers; elements
 * behind a row's end are zero. Sums are fp32 by a fixed tree, the same in all threads. Operands that do not lie in pieces of 16 bytes are read one by one. */
#ifndef KERNELS_GPU_ROWS_ROW_PARTS_CUH
#define KERNELS_GPU_ROWS_ROW_PARTS_CUH

#include "kernels/gpu/plain/device.cuh"
#include "kernels/gpu/ptx/cluster.cuh"
#include "kernels/gpu/ptx/ldst.cuh"
#include "kernels/gpu/ptx/math.cuh"
#include "kernels/gpu/rows/row_parts.h"

#define INLINE static __device__ __forceinline__
#define EACH_PIECE(c) _Pragma("unroll") for (int c = 0; c < pieces; c++)
#define EACH_OF_PIECE(i) _Pragma("unroll") for (int i = 0; i < PIECE; i++)

/* Where this thread works; cols: of the part's end. A thread without a part has cols 0. */
typedef struct row_place {
    int row, cols, first;         /* first: the column of its piece 0 */
    int group;
} row_place;

INLINE int piece_col(const row_place *p, int c) { return p->first + c * p->group * PIECE; }

/* Parts are counted through; this is the first one of the block. */
INLINE int64_t first_part(const row_division *d) { return (int64_t)blockIdx.x * d->parts_of_block; }

INLINE row_place place_part(const row_division *d) {
    row_place p = {0, 0, 0, d->group};
    int64_t part = first_part(d);
    p.first = (int)threadIdx.x * PIECE;
    if (d->group <= 32) {   /* several parts in a warp */
        p.first = ((int)threadIdx.x & (d->group - 1)) * PIECE;
        part += (int)threadIdx.x >> d->group_log2;
    }
    if (part >= (int64_t)d->rows * d->parts) return p;
    p.row = d->parts == 1 ? (int)part : (int)((uint32_t)part / (uint32_t)d->parts);
    int begin = ((int)part - p.row * d->parts) * d->part_cols;
    p.first += begin;
    p.cols = min(d->cols, begin + d->part_cols);
    return p;
}

/* Where the part's row begins in operand k of the nest. */
INLINE int64_t row_offset(const row_division *d, const row_place *p, const int k) {
    if (d->nest.rank <= 1) return p->row * d->nest.strides[k][0];
    int64_t offset = 0;
    int left = p->row;
    for (int axis = d->nest.rank - 1; axis > 0; axis--) {
        int size = (int)d->nest.dims[axis];
        offset += left % size * d->nest.strides[k][axis];
        left /= size;
    }
    return offset + left * d->nest.strides[k][0];
}

/* ---- elements: format is f32, bf16 or f16 ---- */

INLINE float element_at(int format, uint64_t data, int64_t at) {
    if (format == CUDA_f32) return ((const float *)data)[at];
    uint16_t bits = ((const uint16_t *)data)[at];
    return format == CUDA_bf16 ? __uint_as_float((uint32_t)bits << 16) : cvt_f32_f16(bits);
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

/* Pieces whose elements are of a format: 16-bit ones lie in packed words, f32 in x. The other is not there. */
typedef struct row_values {
    float x[PIECES_MOST][PIECE];
    uint4 words[PIECES_MOST];
} row_values;

/* x, rounded to that format. */
INLINE void round_values(const int pieces, const int format, float x[][PIECE], row_values *values) {
    EACH_PIECE(c) {
        if (format != CUDA_f32) values->words[c] = pack_halves(format, x[c]);
        else EACH_OF_PIECE(i) values->x[c][i] = x[c][i];
    }
}
INLINE void piece_floats(const int format, const row_values *values, const int c, float *x) {
    if (format != CUDA_f32) unpack_halves(format, values->words[c], x);
    else EACH_OF_PIECE(i) x[i] = values->x[c][i];
}
/* Rounded to that format. */
INLINE void round_pieces(const int pieces, const int format, float x[][PIECE]) {
    if (format != CUDA_f32) EACH_PIECE(c) unpack_halves(format, pack_halves(format, x[c]), x[c]);
}

/* What is behind the end of the row becomes zero again. */
INLINE void zero_tail(const int pieces, const row_place *p, float x[][PIECE]) {
    if (piece_col(p, pieces - 1) + PIECE <= p->cols) return;
    EACH_PIECE(c) EACH_OF_PIECE(i) x[c][i] = piece_col(p, c) + i < p->cols ? x[c][i] : 0;
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
INLINE void load_elements(const int pieces, int format, uint64_t data, int64_t step, const row_place *p, float x[][PIECE]) {
    EACH_PIECE(c) EACH_OF_PIECE(i) x[c][i] = 0;
#pragma unroll 1
    for (int i = 0; i < PIECE; i++) {
        EACH_PIECE(c) x[c][0] = piece_col(p, c) + i < p->cols ? element_at(format, data, (piece_col(p, c) + i) * step) : 0;
        turn_pieces(pieces, x);
    }
}
INLINE void store_elements(const int pieces, int format, uint64_t data, int64_t step, const row_place *p, float x[][PIECE]) {
#pragma unroll 1
    for (int i = 0; i < PIECE; i++) {
        EACH_PIECE(c) {
            int col = piece_col(p, c) + i;
            if (col >= p->cols) continue;
            if (format == CUDA_f32) ((float *)data)[col * step] = x[c][0];
            else ((uint16_t *)data)[col * step] = (uint16_t)pack_pair(format, x[c][0], 0);
        }
        turn_pieces(pieces, x);
    }
}

/* Where the row begins that begins at element at. */
INLINE uint64_t row_data(const cuda_array *array, const int format, int64_t at) { return array->data + (uint64_t)at * (format == CUDA_f32 ? 4 : 2); }

/* Do the pieces of the row that begins at data lie in 16 bytes each, or two times 16? */
INLINE bool lies_in_pieces(uint64_t data, int64_t step, const row_place *p) { return step == 1 && (data % 16 | p->cols % PIECE) == 0; }

/* Pieces of 16-bit elements that lie in 16 bytes each, from this thread's first one on; zeros behind the row's end. */
INLINE void load_words(const int pieces, const uint4 *from, const row_place *p, uint4 *words) {
    EACH_PIECE(c) words[c] = piece_col(p, c) < p->cols ? from[c * p->group] : make_uint4(0, 0, 0, 0);
}

INLINE void store_words(const int pieces, uint4 *to, const row_place *p, const uint4 *words) {
    EACH_PIECE(c) if (piece_col(p, c) < p->cols) to[c * p->group] = words[c];
}

/* All pieces of the row that begins at data. All loads are on their way before the first one is used. */
INLINE void load_pieces(const int pieces, const int format, uint64_t data, int64_t step, const row_place *p, float x[][PIECE]) {
    if (!lies_in_pieces(data, step, p)) {
        load_elements(pieces, format, data, step, p, x);
    } else if (format == CUDA_f32) {
        const float4 *from = (const float4 *)data + p->first / 4;
        EACH_PIECE(c) {
            float4 a = make_float4(0, 0, 0, 0), b = a;
            if (piece_col(p, c) < p->cols) a = from[c * p->group * 2], b = from[c * p->group * 2 + 1];
            x[c][0] = a.x, x[c][1] = a.y, x[c][2] = a.z, x[c][3] = a.w, x[c][4] = b.x, x[c][5] = b.y, x[c][6] = b.z, x[c][7] = b.w;
        }
    } else {
        uint4 words[PIECES_MOST];
        load_words(pieces, (const uint4 *)data + p->first / 8, p, words);
        EACH_PIECE(c) unpack_halves(format, words[c], x[c]);
    }
}

/* The same, as values of the format that they have in memory. */
INLINE void load_values(const int pieces, const int format, uint64_t data, int64_t step, const row_place *p, row_values *values) {
    if (format == CUDA_f32) {
        load_pieces(pieces, format, data, step, p, values->x);
    } else if (lies_in_pieces(data, step, p)) {
        load_words(pieces, (const uint4 *)data + p->first / 8, p, values->words);
    } else {
        float x[PIECES_MOST][PIECE];
        load_elements(pieces, format, data, step, p, x);
        round_values(pieces, format, x, values);
    }
}

/* All pieces of the row that begins at data. */
INLINE void store_pieces(const int pieces, const int format, uint64_t data, int64_t step, const row_place *p, float x[][PIECE]) {
    if (!lies_in_pieces(data, step, p)) {
        store_elements(pieces, format, data, step, p, x);
    } else if (format == CUDA_f32) {
        float4 *to = (float4 *)data + p->first / 4;
        EACH_PIECE(c) {
            if (piece_col(p, c) >= p->cols) continue;
            to[c * p->group * 2] = make_float4(x[c][0], x[c][1], x[c][2], x[c][3]);
            to[c * p->group * 2 + 1] = make_float4(x[c][4], x[c][5], x[c][6], x[c][7]);
        }
    } else {
        uint4 *to = (uint4 *)data + p->first / 8;
        EACH_PIECE(c) {
            uint4 words = pack_halves(format, x[c]);
            if (piece_col(p, c) < p->cols) to[c * p->group] = words;
        }
    }
}

/* A part of a row of a plain result that begins at element at. */
INLINE void store_plain(const int pieces, const row_target *t, int64_t at, const row_place *p, float x[][PIECE]) {
    if (t->format == CUDA_f32) store_pieces(pieces, CUDA_f32, t->rows.data + (uint64_t)at * 4, t->step, p, x);
    else if (t->format == CUDA_bf16) store_pieces(pieces, CUDA_bf16, t->rows.data + (uint64_t)at * 2, t->step, p, x);
    else store_pieces(pieces, CUDA_f16, t->rows.data + (uint64_t)at * 2, t->step, p, x);
}

/* ---- over the threads of a part: every thread gets the result ---- */

/* Room for one number of each warp. Two reductions one after the other need different ones. */
enum { ROW_WARPS_MOST = ROW_THREADS_MOST / 32 };
typedef struct __align__(16) row_room { float of_warp[ROW_WARPS_MOST]; } row_room;

INLINE float row_sum(float x, int group, row_room *room) {
    if (group >= 32) {
#pragma unroll
        for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    } else {
#pragma unroll 1
        for (int step = group / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    }
    if (group <= 32) return x;
    if (threadIdx.x % 32 == 0) room->of_warp[threadIdx.x / 32] = x;
    if ((int)threadIdx.x >= group / 32 && threadIdx.x < ROW_WARPS_MOST) room->of_warp[threadIdx.x] = 0;
    __syncthreads();
    x = 0;
#pragma unroll 1
    for (int i = 0; i < group / 32; i += 4) {
        float4 four = *(const float4 *)&room->of_warp[i];
        x += four.x + four.y + (four.z + four.w);
    }
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
