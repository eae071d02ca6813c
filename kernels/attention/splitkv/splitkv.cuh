/* Attention of few queries: the body of the entries of splitkv.cu, which give it its constants. Keys and values go by once for the heads that share
 * them, straight from memory into registers, 16 bytes a lane.
 *
 *   a cluster        one query, up to `heads` heads of a group; its blocks take a part of the keys each
 *   a block          4 warps, which take turns of 4 (of many heads 2) x (32 / lanes) keys
 *   `lanes` lanes    one key at a time: product with each head's q (reg), sum over the lanes, online softmax (each lane the same), sums [heads, chunk] reg
 *   at the end       sums of lanes' groups by shuffles, of warps through smem, of blocks through each other's smem, always in the same order
 *
 * Everything in fp32. Only keys that the query sees by position are read: an interval of slots, modulo their number, or of pages. A key of no weight adds nothing,
 * whatever its value holds. Registers and speed: README.md. */
#ifndef KERNELS_ATTENTION_SPLITKV_SPLITKV_CUH
#define KERNELS_ATTENTION_SPLITKV_SPLITKV_CUH

#include "kernels/attention/scores.cuh"
#include "kernels/attention/splitkv/splitkv.h"
#include "kernels/gpu/ptx/cluster.cuh"
#include "kernels/gpu/pipe/schedule.cuh"

/* The constants of an entry. A lane holds chunks x 16 bytes of a key, `lanes` x 16 bytes apart. */
typedef struct splitkv_shape { int element, lanes, chunks, heads; } splitkv_shape;

enum { MOST_KEYS = 4, MOST_HEADS = 8, MOST_ELEMENTS = 8 };   /* of a lane */

/* Keys of a group of lanes at a time: as many as there are registers for. */
INLINE int turn_keys(const splitkv_shape s) { return s.heads > 4 ? 2 : MOST_KEYS; }
INLINE int chunk_elements(const splitkv_shape s) { return s.element == ELEMENT_F32 ? 4 : 8; }
INLINE int lane_elements(const splitkv_shape s) { return s.chunks * chunk_elements(s); }

/* Element i of 16 bytes. */
INLINE float element_of(const int element, const uint4 x, const int i) {
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
    if (element == ELEMENT_F32) return __uint_as_float(words[i]);
    uint32_t word = words[i / 2];
    if (element == ELEMENT_BF16) return __uint_as_float(i % 2 ? word & 0xffff0000 : word << 16);
    return cvt_f32_f16((uint16_t)(i % 2 ? word >> 16 : word));
}

/* ---- a turn of keys ---- */

/* Are scores more than products? They are exponents of 2 otherwise: q brings the scale along. */
INLINE bool is_general(const attention_arguments *p) { return p->has_mask || p->has_bias || p->softcap > 0; }
/* What a difference of scores is to be multiplied by to be an exponent of 2. */
INLINE float unit_of(bool general) { return general ? LOG2_E : 1; }

/* What a group of lanes has come to: of each head the largest score, the sum of weights, the sums of this lane's elements. */
typedef struct splitkv_state { float max[MOST_HEADS], sum[MOST_HEADS], sums[MOST_HEADS][MOST_ELEMENTS]; } splitkv_state;

/* What is worked on; heads first_head .. of which `heads` are there. */
typedef struct splitkv_place {
    attention_view view;
    int batch, query, first_head, heads;
    uint64_t k, v;                /* of slot 0, of the row or, with pages, of page 0 */
} splitkv_place;

/* keys: where each lies, row -1 where there is none. */
INLINE void load_rows(const splitkv_shape s, uint64_t data, const int64_t *strides, int64_t width, const attention_slot *keys, uint4 (*rows)[2]) {
    const int bytes = s.element == ELEMENT_F32 ? 4 : 2;
    int lane = threadIdx.x % s.lanes;
#pragma unroll
    for (int key = 0; key < turn_keys(s); key++) {
#pragma unroll
        for (int c = 0; c < s.chunks; c++) {
            int col = (c * s.lanes + lane) * chunk_elements(s);
            rows[key][c] = make_uint4(0, 0, 0, 0);
            if (keys[key].row >= 0 && col < width) rows[key][c] = __ldg((const uint4 *)(data + (keys[key].row * strides[0] + keys[key].slot * strides[2] + col) * bytes));
        }
    }
}

