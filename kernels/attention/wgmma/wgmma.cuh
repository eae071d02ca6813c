/* Fused attention by wgmma: the body of the entries of wgmma.cu, which gives it its constants. A block makes 64 x groups queries of one head.
 *
 *   the last warps, one thread  empty -> TMA q once; k [keys, width], v [keys, value_width] -> full          stages of each in smem, in columns of 64
 *   warpgroups 0 .. groups - 1  scores [64, keys] = q k^T (wgmma, smem x smem) -> weights in registers -> sums [64, value_width] += weights v (wgmma,
 *                               registers x smem, v as it lies: keys are rows)
 *
 *   of a warpgroup:   q k(i+1)^T issued | weights(i) v(i) issued | largest scores of i+1 under the second product | weights(i+1), sums scaled | ..
 *
 * Warpgroups take turns in issuing products, so that one's softmax runs under another's products. The softmax is online, in fp32, in powers of 2; weights
 * are rounded to the operands' format for the second product, their sum is not.
 *
 * Which keys a query sees is an interval [start, start + count) of slots, modulo the number of slots: a cache may be a ring. Queries of several texts (the
 * operand row) are taken in segments, runs of queries with the same row of the cache. Blocks of keys begin at multiples of keys; those that no query of
 * a segment sees are skipped, those that all see are not masked. Keys in pages (paged): a block comes in pieces, one box of TMA for each page or part of one; of pages that are not there come zeros, and a note beside the stage hides them. A hidden key may hold anything: a row with a NaN among its results while its sum is
 * none is done again without the keys of no weight.
 *
 * A mask or bias of keys (ATTENTION_KEYS) is read by the loading warp, a window of 512 keys at a time (256 where it has few registers), which says with each block what becomes of it:
 *   all biases are 0                     the block is as good as plain
 *   all keys are hidden                  it is not loaded
 *   all biases are OP_ATTENTION_HIDES or    put off; behind all others warps answer whether any of their rows has come to no larger score, and only then these blocks
 *   less, some not -inf                  are loaded, too, as otherwise their weights are 0
 *   anything else                        the biases go to smem, [keys] fp32, those of eight blocks
 *
 * A bias of queries and keys in the operands' format (ATTENTION_TILED) comes in tiles by TMA, with the keys of a block, [queries, keys] smem; a mask of keys beside it as above. A warp reads
 * its part of the tile by ldmatrix, as scores lie in registers.
 *
 * Registers: 24 (loads), 240 (products), 40 and 232 with masks of keys or pages; where a multiprocessor holds several blocks, one warp loads and all have the same. Speed: README.md. */
#ifndef KERNELS_ATTENTION_WGMMA_WGMMA_CUH
#define KERNELS_ATTENTION_WGMMA_WGMMA_CUH

#include "kernels/attention/scores.cuh"
#include "kernels/attention/wgmma/wgmma.h"
#include "kernels/gpu/ptx/cluster.cuh"
#include "kernels/gpu/ptx/tma.cuh"
#include "kernels/gpu/ptx/wgmma.cuh"
#include "kernels/gpu/pipe/schedule.cuh"
#include "kernels/quantize/blocks_wgmma.cuh"

enum { ROW_BYTES = 128, CHUNK_COLS = 64 };

/* The constants of an entry; everything in here is known to the compiler. width, value_width: multiples of 64 that the operands are padded to. */
typedef struct attention_shape {
    int element, groups, width, value_width, keys, stages, q_stages, blocks;
    int scores;                   /* ATTENTION_PLAIN, _MASKED, _KEYS, _TILED, _CAPPED, or _GENERAL: capped, hidden by a mask or with a bias, or the scale is not positive */
    int paged;                    /* keys may lie in pages */
    int stays;                    /* thread blocks make several tiles: persistent.cuh */
    int quantised;                /* results are in blocks of e4m3 */
} attention_shape;

/* Addresses in smem. */
typedef struct attention_smem {
    uint32_t q, k, v, out, tiles, rows, segments, work, answered, notes, answers, bias;   /* out: results, over q where thread blocks make one tile; work: the tiles of the q ring where they make several */
    ring_barriers q_ring, k_ring, v_ring;
} attention_smem;

/* Does the loading warp say with each block what becomes of it? */
INLINE bool has_notes(const attention_shape s) { return s.scores == ATTENTION_MASKED || s.scores == ATTENTION_KEYS || s.scores == ATTENTION_TILED; }
/* Are a row's scores products times the scale, rather than products? */
INLINE bool is_scaled(const attention_shape s) { return s.scores != ATTENTION_PLAIN && s.scores != ATTENTION_MASKED; }
/* Bytes of a tile of biases, [64 x groups queries, keys] (ATTENTION_TILED). */
INLINE int tile_bytes(const attention_shape s) { return s.scores == ATTENTION_TILED ? s.groups * 64 * s.keys * 2 : 0; }

/* What all threads of the warp agree on. Loops and branches by it keep what is counted in uniform registers, where the descriptors of products are made. */
INLINE bool agreed(bool x) { return __any_sync(0xffffffff, x); }

/* What a block works on. */
typedef struct attention_tile { int batch, head, first; } attention_tile;

/* A run of queries [first, end) of the tile that read the same row of the caches (or of the table), their blocks of keys, and the slots that any of them sees, [low, high). */
typedef struct attention_segment { int first, end, cache, block, end_block, low, high; } attention_segment;

/* ---- who sees what ---- */

INLINE void store_view(uint32_t rows, int row, attention_view view) {
    st_shared_u32x4(rows + row * ATTENTION_ROW_BYTES, make_uint4((uint32_t)view.start, (uint32_t)view.count, (uint32_t)view.base, (uint32_t)view.cache));
}
INLINE attention_view load_view(uint32_t rows, int row) {
    uint4 x = ld_shared_u32x4(rows + row * ATTENTION_ROW_BYTES);
    attention_view view = {(int)x.x, (int)x.y, (int)x.z, (int)x.w};
    return view;
}

INLINE void store_segment(uint32_t segments, int index, attention_segment segment) {
    st_shared_u32x4(segments + index * ATTENTION_SEGMENT_BYTES, make_uint4((uint32_t)segment.first, (uint32_t)segment.end, (uint32_t)segment.cache, (uint32_t)segment.block));
    st_shared_u32x4(segments + index * ATTENTION_SEGMENT_BYTES + 16, make_uint4((uint32_t)segment.end_block, (uint32_t)segment.low, (uint32_t)segment.high, 0));
}
INLINE attention_segment load_segment(uint32_t segments, int index) {
    const uint4 x = ld_shared_u32x4(segments + index * ATTENTION_SEGMENT_BYTES), y = ld_shared_u32x4(segments + index * ATTENTION_SEGMENT_BYTES + 16);
    attention_segment segment = {(int)x.x, (int)x.y, (int)x.z, (int)x.w, (int)y.x, (int)y.y, (int)y.z};
    return segment;
}

/* What view_of gives where there are neither rows nor positions, by few instructions: each tile waits for it. */
INLINE attention_view plain_view_of(const attention_wgmma_arguments *g, int batch, int query) {
    const int begin = max(query + g->begin_shift, 0), end = min(query + g->end_shift, (int)g->call.keys);
    const bool sees = query < (int)g->call.queries && end > begin;
    attention_view view = {sees ? begin : 0, sees ? end - begin : 0, sees ? begin : 0, batch};
    return view;
}

/* There is one segment then, from what the first query sees to what the last one sees; who sees nothing has no bounds. By one thread. */
INLINE void store_whole_tile(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, int batch, int first) {
    int last = min(first + s.groups * 64, (int)g->call.queries) - 1;
    attention_view from = plain_view_of(g, batch, first), to = plain_view_of(g, batch, last);
    int begin = from.count > 0 ? from.start : 0, end = to.count > 0 ? to.start + to.count : (int)g->call.keys;
    attention_segment segment = {0, s.groups * 64, batch, begin / s.keys, (end + s.keys - 1) / s.keys, begin, end}, none = {0, 0, 0, 0, 0, 0, 0};
    store_segment(m.segments, 0, segment);
    store_segment(m.segments, 1, none);
}

