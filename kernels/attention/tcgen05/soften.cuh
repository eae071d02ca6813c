/* Of attention by tcgen05: the warps of the softmax, a thread a row. Scores come from tensor memory, weights go there. */
#ifndef KERNELS_ATTENTION_TCGEN05_SOFTEN_CUH
#define KERNELS_ATTENTION_TCGEN05_SOFTEN_CUH

#include "kernels/attention/tcgen05/place.cuh"
#include "kernels/gpu/ptx/pairs.cuh"

/* A row so far: weights are 2^(score x unit - shift), of scaled scores 2^((score - shift) x unit), shift belonging to max; sum is theirs. The largest score may be larger than max: it follows only where a weight would pass 2^SLACK, so sums
 * are seldom scaled. */
typedef struct soft_row { float max, shift, sum; } soft_row;
#define SLACK 8.0f

/* Infinite scores leave no weights: NaN. Without any score all weights are 0. */
INLINE float shift_of(float max, float unit) { return max == -INFINITE ? 0 : max < INFINITE ? max * unit : NOT_A_NUMBER; }

/* What scores are multiplied by to be exponents: those that have been scaled are, relative to the largest, where the last bits of large ones still count. */
INLINE float unit_of(const attention_arguments *p, const attend_shape s) { return is_scaled(s) ? LOG2_E : p->scale * LOG2_E; }

/* factor: of q's row of codes, by which products are to be multiplied besides; else 1. */
INLINE soft_row begin_row(const attention_tcgen05_arguments *g, const attend_shape s, int head, float factor) {
    const attention_arguments *p = &g->call;
    const float sink = p->has_sink ? load_float(&p->sink, head * p->sink_stride) : -INFINITE, max = p->has_sink && !is_scaled(s) ? sink / (p->scale * factor) : sink;
    const soft_row row = {max, max == -INFINITE ? 0 : max * (is_scaled(s) ? 1 : unit_of(p, s) * factor), lone_sink_weight(sink)};   /* of a sink that passes all numbers when it is scaled, infinity: then no key has weight */
    return row;
}

/* ---- powers of 2 ---- */

/* 2^x of a pair by multiplying and adding, x at most 2^SLACK: the integer part goes to the exponent, the fraction through a cubic, whose relative error is at most 8.6e-5 where weights are rounded
 * to 2^-9 or 2^-12. -127 and less give 0. x that are not numbers give nonsense: of a row with one all other weights are NaN. */
INLINE f32_pair powers_by_fma(f32_pair x) {
    const float round = 12582912;   /* 1.5 x 2^23: what is added to it is rounded to integers, which are its last bits */
    const float2 raw = f32_of_pair(x);
    const f32_pair clamped = pair_of_f32(fmaxf(raw.x, -127), fmaxf(raw.y, -127)), whole = add_down_f32x2(clamped, pair_of_f32(round, round));
    const f32_pair part = fma_f32x2(add_f32x2(whole, pair_of_f32(-round, -round)), pair_of_f32(-1, -1), clamped);
    f32_pair y = fma_f32x2(pair_of_f32(0.0770672f, 0.0770672f), part, pair_of_f32(0.22764482f, 0.22764482f));
    y = fma_f32x2(y, part, pair_of_f32(0.69511682f, 0.69511682f));
    y = fma_f32x2(y, part, pair_of_f32(1, 1));
    const uint2 exponents = u32_of_pair(whole), bits = u32_of_pair(y);
    return pair_of_f32(__uint_as_float((exponents.x << 23) + bits.x), __uint_as_float((exponents.y << 23) + bits.y));
}

INLINE f32_pair powers(f32_pair x, const bool by_fma) {
    if (by_fma) return powers_by_fma(x);
    const float2 raw = f32_of_pair(x);
    return pair_of_f32(ex2(raw.x), ex2(raw.y));
}

/* ---- a block ---- */

