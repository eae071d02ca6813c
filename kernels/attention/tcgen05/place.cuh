/* What the warps of attention by tcgen05 have in common: an entry's constants, places and barriers in shared memory, and which units a thread block computes. */
#ifndef KERNELS_ATTENTION_TCGEN05_PLACE_CUH
#define KERNELS_ATTENTION_TCGEN05_PLACE_CUH

#include "kernels/attention/codes.cuh"
#include "kernels/attention/tcgen05/tcgen05.h"
#include "kernels/gpu/pipe/schedule.cuh"
#include "kernels/gpu/ptx/cluster.cuh"
#include "kernels/gpu/ptx/tcgen05_rows.cuh"
#include "kernels/gpu/ptx/tma.cuh"

/* Warps 0 to 7: softmax of tile 0 and of tile 1; 8 to 11: corrections. */
enum { CORRECT_WARP = 8, MULTIPLY_WARP = 12, LOAD_WARP, STORE_WARP, SCHEDULE_WARP };
enum { TILE_WARPS = 4, ROW_BYTES = 128 };

/* The constants of an entry; everything in here is known to the compiler. */
typedef struct attend_shape {
    int element;
    attend_sizes sizes;
    int width, value_width, stages, outs, tiles;   /* of the sizes */
    int scores;                   /* ATTENTION_PLAIN; _MASKED: with a bool mask of keys that queries share; _GENERAL: capped, with any mask or bias, or the scale is not positive */
    int texts;                    /* queries may be of several texts, keys a ring or in pages */
    int codes;                    /* what q and k are */
    int blocks;                   /* results are in blocks */
} attend_shape;

/* Are a row's scores products times the scale, rather than products? */
INLINE bool is_scaled(const attend_shape s) { return s.scores == ATTENTION_GENERAL; }
/* Are scales of codes parts of what becomes an exponent of 2? Of scores that are scaled they have been multiplied by. */
INLINE bool has_factors(const attend_shape s) { return s.codes == ATTEND_E4M3 && !is_scaled(s); }

typedef struct attend_place {
    uint32_t q, kv, out, q_scales, k_scales, said, caches;   /* smem; said: [2][128] pairs, from softmax to corrections; caches: beside published units */
    tile_schedule units;
    ring_barriers kv_ring, q_ring, out_ring, said_ring;   /* of the last three a stage is a tile's */
    uint32_t scores, ready, rest, sums, read;   /* barriers [2], of a place of scores each: scores are there; sums are corrected and three quarters of the weights there; the last quarter is; all sums are there, of one tile those of a block; with mxfp8: scores are in registers */
    uint32_t tmem_at, tmem;
} attend_place;

INLINE attend_place place_of(const attend_shape s, uint32_t shared) {
    attend_place p;
    p.q = shared;
    p.kv = p.q + s.tiles * attend_q_bytes(s.sizes);
    p.out = p.kv + s.stages * attend_stage_bytes(s.sizes);
    p.q_scales = p.out + s.outs * attend_out_bytes(s.sizes);
    p.k_scales = p.q_scales + ATTEND_TILES * ATTEND_SCALE_TILE;
    p.said = p.q_scales + attend_scale_bytes(s.sizes, s.stages);
    p.caches = p.said + ATTEND_TILES * ATTEND_ROWS * 8;
    p.units = schedule_at(1, 1, ATTEND_UNITS, p.caches + ATTEND_UNITS * 16);
    p.kv_ring = ring_at(ring_end(p.units.ring, ATTEND_UNITS), s.stages);
    p.q_ring = ring_at(ring_end(p.kv_ring, s.stages), ATTEND_TILES);
    p.out_ring = ring_at(ring_end(p.q_ring, ATTEND_TILES), ATTEND_TILES);
    p.said_ring = ring_at(ring_end(p.out_ring, ATTEND_TILES), ATTEND_TILES);
    p.scores = ring_end(p.said_ring, ATTEND_TILES);
    p.ready = p.scores + ATTEND_TILES * BARRIER_BYTES;
    p.rest = p.ready + ATTEND_TILES * BARRIER_BYTES;
    p.sums = p.rest + ATTEND_TILES * BARRIER_BYTES;
    p.read = p.sums + ATTEND_TILES * BARRIER_BYTES;
    p.tmem_at = p.read + ATTEND_TILES * BARRIER_BYTES;
    return p;
}

/* Warps that read a published unit: all but the one that publishes, and of units of one tile those of the other tile's softmax, which have nothing to do. */
INLINE constexpr int unit_readers(const attend_shape s) { return ATTEND_THREADS / 32 - 1 - (ATTEND_TILES - s.tiles) * TILE_WARPS; }

