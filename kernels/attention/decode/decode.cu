/* Attention of few queries on tensor cores: up to 16 rows, which are queries x heads that share k and v, past keys and values that go by once.
 *
 *   a cluster   one tile of rows; its blocks take a part of the keys each
 *   a block     4 warps, which take turns of 16 keys
 *   a warp      a ring of its own: TMA -> k [16, width], v [16, value_width] smem, in columns of 64
 *               scores [16 rows, 16 keys] = q (reg) k^T by mma.sync -> online softmax -> sums [16 rows, value_width] += weights (reg) v by mma.sync
 *   at the end  sums of warps through smem, of blocks through each other's smem, always in the same order
 *
 * Keys and values in fp8_1x128 come as codes, of which each lane makes the pairs of its products in registers: of keys in an order along the width that q has, too, of values with columns that are
 * put in order at the end. Scales of keys are factors of scores, those of values of weights.
 *
 * Scores, softmax and sums in fp32; weights are rounded to the operands' format for the second product, their sum is not. Only keys that a row of the tile
 * sees by position are read, in blocks of 16 slots, each of one page where there are pages. A hidden key may hold anything: a result that is NaN while its row's sum is none is made again without
 * the keys of no weight. What bounds it is memory: of 16 rows any number may be empty. Registers and speed: README.md. */
#include "kernels/attention/decode/decode.h"
#include "kernels/attention/scores.cuh"
#include "kernels/gpu/ptx/cluster.cuh"
#include "kernels/gpu/ptx/mma.cuh"
#include "kernels/gpu/ptx/tma.cuh"
#include "kernels/gpu/pipe/schedule.cuh"

enum { ROWS = DECODE_ROWS, KEYS = DECODE_KEYS, WARPS = DECODE_WARPS, SPLITS = DECODE_SPLITS, THREADS = 32 * WARPS, ROW_BYTES = 128, CHUNK_COLS = 64, CHUNK_BYTES = KEYS * ROW_BYTES };

/* The constants of an entry. width, value_width: multiples of 64 that the operands are padded to. */
typedef struct decode_shape {
    int element, width, value_width, stages;
    int general;                  /* scores are capped, hidden by a mask or have a bias, or the scale is not positive */
    int codes;                    /* keys and values are in fp8_1x128, a block to a row */
} decode_shape;

enum { MOST_WIDTH = 256, Q_BYTES = 32 * 16 };

INLINE int key_bytes(const decode_shape s) { return s.codes ? KEYS * DECODE_CODES : KEYS * s.width * 2; }
INLINE int stage_bytes(const decode_shape s) { return s.codes ? 2 * KEYS * DECODE_CODES : KEYS * (s.width + s.value_width) * 2; }
INLINE int scale_bytes(const decode_shape s) { return s.codes ? DECODE_SCALE_BYTES : 0; }
INLINE int pitch(const decode_shape s) { return s.value_width + DECODE_PAD; }

/* Addresses in smem. q as the first operand of products: 16 bytes of each lane for each 16 columns. Sums [warps][rows][pitch] come to lie where the rings were; of
 * maxes and totals [warps + 1][rows] the last ones are the block's; factors [rows][splits]; ends [rows][2]: largest score and sum of weights, of the whole row. */
typedef struct decode_smem { uint32_t ring, q, scales, full, maxes, totals, factors, ends; } decode_smem;

INLINE decode_smem smem_of(const decode_shape s, uint32_t base) {
    decode_smem m;
    m.ring = base;
    m.q = m.ring + WARPS * s.stages * stage_bytes(s);
    m.scales = m.q + s.width / 16 * Q_BYTES;      /* of keys and of values: [warps][stages][2], DECODE_SCALES bytes each */
    m.full = m.scales + WARPS * s.stages * scale_bytes(s);
    m.maxes = m.full + DECODE_BARRIER_BYTES;
    m.totals = m.maxes + (WARPS + 1) * ROWS * 4;
    m.factors = m.totals + (WARPS + 1) * ROWS * 4;
    m.ends = m.factors + ROWS * SPLITS * 4;
    return m;
}

