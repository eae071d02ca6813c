/* Rows that are longer than a block's registers hold: the blocks of a cluster take a chunk each, in turns of 4 pieces a thread, and exchange their sums through shared memory.
 *
 *     a row:   | chunk of block 0: turn 0, turn 1, .. | chunk of block 1 | ..      a turn: piece 0 of threads 0, 1, .. | piece 1 of threads 0, 1, .. | .. | piece 3 ..
 *     a turn:  gmem -> smem as it is in memory, 16 bytes a thread beside those of its neighbours, through registers or by cp.async; later passes read it there
 *
 * A thread reads what it has written itself, so nobody waits but for sums. Pieces begin where 16 bytes begin in memory, wherever the row does: what lies so is read and written in
 * whole words but for the row's two ends; what does not, element by element. */
#ifndef KERNELS_GPU_ROWS_ROW_CHUNKS_CUH
#define KERNELS_GPU_ROWS_ROW_CHUNKS_CUH

#include "kernels/gpu/ptx/cluster.cuh"
#include "kernels/gpu/rows/row_chunks.h"
#include "kernels/gpu/rows/row_parts.cuh"

/* A block's chunk of a row. */
typedef struct row_chunk {
    row_place place;              /* of turn 0: first may be below 0, cols is the chunk's end; group is the block's threads */
    int turns;
    uint32_t kept;                /* where the thread's first piece lies in shared memory; 0: chunks are not kept */
    uint32_t blocks;              /* of the cluster */
} row_chunk;

INLINE int element_size(const int format) { return format == CUDA_f32 ? 4 : 2; }

/* data: where the row begins in the operand whose words decide where pieces begin; is_even: they begin where the row does. */
INLINE row_chunk place_chunk(const row_chunks *c, const int format, uint64_t data, bool is_even) {
    const int rank = (int)cluster_rank(), shift = is_even ? 0 : (int)(data % 16) / element_size(format), threads = (int)blockDim.x;
    extern __shared__ __align__(16) uint8_t kept_bytes[];
    row_chunk chunk;
    chunk.blocks = cluster_blocks();
    chunk.place.row = (int)(blockIdx.x / chunk.blocks);
    chunk.place.first = (rank * c->pieces + (int)threadIdx.x) * PIECE - shift;
    chunk.place.cols = (int)min((int64_t)c->cols, (int64_t)(rank + 1) * c->pieces * PIECE - shift);
    chunk.place.group = threads;
    chunk.turns = (c->pieces + PIECES_MOST * threads - 1) / (PIECES_MOST * threads);
    chunk.kept = c->is_kept ? shared_address(kept_bytes) + threadIdx.x * 16 : 0;
    return chunk;
}

/* Where the cluster's row begins in operand k of the nest. */
INLINE int64_t chunk_row_offset(const row_chunks *c, const int k) {
    const int row = (int)(blockIdx.x / cluster_blocks());
    if (c->nest.rank <= 1) return row * c->nest.strides[k][0];
    int64_t at[CUDA_OPERANDS];
    nest_offsets(&c->nest, row, k + 1, at);
    return at[k];
}

INLINE row_place turn_place(const row_chunk *chunk, int turn) {
    row_place p = chunk->place;
    p.first += turn * PIECES_MOST * p.group * PIECE;
    return p;
}

INLINE bool is_whole_piece(const row_place *p, const int c) { return piece_col(p, c) >= 0 && piece_col(p, c) + PIECE <= p->cols; }
INLINE bool is_inside(const row_place *p, const int c, const int i) { return piece_col(p, c) + i >= 0 && piece_col(p, c) + i < p->cols; }
INLINE bool lies_in_words(const int format, uint64_t data, int64_t step, const row_place *p) {
    return step == 1 && (data + (uint64_t)((int64_t)p->first * element_size(format))) % 16 == 0;
}

INLINE void piece_of_words(uint4 low, uint4 high, float *x) {
    const uint32_t bits[PIECE] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    EACH_OF_PIECE(i) x[i] = __uint_as_float(bits[i]);
}

INLINE void load_loose_piece(const int format, uint64_t data, int64_t step, const row_place *p, const int c, float fill, float *x) {
    if (piece_col(p, c) >= p->cols) {
        EACH_OF_PIECE(i) x[i] = fill;
        return;
    }
    EACH_OF_PIECE(i) x[i] = is_inside(p, c, i) ? element_at(format, data, (piece_col(p, c) + i) * step) : fill;
}