INLINE void read_scores(uint32_t at, float *scores) {
    uint32_t raw[ATTEND_KEYS];
#pragma unroll
    for (int i = 0; i < ATTEND_KEYS; i += 32) tmem_load_x32(raw + i, at + i);
    tmem_wait_load();
#pragma unroll
    for (int i = 0; i < ATTEND_KEYS; i++) scores[i] = __uint_as_float(raw[i]);
}

/* Scores of keys that the row does not see, [low, high) of the block, become -inf. */
INLINE void hide_keys(int low, int high, float *scores) {
    if (!agreed(low > 0 || high < ATTEND_KEYS)) return;
    const uint32_t count = (uint32_t)max(high - low, 0);
#pragma unroll
    for (int i = 0; i < ATTEND_KEYS; i++)
        if ((uint32_t)(i - low) >= count) scores[i] = -INFINITE;
}

/* A thread's row, and what it sees of the text whose keys come: count is 0 of another text's. */
typedef struct seen_row { attention_view view; int count; attention_extra extra; } seen_row;

/* How far a slot is from the beginning of what the row sees. */
INLINE int distance(const seen_row *row, int slot, int slots) {
    const int from = slot - row->view.start;
    return from < 0 ? from + slots : from;
}

/* The same as hide_keys where keys may be a ring. first: the block's first slot. */
INLINE void hide_slots(const attention_arguments *p, const seen_row *row, int first, float *scores) {
    const int slots = (int)p->keys;
    if (!agreed(first + ATTEND_KEYS > slots || distance(row, first, slots) + ATTEND_KEYS > row->count)) return;
#pragma unroll
    for (int i = 0; i < ATTEND_KEYS; i++)
        if (distance(row, first + i, slots) >= row->count || first + i >= slots) scores[i] = -INFINITE;
}

/* Scores of keys without a bit become -inf. */
INLINE void hide_bits(uint4 bits, float *scores) {
    if ((bits.x & bits.y & bits.z & bits.w) == 0xffffffff) return;
#pragma unroll
    for (int i = 0; i < ATTEND_KEYS; i++) {
        const uint32_t word = i < 32 ? bits.x : i < 64 ? bits.y : i < 96 ? bits.z : bits.w;
        if ((word >> i % 32 & 1) == 0) scores[i] = -INFINITE;
    }
}

/* ---- pages ---- */

/* Which pieces of a block are there, a bit each; bad: of which the table holds no page's number. By a warp. */
typedef struct block_pages { uint32_t there, bad; } block_pages;

INLINE block_pages read_pages(const attention_arguments *p, int cache, int block) {
    const int lane = threadIdx.x % 32, rows = piece_rows(p), slot = block * ATTEND_KEYS + lane * rows, page = lane * rows < ATTEND_KEYS ? entry_at(p, cache, slot) : -1;
    const block_pages pages = {__ballot_sync(0xffffffff, page >= 0 && page < p->pages), __ballot_sync(0xffffffff, page < -1 || page >= p->pages)};
    return pages;
}

/* Keys of pages that are not there are hidden. A row that sees a slot of no page's number reports it. */
INLINE void hide_absent(const attention_arguments *p, const seen_row *row, int cache, int first, block_pages pages, float *scores) {
    const int rows = piece_rows(p), shift = __ffs(rows) - 1, pieces = ATTEND_KEYS / rows;
    if (pages.there == (uint32_t)((UINT64_C(1) << pieces) - 1)) return;
#pragma unroll 1
    for (int i = 0; pages.bad != 0 && i < ATTEND_KEYS; i++)
        if ((pages.bad >> (i >> shift) & 1) != 0 && first + i < (int)p->keys && distance(row, first + i, (int)p->keys) < row->count) (void)slot_of(p, cache, first + i);
#pragma unroll
    for (int i = 0; i < ATTEND_KEYS; i++)
        if ((pages.there >> (i >> shift) & 1) == 0) scores[i] = -INFINITE;
}

/* ---- caps, masks and biases ---- */