/* A warp's own ring: its lanes read a stage and fill it again. */
INLINE ring_barriers ring_of(const decode_shape s, decode_smem m, int warp) {
    const ring_barriers ring = {m.full + warp * s.stages * BARRIER_BYTES, 0};
    return ring;
}

/* ---- rows ---- */

/* Row r is head first_head + r % heads of query first_query + r / heads. view: what any of them sees, by see_tile. */
typedef struct decode_tile { attention_view view; int batch, group, first_head, heads, first_query, rows; } decode_tile;

INLINE int head_of(const decode_tile *tile, int row) { return tile->first_head + row % tile->heads; }
INLINE int query_of(const decode_tile *tile, int row) { return tile->first_query + row / tile->heads; }

/* Several queries are taken together where they have neither rows nor positions, so the first sees the first key and the last the last one. */
INLINE attention_view view_of_queries(const attention_arguments *p, int batch, int first, int count) {
    if (count == 1) return view_of(p, batch, first);
    attention_view from = view_from(p, batch, first + p->offset, false), to = view_from(p, batch, first + count - 1 + p->offset, false);
    int end = to.count > 0 ? to.start + to.count : (int)p->keys;
    from.start = from.count > 0 ? from.start : 0;
    from.count = max(end - from.start, 0);
    return from;
}

INLINE decode_tile tile_at(const attention_decode_arguments *g, int index) {
    const attention_arguments *p = &g->call;
    int shared = (int)p->shared_heads, groups = (int)p->heads / shared, bunches = ((int)p->queries + g->queries - 1) / g->queries, part = index % g->parts;
    decode_tile tile;
    tile.group = index / g->parts % groups;
    tile.first_query = index / g->parts / groups % bunches * g->queries;
    tile.batch = index / g->parts / groups / bunches;
    tile.heads = min(shared - part * ROWS, ROWS);
    tile.first_head = tile.group * shared + part * ROWS;
    int queries = min(g->queries, (int)p->queries - tile.first_query);
    tile.rows = queries * tile.heads;
    return tile;
}

/* Reads rows and positions. */
INLINE void see_tile(const attention_arguments *p, decode_tile *tile) { tile->view = view_of_queries(p, tile->batch, tile->first_query, tile->rows / tile->heads); }

INLINE attention_view view_of_row(const attention_decode_arguments *g, const decode_tile *tile, int row) {
    return g->queries == 1 ? tile->view : view_from(&g->call, tile->batch, query_of(tile, row) + g->call.offset, false);
}

INLINE uint64_t q_of_row(const attention_arguments *p, const decode_tile *tile, int row) {
    return p->q.data + 2 * (tile->batch * p->q_strides[0] + head_of(tile, row) * p->q_strides[1] + query_of(tile, row) * p->q_strides[2]);
}

/* The two rows of a lane, lane / 4 and 8 further, and what they have come to; sum: of this lane's keys. */
typedef struct decode_rows { int start[2], count[2], base[2]; float max[2], sum[2]; } decode_rows;

INLINE decode_rows rows_of(const attention_decode_arguments *g, const decode_tile *tile) {
    decode_rows rows;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = threadIdx.x % 32 / 4 + 8 * half;
        attention_view view = {0, 0, 0, 0};
        if (row < tile->rows) view = view_of_row(g, tile, row);
        rows.start[half] = view.start;
        rows.count[half] = view.count;
        rows.base[half] = view.base;
        rows.max[half] = -INFINITE;
        rows.sum[half] = 0;
    }
    return rows;
}