/* The segments of the tile, by one warp; behind the last one an empty one. */
INLINE void find_segments(const attention_shape s, int keys, attention_smem m) {
    const int rows = s.groups * 64, lane = threadIdx.x;
    int found = 0, first = 0;
    while (first < rows) {
        int cache = load_view(m.rows, first).cache, end = rows, low = INT32_MAX, high = 0;
        for (int at = 0; at < rows && end == rows; at += 32) {
            int row = at + lane;
            unsigned other = __ballot_sync(0xffffffff, row > first && load_view(m.rows, row).cache != cache);
            if (other != 0) end = at + __ffs((int)other) - 1;
        }
        for (int at = 0; at < rows; at += 32) {
            attention_view view = load_view(m.rows, at + lane);
            if (at + lane < first || at + lane >= end || view.count == 0) continue;
            bool wraps = view.start + view.count > keys;
            low = min(low, wraps ? 0 : view.start);
            high = max(high, wraps ? keys : view.start + view.count);
        }
        for (int step = 16; step > 0; step /= 2) {
            low = min(low, __shfl_xor_sync(0xffffffff, low, step));
            high = max(high, __shfl_xor_sync(0xffffffff, high, step));
        }
        attention_segment segment = {first, end, cache, low / s.keys, (high + s.keys - 1) / s.keys, low, high};
        if (high > 0 && lane == 0) store_segment(m.segments, found, segment);
        found += high > 0;
        first = end;
    }
    attention_segment none = {0, 0, 0, 0, 0, 0, 0};
    if (lane == 0) store_segment(m.segments, found, none);
}

/* The blocks of all segments, one after another; with masks of keys those that the loading warp gives, the index-th of them being what note says. In pages note says which pieces of the block are there. */
typedef struct attention_walk { attention_segment segment; int index, block; bool done; uint32_t note; } attention_walk;

INLINE attention_walk walk_begin(attention_smem m) {
    attention_walk walk = {load_segment(m.segments, 0), 0, 0, false, 0};
    walk.block = walk.segment.block;
    walk.done = walk.block >= walk.segment.end_block;
    return walk;
}
INLINE void walk_next(attention_walk *walk, attention_smem m) {
    if (++walk->block < walk->segment.end_block) return;
    walk->segment = load_segment(m.segments, ++walk->index);
    walk->block = walk->segment.block;
    walk->done = walk->block >= walk->segment.end_block;
}

/* ---- the ring ---- */

/* rows x cols, cols a multiple of 64, in columns of 64. */
INLINE void load_tile(const tensor_map *map, uint32_t to, uint32_t full, int rows, int cols, int row, int head, int batch, uint64_t cache) {
#pragma unroll
    for (int i = 0; i < cols / CHUNK_COLS; i++) tma_load_4d(to + i * rows * ROW_BYTES, map, full, i * CHUNK_COLS, row, head, batch, cache);
}

INLINE void load_blocks(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile) {
    const int q_rows = s.groups * 64, k_bytes = s.keys * s.width * 2, v_bytes = s.keys * s.value_width * 2;
    const tensor_map *map_k = (const tensor_map *)g->map_k, *map_v = (const tensor_map *)g->map_v;
    int group = tile.head / (int)g->call.shared_heads;
    ring_turn turn = ring_writer();
    attention_walk walk = walk_begin(m);
    mbarrier_arrive_expect(m.q_ring.full, q_rows * s.width * 2);
    load_tile((const tensor_map *)g->map_q, m.q, m.q_ring.full, q_rows, s.width, tile.first, tile.head, tile.batch, TMA_EVICT_FIRST);
    for (; !walk.done; walk_next(&walk, m), ring_next(&turn, s.stages)) {
        ring_wait_empty(m.k_ring, turn);
        uint32_t full = ring_expect_full(m.k_ring, turn, k_bytes);
        load_tile(map_k, m.k + turn.stage * k_bytes, full, s.keys, s.width, walk.block * s.keys, group, walk.segment.cache, TMA_EVICT_LAST);
        ring_wait_empty(m.v_ring, turn);
        full = ring_expect_full(m.v_ring, turn, v_bytes);
        load_tile(map_v, m.v + turn.stage * v_bytes, full, s.keys, s.value_width, walk.block * s.keys, group, walk.segment.cache, TMA_EVICT_LAST);
    }
}

/* ---- pages ---- */

/* A block of keys lies in pieces, one after another: parts of a page where pages hold more keys than a block. A piece has a power of 2 of rows where there are several. */
INLINE int piece_rows(const attention_arguments *p, const attention_shape s) { return p->page < s.keys ? p->page : s.keys; }

/* Does a query of the segment see one of the slots from `from` on? By one thread. */
INLINE bool is_piece_seen(attention_smem m, attention_segment segment, int from, int rows) {
    for (int row = segment.first; row < segment.end; row++) {
        const attention_view view = load_view(m.rows, row);
        if (view.count > 0 && from < view.start + view.count && from + rows > view.start) return true;
    }
    return false;
}

/* The page of the slots from `from` on, -1 where none is there or no query sees one of them. By one thread. */
INLINE int page_of_piece(const attention_arguments *p, attention_smem m, attention_segment segment, int from, int rows) {
    if (from >= segment.high || from + rows <= segment.low) return -1;
    const int index = from / p->page;
    const int64_t page = load_int(&p->table, segment.cache * p->table_strides[0] + index * p->table_strides[1]);
    if (page >= -1 && page < p->pages) return (int)page;
    return is_piece_seen(m, segment, from, rows) ? page_at(p, segment.cache, index) : -1;
}

/* rows x cols of a page, or zeros (what TMA reads behind the last page), to a part of a tile of so many keys. */
INLINE void load_piece(const tensor_map *map, uint32_t to, uint32_t full, const int keys, const int cols, int slot, int head, int page) {
#pragma unroll
    for (int i = 0; i < cols / CHUNK_COLS; i++) tma_load_4d(to + i * keys * ROW_BYTES, map, full, i * CHUNK_COLS, slot, head, page, TMA_EVICT_LAST);
}

/* What load_blocks does, by one warp, of keys in pages: a piece to a lane. The pages of a block are read while the one before is waited for. */
INLINE void load_paged_blocks(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile) {
    const attention_arguments *p = &g->call;
    const int q_bytes = s.groups * 64 * s.width * 2, k_bytes = s.keys * s.width * 2, v_bytes = s.keys * s.value_width * 2;
    const int group = tile.head / (int)p->shared_heads, rows = piece_rows(p, s), pieces = s.keys / rows, lane = threadIdx.x % 32, from = lane * rows;
    const bool loads = lane < pieces;
    ring_turn turn = ring_writer();
    attention_walk walk = walk_begin(m);
    if (lane == 0) {
        mbarrier_arrive_expect(m.q_ring.full, q_bytes);
        load_tile((const tensor_map *)g->map_q, m.q, m.q_ring.full, s.groups * 64, s.width, tile.first, tile.head, tile.batch, TMA_EVICT_FIRST);
    }
    int next = loads && !walk.done ? page_of_piece(p, m, walk.segment, walk.block * s.keys + from, rows) : -1;
#pragma unroll 1
    while (!walk.done) {
        const int slot = (walk.block * s.keys + from) % p->page, page = next < 0 ? p->pages : next;
        const uint32_t there = __ballot_sync(0xffffffff, next >= 0);
        walk_next(&walk, m);
        next = loads && !walk.done ? page_of_piece(p, m, walk.segment, walk.block * s.keys + from, rows) : -1;
        ring_wait_empty(m.k_ring, turn);
        if (lane == 0) {
            st_shared_u32(m.notes + 4 * turn.stage, there);
            ring_expect_full(m.k_ring, turn, k_bytes);
        }
        __syncwarp();
        if (loads) load_piece((const tensor_map *)g->map_k, m.k + turn.stage * k_bytes + from * ROW_BYTES, ring_full(m.k_ring, turn.stage), s.keys, s.width, slot, group, page);
        ring_wait_empty(m.v_ring, turn);
        if (lane == 0) ring_expect_full(m.v_ring, turn, v_bytes);
        __syncwarp();
        if (loads) load_piece((const tensor_map *)g->map_v, m.v + turn.stage * v_bytes + from * ROW_BYTES, ring_full(m.v_ring, turn.stage), s.keys, s.value_width, slot, group, page);
        ring_next(&turn, s.stages);
    }
}