/* By one thread. */
INLINE void init_barriers(const attend_shape s, const attend_place *p) {
    schedule_init(p->units, unit_readers(s));
    ring_init(p->kv_ring, s.stages, 1, 1);
    ring_init(p->q_ring, s.tiles, 1, 1);
    ring_init(p->out_ring, s.outs, TILE_WARPS, 1);
    ring_init(p->said_ring, s.tiles, TILE_WARPS, TILE_WARPS);
    for (int tile = 0; tile < ATTEND_TILES; tile++) {
        mbarrier_init(p->scores + tile * BARRIER_BYTES, 1);
        mbarrier_init(p->ready + tile * BARRIER_BYTES, 2 * TILE_WARPS);
        mbarrier_init(p->rest + tile * BARRIER_BYTES, TILE_WARPS);
        if (tile < s.tiles) mbarrier_init(p->sums + tile * BARRIER_BYTES, 1);
        if (s.codes == ATTEND_MXFP8) mbarrier_init(p->read + tile * BARRIER_BYTES, TILE_WARPS);
    }
    fence_mbarrier_init();
}

/* Of a warp: one arrival for all that its lanes did. */
INLINE void arrive(uint32_t barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
}
/* The same of what it did in tensor memory, or read there. */
INLINE void arrive_behind_tmem(uint32_t barrier) {
    tcgen05_fence_before();
    arrive(barrier);
}
INLINE void wait_for_tmem(uint32_t barrier, uint32_t phase) {
    mbarrier_wait(barrier, phase);
    tcgen05_fence_after();
}

/* What all threads of the warp agree on. */
INLINE bool agreed(bool x) { return __any_sync(0xffffffff, x); }

/* ---- units ---- */

/* Queries from `first` on of a head, of all batches', in so many tiles, and blocks of keys [begin, end) of row `cache` of the caches, or of the table. Where queries are of several texts a unit is
 * published part by part, each of one text: opens: its first part; closes: its last. */
typedef struct attend_unit { int head, first, tiles, begin, end, cache; bool opens, closes; } attend_unit;

INLINE bool is_begin(const attend_unit *unit, int block) { return unit->opens && block == unit->begin; }
INLINE bool is_end(const attend_unit *unit, int block) { return unit->closes && block + 1 == unit->end; }

INLINE int batch_of(const attention_tcgen05_arguments *g, const attend_unit *unit) { return unit->head / (int)g->call.heads; }
INLINE int head_of(const attention_tcgen05_arguments *g, const attend_unit *unit) { return unit->head % (int)g->call.heads; }

/* The keys of a query; queries behind the last one, which are not stored, see what it sees. */
INLINE int keys_begin(const attention_tcgen05_arguments *g, int query) { return max(min(query, (int)g->call.queries - 1) + g->begin_shift, 0); }
INLINE int keys_end(const attention_tcgen05_arguments *g, int query) { return min(min(query, (int)g->call.queries - 1) + g->end_shift, (int)g->call.keys); }

/* Heads in bunches, of a bunch the last units first, since with a causal mask they are the longest. Thread blocks take units forwards in one round and backwards in the next. Blocks are those that
 * one of the unit's queries sees, where they have neither rows nor positions. */
INLINE attend_unit unit_at(const attention_tcgen05_arguments *g, const attend_shape s, int number) {
    const int heads = (int)(g->call.batches * g->call.heads), rows = attend_unit_rows(s.sizes);
    const schedule_place place = schedule_in_bands(number, heads, g->units, g->heads_together);
    attend_unit unit;
    unit.head = place.row;
    unit.first = (g->units - 1 - place.col) * rows;
    const int begin = keys_begin(g, unit.first), end = keys_end(g, unit.first + rows - 1);
    unit.begin = end > begin ? begin / ATTEND_KEYS : 0;
    unit.end = end > begin ? (end + ATTEND_KEYS - 1) / ATTEND_KEYS : 0;
    unit.cache = batch_of(g, &unit);
    unit.opens = unit.closes = true;
    return unit;
}

/* By a whole warp. */
INLINE void publish(const attend_shape s, const attend_place *p, int *turn, const attend_unit *unit) {
    if (s.texts) {
        const ring_turn slot = ring_writer_turn(*turn, ATTEND_UNITS);
        ring_wait_empty(p->units.ring, slot);
        if (threadIdx.x % 32 == 0) st_shared_u32(p->caches + slot.stage * 16, (uint32_t)unit->cache);
    }
    const uint32_t number = (uint32_t)unit->first / attend_unit_rows(s.sizes);
    schedule_publish(p->units, (*turn)++, make_uint4((uint32_t)unit->head, number << 2 | (uint32_t)unit->closes << 1 | (uint32_t)unit->opens, (uint32_t)unit->begin, (uint32_t)unit->end));
}