enum { GENERAL_PART = 32 };

/* Four neighbours of a bias, which lie at a multiple of their size. */
INLINE float4 load_bias_four(const int format, uint64_t at) {
    if (format == CUDA_f32) return __ldg((const float4 *)at);
    const float2 low = load_bias_pair(format, at), high = load_bias_pair(format, at + 4);
    return make_float4(low.x, low.y, high.x, high.y);
}

INLINE void add_biases(const int format, uint64_t biases, int first, int keys, float *scores) {
    const int bytes = format == CUDA_f32 ? 4 : 2;
#pragma unroll
    for (int i = 0; i < GENERAL_PART; i += 4) {
        const uint64_t at = biases + (int64_t)(first + i) * bytes;
        float four[4] = {0, 0, 0, 0};
        if (first + i + 3 < keys) {
            const float4 x = load_bias_four(format, at);
            four[0] = x.x, four[1] = x.y, four[2] = x.z, four[3] = x.w;
        } else {
            for (int k = 0; k < 4; k++) four[k] = first + i + k < keys ? load_bias(format, at + k * bytes) : 0;
        }
#pragma unroll
        for (int k = 0; k < 4; k++) scores[i + k] = biased(scores[i + k], four[k]);
    }
}

INLINE void hide_masked(uint64_t mask, int first, int keys, float *scores) {
#pragma unroll
    for (int i = 0; i < GENERAL_PART; i += 4) {
        uint32_t four = 0;
        if (first + i + 3 < keys) four = __ldg((const uint32_t *)(mask + first + i));
        else for (int k = 0; k < 4; k++) four |= first + i + k < keys ? (uint32_t)*(const uint8_t *)(mask + first + i + k) << 8 * k : 0;
#pragma unroll
        for (int k = 0; k < 4; k++)
            if ((four >> 8 * k & 0xff) == 0) scores[i + k] = -INFINITE;
    }
}

/* cap x tanh(product x scale / cap). */
INLINE void scale_products(const attention_arguments *p, float *scores) {
    const float unit = p->scale / p->softcap * (2 * LOG2_E), cap = p->softcap;
    if (cap > 0) {
#pragma unroll
        for (int i = 0; i < GENERAL_PART; i++) scores[i] = fmaf(-2 * cap, rcp(1 + ex2(scores[i] * unit)), cap);
        return;
    }
#pragma unroll
    for (int i = 0; i < GENERAL_PART; i++) scores[i] *= p->scale;
}

/* Do biases and masks of the row lie so that four of them come at a time? */
INLINE bool lies_in_fours(const attention_arguments *p, const attention_extra extra) {
    const bool biases = !p->has_bias || (p->bias_strides[3] == 1 && extra.bias % (4 * p->bias.element_bytes) == 0), masks = !p->has_mask || (p->mask_strides[3] == 1 && extra.mask % 4 == 0);
    return !p->has_position && biases && masks;
}

/* Products become scores, 32 of the row's at a time, where they lie. first: the first one's slot. */
INLINE void finish_part(const attention_arguments *p, const seen_row *row, bool in_fours, int first, float *scores) {
    const int keys = (int)p->keys;
    if (!in_fours) {
#pragma unroll
        for (int i = 0; i < GENERAL_PART; i++) {
            const int slot = first + i, from = distance(row, slot, keys);
            scores[i] = from < row->count && slot < keys ? score_of(p, scores[i], row->extra, row->view.base + from) : -INFINITE;
        }
        return;
    }
    scale_products(p, scores);
    if (row->count == 0) return;  /* hidden later */
    if (p->has_bias && p->bias.format == CUDA_f32) add_biases(CUDA_f32, row->extra.bias, first, keys, scores);
    else if (p->has_bias && p->bias.format == CUDA_bf16) add_biases(CUDA_bf16, row->extra.bias, first, keys, scores);
    else if (p->has_bias) add_biases(CUDA_f16, row->extra.bias, first, keys, scores);
    if (p->has_mask) hide_masked(row->extra.mask, first, keys, scores);
}

