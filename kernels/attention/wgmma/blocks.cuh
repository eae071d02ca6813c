/* Of attention by wgmma: keys and values in blocks (fp8_1x128, mxfp8, nvfp4) become bf16 in shared memory, as products read them, by the warpgroups that load.
 *
 *   each thread  cp.async: its pieces of 16 bytes of codes of k, v, k, .. -> buffers of its own in smem, three in turn
 *                pieces -> bf16 pairs (reg) -> stage of k or v, in columns of 64, swizzled -> full
 *
 * An element is exact in bf16, and so it is times its scale with MX and nvfp4. The fp32 scales of fp8_1x128 come beside the keys, and scores and weights are multiplied by them (soften.cuh), as scores are by what scales all
 * of an nvfp4 tensor. A thread reads nothing but what it copied itself, so copies need no barrier. What is not there is zeros. */
#ifndef KERNELS_ATTENTION_WGMMA_BLOCKS_CUH
#define KERNELS_ATTENTION_WGMMA_BLOCKS_CUH

#include "kernels/attention/wgmma/load.cuh"

/* ---- which pieces a thread has ---- */

INLINE int cached_thread(const attention_shape s) { return (int)threadIdx.x - s.groups * 128; }

/* Of an entry's rows: pieces; of them those that become one column of 64; pieces of a thread, of one row each. */
INLINE int row_pieces(const attention_shape s) { return s.width * CACHED_BITS(s.cached) / 8 / CACHED_PIECE; }
INLINE int column_pieces(const attention_shape s) { return CHUNK_COLS * CACHED_BITS(s.cached) / 8 / CACHED_PIECE; }
INLINE int thread_pieces(const attention_shape s) { return s.keys * row_pieces(s) / CACHED_THREADS; }

/* Eight threads have pieces of one column, of so many rows that what they store at a time lies in different banks. */
INLINE int piece_of(const attention_shape s, int thread) { return thread / 8 % (row_pieces(s) / column_pieces(s)) * column_pieces(s) + thread % column_pieces(s); }
INLINE int row_of(const attention_shape s, int thread, const int i) {
    const int rows = 8 / column_pieces(s);
    return i * (CACHED_THREADS / row_pieces(s)) + thread / 8 / (row_pieces(s) / column_pieces(s)) * rows + thread % 8 / column_pieces(s);
}

/* ---- where a block lies ---- */

/* A block of keys, one after another: of each lane the first row of piece number lane of it, -1 where that is not there; a piece has 2^shift rows; rows of the block that there are; a bit for each piece that is there, and those behind them. */
typedef struct cached_block { int base, shift, limit; uint32_t there; } cached_block;

/* By all warps, each for itself. */
INLINE cached_block find_block(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, const attention_walk *walk, int group) {
    const attention_arguments *p = &g->call;
    const int lane = threadIdx.x % 32, first = walk->block * s.keys;
    cached_block block = {-1, s.keys == 128 ? 7 : 6, walk->done ? 0 : s.keys, ALL_THERE};
    attention_slot at = {-1, first};
    if (walk->done) return block;
    if (p->page == 0) {
        block.limit = min((int)p->keys - first, s.keys);
        at.row = walk->segment.cache;
    } else {
        const int rows = piece_rows(p, s), from = first + lane * rows;
        const paged_piece piece = piece_at(p, from);
        const bool has_piece = lane < s.keys / rows;
        block.shift = __ffs(rows) - 1;
        if (has_piece) at.row = page_of_entry(p, m, walk->segment, ask_page(p, walk->segment, piece, from, rows), from, rows);
        at.slot = piece.slot;
        block.there = __ballot_sync(0xffffffff, !has_piece || at.row >= 0);
    }
    if (at.row >= 0) block.base = (int)row_in_blocks(p, at, group);
    return block;
}

/* The row of keys in blocks that holds row `row` of the block, -1: none. By a whole warp. */
INLINE int find_row(const cached_block *block, int row) {
    const int base = __shfl_sync(0xffffffff, block->base, row >> block->shift);
    return base < 0 || row >= block->limit ? -1 : base + (row & ((1 << block->shift) - 1));
}

/* ---- copies ---- */

INLINE uint32_t codes_at(const attention_shape s, attention_smem m, int buffer) { return m.codes + buffer * (buffer_bytes(s) + buffer_scale_bytes(s)); }

/* Scales of a piece lie in one word, as those of a row are an even number of bytes. The address of its first. */
INLINE uint64_t piece_scales(const attention_shape s, const cuda_rows *x, int row, int piece) {
    return x->scales + (uint64_t)row * (uint32_t)x->scale_cols + (s.cached == CACHED_MXFP8 ? piece / 2 : piece * 2);
}

