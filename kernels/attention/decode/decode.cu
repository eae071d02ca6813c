/* Attention of few queries on tensor cores: up to 16 rows, which are queries x heads that share k and v, past keys and values that go by once.
 *
 *   a cluster   one tile of 8 or 16 rows; its blocks take a part of the keys each
 *   a block     4 warps, which take turns of 16 keys
 *   a warp      a ring of its own: TMA -> k [16, width], v [16, value_width] smem, in columns of 64
 *               scores [16 keys, rows] = k q^T (smem, or reg) by mma.sync -> online softmax -> movmatrix -> sums [value_width, rows] += v^T weights (reg) by mma.sync
 *   at the end  sums of warps through smem, of blocks through each other's smem, always in the same order
 *
 * Rows are the columns of both products, which come in eights: of heads that share few keys none are computed in vain. Scores, weights and sums of a row lie in the same lanes.
 *
 * Keys and values in fp8_1x128 come as codes, which become f16 in registers, exactly. So q and the weights are f16, too, by powers of 2 that keep them where f16 is exact (load_q, scale_weights). Scales of keys are
 * factors of scores, those of values of weights.
 *
 * Scores, softmax and sums in fp32; weights are rounded to the operands' format for the second product (beside codes to f16), their sum is not. Only keys that a row of the tile
 * sees by position are read, in blocks of 16 slots, each of one page where there are pages. A hidden key may hold anything: a result that is NaN while its row's sum is none is made again without
 * the keys of no weight. What bounds it is memory. Few tokens ask for what was written before their run while the launches in front still run: for all of their first keys but blocks that have one of the run's tokens, or
 * for all, where a token alone is written here (token.cuh).
 * Registers and speed: README.md. */
#include "kernels/attention/decode/codes.cuh"
#include "kernels/attention/decode/join.cuh"
#include "kernels/attention/decode/token.cuh"
#include "kernels/gpu/ptx/tma.cuh"

/* A warp's own ring: its lanes read a stage and fill it again. */
INLINE ring_barriers ring_of(const decode_shape s, decode_smem m, int warp) {
    const ring_barriers ring = {m.full + warp * s.stages * BARRIER_BYTES, 0};
    return ring;
}

/* ---- keys ---- */

/* Where a block of 16 slots lies, whose page may not be there. */
INLINE attention_slot block_at(const attention_arguments *p, const decode_tile *tile, int slot) { return slot_of(p, tile->view.cache, slot); }

INLINE attention_slot early_block_at(const attention_arguments *p, const decode_tile *tile, int slot) { return early_slot_at(p, tile->view.cache, slot); }

/* By one lane. Behind the last page, of one that is not there, are zeros. */
INLINE void load_keys(const attention_decode_arguments *maps, const attention_decode_arguments *g, const decode_shape s, const decode_tile *tile, uint32_t stage, uint32_t scales, uint32_t full, attention_slot at) {
    const int row = at.row < 0 ? g->call.pages : at.row, slot = at.slot;
    mbarrier_arrive_expect(full, s.codes ? stage_bytes(s) + 2 * KEYS * scale_row_bytes(s) : stage_bytes(s));
    if (s.codes) {
        tma_load_4d(stage, (const tensor_map *)maps->map_k, full, 0, slot, tile->group, row, TMA_EVICT_FIRST);
        tma_load_4d(scales, (const tensor_map *)maps->map_k_scales, full, slot * scale_row_bytes(s), tile->group, row, 0, TMA_EVICT_FIRST);
        tma_load_4d(stage + key_bytes(s), (const tensor_map *)maps->map_v, full, 0, slot, tile->group, row, TMA_EVICT_FIRST);
        tma_load_4d(scales + DECODE_SCALES, (const tensor_map *)maps->map_v_scales, full, slot * scale_row_bytes(s), tile->group, row, 0, TMA_EVICT_FIRST);
        return;
    }
#pragma unroll
    for (int i = 0; i < s.width / CHUNK_COLS; i++)
        tma_load_4d(stage + i * CHUNK_BYTES, (const tensor_map *)maps->map_k, full, i * CHUNK_COLS, slot, tile->group, row, TMA_EVICT_FIRST);
    stage += KEYS * s.width * 2;
#pragma unroll
    for (int i = 0; i < s.value_width / CHUNK_COLS; i++)
        tma_load_4d(stage + i * CHUNK_BYTES, (const tensor_map *)maps->map_v, full, i * CHUNK_COLS, slot, tile->group, row, TMA_EVICT_FIRST);
}