/* The products of a block at `at`. factor: of e4m3 codes, what products are to be multiplied by. */
INLINE void finish_products(const attention_arguments *p, const attend_shape s, const seen_row *row, uint32_t at, int first, float factor) {
    const bool in_fours = lies_in_fours(p, row->extra);
#pragma unroll 1
    for (int part = 0; part < ATTEND_KEYS; part += GENERAL_PART) {
        uint32_t raw[GENERAL_PART];
        float scores[GENERAL_PART];
        __syncwarp();
        tmem_load_x32(raw, at + part);
        tmem_wait_load();
#pragma unroll
        for (int i = 0; i < GENERAL_PART; i++) scores[i] = s.codes == ATTEND_E4M3 ? __uint_as_float(raw[i]) * factor : __uint_as_float(raw[i]);
        finish_part(p, row, agreed(!in_fours) ? false : true, first + part, scores);
#pragma unroll
        for (int i = 0; i < GENERAL_PART; i++) raw[i] = __float_as_uint(scores[i]);
        __syncwarp();
        tmem_store_words_x32(at + part, raw);
    }
    tmem_wait_store();
}

/* ---- weights ---- */

/* NaN if one is. */
INLINE float largest_of(const float *scores) {
    float top[4] = {scores[0], scores[1], scores[2], scores[3]};
#pragma unroll
    for (int i = 4; i < ATTEND_KEYS; i += 4) {
#pragma unroll
        for (int k = 0; k < 4; k++) top[k] = max_nan(top[k], scores[i + k]);
    }
    return max_nan(max_nan(top[0], top[1]), max_nan(top[2], top[3]));
}

/* The row grows to a block's largest score; by what sums so far are to be multiplied. */
INLINE float raise_row(const attend_shape s, soft_row *row, float unit, float largest) {
    const float top = max_nan(row->max, largest);
    if ((row->max - top) * unit >= -SLACK || (row->max == top && largest < INFINITE)) return 1;
    const float shift = shift_of(top, is_scaled(s) ? 1 : unit), exponent = is_scaled(s) ? (row->max - top) * unit : row->shift - shift, factor = row->max == top ? 1 : row->max == -INFINITE ? 0 : ex2(exponent);
    row->max = top;
    row->shift = shift;
    return factor;
}

/* A pair of scores as exponents. */
INLINE f32_pair exponents_of(const attend_shape s, f32_pair scores, f32_pair units, f32_pair shifts) {
    return is_scaled(s) ? mul_f32x2(add_f32x2(scores, shifts), units) : fma_f32x2(scores, units, shifts);
}

INLINE uint32_t pack_pair(const int element, float2 x) { return element == ELEMENT_BF16 ? cvt_bf16x2(x.x, x.y) : cvt_f16x2(x.x, x.y); }

/* Weights to tensor memory at `to`, a quarter of the block at a time: products begin when three are there. place: of the scores. */
INLINE void give_weights(const attend_shape s, const attend_place *p, const soft_row *row, int place, uint32_t to, float unit, float *scores) {
    const f32_pair units = pair_of_f32(unit, unit), shifts = pair_of_f32(-row->shift, -row->shift);
#pragma unroll
    for (int quarter = 0; quarter < 4; quarter++) {
        uint32_t packed[ATTEND_KEYS / 8];
#pragma unroll
        for (int i = 0; i < ATTEND_KEYS / 8; i++) {
            float *pair = scores + quarter * (ATTEND_KEYS / 4) + 2 * i;
            const float2 weights = f32_of_pair(powers(exponents_of(s, pair_of_f32(pair[0], pair[1]), units, shifts), i % 8 < s.sizes.emulated));
            pair[0] = weights.x, pair[1] = weights.y;
            packed[i] = pack_pair(s.element, weights);
        }
        tmem_store_words_x16(to + quarter * (ATTEND_KEYS / 8), packed);
        if (quarter < 2) continue;
        tmem_wait_store();
        arrive_behind_tmem((quarter == 2 ? p->ready : p->rest) + place * BARRIER_BYTES);
    }
}