/* Products of q, which brings the scale along, and keys: sums over the lanes of a group, in all of them. */
INLINE void multiply_keys(const splitkv_shape s, const float (*q)[MOST_ELEMENTS], const uint4 (*rows)[2], float (*scores)[MOST_HEADS]) {
#pragma unroll
    for (int key = 0; key < turn_keys(s); key++)
#pragma unroll
        for (int head = 0; head < s.heads; head++) scores[key][head] = 0;
#pragma unroll
    for (int key = 0; key < turn_keys(s); key++)
#pragma unroll
        for (int i = 0; i < lane_elements(s); i++) {
            float x = element_of(s.element, rows[key][i / chunk_elements(s)], i % chunk_elements(s));
#pragma unroll
            for (int head = 0; head < s.heads; head++) scores[key][head] = fmaf(q[head][i], x, scores[key][head]);
        }
#pragma unroll
    for (int other = s.lanes / 2; other > 0; other /= 2)
#pragma unroll
        for (int key = 0; key < turn_keys(s); key++)
#pragma unroll
            for (int head = 0; head < s.heads; head++) scores[key][head] += __shfl_xor_sync(0xffffffff, scores[key][head], other);
}

/* Products become scores; -inf where there is no key. */
INLINE void finish_scores(const attention_arguments *p, const splitkv_shape s, const splitkv_place *place, const attention_slot *keys, int first, bool general, float (*scores)[MOST_HEADS]) {
    const int step = 32 / s.lanes;
    if (general) {
#pragma unroll
        for (int head = 0; head < s.heads; head++) {
            attention_extra extra = extra_of(p, place->view.cache, place->first_head + head, place->query);
#pragma unroll
            for (int key = 0; key < turn_keys(s); key++)
                if (keys[key].row >= 0 && head < place->heads) scores[key][head] = score_of(p, scores[key][head], extra, place->view.base + first + key * step);
        }
    }
#pragma unroll
    for (int key = 0; key < turn_keys(s); key++)
#pragma unroll
        for (int head = 0; head < s.heads; head++) scores[key][head] = keys[key].row >= 0 ? scores[key][head] : -INFINITE;
}

/* general: keys of no weight are hidden ones, which may hold anything. */
INLINE void add_keys(const splitkv_shape s, const uint4 (*rows)[2], const bool general, float (*scores)[MOST_HEADS], splitkv_state *state) {
#pragma unroll
    for (int head = 0; head < s.heads; head++) {
        float max = state->max[head];
#pragma unroll
        for (int key = 0; key < turn_keys(s); key++) max = fmaxf(max, scores[key][head]);
        float shift = max == -INFINITE ? 0 : max, down = shrink(state->max[head], max, unit_of(general));
        state->max[head] = max;
        state->sum[head] *= down;
#pragma unroll
        for (int i = 0; i < lane_elements(s); i++) state->sums[head][i] = general ? shrunk(state->sums[head][i], down) : state->sums[head][i] * down;
#pragma unroll
        for (int key = 0; key < turn_keys(s); key++) {
            scores[key][head] = weight_of(scores[key][head], shift, unit_of(general));
            state->sum[head] += scores[key][head];
        }
    }
#pragma unroll
    for (int key = 0; key < turn_keys(s); key++)
#pragma unroll
        for (int i = 0; i < lane_elements(s); i++) {
            float x = element_of(s.element, rows[key][i / chunk_elements(s)], i % chunk_elements(s));
#pragma unroll
            for (int head = 0; head < s.heads; head++)
                state->sums[head][i] = fmaf(scores[key][head], general && scores[key][head] == 0 ? 0 : x, state->sums[head][i]);
        }
}