/* Of each 16 columns a lane has pairs 2 (lane % 4), and 8 further, of both its rows; beside codes, of which a lane reads 16 at once, of each 64 columns those 16 (lane % 4) + 4 step and 2 further. */
INLINE void load_q(const attention_decode_arguments *g, const decode_shape s, decode_smem m, const decode_tile *tile) {
    int lane = threadIdx.x % 32;
    uint64_t low = q_of_row(&g->call, tile, lane / 4), high = q_of_row(&g->call, tile, lane / 4 + 8);
#pragma unroll
    for (int step = threadIdx.x / 32; step < s.width / 16; step += WARPS) {
        const int beyond = s.codes ? 2 : 8, col = s.codes ? step / 4 * 64 + lane % 4 * 16 + step % 4 * 4 : step * 16 + lane % 4 * 2;
        bool near = col < g->call.width, far = col + beyond < g->call.width, has_low = lane / 4 < tile->rows, has_high = lane / 4 + 8 < tile->rows;
        uint4 q = {0, 0, 0, 0};
        if (has_low && near) q.x = *(const uint32_t *)(low + col * 2);
        if (has_high && near) q.y = *(const uint32_t *)(high + col * 2);
        if (has_low && far) q.z = *(const uint32_t *)(low + (col + beyond) * 2);
        if (has_high && far) q.w = *(const uint32_t *)(high + (col + beyond) * 2);
        st_shared_u32x4(m.q + step * Q_BYTES + lane * 16, q);
    }
}

/* ---- keys ---- */

/* The blocks of 16 slots that a block of threads goes through: numbers first + begin .. first + end - 1, modulo their count. */
typedef struct decode_walk { int first, count, begin, end; } decode_walk;

INLINE decode_walk walk_of(const attention_decode_arguments *g, const attention_view view, int rank) {
    int slots = (int)g->call.keys, end = view.start + view.count;
    decode_walk walk = {view.start / KEYS, (slots + KEYS - 1) / KEYS, 0, 0};
    int all = (min(end, slots) + KEYS - 1) / KEYS - walk.first;
    if (end > slots) all = min(all + (end - slots + KEYS - 1) / KEYS, walk.count);
    if (view.count == 0) all = 0;
    const schedule_range range = schedule_part(all, g->splits, rank, 1);
    walk.begin = range.first;
    walk.end = range.end;
    return walk;
}

INLINE int first_slot(const decode_walk *walk, int step) {
    int block = walk->first + step;
    return (block < walk->count ? block : block - walk->count) * KEYS;
}

/* Where a block of 16 slots lies, whose page may not be there. */
INLINE attention_slot block_at(const attention_arguments *p, const decode_tile *tile, int slot) { return slot_of(p, tile->view.cache, slot); }

/* By one lane. Behind the last page, of one that is not there, are zeros. */
INLINE void load_keys(const attention_decode_arguments *g, const decode_shape s, const decode_tile *tile, uint32_t stage, uint32_t scales, uint32_t full, attention_slot at) {
    const int row = at.row < 0 ? g->call.pages : at.row, slot = at.slot;
    mbarrier_arrive_expect(full, s.codes ? stage_bytes(s) + 2 * KEYS * 4 : stage_bytes(s));
    if (s.codes) {
        tma_load_4d(stage, (const tensor_map *)g->map_k, full, 0, slot, tile->group, row, TMA_EVICT_FIRST);
        tma_load_4d(scales, (const tensor_map *)g->map_k_scales, full, slot, tile->group, row, 0, TMA_EVICT_FIRST);
        tma_load_4d(stage + key_bytes(s), (const tensor_map *)g->map_v, full, 0, slot, tile->group, row, TMA_EVICT_FIRST);
        tma_load_4d(scales + DECODE_SCALES, (const tensor_map *)g->map_v_scales, full, slot, tile->group, row, 0, TMA_EVICT_FIRST);
        return;
    }
#pragma unroll
    for (int i = 0; i < s.width / CHUNK_COLS; i++)
        tma_load_4d(stage + i * CHUNK_BYTES, (const tensor_map *)g->map_k, full, i * CHUNK_COLS, slot, tile->group, row, TMA_EVICT_FIRST);
    stage += KEYS * s.width * 2;
#pragma unroll
    for (int i = 0; i < s.value_width / CHUNK_COLS; i++)
        tma_load_4d(stage + i * CHUNK_BYTES, (const tensor_map *)g->map_v, full, i * CHUNK_COLS, slot, tile->group, row, TMA_EVICT_FIRST);
}

/* d += a b, of 16 x 16 and 16 x 8. */
INLINE void multiply(const decode_shape s, float *d, uint4 a, uint32_t b_low, uint32_t b_high) {
    if (s.element == ELEMENT_BF16) mma_bf16(d, a.x, a.y, a.z, a.w, b_low, b_high);
    else mma_f16(d, a.x, a.y, a.z, a.w, b_low, b_high);
}