/* The pieces of a turn, as values of the format that they have in memory; what is outside of the chunk is fill. */
INLINE void load_turn(const int format, uint64_t data, int64_t step, const row_place *p, float fill, row_values *values) {
    const bool in_words = lies_in_words(format, data, step, p);
    const uint4 *from = (const uint4 *)(data + (uint64_t)((int64_t)p->first * element_size(format)));
#pragma unroll
    for (int c = 0; c < PIECES_MOST; c++) {
        if (!in_words || !is_whole_piece(p, c)) continue;
        if (format == CUDA_f32) {
            piece_of_words(from[c * p->group * 2], from[c * p->group * 2 + 1], values->x[c]);
        } else {
            values->words[c] = from[c * p->group];
        }
    }
#pragma unroll
    for (int c = 0; c < PIECES_MOST; c++) {
        if (in_words && is_whole_piece(p, c)) continue;
        float x[PIECE];
        load_loose_piece(format, data, step, p, c, fill, x);
        if (format != CUDA_f32) values->words[c] = pack_halves(format, x);
        else EACH_OF_PIECE(i) values->x[c][i] = x[i];
    }
}

/* One piece as fp32. */
INLINE void load_piece(const int format, uint64_t data, int64_t step, const row_place *p, const int c, float fill, float *x) {
    const uint4 *from = (const uint4 *)(data + (uint64_t)((int64_t)piece_col(p, c) * element_size(format)));
    if (!lies_in_words(format, data, step, p) || !is_whole_piece(p, c)) {
        load_loose_piece(format, data, step, p, c, fill, x);
    } else if (format == CUDA_f32) {
        piece_of_words(from[0], from[1], x);
    } else {
        unpack_halves(format, from[0], x);
    }
}

INLINE void store_piece(const int format, uint64_t data, int64_t step, const row_place *p, const int c, const float *x) {
    uint4 *to = (uint4 *)(data + (uint64_t)((int64_t)piece_col(p, c) * element_size(format)));
    if (lies_in_words(format, data, step, p) && is_whole_piece(p, c)) {
        if (format == CUDA_f32) {
            ((float4 *)to)[0] = make_float4(x[0], x[1], x[2], x[3]);
            ((float4 *)to)[1] = make_float4(x[4], x[5], x[6], x[7]);
        } else {
            to[0] = pack_halves(format, x);
        }
        return;
    }
    EACH_OF_PIECE(i) {
        if (!is_inside(p, c, i)) continue;
        const int64_t at = (piece_col(p, c) + i) * step;
        if (format == CUDA_f32) ((float *)data)[at] = x[i];
        else ((uint16_t *)data)[at] = (uint16_t)pack_pair(format, x[i], 0);
    }
}

/* All pieces of a turn of 16-bit elements. */
INLINE void store_turn(const int format, uint64_t data, int64_t step, const row_place *p, const row_values *values) {
    const bool in_words = lies_in_words(format, data, step, p);
    uint4 *to = (uint4 *)(data + (uint64_t)((int64_t)p->first * element_size(format)));
#pragma unroll
    for (int c = 0; c < PIECES_MOST; c++) {
        float x[PIECE];
        if (in_words && is_whole_piece(p, c)) {
            to[c * p->group] = values->words[c];
            continue;
        }
        unpack_halves(format, values->words[c], x);
        EACH_OF_PIECE(i) if (is_inside(p, c, i)) ((uint16_t *)data)[(piece_col(p, c) + i) * step] = (uint16_t)pack_pair(format, x[i], 0);
    }
}

/* ---- shared memory ---- */

/* Where piece c of a turn is kept; the second half of f32 lies behind those of the other threads. Pieces behind the chunk have no room. */
INLINE uint32_t kept_address(const int format, const row_chunk *chunk, int turn, const int c) {
    return chunk->kept + (uint32_t)((turn * PIECES_MOST + c) * chunk->place.group * PIECE * element_size(format));
}
INLINE bool has_room(const row_chunk *chunk, const row_place *p, const int c) { return piece_col(p, c) < chunk->place.cols; }

/* What load_turn read; of f32 faster than copies past the registers. */
INLINE void keep_turn(const int format, const row_chunk *chunk, int turn, const row_place *p, const row_values *values) {
    if (chunk->kept == 0) return;
#pragma unroll
    for (int c = 0; c < PIECES_MOST; c++) {
        const uint32_t at = kept_address(format, chunk, turn, c);
        if (!has_room(chunk, p, c)) continue;
        if (format == CUDA_f32) {
            st_shared_f32x4(at, values->x[c][0], values->x[c][1], values->x[c][2], values->x[c][3]);
            st_shared_f32x4(at + p->group * 16, values->x[c][4], values->x[c][5], values->x[c][6], values->x[c][7]);
        } else {
            st_shared_u32x4(at, values->words[c]);
        }
    }
}

INLINE void keep_piece(const int format, const row_chunk *chunk, int turn, const int c, const float *x) {
    const uint32_t at = kept_address(format, chunk, turn, c);
    if (format == CUDA_f32) {
        st_shared_f32x4(at, x[0], x[1], x[2], x[3]);
        st_shared_f32x4(at + chunk->place.group * 16, x[4], x[5], x[6], x[7]);
    } else {
        st_shared_u32x4(at, pack_halves(format, x));
    }
}