/* ---- masks of keys ---- */

/* With a block of keys: its number times 4 and whether it has biases; or there is none, and an answer is asked for, or it was the last. */
enum { NOTE_PLAIN, NOTE_BIASED, NOTE_ASK, NOTE_END };

/* Whatever a row holds above this, no key of OP_ATTENTION_HIDES or less has weight beside it. */
#define SETTLED (OP_ATTENTION_HIDES / 2)

/* Keys of which a warp reads the masks at a time, before it looks at one: it waits for memory once for so many. */
enum { MOST_READS = 16 };
/* A warp that loads for large warpgroups has few registers. */
INLINE int window_blocks(const attention_shape s) { return (s.blocks > 1 ? MOST_READS : s.groups < 3 ? MOST_READS / 2 : MOST_READS / 4) * 32 / s.keys; }

/* Numbers of size bytes, `step` bytes apart, as they lie; none behind the last key, of which `left` are 32 x i away. */
INLINE void read_numbers(const int size, uint64_t at, int64_t step, int left, const int count, uint32_t *numbers) {
#pragma unroll
    for (int i = 0; i < count; i++, at += step) {
        numbers[i] = 0;
        if (i * 32 < left) numbers[i] = size == 4 ? __ldg((const uint32_t *)at) : size == 2 ? __ldg((const uint16_t *)at) : __ldg((const uint8_t *)at);
    }
}

/* The mask and bias (not one that comes in tiles) of each of count x 32 keys from `first` on as one number; -inf of no key behind the last one. By one warp, a key to a lane. */
INLINE void read_biases(const attention_arguments *p, const attention_shape s, attention_extra extra, int first, const int count, float *biases) {
    const int key = first + threadIdx.x % 32, left = (int)p->keys - key, size = p->bias.element_bytes;
    const int64_t step = p->bias_strides[3] * size;
    uint32_t numbers[MOST_READS];
#pragma unroll
    for (int i = 0; i < count; i++) biases[i] = 0;
    if (s.scores == ATTENTION_KEYS && p->has_bias && size == 4) {
        read_numbers(4, extra.bias + key * step, 32 * step, left, count, numbers);
#pragma unroll
        for (int i = 0; i < count; i++) biases[i] = __uint_as_float(numbers[i]);
    } else if (s.scores == ATTENTION_KEYS && p->has_bias) {
        read_numbers(2, extra.bias + key * step, 32 * step, left, count, numbers);
#pragma unroll
        for (int i = 0; i < count; i++) biases[i] = p->bias.format == CUDA_bf16 ? __uint_as_float(numbers[i] << 16) : cvt_f32_f16((uint16_t)numbers[i]);
    }
    if (p->has_mask) {
        read_numbers(1, extra.mask + key * p->mask_strides[3], 32 * p->mask_strides[3], left, count, numbers);
#pragma unroll
        for (int i = 0; i < count; i++) biases[i] = numbers[i] == 0 ? -INFINITE : biases[i];
    }
#pragma unroll
    for (int i = 0; i < count; i++) biases[i] = i * 32 < left ? biases[i] : -INFINITE;
}

/* What becomes of the blocks of a window of keys, a bit each. plain: all biases are 0; hidden: OP_ATTENTION_HIDES or less; gone: -inf. */
typedef struct block_kinds { uint32_t plain, hidden, gone; } block_kinds;

INLINE block_kinds read_kinds(const attention_arguments *p, const attention_shape s, attention_extra extra, int first_block) {
    const int first = first_block * s.keys, left = (int)p->keys - first - threadIdx.x % 32, each = s.keys / 32;
    float biases[MOST_READS];
    block_kinds kinds = {0, 0, 0};
    read_biases(p, s, extra, first, window_blocks(s) * each, biases);
#pragma unroll
    for (int block = 0; block < window_blocks(s); block++) {
        bool plain = true, hidden = true, gone = true;
#pragma unroll
        for (int i = block * each; i < (block + 1) * each; i++) {
            plain = plain && (biases[i] == 0 || i * 32 >= left);
            hidden = hidden && biases[i] <= OP_ATTENTION_HIDES;
            gone = gone && biases[i] == -INFINITE;
        }
        kinds.plain |= (uint32_t)__all_sync(0xffffffff, plain) << block;
        kinds.hidden |= (uint32_t)__all_sync(0xffffffff, hidden) << block;
        kinds.gone |= (uint32_t)__all_sync(0xffffffff, gone) << block;
    }
    return kinds;
}

/* The biases of a block, [keys] fp32. */
INLINE void stage_biases(const attention_arguments *p, const attention_shape s, attention_extra extra, int block, uint32_t to) {
    float biases[MOST_READS];
    read_biases(p, s, extra, block * s.keys, s.keys / 32, biases);
#pragma unroll
    for (int i = 0; i < s.keys / 32; i++) st_shared_f32(to + (i * 32 + threadIdx.x % 32) * 4, biases[i]);
    __syncwarp();
}

INLINE bool is_unmasked(const attention_arguments *p, attention_extra extra, int key) { return *(const uint8_t *)(extra.mask + key * p->mask_strides[3]) != 0; }

/* Which of a block's keys, of which there are no more than 128, a bool mask lets be seen (ATTENTION_MASKED): a bit each. By one warp. */
INLINE uint4 read_bits(const attention_arguments *p, const attention_shape s, attention_extra extra, int block) {
    const int first = block * s.keys + threadIdx.x % 32;
    uint32_t numbers[4], bits[4] = {0, 0, 0, 0};
    read_numbers(1, extra.mask + first * p->mask_strides[3], 32 * p->mask_strides[3], (int)p->keys - first, s.keys / 32, numbers);
#pragma unroll
    for (int i = 0; i < s.keys / 32; i++) bits[i] = __ballot_sync(0xffffffff, numbers[i] != 0);
    return make_uint4(bits[0], bits[1], bits[2], bits[3]);
}

/* Scores of keys without a bit become -inf. at: the block's bits, smem. */
INLINE void hide_bits(const attention_shape s, uint32_t at, float *scores) {
    const uint4 x = ld_shared_u32x4(at);
    const int shift = threadIdx.x % 4 * 2;
    const uint32_t bits[4] = {x.x >> shift, x.y >> shift, x.z >> shift, x.w >> shift};
#pragma unroll
    for (int i = 0; i < s.keys / 2; i++)
        if ((bits[i / 16] >> (i / 4 % 4 * 8 + (i & 1)) & 1) == 0) scores[i] = -INFINITE;
}

/* A note without a block; by one warp. */
INLINE void give_note(const attention_shape s, attention_smem m, ring_turn *turn, uint32_t note) {
    ring_wait_empty(m.k_ring, *turn);
    if (threadIdx.x % 32 == 0) {
        st_shared_u32(m.notes + 4 * turn->stage, note);
        ring_arrive_full(m.k_ring, *turn);
    }
    ring_next(turn, s.stages);
}

/* Does a row need the keys that have been put off? asked: how often that was asked before. */
INLINE bool is_answered_yes(const attention_shape s, attention_smem m, uint32_t asked) {
    const int lane = threadIdx.x % 32;
    mbarrier_wait(m.answered, asked & 1);
    return __any_sync(0xffffffff, lane < 4 * s.groups && ld_shared_u32(m.answers + (lane < 4 * s.groups ? lane : 0) * 4) != 0);
}

/* Of the warp that loads: its turns, the blocks that it has given so far, whose biases have places of their own, and how often it has asked. */
typedef struct giver { ring_turn k, v; uint32_t given, asked; } giver;