/* ---- codes of e4m3 ---- */

/* Bytes `low` and `high` of a word as a pair of numbers. As bf16 a code is 2^-120 times its number, those below the normal ones too, which the product makes up for. */
INLINE uint32_t pair_of(const decode_shape s, uint32_t codes, const int low, const int high) {
    if (s.element == ELEMENT_F16) return cvt_f16x2_e4m3x2((uint16_t)__byte_perm(codes, 0, 0x4400 | high << 4 | low));
    const uint32_t spread = __byte_perm(codes, 0, 0x0404 | high << 12 | low << 4);
    return mul_bf16x2((spread & 0x80008000) | (spread & 0x7f007f00) >> 4, 0x7b807b80);
}

/* The same as multiply_keys of codes: a lane reads 16 of a key at once, which are four steps. */
INLINE void multiply_codes(const decode_shape s, uint32_t q, uint32_t k, uint32_t scales, float (*scores)[4]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 8; i++) scores[i / 4][i % 4] = 0;
#pragma unroll
    for (int part = 0; part < s.width / 64; part++) {
        uint4 codes[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int key = half * 8 + lane / 4;
            codes[half] = ld_shared_u32x4(k + key * DECODE_CODES + ((part * 4 + lane % 4 ^ key % 8) << 4));
        }
#pragma unroll
        for (int step = 0; step < 4; step++) {
            const uint4 a = ld_shared_u32x4(q + (part * 4 + step) * Q_BYTES + lane * 16);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t words[4] = {codes[half].x, codes[half].y, codes[half].z, codes[half].w};
                multiply(s, scores[half], a, pair_of(s, words[step], 0, 1), pair_of(s, words[step], 2, 3));
            }
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float2 scale = ld_shared_f32x2(scales + (half * 8 + lane % 4 * 2) * 4);
#pragma unroll
        for (int i = 0; i < 4; i++) scores[half][i] *= i % 2 ? scale.y : scale.x;
    }
}

/* Weights times the scales of values. */
INLINE void scale_weights(uint32_t scales, float (*weights)[4]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float2 scale = ld_shared_f32x2(scales + (half * 8 + threadIdx.x % 4 * 2) * 4);
#pragma unroll
        for (int i = 0; i < 4; i++) weights[half][i] *= i % 2 ? scale.y : scale.x;
    }
}

/* v: codes [16, 128] smem. Two columns lie in the 16 bits that are turned together: of each 16 the even ones go to one product, the odd ones to the next. */
INLINE void add_codes(const decode_shape s, uint4 weights, uint32_t v, float (*sums)[4]) {
    const int lane = threadIdx.x % 32, key = lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
    for (int step = 0; step < s.value_width / 32; step++) {
        const uint4 b = ldmatrix_x4_transposed(v + key * DECODE_CODES + ((step * 2 + lane / 16 ^ key % 8) << 4));
        multiply(s, sums[4 * step], weights, pair_of(s, b.x, 0, 2), pair_of(s, b.y, 0, 2));
        multiply(s, sums[4 * step + 1], weights, pair_of(s, b.x, 1, 3), pair_of(s, b.y, 1, 3));
        multiply(s, sums[4 * step + 2], weights, pair_of(s, b.z, 0, 2), pair_of(s, b.w, 0, 2));
        multiply(s, sums[4 * step + 3], weights, pair_of(s, b.z, 1, 3), pair_of(s, b.w, 1, 3));
    }
}

/* scores [2][4]: of keys 8 n + 2 (lane % 4) and the next, of both rows. k: [16, width] smem. */
INLINE void multiply_keys(const decode_shape s, uint32_t q, uint32_t k, float (*scores)[4]) {
    int lane = threadIdx.x % 32, key = lane / 16 * 8 + lane % 8;
    uint32_t at = k + key * ROW_BYTES, place = (lane / 8 % 2 ^ lane % 8) << 4;
#pragma unroll
    for (int i = 0; i < 8; i++) scores[i / 4][i % 4] = 0;
#pragma unroll
    for (int step = 0; step < s.width / 16; step++) {
        uint4 b = ldmatrix_x4(at + step / 4 * CHUNK_BYTES + (place ^ step % 4 << 5));
        uint4 a = ld_shared_u32x4(q + step * Q_BYTES + lane * 16);
        multiply(s, scores[0], a, b.x, b.y);
        multiply(s, scores[1], a, b.z, b.w);
    }
}

