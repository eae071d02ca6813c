/* Where things lie in shared memory in attention by three products of tf32, the parts of numbers, and loads. Not: what is made of them. */
#ifndef KERNELS_ATTENTION_TF32X3_PLACE_CUH
#define KERNELS_ATTENTION_TF32X3_PLACE_CUH

#include "kernels/attention/scores.cuh"
#include "kernels/attention/tf32x3/tf32x3.h"
#include "kernels/gpu/ptx/math.cuh"

/* An entry's constants, and what follows: rows of a tile. SLAB: rows of a product; MOST: of any entry. */
typedef struct tf32x3_shape { int depth, keys, warps, slabs, split, general; } tf32x3_shape;
enum { SLAB = 16, MOST_SLABS = 2, MOST_TURNS = 4, MOST_TILES = 16 };   /* TURNS: of 8 keys. TILES: of 8 columns of v, of which a warp sums 8 at a time, of two slabs 4 */
INLINE int queries_of(const tf32x3_shape s) { return SLAB * s.warps * s.slabs; }

/* smem, and what is worked on. */
typedef struct tile_place {
    float *q, *k, *v;
    attention_view *views;        /* [queries] */
    uint8_t *here;                /* [2][TF32X3_MOST_KEYS]: of keys in pages, is its page there? */
    int batch, head, group, first;
} tile_place;

/* ---- parts ---- */

/* Of q and weights the nearest tf32, away from zero of two; and what is left, of which a product reads 11 bits. */
INLINE uint32_t high_of(float x) { return (__float_as_uint(x) + 0x1000) & 0xffffe000; }
INLINE uint32_t low_of(float x) { return __float_as_uint(x - __uint_as_float(high_of(x))); }
/* Of keys and values the upper bits, which are all that a product reads of a number; and what is left. */
INLINE float rest_of(float x) { return x - __uint_as_float(__float_as_uint(x) & 0xffffe000); }

/* Where piece `piece` of 16 bytes of a row lies: rows of k are read in pairs, 4 pieces each, rows of v in fours that are 2 apart, 2 pieces each. */
INLINE int key_place(const int depth, int row, int piece) { return row * depth + 4 * (piece ^ ((row & 1) << 2)); }
INLINE int value_place(const int depth, int row, int piece) { return row * depth + 4 * (piece ^ (row & 6)); }

/* ---- loads ---- */

/* The warp's row `half` (of two) of a slab, which this lane has. */
INLINE int row_of(const tf32x3_shape s, int slab, int half) {
    const int thread = anew((int)threadIdx.x);
    return (thread / 32 * s.slabs + slab) * SLAB + thread % 32 / 4 + 8 * half;
}

/* Queries lie in the order in which lanes read them: of a slab's 16 columns what a lane multiplies in each of two steps, 16 bytes, and behind these their low parts if they lie split. Of 16 columns a lane has 4 t to 4 t + 3, which are k t,
 * t + 4 of two products. */
INLINE float *query_place(const tile_place *place, const tf32x3_shape s, int slab, int columns, int step) {
    const int parts = 2 + 2 * s.split;
    return place->q + 4 * (((((int)threadIdx.x / 32 * s.slabs + slab) * (s.depth / 16) + columns) * parts + step) * 32 + (int)threadIdx.x % 32);
}

/* A warp's own. */
INLINE void load_queries(const attention_arguments *p, const tile_place *place, const tf32x3_shape s) {
    const int64_t head = place->batch * p->q_strides[0] + place->head * p->q_strides[1];
#pragma unroll
    for (int m = 0; m < s.slabs; m++)
#pragma unroll
        for (int c = 0; c < s.depth / 16; c++) {
            const int col = 16 * c + 4 * ((int)threadIdx.x % 4);
            float4 x[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int64_t query = place->first + row_of(s, m, half);
                x[half] = query < p->queries && col < p->width ? *(const float4 *)(p->q.data + 4 * (head + query * p->q_strides[2] + col)) : make_float4(0, 0, 0, 0);
            }
            const float steps[2][4] = {{x[0].x, x[1].x, x[0].y, x[1].y}, {x[0].z, x[1].z, x[0].w, x[1].w}};
#pragma unroll
            for (int step = 0; step < 2; step++) {
                const float *y = steps[step];
                if (!s.split) {
                    *(float4 *)query_place(place, s, m, c, step) = make_float4(y[0], y[1], y[2], y[3]);
                    continue;
                }
                *(uint4 *)query_place(place, s, m, c, step) = make_uint4(high_of(y[0]), high_of(y[1]), high_of(y[2]), high_of(y[3]));
                *(uint4 *)query_place(place, s, m, c, 2 + step) = make_uint4(low_of(y[0]), low_of(y[1]), low_of(y[2]), low_of(y[3]));
            }
        }
    __syncwarp();
}