/* The thread's pieces of k, or v, into a buffer, with the words of their scales. */
INLINE void copy_codes(const attention_shape s, attention_smem m, int buffer, const cuda_rows *x, const cached_block *block) {
    const int thread = cached_thread(s), piece = piece_of(s, thread);
    const uint32_t to = codes_at(s, m, buffer) + thread * CACHED_PIECE, words = codes_at(s, m, buffer) + buffer_bytes(s) + thread * 4;
#pragma unroll
    for (int i = 0; i < thread_pieces(s); i++) {
        const int row = find_row(block, row_of(s, thread, i));
        const bool is_there = row >= 0 && piece * CACHED_PIECE < (int)x->row_bytes;
        const uint64_t from = is_there ? x->data + (uint64_t)row * (uint32_t)x->row_bytes + piece * CACHED_PIECE : x->data;
        cp_async_stream(to + i * CACHED_THREADS * CACHED_PIECE, (const void *)from, is_there ? CACHED_PIECE : 0);
        if (s.cached == CACHED_E4M3) continue;
        const uint64_t scales = is_there ? piece_scales(s, x, row, piece) & ~(uint64_t)3 : x->scales;
        cp_async(words + i * CACHED_THREADS * 4, (const void *)scales, 4, is_there ? 4 : 0);
    }
}

/* Of fp8_1x128: the scales of key number thread of the block, and of its value. */
INLINE void copy_scales(const attention_shape s, attention_smem m, int buffer, const attention_blocks *blocks, const cached_block *block) {
    const int thread = cached_thread(s), row = find_row(block, min(thread, s.keys - 1));
    if (thread >= s.keys) return;
    const uint32_t to = codes_at(s, m, buffer) + buffer_bytes(s) + thread * 8;
    cp_async(to, (const void *)(blocks->k.scales + (row < 0 ? 0 : (uint64_t)row * 4)), 4, row < 0 ? 0 : 4);
    cp_async(to + 4, (const void *)(blocks->v.scales + (row < 0 ? 0 : (uint64_t)row * 4)), 4, row < 0 ? 0 : 4);
}

/* ---- numbers ---- */

/* Codes of e4m3, bytes 2 i and 2 i + 1 of a word, as bf16 times 2^-120, those below the normal ones too. */
INLINE uint32_t pair_of_e4m3(uint32_t codes, const int i) {
    const uint32_t spread = prmt(codes, 0, i == 0 ? 0x1404 : 0x3424);
    return (spread & 0x80008000) | (spread & 0x7f007f00) >> 4;
}
/* The same of e2m1, byte i of a word, times 2^-126. */
INLINE uint32_t pair_of_e2m1(uint32_t codes, const int i) {
    const uint32_t byte = prmt(codes, 0, 0x4440 | i), pair = byte | byte << 12;   /* a code in the low bits of each half */
    return (pair & 0x00080008) << 12 | (pair & 0x00070007) << 6;
}
#define E4M3_UNIT 0x7b807b80      /* 2^120, twice */
#define E2M1_UNIT 0x7e807e80      /* 2^126, twice */

/* A scale as bf16, twice; those of e8m0 below 2^-126 are no normal numbers, the last code is NaN. */
INLINE uint32_t pair_of_e8m0(uint32_t code) { return (code == 0 ? 0x40 : code == 0xff ? 0x7fff : code << 7) * 0x10001; }
INLINE uint32_t pair_of_scale(uint32_t code) {
    const uint32_t half = (code & 0x80) << 8 | (code & 0x7f) << 4;
    return (code & 0x7f) == 0x7f ? 0x7fff7fff : mul_bf16x2(half * 0x10001, E4M3_UNIT);
}

/* Eight numbers, of two words of e4m3 or one of e2m1. */
INLINE uint4 numbers_of(const attention_shape s, uint32_t low, uint32_t high, uint32_t scale) {
    const uint32_t unit = s.cached == CACHED_NVFP4 ? E2M1_UNIT : E4M3_UNIT;
    uint32_t x[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[i] = mul_bf16x2(s.cached == CACHED_NVFP4 ? pair_of_e2m1(low, i) : pair_of_e4m3(i < 2 ? low : high, i % 2), unit);
        if (s.cached != CACHED_E4M3) x[i] = mul_bf16x2(x[i], scale);
    }
    return make_uint4(x[0], x[1], x[2], x[3]);
}