/* v: [16, value_width] smem. */
INLINE void add_values(const decode_shape s, uint4 weights, uint32_t v, float (*sums)[4]) {
    int lane = threadIdx.x % 32, key = lane / 8 % 2 * 8 + lane % 8;
    uint32_t at = v + key * ROW_BYTES, place = (lane / 16 ^ lane % 8) << 4;
#pragma unroll
    for (int step = 0; step < s.value_width / 16; step++) {
        uint4 b = ldmatrix_x4_transposed(at + step / 4 * CHUNK_BYTES + (place ^ step % 4 << 5));
        multiply(s, sums[2 * step], weights, b.x, b.y);
        multiply(s, sums[2 * step + 1], weights, b.z, b.w);
    }
}

/* Scores are exponents of 2 where they are products times a scale. What a difference of them is to be multiplied by to be an exponent of 2, and a sink to be such a score. */
INLINE float unit_of(const decode_shape s) { return s.general ? LOG2_E : 1; }
INLINE float sink_unit(const decode_shape s) { return s.general ? 1 : LOG2_E; }

/* Products become scores; -inf where the key is hidden. gone: none of the block is there. */
INLINE void finish_scores(const attention_decode_arguments *g, const decode_shape s, const decode_tile *tile, const decode_rows *rows, int slot, bool gone, float (*scores)[4]) {
    const attention_arguments *p = &g->call;
    int lane = threadIdx.x % 32, slots = (int)p->keys;
    float unit = p->scale * LOG2_E;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        attention_extra extra = {0, 0};
        if (s.general) extra = extra_of(p, tile->view.cache, head_of(tile, lane / 4 + 8 * half), query_of(tile, lane / 4 + 8 * half));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float *score = &scores[i / 2][2 * half + i % 2];
            int at = slot + i / 2 * 8 + lane % 4 * 2 + i % 2, from = at - rows->start[half];
            if (from < 0) from += slots;
            if (gone || from >= rows->count[half] || at >= slots) *score = -INFINITE;
            else *score = s.general ? score_of(p, *score, extra, rows->base[half] + from) : *score * unit;
        }
    }
}