/* The keys [begin, end) of the view. */
INLINE void splitkv_keys(const attention_arguments *p, const splitkv_shape s, const splitkv_place *place, int begin, int end, splitkv_state *state) {
    const int step = 32 / s.lanes, turn = SPLITKV_WARPS * turn_keys(s) * step;
    int lane = threadIdx.x % s.lanes, keys = (int)p->keys;
    bool general = is_general(p);
    float q[MOST_HEADS][MOST_ELEMENTS];
#pragma unroll
    for (int head = 0; head < s.heads; head++) {
        state->max[head] = -INFINITE;
        state->sum[head] = 0;
#pragma unroll
        for (int i = 0; i < lane_elements(s); i++) {
            int col = (i / chunk_elements(s) * s.lanes + lane) * chunk_elements(s) + i % chunk_elements(s);
            int64_t at = place->batch * p->q_strides[0] + (place->first_head + head) * p->q_strides[1] + place->query * p->q_strides[2] + col * p->q_strides[3];
            float x = head < place->heads && col < p->width ? load_float(&p->q, at) : 0;
            q[head][i] = general ? x : x * (p->scale * LOG2_E);
            state->sums[head][i] = 0;
        }
    }
#pragma unroll 1
    for (int base = begin + (int)threadIdx.x / 32 * turn_keys(s) * step; base < end; base += turn) {
        attention_slot lies[MOST_KEYS];
        int first = base + (int)threadIdx.x % 32 / s.lanes;
        uint4 k[MOST_KEYS][2], v[MOST_KEYS][2];
        float scores[MOST_KEYS][MOST_HEADS];
#pragma unroll
        for (int key = 0; key < turn_keys(s); key++) {
            int from = first + key * step, slot = place->view.start + from;
            lies[key].row = from >= end ? -1 : 0;
            lies[key].slot = slot < keys ? slot : slot - keys;
            if (p->page != 0 && from < end) lies[key] = slot_of(p, place->view.cache, lies[key].slot);
        }
        load_rows(s, place->k, p->k_strides, p->width, lies, k);
        load_rows(s, place->v, p->v_strides, p->value_width, lies, v);
        multiply_keys(s, q, k, scores);
        finish_scores(p, s, place, lies, first, general, scores);
        if (general) add_keys(s, v, true, scores, state);
        else add_keys(s, v, false, scores, state);
    }
}

/* ---- sums of sums ---- */

INLINE void join_lanes(const splitkv_shape s, float unit, splitkv_state *state) {
#pragma unroll
    for (int other = s.lanes; other < 32; other *= 2) {
#pragma unroll
        for (int head = 0; head < s.heads; head++) {
            float max = fmaxf(state->max[head], __shfl_xor_sync(0xffffffff, state->max[head], other)), down = shrink(state->max[head], max, unit);
            state->max[head] = max;
            state->sum[head] *= down;
            state->sum[head] += __shfl_xor_sync(0xffffffff, state->sum[head], other);
#pragma unroll
            for (int i = 0; i < lane_elements(s); i++) {
                state->sums[head][i] = shrunk(state->sums[head][i], down);
                state->sums[head][i] += __shfl_xor_sync(0xffffffff, state->sums[head][i], other);
            }
        }
    }
}

/* smem of a block: largest scores and sums of weights [warps + 1][heads] (the last ones are the block's), sums [warps][heads][columns], of which the
 * first warp's become the block's. */
typedef struct splitkv_smem { uint32_t maxes, totals, sums; int columns; } splitkv_smem;

INLINE splitkv_smem splitkv_smem_of(const splitkv_shape s, uint32_t base) {
    splitkv_smem m;
    m.columns = s.lanes * lane_elements(s);
    m.maxes = base;
    m.totals = m.maxes + (SPLITKV_WARPS + 1) * s.heads * 4;
    m.sums = m.totals + (SPLITKV_WARPS + 1) * s.heads * 4;
    return m;
}

INLINE void join_warps(const splitkv_shape s, splitkv_smem m, float unit, const splitkv_state *state) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int head = 0; head < s.heads; head++) {
        int at = warp * s.heads + head;
        if (lane == 0) {
            st_shared_f32(m.maxes + at * 4, state->max[head]);
            st_shared_f32(m.totals + at * 4, state->sum[head]);
        }
        if (lane >= s.lanes) continue;
#pragma unroll
        for (int i = 0; i < lane_elements(s); i++) {
            int col = (i / chunk_elements(s) * s.lanes + lane) * chunk_elements(s) + i % chunk_elements(s);
            st_shared_f32(m.sums + (at * m.columns + col) * 4, state->sums[head][i]);
        }
    }
    __syncthreads();
    for (int item = threadIdx.x; item < s.heads * m.columns; item += SPLITKV_WARPS * 32) {
        int head = item / m.columns;
        float max = -INFINITE, total = 0, sum = 0;
        for (int w = 0; w < SPLITKV_WARPS; w++) max = fmaxf(max, ld_shared_f32(m.maxes + (w * s.heads + head) * 4));
        for (int w = 0; w < SPLITKV_WARPS; w++) {
            int at = w * s.heads + head;
            float down = shrink(ld_shared_f32(m.maxes + at * 4), max, unit);
            total += down * ld_shared_f32(m.totals + at * 4);
            sum += shrunk(ld_shared_f32(m.sums + (w * s.heads * m.columns + item) * 4), down);
        }
        st_shared_f32(m.sums + item * 4, sum);
        if (item % m.columns != 0) continue;
        st_shared_f32(m.maxes + (SPLITKV_WARPS * s.heads + head) * 4, max);
        st_shared_f32(m.totals + (SPLITKV_WARPS * s.heads + head) * 4, total);
    }
}