/* ---- scores and weights ---- */

/* See soften and scale_weights. */
enum { GROWTH = 8, REACH = 7 };
#define END_OF_REACH 32768.0f

/* Scores are exponents of 2 where they are products times a scale. What a difference of them is to be multiplied by to be an exponent of 2, and a sink to be such a score. */
INLINE float unit_of(const decode_shape s) { return s.general ? LOG2_E : 1; }
INLINE float sink_unit(const decode_shape s) { return s.general ? 1 : LOG2_E; }

/* Products become scores; -inf where the key is hidden. scales: of keys in codes. gone: none of the block is there. */
INLINE void finish_scores(const attention_decode_arguments *g, const decode_shape s, const decode_tile *tile, const decode_rows *rows, int slot, uint32_t scales, bool gone, float (*scores)[4]) {
    const attention_arguments *p = &g->call;
    const int lane = threadIdx.x % 32, slots = (int)p->keys;
    const bool scaled = s.codes == DECODE_E4M3;
    const float scale[2] = {scaled ? ld_shared_f32(scales + lane / 4 * 4) : 1, scaled ? ld_shared_f32(scales + (lane / 4 + 8) * 4) : 1};
#pragma unroll
    for (int i = 0; i < 4 * bunches(s); i++) {
        scores[i / 4][i % 4] *= rows->factor[i / 4 * 2 + i % 2];
        if (scaled) scores[i / 4][i % 4] *= scale[i % 4 / 2];
    }
    int inner = slot - rows->inner_start;
    if (inner < 0) inner += slots;
    if (!s.general && !gone && inner + KEYS <= rows->inner_count && slot + KEYS <= slots) return;
#pragma unroll
    for (int r = 0; r < 2 * bunches(s); r++) {
        attention_extra extra = {0, 0};
        if (s.general) extra = extra_of(p, tile->view.cache, head_of(tile, row_at(r)), query_of(tile, row_at(r)));
#pragma unroll
        for (int far = 0; far < 2; far++) {
            float *score = &scores[r / 2][2 * far + r % 2];
            const int at = slot + far * 8 + lane / 4;
            int from = at - rows->start[r];
            if (from < 0) from += slots;
            if (gone || from >= rows->count[r] || at >= slots) *score = -INFINITE;
            else if (s.general) *score = score_of(p, *score, extra, rows->base[r] + from);
        }
    }
}

/* The largest of the lanes that have the same rows. */
INLINE float most_of_row(float x) {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, step));
    return x;
}

INLINE void scale_sums(const decode_shape s, const float *by, float (*sums)[4]) {
#pragma unroll
    for (int i = 0; i < s.value_width / 16 * bunches(s); i++)
#pragma unroll
        for (int j = 0; j < 4; j++) sums[i][j] *= by[i % bunches(s) * 2 + j % 2];
}