/* Scores become weights; sums, relative to the largest score so far, shrink where there is a larger one. */
INLINE void soften(const decode_shape s, decode_rows *rows, float (*scores)[4], float (*sums)[4]) {
    const float unit = unit_of(s);
    float down[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float *low = &scores[0][2 * half], *high = &scores[1][2 * half], top = fmaxf(fmaxf(low[0], low[1]), fmaxf(high[0], high[1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 1));
        top = fmaxf(rows->max[half], fmaxf(top, __shfl_xor_sync(0xffffffff, top, 2)));
        float shift = top == -INFINITE ? 0 : top;
        down[half] = shrink(rows->max[half], top, unit);
        rows->max[half] = top;
        low[0] = weight_of(low[0], shift, unit), low[1] = weight_of(low[1], shift, unit), high[0] = weight_of(high[0], shift, unit), high[1] = weight_of(high[1], shift, unit);
        rows->sum[half] = fmaf(rows->sum[half], down[half], low[0] + low[1] + high[0] + high[1]);
    }
    if (!__any_sync(0xffffffff, down[0] != 1 || down[1] != 1)) return;
#pragma unroll
    for (int i = 0; i < s.value_width / 2; i++) sums[i / 4][i % 4] *= down[i % 4 / 2];
}

INLINE uint32_t pack_pair(const decode_shape s, const float *x) { return s.element == ELEMENT_BF16 ? cvt_bf16x2(x[0], x[1]) : cvt_f16x2(x[0], x[1]); }

/* A warp's turns of the keys. */
INLINE void attend(const attention_decode_arguments *g, const decode_shape s, decode_smem m, const decode_tile *tile, const decode_walk *walk, decode_rows *rows, float (*sums)[4]) {
    int warp = threadIdx.x / 32, steps = max(walk->end - walk->begin - warp + WARPS - 1, 0) / WARPS, first = walk->begin + warp;
    const ring_barriers ring = ring_of(s, m, warp);
    uint32_t data = m.ring + warp * s.stages * stage_bytes(s), scales = m.scales + warp * s.stages * scale_bytes(s);
    bool loads = threadIdx.x % 32 == 0;
    uint32_t gone = 0;            /* bit i: the page of the block i turns ahead is not there */
#pragma unroll 1
    for (int i = 0; i < min(s.stages, steps); i++) {
        attention_slot at = block_at(&g->call, tile, first_slot(walk, first + i * WARPS));
        gone |= (uint32_t)(at.row < 0) << i;
        if (loads) load_keys(g, s, tile, data + i * stage_bytes(s), scales + i * scale_bytes(s), ring_full(ring, i), at);
    }
    load_q(g, s, m, tile);
    *rows = rows_of(g, tile);
#pragma unroll
    for (int i = 0; i < s.value_width / 2; i++) sums[i / 4][i % 4] = 0;
    ring_turn turn = ring_reader();
    __syncthreads();              /* q is there */
#pragma unroll 1
    for (int i = 0; i < steps; i++) {
        float scores[2][4];
        uint32_t at = data + turn.stage * stage_bytes(s), of_keys = scales + turn.stage * scale_bytes(s);
        attention_slot next = {0, 0};
        if (i + s.stages < steps) next = block_at(&g->call, tile, first_slot(walk, first + (i + s.stages) * WARPS));
        ring_wait_full(ring, turn);
        if (s.codes) multiply_codes(s, m.q, at, of_keys, scores);
        else multiply_keys(s, m.q, at, scores);
        finish_scores(g, s, tile, rows, first_slot(walk, first + i * WARPS), gone & 1, scores);
        gone = gone >> 1 | (uint32_t)(next.row < 0) << (s.stages - 1);
        soften(s, rows, scores, sums);
        if (s.codes) scale_weights(of_keys + DECODE_SCALES, scores);
        uint4 weights = {pack_pair(s, scores[0]), pack_pair(s, scores[0] + 2), pack_pair(s, scores[1]), pack_pair(s, scores[1] + 2)};
        if (s.codes) add_codes(s, weights, at + key_bytes(s), sums);
        else add_values(s, weights, at + key_bytes(s), sums);
        __syncwarp();
        if (loads && i + s.stages < steps) load_keys(g, s, tile, at, of_keys, ring_full(ring, turn.stage), next);
        ring_next(&turn, s.stages);
    }
}

/* ---- sums of sums ---- */

INLINE void join_warps(const decode_shape s, decode_smem m, const decode_tile *tile, const decode_rows *rows, float (*sums)[4]) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __syncthreads();              /* all keys have been read: sums may lie there */
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = lane / 4 + 8 * half, at = warp * ROWS + row;
        float sum = rows->sum[half];
        sum += __shfl_xor_sync(0xffffffff, sum, 1);
        sum += __shfl_xor_sync(0xffffffff, sum, 2);
        if (row >= tile->rows) continue;
        if (lane % 4 == 0) {
            st_shared_f32(m.maxes + at * 4, rows->max[half]);
            st_shared_f32(m.totals + at * 4, sum);
        }
#pragma unroll
        for (int i = 0; i < s.value_width / 8; i++) {
            const int col = s.codes ? i / 2 * 16 + lane % 4 * 4 + i % 2 * 2 : i * 8 + lane % 4 * 2;
            const float low = s.codes ? sums[i / 2 * 2][2 * half + i % 2] : sums[i][2 * half], high = s.codes ? sums[i / 2 * 2 + 1][2 * half + i % 2] : sums[i][2 * half + 1];
            st_shared_f32x2(m.ring + (at * pitch(s) + col) * 4, low, high);
        }
    }
    __syncthreads();
    for (int item = threadIdx.x; item < tile->rows * s.value_width; item += THREADS) {
        int row = item / s.value_width, col = item % s.value_width;
        float max = -INFINITE, total = 0, sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) max = fmaxf(max, ld_shared_f32(m.maxes + (w * ROWS + row) * 4));
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            int at = w * ROWS + row;
            float down = shrink(ld_shared_f32(m.maxes + at * 4), max, unit_of(s));
            total = fmaf(down, ld_shared_f32(m.totals + at * 4), total);
            sum = fmaf(down, ld_shared_f32(m.ring + (at * pitch(s) + col) * 4), sum);
        }
        st_shared_f32(m.ring + (row * pitch(s) + col) * 4, sum);
        if (col != 0) continue;
        st_shared_f32(m.maxes + (WARPS * ROWS + row) * 4, max);
        st_shared_f32(m.totals + (WARPS * ROWS + row) * 4, total);
    }
}