/* The results, of which each block of the cluster makes a share; the sink is one more key without a value. */
INLINE void join_blocks(const attention_splitkv_arguments *g, const splitkv_shape s, splitkv_smem m, const splitkv_place *place, int rank) {
    const attention_arguments *p = &g->call;
    const bool general = is_general(p);
    const float unit = unit_of(general);
    uint32_t last = SPLITKV_WARPS * s.heads * 4;
    for (int item = rank * SPLITKV_WARPS * 32 + threadIdx.x; item < place->heads * m.columns; item += g->splits * SPLITKV_WARPS * 32) {
        int head = item / m.columns, col = item % m.columns;
        float sink = p->has_sink ? scaled_sink(load_float(&p->sink, (place->first_head + head) * p->sink_stride), general ? 1 : LOG2_E) : -INFINITE, max = sink, sum = 0;
        if (col >= p->value_width) continue;
        for (int from = 0; from < g->splits; from++) max = fmaxf(max, ld_cluster_f32(cluster_map(m.maxes + last + head * 4, from)));
        float total = sink_weight(sink, max, unit);
        for (int from = 0; from < g->splits; from++) {
            float down = shrink(ld_cluster_f32(cluster_map(m.maxes + last + head * 4, from)), max, unit);
            total += down * ld_cluster_f32(cluster_map(m.totals + last + head * 4, from));
            sum += shrunk(ld_cluster_f32(cluster_map(m.sums + item * 4, from)), down);
        }
        int64_t at = place->batch * p->out_strides[0] + (place->first_head + head) * p->out_strides[1] + place->query * p->out_strides[2] + col * p->out_strides[3];
        store_float(&p->out, at, total == 0 ? 0 : sum / total);
    }
}

/* ---- a block ---- */

INLINE void attention_stream(const attention_splitkv_arguments *g, const splitkv_shape s) {
    extern __shared__ __align__(16) uint8_t shared[];
    const attention_arguments *p = &g->call;
    int rank = (int)(blockIdx.x % (uint32_t)g->splits), item = (int)(blockIdx.x / (uint32_t)g->splits), kv_heads = (int)p->heads / (int)p->shared_heads;
    splitkv_place place;
    int part = item % g->parts, group = item / g->parts % kv_heads;
    place.query = item / g->parts / kv_heads % (int)p->queries;
    place.batch = item / g->parts / kv_heads / (int)p->queries;
    place.first_head = group * (int)p->shared_heads + part * s.heads;
    place.heads = min((int)p->shared_heads - part * s.heads, s.heads);
    grid_release();
    grid_wait();
    place.view = view_of(p, place.batch, place.query);
    const int64_t row = p->page != 0 ? 0 : place.view.cache;
    place.k = p->k.data + (row * p->k_strides[0] + group * p->k_strides[1]) * p->k.element_bytes;
    place.v = p->v.data + (row * p->v_strides[0] + group * p->v_strides[1]) * p->v.element_bytes;
    const int turn = SPLITKV_WARPS * turn_keys(s) * (32 / s.lanes);
    const schedule_range range = schedule_part(place.view.count, g->splits, rank, turn);
    splitkv_state state;
    splitkv_smem m = splitkv_smem_of(s, shared_address(shared));
    splitkv_keys(p, s, &place, range.first, range.end, &state);
    join_lanes(s, unit_of(is_general(p)), &state);
    join_warps(s, m, unit_of(is_general(p)), &state);
    if (g->splits > 1) {
        cluster_arrive();
        cluster_wait();
    } else {
        __syncthreads();
    }
    join_blocks(g, s, m, &place, rank);
    if (g->splits > 1) {          /* nobody leaves whose smem others still read */
        cluster_arrive();
        cluster_wait();
    }
}

#define SPLITKV(name, element, lanes, chunks, heads, blocks)                                                                             \
    extern "C" __global__ void __launch_bounds__(SPLITKV_WARPS * 32, blocks) name(const __grid_constant__ attention_splitkv_arguments arguments) { \
        const splitkv_shape shape = {element, lanes, chunks, heads};                                                                     \
        attention_stream(&arguments, shape);                                                                                            \
    }

#endif