/* A block of keys with its note, biases (unless it is plain) and values; or with bits of a mask (ATTENTION_MASKED). */
INLINE void give_block(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile, attention_extra extra, int block, bool plain, uint4 bits, giver *to) {
    const int k_bytes = s.keys * s.width * 2, v_bytes = s.keys * s.value_width * 2, group = tile.head / (int)g->call.shared_heads;
    ring_wait_empty(m.k_ring, to->k);
    if (!plain && s.scores != ATTENTION_MASKED) stage_biases(&g->call, s, extra, block, m.bias + to->given % ATTENTION_BIAS_STAGES * s.keys * 4);
    if (threadIdx.x % 32 == 0) {
        if (!plain && s.scores == ATTENTION_MASKED) st_shared_u32x4(m.bias + to->given % ATTENTION_BIAS_STAGES * s.keys * 4, bits);
        st_shared_u32(m.notes + 4 * to->k.stage, (uint32_t)block * 4 + (plain ? NOTE_PLAIN : NOTE_BIASED));
        uint32_t full = ring_expect_full(m.k_ring, to->k, k_bytes + tile_bytes(s));
        load_tile((const tensor_map *)g->map_k, m.k + to->k.stage * k_bytes, full, s.keys, s.width, block * s.keys, group, tile.batch, TMA_EVICT_LAST);
        if (s.scores == ATTENTION_TILED)
            tma_load_4d(m.tiles + to->k.stage * tile_bytes(s), (const tensor_map *)g->map_bias, full, block * s.keys, tile.first, g->bias_head * tile.head, g->bias_batch * tile.batch, TMA_EVICT_LAST);
        ring_wait_empty(m.v_ring, to->v);
        full = ring_expect_full(m.v_ring, to->v, v_bytes);
        load_tile((const tensor_map *)g->map_v, m.v + to->v.stage * v_bytes, full, s.keys, s.value_width, block * s.keys, group, tile.batch, TMA_EVICT_LAST);
    }
    __syncwarp();
    ring_next(&to->k, s.stages);
    ring_next(&to->v, s.stages);
    to->given++;
}

/* The blocks [begin, end) of a tile, those that are seen; by one warp. */
INLINE void give_blocks(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile, int begin, int end, giver *to) {
    const attention_extra extra = extra_of(&g->call, tile.batch, tile.head, 0);
    block_kinds kinds;
#pragma unroll 1
    for (int round = 0; round < 2; round++) {
        bool put_off = false;
#pragma unroll 1
        for (int block = begin; block < end; block++) {
            const int place = (block - begin) % window_blocks(s);
            if (place == 0) kinds = read_kinds(&g->call, s, extra, block);
            const bool plain = kinds.plain >> place & 1, hidden = kinds.hidden >> place & 1;
            if (kinds.gone >> place & 1) continue;
            put_off = put_off || hidden;
            if (hidden == (round == 1)) give_block(g, s, m, tile, extra, block, plain, make_uint4(0, 0, 0, 0), to);
        }
        if (round == 1 || !put_off) break;
        give_note(s, m, &to->k, NOTE_ASK);
        if (!is_answered_yes(s, m, to->asked++)) break;
    }
    give_note(s, m, &to->k, NOTE_END);
}

/* The same by the bits of a mask, of which none is put off. */
INLINE void give_masked_blocks(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile, int end, giver *to) {
    const attention_extra extra = extra_of(&g->call, tile.batch, tile.head, 0);
#pragma unroll 1
    for (int block = 0; block < end; block++) {
        const uint4 bits = read_bits(&g->call, s, extra, block);
        const bool plain = (bits.x & bits.y & bits.z & bits.w) == 0xffffffff, gone = (bits.x | bits.y | bits.z | bits.w) == 0;
        if (!gone) give_block(g, s, m, tile, extra, block, plain, bits, to);
    }
    give_note(s, m, &to->k, NOTE_END);
}

/* What load_blocks does, by one warp, of the blocks that are seen. */
INLINE void load_seen_blocks(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile) {
    const int q_rows = s.groups * 64;
    const attention_segment segment = load_segment(m.segments, 0);
    giver to = {ring_writer(), ring_writer(), 0, 0};
    if (threadIdx.x % 32 == 0) {
        mbarrier_arrive_expect(m.q_ring.full, q_rows * s.width * 2);
        load_tile((const tensor_map *)g->map_q, m.q, m.q_ring.full, q_rows, s.width, tile.first, tile.head, tile.batch, TMA_EVICT_FIRST);
    }
    give_blocks(g, s, m, tile, segment.block, segment.end_block, &to);
}

/* ---- scores ---- */

/* What a score is to be multiplied by to be an exponent of 2: scores with biases have been scaled, others are products. */
INLINE float unit_of(const attention_arguments *p, const attention_shape s) { return is_scaled(s) ? LOG2_E : p->scale * LOG2_E; }

/* The two rows of a thread: rows row and row + 8 of its warp's 16. */
typedef struct attention_rows {
    int start[2], count[2], base[2];
    float max[2], sum[2], down[2];
} attention_rows;

/* How far slot is from the beginning of what the row sees. */
INLINE int distance(int start, int slot, int slots) {
    int from = slot - start;
    return from < 0 ? from + slots : from;
}

/* Scores of keys that are hidden by position become -inf. counts: of keys that a row sees, 0 outside of the segment; all: every key is seen by all rows of the warp. */
INLINE void hide_keys(const attention_arguments *p, const attention_shape s, const attention_rows *rows, const int *counts, int first, bool all, float *scores) {
    int col = first + threadIdx.x % 4 * 2, slots = (int)p->keys;
    if (all) return;
    if (!has_notes(s) && !s.stays && p->has_position) {
#pragma unroll
        for (int i = 0; i < s.keys / 2; i++) {
            int half = i >> 1 & 1, slot = col + i / 4 * 8 + (i & 1);
            if (distance(rows->start[half], slot, slots) >= counts[half] || slot >= slots) scores[i] = -INFINITE;
        }
    } else {                      /* no ring: what is seen ends before the last slot */
#pragma unroll
        for (int i = 0; i < s.keys / 2; i++) {
            int half = i >> 1 & 1, from = i / 4 * 8 + (i & 1) - (rows->start[half] - col);
            if ((uint32_t)from >= (uint32_t)counts[half]) scores[i] = -INFINITE;
        }
    }
}

/* Scores of keys whose page is not there become -inf. there: the pieces of the block that are, a bit each. */
INLINE void hide_absent(const attention_arguments *p, const attention_shape s, uint32_t there, float *scores) {
    const int rows = piece_rows(p, s), shift = __ffs(rows) - 1, pieces = s.keys / rows;
    if (there == (uint32_t)((UINT64_C(1) << pieces) - 1)) return;
#pragma unroll
    for (int i = 0; i < s.keys / 2; i++) {
        const int key = threadIdx.x % 4 * 2 + i / 4 * 8 + (i & 1);
        if ((there >> (key >> shift) & 1) == 0) scores[i] = -INFINITE;
    }
}

/* Products become scores by the biases of a block, [keys] smem. */
INLINE void add_key_biases(const attention_shape s, float scale, uint32_t biases, float *scores) {
#pragma unroll
    for (int i = 0; i < s.keys / 2; i += 4) {
        const float2 bias = ld_shared_f32x2(biases + (i * 2 + threadIdx.x % 4 * 2) * 4);
        scores[i] = biased(scores[i] * scale, bias.x);
        scores[i + 1] = biased(scores[i + 1] * scale, bias.y);
        scores[i + 2] = biased(scores[i + 2] * scale, bias.x);
        scores[i + 3] = biased(scores[i + 3] * scale, bias.y);
    }
}

INLINE float2 unpack_pair(const int element, uint32_t pair) {
    if (element == ELEMENT_BF16) return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000));
    return make_float2(cvt_f32_f16((uint16_t)pair), cvt_f32_f16((uint16_t)(pair >> 16)));
}

/* Four pairs of biases as scores i to i + 7 lie in registers. tile: [rows, keys] smem, swizzled; row: the first of the warp's 16. */
INLINE void read_tile(const attention_shape s, uint32_t tile, int row, const int i, float2 *biases) {
    const int lane = threadIdx.x % 32, from = row + lane % 16;
    const uint4 x = ldmatrix_x4(tile + from * ROW_BYTES + (((i / 4 + lane / 16) ^ from % 8) << 4));
    biases[0] = unpack_pair(s.element, x.x), biases[1] = unpack_pair(s.element, x.y), biases[2] = unpack_pair(s.element, x.z), biases[3] = unpack_pair(s.element, x.w);
}

/* Products become scores by a tile of biases. */
INLINE void add_tile(const attention_shape s, float scale, uint32_t tile, int row, float *scores) {
    float low = 0;
    float2 biases[4];
#pragma unroll
    for (int i = 0; i < s.keys / 2; i += 8) {
        read_tile(s, tile, row, i, biases);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            scores[i + 2 * j] = fmaf(scores[i + 2 * j], scale, biases[j].x);
            scores[i + 2 * j + 1] = fmaf(scores[i + 2 * j + 1], scale, biases[j].y);
            low = fminf(low, fminf(biases[j].x, biases[j].y));
        }
    }
    if (!__any_sync(0xffffffff, low <= OP_ATTENTION_HIDES)) return;