INLINE float sum_of(const float *weights) {
    f32_pair sums[2] = {pair_of_f32(weights[0], weights[1]), pair_of_f32(weights[2], weights[3])};
#pragma unroll
    for (int i = 4; i < ATTEND_KEYS; i += 4) {
        sums[0] = add_f32x2(sums[0], pair_of_f32(weights[i], weights[i + 1]));
        sums[1] = add_f32x2(sums[1], pair_of_f32(weights[i + 2], weights[i + 3]));
    }
    const float2 sum = f32_of_pair(add_f32x2(sums[0], sums[1]));
    return sum.x + sum.y;
}

/* To the threads that correct, of each row a pair. */
INLINE void say(const attend_place *p, int tile, int row, uint32_t *phase, float x, float y) {
    mbarrier_wait(ring_empty(p->said_ring, tile), *phase);
    *phase ^= 1;
    st_shared_f32x2(p->said + (tile * ATTEND_ROWS + row) * 8, x, y);
    arrive(ring_full(p->said_ring, tile));
}

/* ---- units ---- */

INLINE seen_row seen_of(const attention_tcgen05_arguments *g, const attend_shape s, const attend_unit *u, int query) {
    const int begin = keys_begin(g, query), end = keys_end(g, query);
    seen_row row = {{begin, max(end - begin, 0), begin, u->cache}, max(end - begin, 0), {0, 0}};
    if (s.texts) row.view = view_of(&g->call, batch_of(g, u), query);
    return row;
}

/* Scores of a block, in registers: those of keys that the row does not see are -inf. factor: of codes, of scores that are scaled. */
INLINE void score_block(const attention_tcgen05_arguments *g, const attend_shape s, const attend_unit *u, const seen_row *row, uint32_t at, int block, uint4 bits, block_pages pages, float factor, float *scores) {
    const int first = block * ATTEND_KEYS;
    if (s.scores == ATTENTION_GENERAL) finish_products(&g->call, s, row, at, first, factor);
    read_scores(at, scores);
    if (s.texts) hide_slots(&g->call, row, first, scores);
    else hide_keys(row->view.start - first, row->view.start + row->count - first, scores);
    if (s.scores == ATTENTION_MASKED) hide_bits(bits, scores);
    if (s.texts && g->call.page != 0) hide_absent(&g->call, row, u->cache, first, pages, scores);
}

/* Of a row of codes: the scale of q, 1 of queries that there are not; of the head's keys of a row of the cache where their scales lie, and the next block's. */
typedef struct row_scale { float factor, next; uint64_t of_keys; } row_scale;

/* The scale of a block's keys. Pages are whole blocks; of one that is not there any number will do. */
INLINE float key_scale_at(const attention_tcgen05_arguments *g, const attend_shape s, const attend_unit *u, const row_scale *scale, int block) {
    const attention_arguments *p = &g->call;
    if (!s.texts || p->page == 0) return factor_at(scale->of_keys, min(block, last_key_scale(p, s)));
    const attention_slot at = place_of_slot(p, s, u->cache, block * ATTEND_KEYS);
    return at.row < 0 ? 1 : factor_at(g->k_scales, head_of_keys(p, at.row, head_of(g, u)) * (last_key_scale(p, s) + 1) + at.slot / CODES_KEYS);
}

/* Before the blocks of a unit, or of a part of one. */
INLINE void begin_key_scales(const attention_tcgen05_arguments *g, const attend_shape s, const attend_unit *u, row_scale *scale) {
    if (s.codes != ATTEND_E4M3) return;
    scale->of_keys = g->k_scales + 4 * head_of_keys(&g->call, u->cache, head_of(g, u)) * (last_key_scale(&g->call, s) + 1);
    scale->next = key_scale_at(g, s, u, scale, u->begin);
}