/* Scores become weights, relative to one of the largest so far: only one that is GROWTH powers of 2 above takes its place, for which sums shrink. Bit r of the result: row r has another. */
INLINE uint32_t soften(const decode_shape s, decode_rows *rows, float (*scores)[4], float (*sums)[4]) {
    const float unit = unit_of(s), growth = GROWTH / unit;
    bool grows = false;
    uint32_t grown = 0;
#pragma unroll
    for (int r = 0; r < 2 * bunches(s); r++) grows = grows || fmaxf(scores[r / 2][r % 2], scores[r / 2][2 + r % 2]) > rows->max[r] + growth;
    if (__any_sync(0xffffffff, grows)) {
        float down[2 * MOST_BUNCHES];
#pragma unroll
        for (int r = 0; r < 2 * bunches(s); r++) {
            const float top = most_of_row(fmaxf(scores[r / 2][r % 2], scores[r / 2][2 + r % 2]));
            down[r] = 1;
            if (top > rows->max[r] + growth) {
                down[r] = shrink(rows->max[r], top, unit);
                rows->max[r] = top;
                grown |= 1u << r;
            }
            rows->sum[r] *= down[r];
        }
        scale_sums(s, down, sums);
    }
#pragma unroll
    for (int r = 0; r < 2 * bunches(s); r++) {
        const float shift = rows->max[r] == -INFINITE ? 0 : rows->max[r];
        float *low = &scores[r / 2][r % 2], *high = &scores[r / 2][2 + r % 2];
        *low = weight_of(*low, shift, unit), *high = weight_of(*high, shift, unit);
        rows->sum[r] += *low + *high;
    }
    return grown;
}

/* Weights times the scales of values, of each block that has one, and times the reach of their row: so that the largest is 2^REACH where the row has another largest score, or f16 would end. So what is lost of
 * small ones is small beside what the sum has. Values in nvfp4 are multiplied by their scales themselves. scaled [parts][bunches][4]. */
INLINE void scale_weights(const decode_shape s, decode_rows *rows, uint32_t scales, uint32_t grown, const float (*weights)[4], float (*scaled)[MOST_BUNCHES][4], float (*sums)[4]) {
    const int lane = threadIdx.x % 32;
    uint32_t words[2] = {0, 0};
    bool beyond = grown != 0;
    if (s.codes == DECODE_MXFP8) words[0] = scales_of_row(s, scales, lane / 4), words[1] = scales_of_row(s, scales, lane / 4 + 8);
#pragma unroll
    for (int part = 0; part < weight_parts(s); part++) {
        float scale[2] = {1, 1};
#pragma unroll
        for (int far = 0; far < 2; far++) {
            if (s.codes == DECODE_E4M3) scale[far] = ld_shared_f32(scales + (lane / 4 + 8 * far) * 4);
            if (s.codes == DECODE_MXFP8) scale[far] = e8m0_of(words[far], part);
        }
#pragma unroll
        for (int i = 0; i < 4 * bunches(s); i++) {
            float *to = &scaled[part][i / 4][i % 4];
            *to = s.codes == DECODE_NVFP4 ? weights[i / 4][i % 4] : weights[i / 4][i % 4] * (scale[i % 4 / 2] * rows->reach[i / 4 * 2 + i % 2]);
            beyond = beyond || fabsf(*to) > END_OF_REACH;
        }
    }
    if (s.codes == DECODE_NVFP4 || !__any_sync(0xffffffff, beyond)) return;
    float by[2 * MOST_BUNCHES];
#pragma unroll
    for (int r = 0; r < 2 * bunches(s); r++) {
        float top = 0;
#pragma unroll
        for (int part = 0; part < weight_parts(s); part++) top = fmaxf(top, fmaxf(fabsf(scaled[part][r / 2][r % 2]), fabsf(scaled[part][r / 2][2 + r % 2])));
        top = most_of_row(top);
        by[r] = 1;
        if ((grown >> r & 1 || top > END_OF_REACH) && top > 0 && top < INFINITE) by[r] = power_to(top, REACH);
        if (rows->reach[r] * by[r] > 0x1p120f || rows->reach[r] * by[r] < 0x1p-120f) by[r] = 1;
        rows->reach[r] *= by[r];
#pragma unroll
        for (int part = 0; part < weight_parts(s); part++) scaled[part][r / 2][r % 2] *= by[r], scaled[part][r / 2][2 + r % 2] *= by[r];
    }
    scale_sums(s, by, sums);
}