#pragma unroll
    for (int i = 0; i < s.keys / 2; i += 8) {
        read_tile(s, tile, row, i, biases);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            scores[i + 2 * j] = biases[j].x <= OP_ATTENTION_HIDES ? biases[j].x : scores[i + 2 * j];
            scores[i + 2 * j + 1] = biases[j].y <= OP_ATTENTION_HIDES ? biases[j].y : scores[i + 2 * j + 1];
        }
    }
}

/* cap x tanh(product x scale / cap): two functions and three other instructions a score. */
INLINE void cap_products(const attention_arguments *p, const attention_shape s, float *scores) {
    const float unit = p->scale / p->softcap * (2 * LOG2_E), cap = p->softcap;
#pragma unroll
    for (int i = 0; i < s.keys / 2; i++) scores[i] = fmaf(-2 * cap, rcp(1 + ex2(scores[i] * unit)), cap);
}

INLINE void scale_products(const attention_arguments *p, const attention_shape s, float *scores) {
    if (p->softcap > 0) {
        cap_products(p, s, scores);
        return;
    }
#pragma unroll
    for (int i = 0; i < s.keys / 2; i++) scores[i] *= p->scale;
}

/* Biases and masks in memory, of one format that the compiler knows, two keys at a time. rows: where the thread's two rows begin; first: the block's first key. */
INLINE void add_biases(const int format, const attention_shape s, const uint64_t *rows, const int *counts, int first, int keys, float *scores) {
    const int bytes = format == CUDA_f32 ? 4 : 2;
#pragma unroll
    for (int i = 0; i < s.keys / 2; i += 2) {
        const int half = i >> 1 & 1, key = first + threadIdx.x % 4 * 2 + i / 4 * 8;
        const uint64_t at = rows[half] + key * bytes;
        float2 bias = {0, 0};
        if (counts[half] > 0 && key + 1 < keys) bias = load_bias_pair(format, at);
        else if (counts[half] > 0 && key < keys) bias.x = load_bias(format, at);
        scores[i] = biased(scores[i], bias.x);
        scores[i + 1] = biased(scores[i + 1], bias.y);
    }
}

INLINE void hide_masked(const attention_shape s, const uint64_t *rows, const int *counts, int first, int keys, float *scores) {
#pragma unroll
    for (int i = 0; i < s.keys / 2; i += 2) {
        const int half = i >> 1 & 1, key = first + threadIdx.x % 4 * 2 + i / 4 * 8;
        uint32_t pair = 0;
        if (counts[half] > 0 && key + 1 < keys) pair = __ldg((const uint16_t *)(rows[half] + key));
        else if (counts[half] > 0 && key < keys) pair = *(const uint8_t *)(rows[half] + key);
        if ((pair & 0xff) == 0) scores[i] = -INFINITE;
        if ((pair & 0xff00) == 0) scores[i + 1] = -INFINITE;
    }
}

/* Products become scores of a general shape. extra: of the thread's two rows. */
INLINE void finish_general(const attention_arguments *p, const attention_shape s, const attention_rows *rows, const int *counts, const attention_extra *extra, int first, float *scores) {
    const uint64_t biases[2] = {extra[0].bias, extra[1].bias}, masks[2] = {extra[0].mask, extra[1].mask};
    const int keys = (int)p->keys, col = first + threadIdx.x % 4 * 2;
    bool in_pairs = !p->has_position && (!p->has_bias || (p->bias_strides[3] == 1 && ((biases[0] | biases[1]) & (2 * p->bias.element_bytes - 1)) == 0));
    in_pairs = in_pairs && (!p->has_mask || (p->mask_strides[3] == 1 && ((masks[0] | masks[1]) & 1) == 0));
    if (!__all_sync(0xffffffff, in_pairs)) {
#pragma unroll
        for (int i = 0; i < s.keys / 2; i++) {
            int half = i >> 1 & 1, slot = col + i / 4 * 8 + (i & 1), from = distance(rows->start[half], slot, keys);
            scores[i] = from < counts[half] && slot < keys ? score_of(p, scores[i], extra[half], rows->base[half] + from) : -INFINITE;
        }
        return;
    }
    scale_products(p, s, scores);
    if (p->has_bias && p->bias.format == CUDA_f32) add_biases(CUDA_f32, s, biases, counts, first, keys, scores);
    else if (p->has_bias && p->bias.format == CUDA_bf16) add_biases(CUDA_bf16, s, biases, counts, first, keys, scores);
    else if (p->has_bias) add_biases(CUDA_f16, s, biases, counts, first, keys, scores);
    if (p->has_mask) hide_masked(s, masks, counts, first, keys, scores);
}

/* A row's weights are 2^(score x unit - shift) of the scores of a block, as they stand in registers. */
typedef struct attention_exponents { float unit, shift[2]; } attention_exponents;

/* The largest score of a block in a row, and `top`. */
INLINE float largest_of(const attention_shape s, const float *scores, const int half, float top) {
#pragma unroll
    for (int i = 2 * half; i < s.keys / 2; i += 4) top = fmaxf(top, fmaxf(scores[i], scores[i + 1]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 1));
    return fmaxf(top, __shfl_xor_sync(0xffffffff, top, 2));
}

/* Rows grow to a block's largest products; sums are to be scaled by down before the block's weights are added. */
INLINE void raise_rows(const attention_shape s, float unit, attention_rows *rows, const float *scores, attention_exponents *exponents) {
    exponents->unit = unit;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float top = largest_of(s, scores, half, rows->max[half]), shift = top == -INFINITE ? 0 : top * unit;
        rows->down[half] = rows->max[half] == top ? 1 : ex2(fmaf(rows->max[half], unit, -shift));
        rows->max[half] = top;
        exponents->shift[half] = shift;
    }
}

/* So large a score has no room for another base in its last bits: the largest is subtracted before the change then. */
#define NEAR 1024.0f

/* The same of scores that have been scaled, which become exponents where one of the warp's rows has a largest that is not near. */
INLINE void raise_rows_by_scores(const attention_shape s, attention_rows *rows, float *scores, attention_exponents *exponents) {
    bool far = false;
    float shifts[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float top = largest_of(s, scores, half, rows->max[half]);
        shifts[half] = top == -INFINITE ? 0 : top;
        far = far || !(fabsf(shifts[half]) < NEAR);
        rows->down[half] = shrink(rows->max[half], top, LOG2_E);
        rows->max[half] = top;
        exponents->shift[half] = shifts[half] * LOG2_E;
    }
    exponents->unit = LOG2_E;
    if (!__any_sync(0xffffffff, far)) return;
    exponents->unit = 1;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        exponents->shift[half] = 0;
#pragma unroll
        for (int i = 2 * half; i < s.keys / 2; i += 4) {
            scores[i] = (scores[i] - shifts[half]) * LOG2_E;
            scores[i + 1] = (scores[i + 1] - shifts[half]) * LOG2_E;
        }
    }
}

/* The same of products, where the largest scores so far have been scaled. One near the lowest number has no room for another base, but then no key of this block is seen. */
INLINE void raise_rows_by_products(const attention_shape s, float scale, attention_rows *rows, const float *scores, attention_exponents *exponents) {
    exponents->unit = scale * LOG2_E;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float top = fmaxf(rows->max[half], scale * largest_of(s, scores, half, -INFINITE));
        rows->down[half] = shrink(rows->max[half], top, LOG2_E);
        rows->max[half] = top;
        exponents->shift[half] = fmaxf(top * LOG2_E, -LARGEST);
    }
}

/* Scores become weights, without a branch: the weights of all blocks go through this code, whatever their scores are. */
INLINE void soften(const attention_shape s, const attention_exponents *exponents, attention_rows *rows, float *scores) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = 0;
#pragma unroll
        for (int i = 2 * half; i < s.keys / 2; i += 4) {
            scores[i] = ex2(fmaf(scores[i], exponents->unit, -exponents->shift[half]));
            scores[i + 1] = ex2(fmaf(scores[i + 1], exponents->unit, -exponents->shift[half]));
            sum += scores[i] + scores[i + 1];
        }
        rows->sum[half] = fmaf(rows->sum[half], rows->down[half], sum);
    }
}