/* ---- texts ---- */

enum { MOST_LANE_QUERIES = ATTEND_TILES * ATTEND_ROWS / 32 };

/* What one lane's queries of a unit see: row of the caches, -1 of none, and slots [low, high). */
typedef struct lane_views { int cache[MOST_LANE_QUERIES], low[MOST_LANE_QUERIES], high[MOST_LANE_QUERIES]; } lane_views;

INLINE void read_views(const attention_arguments *p, const int queries, int batch, int first, lane_views *views) {
#pragma unroll 1
    for (int i = 0; i < queries; i++) {
        const attention_view view = view_of(p, batch, first + i);
        const bool wraps = view.start + view.count > (int)p->keys;
#pragma unroll
        for (int k = 0; k < queries; k++) {
            if (k != i) continue;
            views->cache[k] = view.count > 0 ? view.cache : -1;
            views->low[k] = wraps ? 0 : view.start;
            views->high[k] = wraps ? (int)p->keys : view.start + view.count;
        }
    }
}

/* A text of the unit's queries that was not taken yet, in the order of their numbers as they lie in lanes; its queries are taken. -1: there is none. */
INLINE int take_text(const int queries, lane_views *views, int *low, int *high) {
    int own = -1;
#pragma unroll
    for (int i = queries - 1; i >= 0; i--) own = views->cache[i] >= 0 ? views->cache[i] : own;
    const uint32_t there = __ballot_sync(0xffffffff, own >= 0);
    if (there == 0) return -1;
    const int cache = __shfl_sync(0xffffffff, own, __ffs((int)there) - 1);
    *low = INT32_MAX, *high = 0;
#pragma unroll
    for (int i = 0; i < queries; i++) {
        if (views->cache[i] != cache) continue;
        *low = min(*low, views->low[i]);
        *high = max(*high, views->high[i]);
        views->cache[i] = -1;
    }
    for (int step = 16; step > 0; step /= 2) {
        *low = min(*low, __shfl_xor_sync(0xffffffff, *low, step));
        *high = max(*high, __shfl_xor_sync(0xffffffff, *high, step));
    }
    return cache;
}

INLINE bool has_texts(const int queries, const lane_views *views) {
    bool any = false;
#pragma unroll
    for (int i = 0; i < queries; i++) any = any || views->cache[i] >= 0;
    return agreed(any);
}

/* A unit whose queries have rows or positions, part by part. */
INLINE void publish_texts(const attention_tcgen05_arguments *g, const attend_shape s, const attend_place *p, int *turn, attend_unit *unit) {
    const int queries = attend_unit_rows(s.sizes) / 32;
    lane_views views;
    int low, high;
    read_views(&g->call, queries, batch_of(g, unit), unit->first + threadIdx.x % 32 * queries, &views);
    unit->begin = unit->end = 0, unit->closes = false;
#pragma unroll 1
    while (!unit->closes) {
        const int cache = take_text(queries, &views, &low, &high);
        if (cache >= 0) unit->cache = cache, unit->begin = low / ATTEND_KEYS, unit->end = (high + ATTEND_KEYS - 1) / ATTEND_KEYS;
        unit->closes = !has_texts(queries, &views);
        publish(s, p, turn, unit);
        unit->opens = false;
    }
}

/* ---- pages ---- */

/* A piece of a block: a page, or a part of one where pages hold more keys than a block. A power of 2. */
INLINE int piece_rows(const attention_arguments *p) { return min(p->page, (int)ATTEND_KEYS); }

/* What a row of the table holds for a slot; -1 behind the last one. */
INLINE int entry_at(const attention_arguments *p, int cache, int slot) {
    if (slot >= (int)p->keys) return -1;
    const int64_t page = load_int(&p->table, cache * p->table_strides[0] + slot / p->page * p->table_strides[1]);
    return page >= INT32_MIN && page <= INT32_MAX ? (int)page : INT32_MIN;
}

/* Where a slot lies in k: its row of the cache and slot, or its page and slot there; row -1: behind the last slot, or where no page is. Who reports entries that are no page's is the softmax. */
INLINE attention_slot place_of_slot(const attention_arguments *p, const attend_shape s, int cache, int slot) {
    attention_slot at = {slot < (int)p->keys ? cache : -1, slot};
    if (!s.texts || p->page == 0) return at;
    const int page = entry_at(p, cache, slot);
    at.row = page >= 0 && page < p->pages ? page : -1;
    at.slot = slot % p->page;
    return at;
}