/* Weights of a block's keys, and their values into sums. at: its values; scales: of them. */
INLINE void add_block(const decode_shape s, decode_rows *rows, uint32_t at, uint32_t scales, uint32_t grown, float (*scores)[4], float (*sums)[4]) {
    uint2 weights[MOST_PARTS][MOST_BUNCHES];
    if (s.codes) {
        float scaled[MOST_PARTS][MOST_BUNCHES][4];
        scale_weights(s, rows, scales, grown, scores, scaled, sums);
#pragma unroll
        for (int i = 0; i < weight_parts(s) * bunches(s); i++) weights[i / bunches(s)][i % bunches(s)] = weights_of(s, scaled[i / bunches(s)][i % bunches(s)]);
        add_codes(s, weights, at, scales, sums);
    } else {
#pragma unroll
        for (int n = 0; n < bunches(s); n++) weights[0][n] = weights_of(s, scores[n]);
        add_values(s, weights[0], at, sums);
    }
}

/* A warp's blocks of keys: its ring, the number of the first one among all, and how many there are. gone, own: bit i: the page of the block i turns ahead is not there; it has the slot of the token that is written. */
typedef struct decode_turns { ring_barriers ring; uint32_t data, scales, gone, own; int first, steps; } decode_turns;

INLINE uint32_t data_at(const decode_shape s, const decode_turns *turns, int stage) { return turns->data + (uint32_t)(stage * stage_bytes(s)); }
INLINE uint32_t scales_at(const decode_shape s, const decode_turns *turns, int stage) { return turns->scales + (uint32_t)(stage * scale_bytes(s)); }

INLINE decode_turns turns_of(const decode_shape s, decode_smem m, const decode_walk *walk) {
    const int warp = threadIdx.x / 32;
    return (decode_turns){ring_of(s, m, warp), m.ring + warp * s.stages * stage_bytes(s), m.scales + warp * s.stages * scale_bytes(s), 0, 0, walk->begin + warp, max(walk->end - walk->begin - warp + WARPS - 1, 0) / WARPS};
}

/* Asks for a warp's first blocks: for those of `these` alone, bit i: block i; the result: those that it leaves for behind the wait, as launches in front write a slot of theirs, or the table says what cannot be. */
INLINE uint32_t ask_first(const attention_decode_arguments *maps, const attention_decode_arguments *g, const decode_shape s, const bool early, const decode_tile *tile, const decode_walk *walk, const decode_written *written, const cache_place *token, uint32_t these, decode_turns *turns) {
    uint32_t left = 0;
#pragma unroll 1
    for (int i = 0; i < min(s.stages, turns->steps); i++) {
        if ((these >> i & 1) == 0) continue;
        const int slot = first_slot(walk, turns->first + i * WARPS);
        const attention_slot at = early ? early_block_at(&g->call, tile, slot) : block_at(&g->call, tile, slot);
        if (early && (at.row == CANNOT_BE || (!s.writes && is_written(written, at)))) {
            left |= 1u << i;
            continue;
        }
        turns->gone |= (uint32_t)(at.row < 0) << i;
        if (s.writes) turns->own |= (uint32_t)has_token(token, at) << i;
        if (threadIdx.x % 32 == 0) load_keys(maps, g, s, tile, data_at(s, turns, i), scales_at(s, turns, i), ring_full(turns->ring, i), at);
    }
    return left;
}