/* All of the thread's pieces are brought to shared memory, where it sees them behind this, if chunks are kept. All are on their way together and take no registers. */
INLINE void bring_chunk(const int format, const row_chunk *chunk, uint64_t data, int64_t step, float fill) {
    if (chunk->kept == 0) return;
#pragma unroll 1
    for (int t = 0; t < chunk->turns; t++) {
        const row_place p = turn_place(chunk, t);
        const bool in_words = lies_in_words(format, data, step, &p);
        const uint64_t from = data + (uint64_t)((int64_t)p.first * element_size(format));
#pragma unroll
        for (int c = 0; c < PIECES_MOST; c++) {
            const uint32_t at = kept_address(format, chunk, t, c);
            const uint64_t piece = from + (uint64_t)(c * p.group * PIECE * element_size(format));
            if (!in_words || !is_whole_piece(&p, c)) continue;
            cp_async_stream(at, (const void *)piece, 16);
            if (format == CUDA_f32) cp_async_stream(at + p.group * 16, (const void *)(piece + 16), 16);
        }
#pragma unroll 1
        for (int c = 0; c < PIECES_MOST; c++) {
            float x[PIECE];
            if ((in_words && is_whole_piece(&p, c)) || !has_room(chunk, &p, c)) continue;
            load_loose_piece(format, data, step, &p, c, fill, x);
            keep_piece(format, chunk, t, c, x);
        }
    }
    cp_async_commit();
    cp_async_wait(0);
}

/* A piece that was kept, as fp32, or the same read once more from where it lies. */
INLINE void take_piece(const int format, const row_chunk *chunk, int turn, const int c, uint64_t data, int64_t step, const row_place *p, float fill, float *x) {
    const uint32_t at = kept_address(format, chunk, turn, c);
    if (chunk->kept == 0) {
        load_piece(format, data, step, p, c, fill, x);
    } else if (!has_room(chunk, p, c)) {
        EACH_OF_PIECE(i) x[i] = fill;
    } else if (format == CUDA_f32) {
        piece_of_words(ld_shared_u32x4(at), ld_shared_u32x4(at + p->group * 16), x);
    } else {
        unpack_halves(format, ld_shared_u32x4(at), x);
    }
}

/* All pieces of a turn, as values. */
INLINE void take_turn(const int format, const row_chunk *chunk, int turn, uint64_t data, int64_t step, const row_place *p, row_values *values) {
    if (chunk->kept == 0) {
        load_turn(format, data, step, p, 0, values);
        return;
    }
#pragma unroll
    for (int c = 0; c < PIECES_MOST; c++) {
        const uint32_t at = kept_address(format, chunk, turn, c);
        uint4 low = make_uint4(0, 0, 0, 0), high = low;
        if (has_room(chunk, p, c)) {
            low = ld_shared_u32x4(at);
            if (format == CUDA_f32) high = ld_shared_u32x4(at + p->group * 16);
        }
        if (format == CUDA_f32) piece_of_words(low, high, values->x[c]);
        else values->words[c] = low;
    }
}

/* ---- over all threads of the cluster: every thread gets the result ---- */

/* Two reductions one after the other need different rooms. */
typedef struct chunk_room {
    row_room row;
    float of_block;
} chunk_room;

INLINE void show_blocks(const row_chunk *chunk, chunk_room *room, float x) {
    if (threadIdx.x == 0) room->of_block = x;
    cluster_arrive();
    cluster_wait();
}

INLINE float chunk_sum(const row_chunk *chunk, float x, chunk_room *room) {
    x = row_sum(x, (int)blockDim.x, &room->row);
    if (chunk->blocks == 1) return x;
    show_blocks(chunk, room, x);
    x = 0;
    for (uint32_t i = 0; i < chunk->blocks; i++) x += ld_cluster_f32(cluster_map(shared_address(&room->of_block), i));
    return x;
}

/* The largest; NaN if any is. */
INLINE float chunk_max(const row_chunk *chunk, float x, chunk_room *room) {
    x = row_max(x, (int)blockDim.x, &room->row);
    if (chunk->blocks == 1) return x;
    show_blocks(chunk, room, x);
    for (uint32_t i = 0; i < chunk->blocks; i++) x = max_nan(x, ld_cluster_f32(cluster_map(shared_address(&room->of_block), i)));
    return x;
}

/* Behind the last sum: no block ends while another one reads its number. */
INLINE void chunks_arrive(const row_chunk *chunk) {
    if (chunk->blocks > 1) cluster_arrive();
}
INLINE void chunks_wait(const row_chunk *chunk) {
    if (chunk->blocks > 1) cluster_wait();
}

#define EACH_TURN(chunk, t) _Pragma("unroll 1") for (int t = 0; t < (chunk).turns; t++)

#endif
