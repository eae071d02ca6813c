/* Of attention by wgmma: the constants of an entry, places in shared memory, and which keys the queries of a tile see. */
#ifndef KERNELS_ATTENTION_WGMMA_PLACE_CUH
#define KERNELS_ATTENTION_WGMMA_PLACE_CUH

#include "kernels/attention/scores.cuh"
#include "kernels/attention/wgmma/wgmma.h"
#include "kernels/gpu/ptx/cluster.cuh"
#include "kernels/gpu/ptx/tma.cuh"
#include "kernels/gpu/ptx/wgmma_sizes.cuh"
#include "kernels/gpu/pipe/schedule.cuh"
#include "kernels/quantize/blocks_wgmma.cuh"

enum { ROW_BYTES = 128, CHUNK_COLS = 64 };

/* The constants of an entry; everything in here is known to the compiler. width, value_width: that products take; rows in smem are filled up to multiples of 64. */
typedef struct attention_shape {
    int element, groups, width, value_width, keys, stages, q_stages, blocks;
    int scores;                   /* ATTENTION_PLAIN, _MASKED, _KEYS, _TILED, _CAPPED, or _GENERAL: capped, hidden by a mask or with a bias, or the scale is not positive */
    int paged;                    /* keys may lie in pages */
    int stays;                    /* thread blocks make several tiles: persistent.cuh */
    int quantised;                /* results are in blocks of e4m3 */
    int codes;                    /* q is in fp8_1x128, a block to a row of a head, k in fp8_128x128, a block to 128 of them, v in 16 bits; width up to 128 */
    int cached;                   /* what k and v are: CACHED_NOT, .. (wgmma.h); in blocks they become bf16 in shared memory: blocks.cuh */
} attention_shape;

/* Addresses in smem. */
typedef struct attention_smem {
    uint32_t q, k, v, out, tiles, codes, rows, segments, places, work, answered, notes, answers, bias, go;   /* tiles: what comes beside keys; codes: buffers of k and v in blocks; out: results, over q where thread blocks make one tile; work: the tiles of the q ring where they make several, or of the view ring; go: the loads of a tile come to their end */
    ring_barriers q_ring, k_ring, v_ring, view_ring, place_ring;
} attention_smem;

/* Do thread blocks that make several tiles look up what the queries of each see, by rows, positions and pages? Those of as many tiles lie in shared memory. */
INLINE bool walks(const attention_shape s) { return s.stays && s.paged; }
INLINE int view_stages(const attention_shape s) { return walks(s) ? ATTENTION_VIEW_STAGES : s.stays ? 0 : 1; }
/* Does the loading warp say with each block what becomes of it? */
INLINE bool has_notes(const attention_shape s) { return s.scores == ATTENTION_MASKED || s.scores == ATTENTION_KEYS || s.scores == ATTENTION_TILED; }
/* The arguments of an entry whose q and k are codes. */
INLINE const attention_codes_arguments *codes_of(const attention_wgmma_arguments *g) { return (const attention_codes_arguments *)g; }
INLINE const attention_blocks *blocks_of(const attention_wgmma_arguments *g) { return &((const attention_cached_arguments *)g)->blocks; }
/* Bytes of a row of q or k: codes fill up a row of the swizzle; of a row of v, or of results. */
INLINE int chunks_of(const int cols) { return (cols + CHUNK_COLS - 1) / CHUNK_COLS; }
INLINE int row_bytes(const attention_shape s) { return s.codes ? ROW_BYTES : chunks_of(s.width) * ROW_BYTES; }
INLINE int value_row_bytes(const attention_shape s) { return chunks_of(s.value_width) * ROW_BYTES; }
/* Are a row's scores products times the scale, rather than products? */
INLINE bool is_scaled(const attention_shape s) { return s.scores != ATTENTION_PLAIN && s.scores != ATTENTION_MASKED; }
/* Bytes of what comes beside a block's keys and is read behind their product: a tile of biases, [64 x groups queries, keys] (ATTENTION_TILED); of keys and values in fp8_1x128 the scales of keys, [keys], and of values. */
INLINE int tile_bytes(const attention_shape s) { return s.scores == ATTENTION_TILED ? s.groups * 64 * s.keys * 2 : CACHED_FACTOR_BYTES(s.cached, s.keys); }
/* Bytes of the buffers of codes, and of their scales. */
INLINE int buffer_bytes(const attention_shape s) { return s.cached ? CACHED_CODE_BYTES(s.cached, s.keys, s.width) : 0; }
INLINE int buffer_scale_bytes(const attention_shape s) { return s.cached ? CACHED_SCALE_BYTES(s.cached, s.keys, s.width) : 0; }

/* What all threads of the warp agree on. Loops and branches by it keep what is counted in uniform registers, where the descriptors of products are made. */
INLINE bool agreed(bool x) { return __any_sync(0xffffffff, x); }

/* The row of a key's head in keys in blocks, which lie as a whole: p->page or p->keys slots of each head. */
INLINE int64_t row_in_blocks(const attention_arguments *p, attention_slot at, int group) {
    return ((int64_t)at.row * (int)(p->heads / p->shared_heads) + group) * (p->page != 0 ? p->page : (int)p->keys) + at.slot;
}

/* Where thread blocks stay and look up what queries see, the loading warp says of each block where it is, and that all queries of the tile see all of its keys, or else which of its pieces are there, a bit each. */
enum { PLACE_SEGMENT_BITS = 8 };
#define WHOLE_BLOCK (~0u)
#define NOT_WHOLE 0x7fffffffu
INLINE int note_bytes(const attention_shape s) { return walks(s) ? 8 : 4; }

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
    const int rows = s.groups * 64, lane = threadIdx.x % 32;
    int found = 0, first = 0;
    while (first < rows) {
        int cache = load_view(m.rows, first).cache, end = rows, low = INT32_MAX, high = 0;
#pragma unroll 1
        for (int at = 0; at < rows && end == rows; at += 32) {
            int row = at + lane;
            unsigned other = __ballot_sync(0xffffffff, row > first && load_view(m.rows, row).cache != cache);
            if (other != 0) end = at + __ffs((int)other) - 1;
        }
#pragma unroll 1
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

/* The blocks of all segments, one after another; with masks of keys those that the loading warp gives, the index-th of them being what note says. In pages note says which pieces of the block are there. left: where the
 * loading warp says what each block is (walks), so many of the tile from this one on; index is the segment's then. */
typedef struct attention_walk { attention_segment segment; int index, block, left; bool done; uint32_t note; } attention_walk;

INLINE attention_walk walk_begin(attention_smem m) {
    attention_walk walk = {load_segment(m.segments, 0), 0, 0, 0, false, 0};
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

#endif