INLINE row_scale scale_of_row(const attention_tcgen05_arguments *g, const attend_shape s, const attend_unit *u, int query) {
    const attention_arguments *p = &g->call;
    row_scale scale = {1, 1, 0};
    if (s.codes != ATTEND_E4M3) return scale;
    if (query < (int)p->queries) scale.factor = factor_at(g->q_scales, (int64_t)u->head * p->queries + query);
    return scale;
}

/* The scale of a block's keys; that of the next one is asked for. */
INLINE float take_key_scale(const attention_tcgen05_arguments *g, const attend_shape s, const attend_unit *u, row_scale *scale, int block) {
    const float own = scale->next;
    if (s.codes == ATTEND_E4M3) scale->next = key_scale_at(g, s, u, scale, block + 1);
    return own;
}

/* Four warps, of one tile. place: of the block's scores; that of the tile, or, where there is one tile, of every other block. */
INLINE void soften_units(const attention_tcgen05_arguments *g, const attend_shape s, const attend_place *p, int tile) {
    const int warp = threadIdx.x / 32 % TILE_WARPS, row_of_tile = warp * 32 + threadIdx.x % 32;
    const uint32_t lanes = p->tmem + (warp * 32 << 16);
    int place = tile;
    float unit = unit_of(&g->call, s);
    row_scale scale = {1, 1, 0};
    uint32_t said = 1, phase = 0;
    soft_row row = {0, 0, 0};
    seen_row seen = {{0, 0, 0, 0}, 0, {0, 0}};
    attend_unit u;
    for (int number = 0; next_unit(g, s, p, number, &u); number++) {
        if (tile >= u.tiles) continue;
        const int query = u.first + tile * ATTEND_ROWS + row_of_tile;
        if (u.opens) {
            scale = scale_of_row(g, s, &u, query);
            if (has_factors(s)) unit = unit_of(&g->call, s) * scale.factor;
            row = begin_row(g, s, head_of(g, &u), scale.factor);
            seen = seen_of(g, s, &u, query);
        }
        if (s.texts || u.opens) begin_key_scales(g, s, &u, &scale);
        if (s.texts) seen.count = seen.view.cache == u.cache ? seen.view.count : 0;
        if (s.scores != ATTENTION_PLAIN) seen.extra = extra_of(&g->call, u.cache, head_of(g, &u), min(query, (int)g->call.queries - 1));
#pragma unroll 1
        for (int block = u.begin; block < u.end; block++) {
            float scores[ATTEND_KEYS];
            uint4 bits = {0, 0, 0, 0};
            block_pages pages = {0, 0};
            if (s.scores == ATTENTION_MASKED) bits = read_bits(&g->call, seen.extra.mask, block);
            if (s.texts && g->call.page != 0) pages = read_pages(&g->call, u.cache, block);
            const uint32_t at = lanes + place * ATTEND_KEYS;
            wait_for_tmem(p->scores + place * BARRIER_BYTES, phase);
            phase ^= s.tiles > 1 || place == 1;
            const float keys = take_key_scale(g, s, &u, &scale, block);
            score_block(g, s, &u, &seen, at, block, bits, pages, keys * scale.factor, scores);
            if (s.codes == ATTEND_MXFP8) arrive_behind_tmem(p->read + tile * BARRIER_BYTES);
            const float largest = largest_of(scores);
            const float factor = raise_row(s, &row, unit, has_factors(s) ? keys * largest : largest);
            if (!is_begin(&u, block)) say(p, tile, row_of_tile, &said, factor, 0);
            give_weights(s, p, &row, place, at, has_factors(s) ? unit * keys : unit, scores);
            row.sum = fmaf(row.sum, factor, sum_of(scores));
            if (s.tiles == 1) place ^= 1;
        }
        if (u.closes) say(p, tile, row_of_tile, &said, row.sum, has_factors(s) ? row.max * scale.factor : row.max);
    }
}

#endif