/* ---- masks of keys ---- */

/* Which of a block's keys a bool mask lets be seen, a bit each, and none behind the last key. By a warp. */
INLINE uint4 read_bits(const attention_arguments *p, uint64_t mask, int block) {
    const int first = block * ATTEND_KEYS + threadIdx.x % 32;
    uint32_t bits[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int key = first + 32 * i;
        bits[i] = __ballot_sync(0xffffffff, key < (int)p->keys && __ldg((const uint8_t *)(mask + key * p->mask_strides[3])) != 0);
    }
    return make_uint4(bits[0], bits[1], bits[2], bits[3]);
}

/* Blocks of which all keys are hidden are left out where they lie at the ends, as those of padding do. */
INLINE void trim(const attention_tcgen05_arguments *g, attend_unit *unit) {
    const uint64_t mask = extra_of(&g->call, unit->cache, head_of(g, unit), 0).mask;
#pragma unroll 1
    for (; unit->begin < unit->end; unit->end--) {
        const uint4 bits = read_bits(&g->call, mask, unit->end - 1);
        if ((bits.x | bits.y | bits.z | bits.w) != 0) break;
    }
#pragma unroll 1
    for (; unit->begin < unit->end; unit->begin++) {
        const uint4 bits = read_bits(&g->call, mask, unit->begin);
        if ((bits.x | bits.y | bits.z | bits.w) != 0) break;
    }
}

/* ---- codes ---- */

/* Where a row of k, or of q, is counted from: of a head of a batch, all heads one behind the other. */
INLINE int64_t head_of_keys(const attention_arguments *p, int batch, int head) { return (int64_t)batch * ((int)p->heads / (int)p->shared_heads) + head / (int)p->shared_heads; }
/* Keys of a head that lie behind each other: of a row of the cache, or of a page. */
INLINE int keys_of_head(const attention_arguments *p, const attend_shape s) { return s.texts && p->page != 0 ? p->page : (int)p->keys; }
/* Scales of a row with mxfp8. */
INLINE int row_scales(const attention_arguments *p) { return ((int)p->width + ATTEND_SCALED - 1) / ATTEND_SCALED; }
/* The last of a head's fp32 scales of 128 keys. */
INLINE int last_key_scale(const attention_arguments *p, const attend_shape s) { return (keys_of_head(p, s) - 1) / CODES_KEYS; }

/* The scale of a row of q, or of 128 keys. Where it is NaN codes are, too. */
INLINE float factor_at(uint64_t scales, int64_t at) { return fmaxf(__ldg((const float *)scales + at), LEAST_FACTOR); }

/* ---- publishing and reading ---- */

/* The warp that says which units; all others read them one after the other. */
INLINE void publish_units(const attention_tcgen05_arguments *g, const attend_shape s, const attend_place *p) {
    const int blocks = (int)gridDim.x, count = g->units * (int)(g->call.batches * g->call.heads);
    int turn = 0;
    for (int round = 0;; round++) {
        const int number = round * blocks + (round % 2 == 0 ? (int)blockIdx.x : blocks - 1 - (int)blockIdx.x);
        if (number >= count) break;
        attend_unit unit = unit_at(g, s, number);
        if (s.scores == ATTENTION_MASKED) trim(g, &unit);
        if (s.texts && (g->call.has_row || g->call.has_position)) publish_texts(g, s, p, &turn, &unit);
        else publish(s, p, &turn, &unit);
    }
    schedule_publish_end(p->units, turn);
}

/* Unit, or part of one, number turn of the thread block; by a whole warp. false: there is none. */
INLINE bool next_unit(const attention_tcgen05_arguments *g, const attend_shape s, const attend_place *p, int turn, attend_unit *unit) {
    const uint4 x = schedule_wait(p->units, turn);
    unit->head = (int)x.x, unit->first = (int)(x.y >> 2) * attend_unit_rows(s.sizes), unit->begin = (int)x.z, unit->end = (int)x.w;
    unit->opens = !s.texts || (x.y & 1) != 0, unit->closes = !s.texts || (x.y & 2) != 0;
    unit->cache = s.texts && !schedule_is_end(x) ? (int)ld_shared_u32(p->caches + ring_reader_turn(turn, ATTEND_UNITS).stage * 16) : batch_of(g, unit);
    unit->tiles = s.tiles > 1 && unit->first + ATTEND_ROWS < (int)g->call.queries ? 2 : 1;
    __syncwarp();
    if (threadIdx.x % 32 == 0) schedule_release(p->units, turn);
    return !schedule_is_end(x);
}

#endif