INLINE void barrier_of_blocks(int splits) {
    if (splits > 1) {
        cluster_arrive();
        cluster_wait();
    } else {
        __syncthreads();
    }
}

/* How much each block of the cluster counts, and the ends of rows; a sink is one more key without a value. 16 lanes make a row. */
INLINE void weigh_blocks(const attention_decode_arguments *g, const decode_shape s, decode_smem m, const decode_tile *tile) {
    const attention_arguments *p = &g->call;
    int from = threadIdx.x % SPLITS;
#pragma unroll 1
    for (int first = 0; first < tile->rows; first += THREADS / SPLITS) {
        int row = first + threadIdx.x / SPLITS;
        float own = -INFINITE, total = 0;
        if (row < tile->rows && from < g->splits) {
            own = ld_cluster_f32(cluster_map(m.maxes + (WARPS * ROWS + row) * 4, from));
            total = ld_cluster_f32(cluster_map(m.totals + (WARPS * ROWS + row) * 4, from));
        }
        float sink = p->has_sink && row < tile->rows ? scaled_sink(load_float(&p->sink, head_of(tile, row) * p->sink_stride), sink_unit(s)) : -INFINITE, max = fmaxf(own, sink);
#pragma unroll
        for (int step = SPLITS / 2; step > 0; step /= 2) max = fmaxf(max, __shfl_xor_sync(0xffffffff, max, step));
        float down = shrink(own, max, unit_of(s));
        total *= down;
#pragma unroll
        for (int step = SPLITS / 2; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffff, total, step);
        total += sink_weight(sink, max, unit_of(s));
        st_shared_f32(m.factors + (row * SPLITS + from) * 4, down);
        if (from == 0) st_shared_f32x2(m.ends + row * 8, max, total);
    }
    __syncthreads();
}

/* Element `at` of keys or values, whose rows are so wide. */
INLINE float cached_at(const attention_decode_arguments *g, const decode_shape s, const cuda_array *array, const cuda_rows *rows, int64_t width, int64_t at) {
    return s.codes ? rows_scaled(rows, at / width, at % width) : load_half(s.element, array->data + 2 * at);
}

/* A sum once more, by one thread, straight from memory and without the keys of no weight. */
INLINE float repeat_sum(const attention_decode_arguments *g, const decode_shape s, const decode_tile *tile, int row, int col, float max) {
    const attention_arguments *p = &g->call;
    attention_view view = view_of_row(g, tile, row);
    attention_extra extra = extra_of(p, view.cache, head_of(tile, row), query_of(tile, row));
    uint64_t q = q_of_row(p, tile, row);
    const int64_t k = tile->group * p->k_strides[1], v = tile->group * p->v_strides[1];
    float sum = 0, shift = max == -INFINITE ? 0 : max;
#pragma unroll 1
    for (int from = 0; from < view.count; from++) {
        int slot = view.start + from, keys = (int)p->keys;
        attention_slot at = slot_of(p, view.cache, slot < keys ? slot : slot - keys);
        if (at.row < 0) continue;
        float product = 0;
#pragma unroll 1
        for (int i = 0; i < p->width; i++) product = fmaf(load_half(s.element, q + 2 * i), cached_at(g, s, &p->k, &g->blocks.k, p->width, k + at.row * p->k_strides[0] + at.slot * p->k_strides[2] + i), product);
        float score = s.general ? score_of(p, product, extra, view.base + from) : product * p->scale * LOG2_E, weight = weight_of(score, shift, unit_of(s));
        if (weight != 0) sum = fmaf(weight, cached_at(g, s, &p->v, &g->blocks.v, p->value_width, v + at.row * p->v_strides[0] + at.slot * p->v_strides[2] + col), sum);
    }
    return sum;
}