/* A warp's turns of the keys. written: what launches in front write of the caches, where early; read before they have ended. */
INLINE void attend(const attention_decode_arguments *maps, const attention_decode_arguments *g, const cache_arguments *a, const decode_shape s, const bool early, decode_smem m, const decode_tile *tile, const decode_walk *walk, const decode_written *written, const cache_place *token, decode_rows *rows, float (*sums)[4]) {
    decode_turns turns = turns_of(s, m, walk);
    uint32_t late = ~0u;
    token_item item;
    uint2 kept[MOST_KEPT];
    if (early) late = ask_first(maps, g, s, true, tile, walk, written, token, ~0u, &turns);
    if (s.writes) {               /* keys are on the way */
        item = token_item_at(g, a, tile, (int)threadIdx.x);
        clear_q(s, m);
        __syncthreads();
    }
    const uint64_t q = s.writes ? 0 : q_of_lane(g, tile);
    if (s.codes != DECODE_NVFP4) *rows = rows_of(g, s, tile);
    if (early) grid_wait();
    if (late != 0) ask_first(maps, g, s, false, tile, walk, written, token, late, &turns);
    if (s.codes == DECODE_NVFP4) *rows = rows_of(g, s, tile);
    if (s.writes) take_token(g, a, s, m, tile, &item);
    else if (takes_q(s)) take_q(g, s, q, kept);
    else load_q(g, s, m, tile, rows);
#pragma unroll
    for (int i = 0; i < s.value_width / 4 * bunches(s); i++) sums[i / 4][i % 4] = 0;
    ring_turn turn = ring_reader();
    if (!takes_q(s)) __syncthreads();              /* q is there */
#pragma unroll
    for (int step = 0; keeps_q(s) && !takes_q(s) && step < s.width / 16; step++) kept[step] = q_at(s, m.q, 0, step);
#pragma unroll 1
    for (int i = 0; i < turns.steps; i++) {
        float scores[MOST_BUNCHES][4];
        const uint32_t at = data_at(s, &turns, turn.stage), of_keys = scales_at(s, &turns, turn.stage);
        attention_slot next = {0, 0};
        if (i + s.stages < turns.steps) next = block_at(&g->call, tile, first_slot(walk, turns.first + (i + s.stages) * WARPS));
        ring_wait_full(turns.ring, turn);
        if (s.writes && (turns.own & 1) != 0) patch_own(g, s, m, token, at);
        if (s.codes) multiply_codes(s, m.q, kept, at, of_keys, scores);
        else multiply_keys(s, m.q, kept, at, scores);
        finish_scores(g, s, tile, rows, first_slot(walk, turns.first + i * WARPS), of_keys, turns.gone & 1, scores);
        turns.gone = turns.gone >> 1 | (uint32_t)(next.row < 0) << (s.stages - 1);
        if (s.writes) turns.own = turns.own >> 1 | (uint32_t)(i + s.stages < turns.steps && has_token(token, next)) << (s.stages - 1);
        add_block(s, rows, at + key_bytes(s), of_keys + DECODE_SCALES, soften(s, rows, scores, sums), scores, sums);
        __syncwarp();
        if (threadIdx.x % 32 == 0 && i + s.stages < turns.steps) load_keys(maps, g, s, tile, at, of_keys, ring_full(turns.ring, turn.stage), next);
        ring_next(&turn, s.stages);
    }
}

/* ---- sums of sums ---- */

/* What each warp has come to into shared memory, for all blocks of the cluster. second: what all values are multiplied by. */
INLINE void leave_sums(const decode_shape s, decode_smem m, float second, const decode_tile *tile, const decode_rows *rows, float (*sums)[4]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __syncthreads();              /* all keys have been read: sums may lie there */
#pragma unroll
    for (int r = 0; r < 2 * bunches(s); r++) {
        const int row = row_at(r), at = warp * ROWS + row;
        float sum = rows->sum[r];
#pragma unroll
        for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
        if (row >= tile->rows) continue;
        if (lane / 4 == 0) st_shared_f32x2(m.ends + at * 8, rows->max[r], sum);
        const float back = s.codes ? inverse_power(rows->reach[r]) * second : 1;
#pragma unroll
        for (int i = 0; i < s.value_width / 16; i++) {
            const float *of = sums[i * bunches(s) + r / 2];
            const float low = of[r % 2] * back, high = of[2 + r % 2] * back;
            const uint32_t to = m.ring + (at * pitch(s) + sum_column(s, i, 0)) * 4;
            if (s.codes) {
                st_shared_f32x2(to, low, high);
            } else {
                st_shared_f32(to, low);
                st_shared_f32(to + 32, high);
            }
        }
    }
}