/* The run of queries from first on that read the same row of the caches, and the slots [low, high) that they see among them. */
typedef struct tile_run { int end, cache, low, high; } tile_run;

INLINE tile_run run_of(const tile_place *place, const tf32x3_shape s, int first, int slots) {
    tile_run run = {queries_of(s), place->views[first].cache, slots, 0};
    const int lane = (int)threadIdx.x % 32;
    for (int base = first / 32 * 32; base < queries_of(s) && run.end == queries_of(s); base += 32) {
        const uint32_t others = __ballot_sync(0xffffffff, base + lane >= first && place->views[base + lane].cache != run.cache);
        if (others != 0) run.end = base + __ffs(others) - 1;
    }
    for (int row = first + lane; row < run.end; row += 32) {
        const attention_view view = place->views[row];
        const bool wraps = view.start + view.count > slots;
        if (view.count == 0) continue;
        run.low = min(run.low, wraps ? 0 : view.start);
        run.high = max(run.high, wraps ? slots : view.start + view.count);
    }
    run.low = __reduce_min_sync(0xffffffff, run.low);
    run.high = __reduce_max_sync(0xffffffff, run.high);
    return run;
}

/* Keys and values of a block, of those that some query of the run sees; zeros of others. */
INLINE void load_block(const attention_arguments *p, const tile_place *place, const tf32x3_shape s, const tile_run *run, int first, int stage) {
    const int pieces = s.depth / 4, piece = anew((int)threadIdx.x % pieces), begin = anew((int)threadIdx.x / pieces), turn = 32 * s.warps / pieces;
    const uint32_t k_to = shared_address(place->k) + (uint32_t)(4 * stage * s.keys * s.depth), v_to = shared_address(place->v) + (uint32_t)(4 * stage * s.keys * s.depth);
    const bool has_key = 4 * piece < p->width, has_value = 4 * piece < p->value_width;
    const uint64_t k = p->k.data + 4 * (place->group * p->k_strides[1] + 4 * piece), v = p->v.data + 4 * (place->group * p->v_strides[1] + 4 * piece);
    uint64_t key = k + 4 * (run->cache * p->k_strides[0] + (first + begin) * p->k_strides[2]), value = v + 4 * (run->cache * p->v_strides[0] + (first + begin) * p->v_strides[2]);
#pragma unroll
    for (int i = 0; i < s.keys / turn; i++) {
        const int row = begin + i * turn;
        bool there = first + row >= run->low && first + row < run->high;
        if (s.general && p->page != 0) {
            attention_slot slot = {-1, 0};
            if (there) slot = slot_of(p, run->cache, first + row);
            there = slot.row >= 0;
            if (piece == 0) place->here[stage * TF32X3_MOST_KEYS + row] = there;
            key = k + 4 * (slot.row * p->k_strides[0] + slot.slot * p->k_strides[2]);
            value = v + 4 * (slot.row * p->v_strides[0] + slot.slot * p->v_strides[2]);
        }
        cp_async_stream(k_to + 4 * key_place(s.depth, row, piece), (const void *)(there && has_key ? key : p->k.data), there && has_key ? 16 : 0);
        cp_async_stream(v_to + 4 * value_place(s.depth, row, piece), (const void *)(there && has_value ? value : p->v.data), there && has_value ? 16 : 0);
        key += 4 * turn * p->k_strides[2];
        value += 4 * turn * p->v_strides[2];
    }
    cp_async_commit();
}

#endif
