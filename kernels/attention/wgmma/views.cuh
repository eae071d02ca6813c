/* Who sees what, in the attention kernel by wgmma. Queries see intervals of keys, [begin, end), that move with them; or, placed (the operands row and position), each has a view of
 * its own: [start, start + count) of slots, modulo the number of slots, of a row of the cache. Placed queries are taken in segments, runs of queries with the same row of the cache. */
#ifndef KERNELS_ATTENTION_WGMMA_VIEWS_CUH
#define KERNELS_ATTENTION_WGMMA_VIEWS_CUH

#include "kernels/attention/scores.cuh"
#include "kernels/attention/wgmma/shape.cuh"

/* ---- intervals ---- */

/* The keys of a query that is not placed; queries behind the last one, which are not stored, see what it sees. */
INLINE int begin_of(const attention_wgmma_arguments *g, int query) { return max(min(query, (int)g->call.queries - 1) + g->begin_shift, 0); }
INLINE int end_of(const attention_wgmma_arguments *g, int query) { return min(min(query, (int)g->call.queries - 1) + g->end_shift, (int)g->call.keys); }

typedef struct attention_range { int begin, end; } attention_range;

/* The blocks of keys that one of count queries from first on sees. */
INLINE attention_range blocks_of(const attention_wgmma_arguments *g, const attention_shape s, int first, int count) {
    const int begin = begin_of(g, first), end = end_of(g, first + count - 1);
    const bool sees = end > begin && first < (int)g->call.queries;
    const attention_range range = {sees ? begin / s.keys : 0, sees ? (end + s.keys - 1) / s.keys : 0};
    return range;
}

/* ---- placed queries ---- */

INLINE void store_view(uint32_t rows, int row, attention_view view) {
    st_shared_u32x4(rows + row * ATTENTION_ROW_BYTES, make_uint4((uint32_t)view.start, (uint32_t)view.count, (uint32_t)view.base, (uint32_t)view.cache));
}
INLINE attention_view load_view(uint32_t rows, int row) {
    const uint4 x = ld_shared_u32x4(rows + row * ATTENTION_ROW_BYTES);
    const attention_view view = {(int)x.x, (int)x.y, (int)x.z, (int)x.w};
    return view;
}

/* A run of queries [first, end) of the tile that read the same row of the caches, and their blocks of keys. */
typedef struct attention_segment { int first, end, cache, block, end_block; } attention_segment;

INLINE void store_segment(uint32_t segments, int index, attention_segment segment) {
    st_shared_u32x4(segments + index * ATTENTION_SEGMENT_BYTES, make_uint4((uint32_t)segment.first, (uint32_t)segment.end, (uint32_t)segment.cache, (uint32_t)segment.block));
    st_shared_u32(segments + index * ATTENTION_SEGMENT_BYTES + 16, (uint32_t)segment.end_block);
}
INLINE attention_segment load_segment(uint32_t segments, int index) {
    const uint4 x = ld_shared_u32x4(segments + index * ATTENTION_SEGMENT_BYTES);
    const attention_segment segment = {(int)x.x, (int)x.y, (int)x.z, (int)x.w, (int)ld_shared_u32(segments + index * ATTENTION_SEGMENT_BYTES + 16)};
    return segment;
}

/* The segments of the tile, by one warp; behind the last one an empty one. */
INLINE void find_segments(const attention_shape s, int keys, uint32_t views, uint32_t segments) {
    const int rows = s.groups * 64, lane = threadIdx.x % 32;
    int found = 0, first = 0;
    while (first < rows) {
        int cache = load_view(views, first).cache, end = rows, low = INT32_MAX, high = 0;
        for (int at = 0; at < rows && end == rows; at += 32) {
            const int row = at + lane;
            const unsigned other = __ballot_sync(0xffffffff, row > first && load_view(views, row).cache != cache);
            if (other != 0) end = at + __ffs((int)other) - 1;
        }
        for (int at = 0; at < rows; at += 32) {
            const attention_view view = load_view(views, at + lane);
            if (at + lane < first || at + lane >= end || view.count == 0) continue;
            const bool wraps = view.start + view.count > keys;
            low = min(low, wraps ? 0 : view.start);
            high = max(high, wraps ? keys : view.start + view.count);
        }
        for (int step = 16; step > 0; step /= 2) {
            low = min(low, __shfl_xor_sync(0xffffffff, low, step));
            high = max(high, __shfl_xor_sync(0xffffffff, high, step));
        }
        const attention_segment segment = {first, end, cache, low / s.keys, (high + s.keys - 1) / s.keys};
        if (high > 0 && lane == 0) store_segment(segments, found, segment);
        found += high > 0;
        first = end;
    }
    const attention_segment none = {0, 0, 0, 0, 0};
    if (lane == 0) store_segment(segments, found, none);
}

/* What the queries of a tile see, into shared memory, by one warp. */
INLINE void place_queries(const attention_wgmma_arguments *g, const attention_shape s, int batch, int first, uint32_t views, uint32_t segments) {
#pragma unroll 1
    for (int row = threadIdx.x % 32; row < s.groups * 64; row += 32) store_view(views, row, view_of(&g->call, batch, first + row));
    __syncwarp();
    find_segments(s, (int)g->call.keys, views, segments);
    __syncwarp();
}

/* How far slot is from the beginning of what the row sees. */
INLINE int distance(int start, int slot, int slots) {
    const int from = slot - start;
    return from < 0 ? from + slots : from;
}

#endif