/* Element `at` of keys or values, whose rows are so wide. */
INLINE float cached_at(const attention_decode_arguments *g, const decode_shape s, const cuda_array *array, const cuda_rows *rows, int64_t width, int64_t at) {
    if (s.codes == DECODE_NVFP4) return rows_scaled(rows, at / width, at % width) * rows_second(rows, 0);
    return s.codes ? rows_scaled(rows, at / width, at % width) : load_half(s.element, array->data + 2 * at);
}

/* A query of the tile, number i of its row; as a product has it, where it is a token's, which lies in shared memory alone. */
INLINE float query_at(const decode_shape s, decode_smem m, uint64_t q, int row, int i) {
    if (!s.writes) return load_half(s.element, q + 2 * i);
    const uint32_t pair = ld_shared_u32(m.q + (uint32_t)((row / 8 * (s.width / 16) + i / 16) * Q_BYTES + row % 8 * 32 + i % 8 / 2 * 8 + i % 16 / 8 * 4));
    const float2 both = numbers_of(s, pair);
    return i % 2 == 0 ? both.x : both.y;
}

/* Element i of the key or the value of a token that is written. */
INLINE float own_at(const decode_shape s, uint32_t own, int i) {
    const float2 both = numbers_of(s, ld_shared_u32(own + (uint32_t)i / 2 * 4));
    return i % 2 == 0 ? both.x : both.y;
}

/* A sum once more, by one thread, from memory, a token that is written from shared memory, and without the keys of no weight. */
INLINE float repeat_sum(const attention_decode_arguments *g, const decode_shape s, decode_smem m, const decode_tile *tile, const cache_place *token, int row, int col, float max) {
    const attention_arguments *p = &g->call;
    attention_view view = view_of_row(g, tile, row);
    attention_extra extra = extra_of(p, view.cache, head_of(tile, row), query_of(tile, row));
    uint64_t q = s.writes ? 0 : q_of_row(p, tile, row);
    const int64_t k = tile->group * p->k_strides[1], v = tile->group * p->v_strides[1];
    float sum = 0, shift = max == -INFINITE ? 0 : max;
#pragma unroll 1
    for (int from = 0; from < view.count; from++) {
        int slot = view.start + from, keys = (int)p->keys;
        attention_slot at = slot_of(p, view.cache, slot < keys ? slot : slot - keys);
        if (at.row < 0) continue;
        const bool own = s.writes && at.row == token->row && at.slot == token->slot;
        float product = 0;
#pragma unroll 1
        for (int i = 0; i < p->width; i++) product = fmaf(query_at(s, m, q, row, i), own ? own_at(s, m.own, i) : cached_at(g, s, &p->k, &g->blocks.k, p->width, k + at.row * p->k_strides[0] + at.slot * p->k_strides[2] + i), product);
        float score = s.general ? score_of(p, product, extra, view.base + from) : product * p->scale * LOG2_E, weight = weight_of(score, shift, unit_of(s));
        if (weight == 0) continue;
        sum = fmaf(weight, own ? own_at(s, m.own + DECODE_OWN_BYTES / 2, col) : cached_at(g, s, &p->v, &g->blocks.v, p->value_width, v + at.row * p->v_strides[0] + at.slot * p->v_strides[2] + col), sum);
    }
    return sum;
}

/* The results, of which each block of the cluster makes a share: four columns of a row to as many lanes as warps have parts of them, at most a warp's, which has two of each lane's then. Sums over lanes and
 * the order of parts are always the same. A sink is one more key without a value. */