/* The thread's pieces in a buffer to a stage of k or v, [keys, width] smem. */
INLINE void store_numbers(const attention_shape s, attention_smem m, int buffer, const cuda_rows *x, const cached_block *block, uint32_t to) {
    const int thread = cached_thread(s), piece = piece_of(s, thread);
    const uint32_t codes = codes_at(s, m, buffer) + thread * CACHED_PIECE, words = codes_at(s, m, buffer) + buffer_bytes(s) + thread * 4;
    to += piece / column_pieces(s) * (s.keys * ROW_BYTES);
#pragma unroll
    for (int i = 0; i < thread_pieces(s); i++) {
        const int row = row_of(s, thread, i), from = s.cached == CACHED_E4M3 ? 0 : find_row(block, row), first = piece % column_pieces(s) * (CHUNK_COLS / 8 / column_pieces(s));
        const uint4 piece_codes = ld_shared_u32x4(codes + i * CACHED_THREADS * CACHED_PIECE);
        const uint32_t word[4] = {piece_codes.x, piece_codes.y, piece_codes.z, piece_codes.w};
        uint32_t scales = 0;
        if (s.cached != CACHED_E4M3) scales = ld_shared_u32(words + i * CACHED_THREADS * 4) >> ((uint32_t)piece_scales(s, x, from, piece) & 3) * 8;
#pragma unroll
        for (int j = 0; j < CHUNK_COLS / 8 / column_pieces(s); j++) {
            const uint32_t scale = s.cached == CACHED_MXFP8 ? pair_of_e8m0(scales & 0xff) : s.cached == CACHED_NVFP4 ? pair_of_scale(scales >> j / 2 * 8 & 0xff) : 0;
            const uint4 numbers = s.cached == CACHED_NVFP4 ? numbers_of(s, word[j], 0, scale) : numbers_of(s, word[2 * j % 4], word[(2 * j + 1) % 4], scale);
            st_shared_u32x4(to + row * ROW_BYTES + ((first + j ^ row % 8) << 4), numbers);
        }
    }
}

/* ---- the ring ---- */

/* All that the thread wrote is there for products. */
INLINE void arrive_full(const ring_barriers ring, ring_turn turn) {
    fence_proxy_async();
    __syncwarp();
    if (threadIdx.x % 32 == 0) ring_arrive_full(ring, turn);
}

INLINE int next_buffer(int buffer) { return buffer + 1 == CACHED_BUFFERS ? 0 : buffer + 1; }

/* What load_blocks does, by two warpgroups. Copies of a block's values and of the next one's keys are under way while its keys become numbers. */
INLINE void dequantise_blocks(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile) {
    const attention_blocks *blocks = blocks_of(g);
    const int q_rows = s.groups * 64, thread = cached_thread(s), group = tile.head / (int)g->call.shared_heads;
    const int k_bytes = s.keys * row_bytes(s), v_bytes = s.keys * s.value_width * 2;
    ring_turn turn = ring_writer();
    attention_walk walk = walk_begin(m);
    int buffer = 0;
    if (thread == 0) {
        mbarrier_arrive_expect(m.q_ring.full, q_rows * row_bytes(s));
        load_operand(s, (const tensor_map *)g->map_q, m.q, m.q_ring.full, q_rows, tile.first, tile.head, tile.batch, TMA_EVICT_FIRST);
    }
    cached_block now = find_block(g, s, m, &walk, group), next;
    copy_codes(s, m, 0, &blocks->k, &now);
    if (s.cached == CACHED_E4M3) copy_scales(s, m, 0, blocks, &now);
    cp_async_commit();
    copy_codes(s, m, 1, &blocks->v, &now);
    cp_async_commit();
    if (!walk.done) walk_next(&walk, m);
    next = find_block(g, s, m, &walk, group);
    copy_codes(s, m, 2, &blocks->k, &next);
    if (s.cached == CACHED_E4M3) copy_scales(s, m, 2, blocks, &next);
    cp_async_commit();
#pragma unroll 1
    while (now.limit > 0) {
        cp_async_wait(2);
        ring_wait_empty(m.k_ring, turn);
        store_numbers(s, m, buffer, &blocks->k, &now, m.k + turn.stage * k_bytes);
        if (s.cached == CACHED_E4M3 && thread < s.keys) {
            const float2 scales = ld_shared_f32x2(codes_at(s, m, buffer) + buffer_bytes(s) + thread * 8);
            const uint32_t factors = m.tiles + turn.stage * tile_bytes(s) + thread * 4;
            st_shared_f32(factors, scales.x);
            st_shared_f32(factors + s.keys * 4, scales.y);
        }
        if (thread == 0) st_shared_u32(m.notes + 4 * turn.stage, now.there);
        arrive_full(m.k_ring, turn);
        copy_codes(s, m, buffer, &blocks->v, &next);
        cp_async_commit();
        buffer = next_buffer(buffer);
        cp_async_wait(2);
        ring_wait_empty(m.v_ring, turn);
        store_numbers(s, m, buffer, &blocks->v, &now, m.v + turn.stage * v_bytes);
        arrive_full(m.v_ring, turn);
        now = next;
        if (!walk.done) walk_next(&walk, m);
        next = find_block(g, s, m, &walk, group);
        copy_codes(s, m, buffer, &blocks->k, &next);
        if (s.cached == CACHED_E4M3) copy_scales(s, m, buffer, blocks, &next);
        cp_async_commit();
        buffer = next_buffer(buffer);
        ring_next(&turn, s.stages);
    }
}

#endif