INLINE uint32_t pack_pair(const int element, float low, float high) { return element == ELEMENT_BF16 ? cvt_bf16x2(low, high) : cvt_f16x2(low, high); }

/* Weights as the first operand of a product: pairs of k of each step of 16 keys. */
INLINE void pack_weights(const attention_shape s, const float *scores, uint32_t *weights) {
#pragma unroll
    for (int i = 0; i < s.keys / 4; i++) weights[i] = pack_pair(s.element, scores[2 * i], scores[2 * i + 1]);
}

/* ---- products ---- */

INLINE void multiply_keys(const attention_shape s, float *scores, uint32_t q, uint32_t k) {
    const int q_chunk = s.groups * 64 * ROW_BYTES, k_chunk = s.keys * ROW_BYTES;
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < s.width / 16; step++) {
        uint64_t a = wgmma_descriptor(q + step / 4 * q_chunk) + step % 4 * 2, b = wgmma_descriptor(k + step / 4 * k_chunk) + step % 4 * 2;
#define SHAPE(n)                                                                                   \
    if (s.keys == n && s.element == ELEMENT_BF16) wgmma_n##n##_bf16(scores, a, b, step > 0);       \
    if (s.keys == n && s.element == ELEMENT_F16) wgmma_n##n##_f16(scores, a, b, step > 0);
        SHAPE(32)
        SHAPE(64)
        SHAPE(128)
#undef SHAPE
    }
    wgmma_commit();
}

INLINE void add_values(const attention_shape s, float *sums, const uint32_t *weights, uint32_t v) {
    uint64_t b = wgmma_descriptor_columns(v, s.keys * ROW_BYTES);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < s.keys / 16; step++, b += 16 * ROW_BYTES / 16) {
#define SHAPE(n)                                                                                                                   \
    if (s.value_width == n && s.element == ELEMENT_BF16) wgmma_n##n##_bf16_columns(sums, weights + 4 * step, b, 1);                \
    if (s.value_width == n && s.element == ELEMENT_F16) wgmma_n##n##_f16_columns(sums, weights + 4 * step, b, 1);
        SHAPE(64)
        SHAPE(128)
        SHAPE(256)
#undef SHAPE
    }
    wgmma_commit();
}

/* Warpgroups issue products in turn: number i waits at barrier ORDER + i, which the one before it opens. */
enum { ORDER = 1, GROUP_BARRIER = 5 };

INLINE void order_wait(const attention_shape s, int group) {
    if (s.groups > 1) barrier_sync(ORDER + group, 256);
}
INLINE void order_pass(const attention_shape s, int group) {
    if (s.groups > 1) barrier_arrive(ORDER + (group + 1) % s.groups, 256);
}

/* The warp has read the stage. */
INLINE void release(const ring_barriers ring, ring_turn turn) {
    if (threadIdx.x % 32 == 0) ring_arrive_empty(ring, turn);
}

/* ---- a block of keys ---- */

/* Products of a block become scores, and rows grow to the largest of them. Masks of keys: a block without biases is taken as one without a mask. */
/* biases: the block's tile of them, smem (ATTENTION_TILED). */
INLINE void score(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile, attention_rows *rows, const attention_walk *walk, int row,
                  uint32_t biases, float *scores, attention_exponents *exponents) {
    const attention_arguments *p = &g->call;
    int slots = (int)p->keys, first = walk->block * s.keys, counts[2];
    bool all = first + s.keys <= slots;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int at = row + 8 * half;
        counts[half] = at >= walk->segment.first && at < walk->segment.end ? rows->count[half] : 0;
        all = all && distance(rows->start[half], first, slots) + s.keys <= counts[half];
    }
    all = __all_sync(0xffffffff, all);
    if (s.scores == ATTENTION_CAPPED) {
        cap_products(p, s, scores);
        hide_keys(p, s, rows, counts, first, all, scores);
        if (s.paged && p->page != 0) hide_absent(p, s, walk->note, scores);
        raise_rows_by_scores(s, rows, scores, exponents);
    } else if (s.scores == ATTENTION_GENERAL) {
        attention_extra extra[2] = {extra_of(p, walk->segment.cache, tile.head, tile.first + row), extra_of(p, walk->segment.cache, tile.head, tile.first + row + 8)};
        finish_general(p, s, rows, counts, extra, first, scores);
        hide_keys(p, s, rows, counts, first, all, scores);
        if (s.paged && p->page != 0) hide_absent(p, s, walk->note, scores);
        raise_rows_by_scores(s, rows, scores, exponents);
    } else if (s.scores == ATTENTION_TILED) {
        add_tile(s, p->scale, biases, row / 16 * 16, scores);
        if (walk->note % 4 == NOTE_BIASED) add_key_biases(s, 1, m.bias + walk->index % ATTENTION_BIAS_STAGES * s.keys * 4, scores);
        hide_keys(p, s, rows, counts, first, all, scores);
        raise_rows_by_scores(s, rows, scores, exponents);
    } else if (s.scores == ATTENTION_KEYS && walk->note % 4 == NOTE_BIASED) {
        add_key_biases(s, p->scale, m.bias + walk->index % ATTENTION_BIAS_STAGES * s.keys * 4, scores);
        hide_keys(p, s, rows, counts, first, all, scores);
        raise_rows_by_scores(s, rows, scores, exponents);
    } else {
        hide_keys(p, s, rows, counts, first, all, scores);
        if (s.paged && p->page != 0) hide_absent(p, s, walk->note, scores);
        if (s.scores == ATTENTION_KEYS) raise_rows_by_products(s, p->scale, rows, scores, exponents);
        else raise_rows(s, p->scale * LOG2_E, rows, scores, exponents);
    }
}

/* Whether a row of this warp has come to no score beside which hidden keys weigh nothing, to the warp that loads. */
INLINE void answer(attention_smem m, const attention_rows *rows) {
    const bool open = (rows->count[0] > 0 && !(rows->max[0] > SETTLED)) || (rows->count[1] > 0 && !(rows->max[1] > SETTLED)), any = __any_sync(0xffffffff, open);
    if (threadIdx.x % 32 != 0) return;
    st_shared_u32(m.answers + threadIdx.x / 32 * 4, any);
    mbarrier_arrive(m.answered);
}

/* Waits for the keys of the walk's block; false when there are none left. With masks of keys: and finds out which block it is. */
INLINE bool wait_block(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, const attention_rows *rows, attention_walk *walk, ring_turn *turn) {
    if (!has_notes(s)) {
        if (!walk->done) ring_wait_full(m.k_ring, *turn);
        if (s.paged && g->call.page != 0 && !walk->done) walk->note = ld_shared_u32(m.notes + 4 * turn->stage);
        return !walk->done;
    }
#pragma unroll 1
    for (;;) {
        ring_wait_full(m.k_ring, *turn);
        walk->note = ld_shared_u32(m.notes + 4 * turn->stage);
        walk->block = (int)(walk->note / 4);
        if (walk->note % 4 != NOTE_ASK) return walk->note % 4 != NOTE_END;
        answer(m, rows);
        release(m.k_ring, *turn);
        ring_next(turn, s.stages);
    }
}

INLINE void next_block(const attention_shape s, attention_smem m, attention_walk *walk) {
    if (has_notes(s)) walk->index++;
    else walk_next(walk, m);
}