INLINE void join_parts(const attention_decode_arguments *g, const decode_shape s, decode_smem m, const decode_tile *tile, const cache_place *token, int rank) {
    const attention_arguments *p = &g->call;
    const int parts = g->splits * WARPS, lanes = parts > 16 ? 32 : parts > 8 ? 16 : parts > 4 ? 8 : 4, own = (int)threadIdx.x % lanes;
    const int quads = s.value_width / COLUMNS, all = tile->rows * quads, beside = THREADS / lanes, step = g->splits * beside;
    const float unit = unit_of(s);
    const decode_sums left = {m.ends, m.ring, WARPS, ROWS, pitch(s)};
    int first = rank * beside;
    do {
        const int quad = first + (int)threadIdx.x / lanes, row = min(quad, all - 1) / quads, col = quad % quads * COLUMNS;
        const float sink = p->has_sink ? scaled_sink(load_float(&p->sink, head_of(tile, row) * p->sink_stride), sink_unit(s)) : -INFINITE;
        const decode_part nothing = {{-INFINITE, 0}, {0, 0, 0, 0}};
        decode_part near = nothing, far = nothing, sum = nothing;
        if (quad < all && own < parts) near = part_of(&left, own, row, col);
        if (quad < all && own + 32 < parts) far = part_of(&left, own + 32, row, col);
        if (g->splits > 1 && first + step >= all) cluster_arrive();     /* it reads nothing more of others */
        float max = fmaxf(fmaxf(near.end.x, far.end.x), sink);
#pragma unroll
        for (int far_lane = 16; far_lane > 0; far_lane /= 2)
            if (far_lane < lanes) max = fmaxf(max, __shfl_xor_sync(0xffffffff, max, far_lane));
        add_part(&sum, &near, max, unit);
        if (parts > 32) add_part(&sum, &far, max, unit);
#pragma unroll
        for (int far_lane = 16; far_lane > 0; far_lane /= 2) {
            if (far_lane >= lanes) continue;
            sum.end.y += __shfl_xor_sync(0xffffffff, sum.end.y, far_lane);
            sum.sums.x += __shfl_xor_sync(0xffffffff, sum.sums.x, far_lane);
            sum.sums.y += __shfl_xor_sync(0xffffffff, sum.sums.y, far_lane);
            sum.sums.z += __shfl_xor_sync(0xffffffff, sum.sums.z, far_lane);
            sum.sums.w += __shfl_xor_sync(0xffffffff, sum.sums.w, far_lane);
        }
        const float total = sum.end.y + sink_weight(sink, max, unit);
        float y = own == 0 ? sum.sums.x : own == 1 ? sum.sums.y : own == 2 ? sum.sums.z : sum.sums.w;
        if (quad < all && own < COLUMNS && col + own < p->value_width) {
            if (y != y && total == total) y = repeat_sum(g, s, m, tile, token, row, col + own, max);
            const int64_t at = tile->batch * p->out_strides[0] + head_of(tile, row) * p->out_strides[1] + query_of(tile, row) * p->out_strides[2] + (col + own) * p->out_strides[3];
            y = total == 0 ? 0 : __fdividef(y, total);
            ((uint16_t *)p->out.data)[at] = (uint16_t)(p->out.format == CUDA_bf16 ? cvt_bf16x2(y, 0) : cvt_f16x2(y, 0));
        }
        first += step;
        __syncwarp();
    } while (first < all);
    if (g->splits > 1) cluster_wait();     /* nobody leaves whose smem others still read */
}

/* ---- a block ---- */