/* The results, of which each block of the cluster makes a share. */
INLINE void join_blocks(const attention_decode_arguments *g, const decode_shape s, decode_smem m, const decode_tile *tile, int rank) {
    const attention_arguments *p = &g->call;
    for (int item = rank * THREADS + (int)threadIdx.x; item < tile->rows * s.value_width; item += g->splits * THREADS) {
        int row = item / s.value_width, col = item % s.value_width;
        float parts[SPLITS], sum = 0;
        if (col >= p->value_width) continue;
#pragma unroll
        for (int from = 0; from < SPLITS; from++) parts[from] = from < g->splits ? ld_cluster_f32(cluster_map(m.ring + (row * pitch(s) + col) * 4, from)) : 0;
#pragma unroll
        for (int from = 0; from < SPLITS; from++)
            if (from < g->splits) sum = fmaf(ld_shared_f32(m.factors + (row * SPLITS + from) * 4), parts[from], sum);
        float2 end = ld_shared_f32x2(m.ends + row * 8);
        if (sum != sum && end.y == end.y) sum = repeat_sum(g, s, tile, row, col, end.x);
        int64_t at = tile->batch * p->out_strides[0] + head_of(tile, row) * p->out_strides[1] + query_of(tile, row) * p->out_strides[2] + col * p->out_strides[3];
        float y = end.y == 0 ? 0 : __fdividef(sum, end.y);
        ((uint16_t *)p->out.data)[at] = (uint16_t)(p->out.format == CUDA_bf16 ? cvt_bf16x2(y, 0) : cvt_f16x2(y, 0));
    }
}

/* ---- a block ---- */

INLINE void attention_decode(const attention_decode_arguments *g, const decode_shape s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    decode_smem m = smem_of(s, shared_address(shared));
    int rank = (int)(blockIdx.x % (uint32_t)g->splits), warp = threadIdx.x / 32;
    decode_rows rows;
    float sums[MOST_WIDTH / 8][4];
    if (threadIdx.x % 32 == 0) {
        tma_prefetch((const tensor_map *)g->map_k);
        tma_prefetch((const tensor_map *)g->map_v);
        if (s.codes) tma_prefetch((const tensor_map *)g->map_k_scales);
        if (s.codes) tma_prefetch((const tensor_map *)g->map_v_scales);
        ring_init(ring_of(s, m, warp), s.stages, 1, 0);
        fence_mbarrier_init();
    }
    __syncwarp();
    decode_tile tile = tile_at(g, (int)(blockIdx.x / (uint32_t)g->splits));
    grid_release();
    grid_wait();
    see_tile(&g->call, &tile);
    decode_walk walk = walk_of(g, tile.view, rank);
    attend(g, s, m, &tile, &walk, &rows, sums);
    join_warps(s, m, &tile, &rows, sums);
    barrier_of_blocks(g->splits);
    weigh_blocks(g, s, m, &tile);
    join_blocks(g, s, m, &tile, rank);
    if (g->splits > 1) {          /* nobody leaves whose smem others still read */
        cluster_arrive();
        cluster_wait();
    }
}

#define DECODE(name, element, width, value_width, stages, blocks, general, codes)                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, blocks) attention_decode_##name(const __grid_constant__ attention_decode_arguments arguments) { \
        const decode_shape shape = {element, width, value_width, stages, general, codes};                                                                          \
        attention_decode(&arguments, shape);                                                                                                       \
    }

#define ATTENTION_DECODE(name, ...) DECODE(bf16_##name, ELEMENT_BF16, __VA_ARGS__)
#include "kernels/attention/decode/decode.def"
#undef ATTENTION_DECODE
#define ATTENTION_DECODE(name, ...) DECODE(f16_##name, ELEMENT_F16, __VA_ARGS__)
#include "kernels/attention/decode/decode.def"
#undef ATTENTION_DECODE