/* sums [64, value_width] of this warpgroup's queries, in registers. */
INLINE void attend(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile, attention_rows *rows, int group, int row, float *sums) {
    const int k_bytes = s.keys * s.width * 2, v_bytes = s.keys * s.value_width * 2;
    float scores[64];
    uint32_t weights[32], q = m.q + group * 64 * ROW_BYTES;
    attention_exponents exponents;
    ring_turn k_turn = ring_reader(), v_turn = ring_reader();
    attention_walk walk = walk_begin(m);
#pragma unroll
    for (int i = 0; i < s.value_width / 2; i++) sums[i] = 0;
    mbarrier_wait(m.q_ring.full, 0);
    if (!wait_block(g, s, m, rows, &walk, &k_turn)) return;
    multiply_keys(s, scores, q, m.k + k_turn.stage * k_bytes);
    wgmma_wait(0);
    if (s.scores != ATTENTION_TILED) release(m.k_ring, k_turn);
    score(g, s, m, tile, rows, &walk, row, m.tiles + k_turn.stage * tile_bytes(s), scores, &exponents);
    if (s.scores == ATTENTION_TILED) release(m.k_ring, k_turn);
    soften(s, &exponents, rows, scores);
    pack_weights(s, scores, weights);
    ring_next(&k_turn, s.stages);
    if (group == s.groups - 1) order_pass(s, group);
    for (next_block(s, m, &walk); wait_block(g, s, m, rows, &walk, &k_turn); next_block(s, m, &walk)) {
        order_wait(s, group);
        multiply_keys(s, scores, q, m.k + k_turn.stage * k_bytes);
        ring_wait_full(m.v_ring, v_turn);
        add_values(s, sums, weights, m.v + v_turn.stage * v_bytes);
        order_pass(s, group);
        wgmma_wait(1);
        if (s.scores != ATTENTION_TILED) release(m.k_ring, k_turn);
        score(g, s, m, tile, rows, &walk, row, m.tiles + k_turn.stage * tile_bytes(s), scores, &exponents);
        if (s.scores == ATTENTION_TILED) release(m.k_ring, k_turn);
        if (has_notes(s)) wgmma_wait(0);
        soften(s, &exponents, rows, scores);
        if (!has_notes(s)) wgmma_wait(0);   /* ptxas waits in front of the powers of 2 even so, where no branch is in the way */
        release(m.v_ring, v_turn);
        pack_weights(s, scores, weights);
#pragma unroll
        for (int i = 0; i < s.value_width / 2; i++) sums[i] *= rows->down[i >> 1 & 1];
        ring_next(&k_turn, s.stages);
        ring_next(&v_turn, s.stages);
    }
    if (group == 0) order_wait(s, group);
    ring_wait_full(m.v_ring, v_turn);
    add_values(s, sums, weights, m.v + v_turn.stage * v_bytes);
    wgmma_wait(0);
}

/* ---- results ---- */

/* A row of the tile once more, by one warp, straight from memory and without the keys of no weight, into its place among the results. */
INLINE void repeat_row(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile, int row, float max, float sum) {
    const attention_arguments *p = &g->call;
    attention_view view = s.stays ? plain_view_of(g, tile.batch, tile.first + row) : load_view(m.rows, row);
    int lane = threadIdx.x % 32, slots = (int)p->keys;
    int64_t group = tile.head / (int)p->shared_heads;
    uint64_t q = p->q.data + 2 * (tile.batch * p->q_strides[0] + tile.head * p->q_strides[1] + (tile.first + row) * p->q_strides[2]);
    const uint64_t k = p->k.data + 2 * group * p->k_strides[1], v = p->v.data + 2 * group * p->v_strides[1];
    attention_extra extra = extra_of(p, view.cache, tile.head, tile.first + row);
    float unit = unit_of(p, s), shift = max == -INFINITE ? 0 : is_scaled(s) ? max : max * unit;
#pragma unroll 1
    for (int first = 0; first < s.value_width; first += 32) {
        int col = first + lane;
        float total = 0;
#pragma unroll 1
        for (int from = 0; agreed(from < view.count); from++) {
            attention_slot at = {view.cache, view.start + from < slots ? view.start + from : view.start + from - slots};
            if (s.paged) at = slot_of(p, at.row, at.slot);
            if (s.paged && agreed(at.row < 0)) continue;
            const uint64_t key = k + 2 * (at.row * p->k_strides[0] + at.slot * p->k_strides[2]), value = v + 2 * (at.row * p->v_strides[0] + at.slot * p->v_strides[2]);
            float product = 0;
#pragma unroll 1
            for (int i = 0; i < (int)p->width; i += 32)
                if (i + lane < (int)p->width) product = fmaf(load_half(s.element, q + 2 * (i + lane)), load_half(s.element, key + 2 * (i + lane)), product);
            for (int step = 16; step > 0; step /= 2) product += __shfl_xor_sync(0xffffffff, product, step);
            if (is_scaled(s)) product = score_of(p, product, extra, view.base + from);
            if (s.scores == ATTENTION_MASKED && !is_unmasked(p, extra, view.base + from)) product = -INFINITE;
            float weight = is_scaled(s) ? weight_of(product, shift, unit) : ex2(fmaf(product, unit, -shift));
            if (weight != 0 && col < p->value_width) total = fmaf(weight, load_half(s.element, value + 2 * col), total);
        }
        uint32_t at = m.out + col / CHUNK_COLS * (s.groups * 64 * ROW_BYTES) + row * ROW_BYTES + ((col % CHUNK_COLS / 8 ^ row % 8) << 4) + col % 8 * 2;
        const float y = sum == 0 ? 0 : total / sum;   /* a row that sees nothing is 0 */
        st_shared_u16(at, (uint16_t)(p->out.format == CUDA_bf16 ? cvt_bf16x2(y, 0) : cvt_f16x2(y, 0)));
    }
}

/* Results, already divided, rounded to this warp's part of the staging; rows with a NaN that no score explains once more. wrong: has this thread such values? */
INLINE void stage_results(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile, const attention_rows *rows, int first_row, const float *sums,
                          bool wrong) {
    const int lane = threadIdx.x % 32, to_row = first_row + lane % 16;
    const bool is_bf16 = g->call.out.format == CUDA_bf16;
#pragma unroll
    for (int i = 0; i < s.value_width / 16; i++) {
        const float *x = sums + 8 * i;
        uint32_t at = m.out + i / 4 * (s.groups * 64 * ROW_BYTES) + to_row * ROW_BYTES + (((i % 4 * 2 + lane / 16) ^ to_row % 8) << 4);
        if (is_bf16) stmatrix_x4(at, cvt_bf16x2(x[0], x[1]), cvt_bf16x2(x[2], x[3]), cvt_bf16x2(x[4], x[5]), cvt_bf16x2(x[6], x[7]));
        else stmatrix_x4(at, cvt_f16x2(x[0], x[1]), cvt_f16x2(x[2], x[3]), cvt_f16x2(x[4], x[5]), cvt_f16x2(x[6], x[7]));
    }
    if (!__any_sync(0xffffffff, wrong)) return;
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < 16; i++) {
        int from = i % 8 * 4, half = i / 8;
        float max = __shfl_sync(0xffffffff, half ? rows->max[1] : rows->max[0], from), sum = __shfl_sync(0xffffffff, half ? rows->sum[1] : rows->sum[0], from);
        if (agreed(sum == sum)) repeat_row(g, s, m, tile, first_row + i, max, sum);
    }
    __syncwarp();
}

/* Results in blocks, from registers. A row that is done once more goes over the staging, rounded as it is to be. */
INLINE void store_quantised(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile, const attention_rows *rows, int first_row, float *sums,
                            bool wrong) {
    const attention_arguments *p = &g->call;
    const bool is_bf16 = p->out.format == CUDA_bf16;
    const int lane = threadIdx.x % 32, row = first_row + lane / 4, begin = tile.batch * (int)p->queries, col = tile.head * (int)p->value_width;
    if (__any_sync(0xffffffff, wrong)) {
        stage_results(g, s, m, tile, rows, first_row, sums, wrong);
#pragma unroll
        for (int i = 0; i < s.value_width / 2; i += 2) {
            int from = row + (i >> 1 & 1) * 8;
            uint32_t pair = ld_shared_u32(m.out + i / 32 * (s.groups * 64 * ROW_BYTES) + from * ROW_BYTES + ((i / 4 % 8 ^ from % 8) << 4) + lane % 4 * 4);
            sums[i] = is_bf16 ? __uint_as_float(pair << 16) : cvt_f32_f16((uint16_t)pair);
            sums[i + 1] = is_bf16 ? __uint_as_float(pair & 0xffff0000) : cvt_f32_f16((uint16_t)(pair >> 16));
        }
    }
    block_results to = {p->out.data, g->scales, g->out_row_stride, g->scale_row_stride, p->out.format, g->block};
    store_blocks(&to, sums, begin + tile.first + row, col, begin + (int)p->queries, col + (int)p->value_width);
}