/* Clusters of a bunch of queries lie along x of the grid, tiles of heads along y. maps: where those lie. a: of the token that is written, where the entry does that; written: all of it. */
INLINE void attention_decode(const attention_decode_arguments *maps, const attention_decode_arguments *g, const cache_arguments *a, const cache_arguments *written, const decode_shape s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    decode_smem m = smem_of(s, shared_address(shared));
    const int rank = s.writes ? (int)blockIdx.x : (int)cluster_rank(), warp = threadIdx.x / 32;
    decode_tile tile = s.writes ? tile_of_token(g, (int)blockIdx.y) : tile_at(g, (int)cluster_number(), (int)blockIdx.y, ROWS);
    token_number number;
    decode_numbers numbers;
    if (s.writes) number = number_of_token(&g->call);
    else if (g->early) numbers = numbers_of_lane(&g->call);
    decode_rows rows;
    float sums[MOST_SUMS][4];
    if (threadIdx.x % 32 == 0) {
        tma_prefetch((const tensor_map *)maps->map_k);
        tma_prefetch((const tensor_map *)maps->map_v);
        if (s.codes) tma_prefetch((const tensor_map *)maps->map_k_scales);
        if (s.codes) tma_prefetch((const tensor_map *)maps->map_v_scales);
        ring_init(ring_of(s, m, warp), s.stages, 1, 0);
        fence_mbarrier_init();
    }
    __syncwarp();
    grid_release();
    cache_place token = {-1, 0};
    decode_written of_run;
    bool early = false;
    if (s.writes) {
        early = is_good_query(&g->call, number.row, number.position);
        token = token_at(&g->call, number);
        if (early) tile.view = number.row < 0 ? (attention_view){0, 0, 0, -1} : view_from(&g->call, (int)number.row, number.position, true);
    } else if (g->early) {
        number = number_of_query(&numbers, tile.first_query);
        early = is_early_query(&g->call, &numbers, number);
        if (early) tile.view = early_view(&g->call, number), of_run = written_by_run(&g->call, &numbers);
    }
    if (!early) {
        grid_wait();
        see_tile(&g->call, &tile);
    }
    decode_walk walk = walk_of(g, tile.view, rank, KEYS);
    attend(maps, g, a, s, early, m, &tile, &walk, &of_run, &token, &rows, sums);
    leave_sums(s, m, s.codes == DECODE_NVFP4 ? E2M1_UP * rows_second(&g->blocks.v, 0) : 1, &tile, &rows, sums);
    barrier_of_blocks(g->splits);
    join_parts(g, s, m, &tile, &token, rank);
    if (s.writes && rank == 0) write_token(g, a, m, &tile, &token);
    if (s.writes && token.row < 0 && blockIdx.x == 0 && threadIdx.x == 0) cache_raise_outside(written, 0);
}

#define ARGUMENTS_0 attention_decode_arguments
#define ARGUMENTS_1 attention_token_arguments
#define CALL_0(arguments, shape) attention_decode(&arguments, &arguments, 0, 0, shape)
#define CALL_1(arguments, shape)                                                \
    const attention_decode_arguments decode = decode_of_token(&arguments, shape.general);      \
    const cache_arguments token = token_of_arguments(&arguments);               \
    attention_decode(&arguments.decode, &decode, &token, &arguments.token, shape)
#define DECODE(name, element, width, value_width, rows, stages, blocks, general, codes, writes)                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS, blocks) attention_decode_##name(const __grid_constant__ ARGUMENTS_##writes arguments) { \
        const decode_shape shape = {element, width, value_width, rows, stages, general, codes, writes};                                          \
        CALL_##writes(arguments, shape);                                                                                                         \
    }

#define ATTENTION_DECODE(name, ...) DECODE(bf16_##name, ELEMENT_BF16, __VA_ARGS__)
#include "kernels/attention/decode/decode.def"
#undef ATTENTION_DECODE
#define ATTENTION_DECODE(name, ...) DECODE(f16_##name, ELEMENT_F16, __VA_ARGS__)
#include "kernels/attention/decode/decode.def"
#undef ATTENTION_DECODE
