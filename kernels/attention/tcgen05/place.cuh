/* What the warps of attention by tcgen05 have in common: an entry's constants, places and barriers in shared memory, and which units a thread block computes. */
#ifndef KERNELS_ATTENTION_TCGEN05_PLACE_CUH
#define KERNELS_ATTENTION_TCGEN05_PLACE_CUH

#include "kernels/attention/scores.cuh"
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
    int width, value_width, stages;   /* of the sizes */
} attend_shape;

typedef struct attend_place {
    uint32_t q, kv, out, said;    /* smem; said: [2][128] pairs, from softmax to corrections */
    tile_schedule units;
    ring_barriers kv_ring, q_ring, out_ring, said_ring;   /* of the last three a stage is a tile's */
    uint32_t scores, ready, rest, sums;   /* barriers [2]: scores are there; sums are corrected and three quarters of the weights there; the last quarter is; all sums are there */
    uint32_t tmem_at, tmem;
} attend_place;

INLINE attend_place place_of(const attend_shape s, uint32_t shared) {
    attend_place p;
    p.q = shared;
    p.kv = p.q + ATTEND_TILES * attend_q_bytes(s.sizes);
    p.out = p.kv + s.stages * attend_stage_bytes(s.sizes);
    p.said = p.out + ATTEND_TILES * attend_out_bytes(s.sizes);
    p.units = schedule_at(1, 1, ATTEND_UNITS, p.said + ATTEND_TILES * ATTEND_ROWS * 8);
    p.kv_ring = ring_at(ring_end(p.units.ring, ATTEND_UNITS), s.stages);
    p.q_ring = ring_at(ring_end(p.kv_ring, s.stages), ATTEND_TILES);
    p.out_ring = ring_at(ring_end(p.q_ring, ATTEND_TILES), ATTEND_TILES);
    p.said_ring = ring_at(ring_end(p.out_ring, ATTEND_TILES), ATTEND_TILES);
    p.scores = ring_end(p.said_ring, ATTEND_TILES);
    p.ready = p.scores + ATTEND_TILES * BARRIER_BYTES;
    p.rest = p.ready + ATTEND_TILES * BARRIER_BYTES;
    p.sums = p.rest + ATTEND_TILES * BARRIER_BYTES;
    p.tmem_at = p.sums + ATTEND_TILES * BARRIER_BYTES;
    return p;
}

/* Warps that read a published unit: all but the one that publishes. */
enum { UNIT_READERS = ATTEND_THREADS / 32 - 1 };

/* By one thread. */
INLINE void init_barriers(const attend_shape s, const attend_place *p) {
    schedule_init(p->units, UNIT_READERS);
    ring_init(p->kv_ring, s.stages, 1, 1);
    ring_init(p->q_ring, ATTEND_TILES, 1, 1);
    ring_init(p->out_ring, ATTEND_TILES, TILE_WARPS, 1);
    ring_init(p->said_ring, ATTEND_TILES, TILE_WARPS, TILE_WARPS);
    for (int tile = 0; tile < ATTEND_TILES; tile++) {
        mbarrier_init(p->scores + tile * BARRIER_BYTES, 1);
        mbarrier_init(p->ready + tile * BARRIER_BYTES, 2 * TILE_WARPS);
        mbarrier_init(p->rest + tile * BARRIER_BYTES, TILE_WARPS);
        mbarrier_init(p->sums + tile * BARRIER_BYTES, 1);
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

/* Queries from `first` on of a head, of all batches', in so many tiles, and blocks of keys [begin, end). */
typedef struct attend_unit { int head, first, tiles, begin, end; } attend_unit;

INLINE int batch_of(const attention_tcgen05_arguments *g, const attend_unit *unit) { return unit->head / (int)g->call.heads; }
INLINE int head_of(const attention_tcgen05_arguments *g, const attend_unit *unit) { return unit->head % (int)g->call.heads; }

/* The keys of a query; queries behind the last one, which are not stored, see what it sees. */
INLINE int keys_begin(const attention_tcgen05_arguments *g, int query) { return max(min(query, (int)g->call.queries - 1) + g->begin_shift, 0); }
INLINE int keys_end(const attention_tcgen05_arguments *g, int query) { return min(min(query, (int)g->call.queries - 1) + g->end_shift, (int)g->call.keys); }

/* Heads in bunches, of a bunch the last units first, since with a causal mask they are the longest. Thread blocks take units forwards in one round and backwards in the next. */
INLINE attend_unit unit_at(const attention_tcgen05_arguments *g, int number) {
    const int heads = (int)(g->call.batches * g->call.heads), rows = ATTEND_TILES * ATTEND_ROWS, queries = (int)g->call.queries;
    const schedule_place place = schedule_in_bands(number, heads, g->units, g->heads_together);
    attend_unit unit;
    unit.head = place.row;
    unit.first = (g->units - 1 - place.col) * rows;
    unit.tiles = unit.first + ATTEND_ROWS < queries ? 2 : 1;
    const int begin = keys_begin(g, unit.first), end = keys_end(g, unit.first + rows - 1);
    unit.begin = end > begin ? begin / ATTEND_KEYS : 0;
    unit.end = end > begin ? (end + ATTEND_KEYS - 1) / ATTEND_KEYS : 0;
    return unit;
}

/* The warp that says which units; all others read them one after the other. */
INLINE void publish_units(const attention_tcgen05_arguments *g, const attend_place *p) {
    const int blocks = (int)gridDim.x, count = g->units * (int)(g->call.batches * g->call.heads);
    int turn = 0;
    for (;; turn++) {
        const int number = turn * blocks + (turn % 2 == 0 ? (int)blockIdx.x : blocks - 1 - (int)blockIdx.x);
        if (number >= count) break;
        const attend_unit unit = unit_at(g, number);
        schedule_publish(p->units, turn, make_uint4((uint32_t)unit.head, (uint32_t)unit.first, (uint32_t)unit.begin, (uint32_t)unit.end));
    }
    schedule_publish_end(p->units, turn);
}

/* Unit number turn of the thread block; by a whole warp. false: there is none. */
INLINE bool next_unit(const attention_tcgen05_arguments *g, const attend_place *p, int turn, attend_unit *unit) {
    const uint4 x = schedule_wait(p->units, turn);
    __syncwarp();
    if (threadIdx.x % 32 == 0) schedule_release(p->units, turn);
    unit->head = (int)x.x, unit->first = (int)x.y, unit->begin = (int)x.z, unit->end = (int)x.w;
    unit->tiles = unit->first + ATTEND_ROWS < (int)g->call.queries ? 2 : 1;
    return !schedule_is_end(x);
}

#endif