/* The logarithm of the sum of e^score of each row, by the first of its four threads. */
INLINE void store_lse(const attention_wgmma_arguments *g, const attention_shape s, attention_tile tile, const attention_rows *rows, int first_row) {
    if (!g->has_lse || threadIdx.x % 4 != 0) return;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int query = tile.first + first_row + threadIdx.x % 32 / 4 + 8 * half;
        const float max = is_scaled(s) ? rows->max[half] : rows->max[half] * g->call.scale;
        if (query < (int)g->call.queries)
            store_float(&g->lse, tile.batch * g->lse_strides[0] + tile.head * g->lse_strides[1] + query * g->lse_strides[2], max < INFINITE ? max + logf(rows->sum[half]) : NOT_A_NUMBER);
    }
}

/* Sums become results, over their rows' sums; true where a thread has some that are NaN while their rows' sums are not. */
INLINE bool divide(const attention_shape s, attention_rows *rows, float *sums) {
    float factors[2];
    bool wrong = false;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = rows->sum[half];
        sum += __shfl_xor_sync(0xffffffff, sum, 1);
        sum += __shfl_xor_sync(0xffffffff, sum, 2);
        if (rows->max[half] != rows->max[half]) sum = NOT_A_NUMBER;
        rows->sum[half] = sum;
        factors[half] = sum == 0 ? 0 : 1 / sum;
    }
#pragma unroll
    for (int i = 0; i < s.value_width / 2; i++) {
        wrong = wrong || (sums[i] != sums[i] && rows->sum[i >> 1 & 1] == rows->sum[i >> 1 & 1]);
        sums[i] *= factors[i >> 1 & 1];
    }
    return wrong;
}

/* Staged rows from `first` on to memory: as many as the map has boxes for. By one thread. */
INLINE void store_staged(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile, int first) {
#pragma unroll
    for (int i = 0; i < s.value_width / CHUNK_COLS; i++)
        tma_store_4d((const tensor_map *)g->map_out, m.out + i * (s.groups * 64 * ROW_BYTES) + first * ROW_BYTES, i * CHUNK_COLS, tile.first + first, tile.head, tile.batch);
    tma_commit();
}

/* Sums over their rows' sums, through smem to memory, or into blocks. */
INLINE void store_results(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile, attention_rows *rows, int group, float *sums) {
    const int thread = threadIdx.x % 128, first_row = group * 64 + thread / 32 * 16;
    const bool wrong = divide(s, rows, sums);
    store_lse(g, s, tile, rows, first_row);
    barrier_sync(GROUP_BARRIER + group, 128);   /* all warps' products have read q */
    if (s.quantised) {
        store_quantised(g, s, m, tile, rows, first_row, sums, wrong);
        return;
    }
    stage_results(g, s, m, tile, rows, first_row, sums, wrong);
    fence_proxy_async();
    barrier_sync(GROUP_BARRIER + group, 128);
    if (thread != 0) return;
    store_staged(g, s, m, tile, group * 64);
    tma_wait_read(0);
}

/* A row's largest score and sum before any key: those of its sink. */
INLINE void begin_rows(const attention_wgmma_arguments *g, const attention_shape s, int head, attention_rows *rows) {
    const attention_arguments *p = &g->call;
    const float sink = p->has_sink ? load_float(&p->sink, head * p->sink_stride) : -INFINITE;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        rows->max[half] = p->has_sink && !is_scaled(s) ? sink / p->scale : sink;
        rows->sum[half] = threadIdx.x % 4 == 0 ? lone_sink_weight(sink) : 0;
    }
}

INLINE void attend_tile(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile, int group) {
    int row = group * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    attention_rows rows;
    float sums[128];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        attention_view view = load_view(m.rows, row + 8 * half);
        rows.start[half] = view.start;
        rows.count[half] = view.count;
        rows.base[half] = view.base;
    }
    begin_rows(g, s, tile.head, &rows);
    attend(g, s, m, tile, &rows, group, row, sums);
    store_results(g, s, m, tile, &rows, group, sums);
}

/* ---- a block ---- */

/* Heads in bunches, of a bunch the last tiles first, since with a causal mask they are the longest; behind all others the first tiles of all heads, so that blocks end together. */
INLINE attention_tile tile_at(const attention_wgmma_arguments *g, const attention_shape s, int number_of_all) {
    int all = (int)(g->call.batches * g->call.heads), longer = g->tiles - g->last_tiles, rest = number_of_all - longer * all, head = rest % all, number = g->last_tiles - 1 - rest / all;
    if (rest < 0) {
        const schedule_place place = schedule_in_bands(number_of_all, all, longer, g->heads_together);
        head = place.row;
        number = g->tiles - 1 - place.col;
    }
    attention_tile tile = {head / (int)g->call.heads, head % (int)g->call.heads, number * s.groups * 64};
    return tile;
}

INLINE attention_smem smem_of(const attention_shape s, uint32_t base) {
    const int rows = s.groups * 64, views = s.stays ? 0 : rows;
    attention_smem m;
    m.q = base;
    m.k = m.q + s.q_stages * rows * s.width * 2;
    m.v = m.k + s.stages * s.keys * s.width * 2;
    m.tiles = m.v + s.stages * s.keys * s.value_width * 2;
    m.out = s.stays ? m.tiles : m.q;
    m.rows = m.tiles + s.stages * tile_bytes(s) + (s.stays ? rows * s.value_width * 2 : 0);
    m.segments = m.rows + views * ATTENTION_ROW_BYTES;
    m.q_ring = ring_at(m.segments + (s.stays ? 0 : views + 1) * ATTENTION_SEGMENT_BYTES, s.q_stages);
    m.k_ring = ring_at(ring_end(m.q_ring, s.q_stages), s.stages);
    m.v_ring = ring_at(ring_end(m.k_ring, s.stages), s.stages);
    m.work = m.q_ring.full + ATTENTION_BARRIER_BYTES - s.q_stages * ATTENTION_WORK_BYTES;
    m.answered = ring_end(m.v_ring, s.stages);
    m.notes = m.answered + BARRIER_BYTES;
    m.answers = m.notes + 4 * s.stages;
    m.bias = m.q_ring.full + ATTENTION_BARRIER_BYTES;
    return m;
}

INLINE void attention_tma(const attention_wgmma_arguments *g, const attention_shape s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    attention_smem m = smem_of(s, shared_address(shared));
    const attention_tile tile = tile_at(g, s, (int)blockIdx.x);
    int role = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        mbarrier_init(m.q_ring.full, 1);
        ring_init(m.k_ring, s.stages, 1, 4 * s.groups);
        ring_init(m.v_ring, s.stages, 1, 4 * s.groups);
        if (has_notes(s)) mbarrier_init(m.answered, 4 * s.groups);
        fence_mbarrier_init();
    }
    grid_release();
    grid_wait();
    const bool whole = has_notes(s) || (!g->call.has_row && !g->call.has_position && g->call.page == 0);
    if (threadIdx.x == s.groups * 128 && whole) store_whole_tile(g, s, m, tile.batch, tile.first);
    for (int row = threadIdx.x; row < s.groups * 64; row += blockDim.x)
        store_view(m.rows, row, whole ? plain_view_of(g, tile.batch, tile.first + row) : view_of(&g->call, tile.batch, tile.first + row));
    __syncthreads();
    if (!whole) {
        if (threadIdx.x < 32) find_segments(s, (int)g->call.keys, m);
        __syncthreads();
    }
    const bool reads = has_notes(s) || s.paged;   /* masks or pages, by the warp that loads */
    if (role == s.groups) {
        if (s.blocks == 1 && reads) setmaxnreg_dec(40);
        else if (s.blocks == 1) setmaxnreg_dec(24);
        if (has_notes(s) && threadIdx.x / 32 == 4 * s.groups) load_seen_blocks(g, s, m, tile);
        if (!has_notes(s) && threadIdx.x / 32 == 4 * s.groups) {
            if (s.paged && g->call.page != 0) load_paged_blocks(g, s, m, tile);
            else if (elect_one()) load_blocks(g, s, m, tile);
        }
    } else {
        if (s.blocks == 1 && reads) setmaxnreg_inc(232);
        else if (s.blocks == 1) setmaxnreg_inc(240);
        attend_tile(g, s, m, tile, role);
    }
}

#endif
