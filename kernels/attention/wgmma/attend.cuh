/* Of attention by wgmma: the products of a warpgroup, and its way through the blocks of keys of a tile. */
#ifndef KERNELS_ATTENTION_WGMMA_ATTEND_CUH
#define KERNELS_ATTENTION_WGMMA_ATTEND_CUH

#include "kernels/attention/wgmma/soften.cuh"

/* ---- products ---- */

INLINE void multiply_keys(const attention_shape s, float *scores, uint32_t q, uint32_t k) {
    const int q_chunk = s.groups * 64 * ROW_BYTES, k_chunk = s.keys * ROW_BYTES;
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < s.width / (s.codes ? 32 : 16); step++) {
        uint64_t a = wgmma_descriptor(q + step / 4 * q_chunk) + step % 4 * 2, b = wgmma_descriptor(k + step / 4 * k_chunk) + step % 4 * 2;
#define SHAPE(n)                                                                                   \
    if (s.keys == n && s.codes) wgmma_n##n##_e4m3(scores, a, b, step > 0);                         \
    else if (s.keys == n && s.element == ELEMENT_BF16) wgmma_n##n##_bf16(scores, a, b, step > 0);  \
    else if (s.keys == n && s.element == ELEMENT_F16) wgmma_n##n##_f16(scores, a, b, step > 0);
        SHAPE(32)
        SHAPE(64)
        SHAPE(128)
#undef SHAPE
        if (s.keys == 112 && s.element == ELEMENT_BF16) wgmma_n112_bf16(scores, a, b, step > 0);
        if (s.keys == 112 && s.element == ELEMENT_F16) wgmma_n112_f16(scores, a, b, step > 0);
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
        SHAPE(80)
        SHAPE(128)
        SHAPE(256)
#undef SHAPE
    }
    wgmma_commit();
}

/* Warpgroups issue products in turn: number i waits at barrier ORDER + i, which the one before it opens. */
enum { ORDER = 1, TILE_BARRIER = 4, GROUP_BARRIER = 5 };

INLINE void order_wait(const attention_shape s, int group) {
    if (s.groups > 1) barrier_sync(ORDER + group, 256);
}
INLINE void order_pass(const attention_shape s, int group) {
    if (s.groups > 1) barrier_arrive(ORDER + (group + 1) % s.groups, 256);
}

/* Is what comes beside keys read behind their product, so that their stage is released then; and as late as behind their weights? */
INLINE bool is_read_later(const attention_shape s) { return s.scores == ATTENTION_TILED || s.cached == CACHED_E4M3; }

/* The warp has read the stage. */
INLINE void release(const ring_barriers ring, ring_turn turn) {
    if (threadIdx.x % 32 == 0) ring_arrive_empty(ring, turn);
}

/* ---- a block of keys ---- */

/* Scales of blocks of 128 keys are read a block ahead of their products. */
INLINE float key_scale_at(const attention_wgmma_arguments *g, const attention_shape s, const attention_rows *rows, int block) {
    const int last = ((int)g->call.keys + CODES_KEYS - 1) / CODES_KEYS - 1;
    return __ldg((const float *)rows->key_scales + min(block * s.keys / CODES_KEYS, last));
}
INLINE void begin_key_scales(const attention_wgmma_arguments *g, const attention_shape s, attention_rows *rows, attention_tile tile, int block) {
    const int heads = (int)(g->call.heads / g->call.shared_heads), head = tile.batch * heads + tile.head / (int)g->call.shared_heads;
    rows->key_scales = codes_of(g)->k_scales + 4 * head * (((int)g->call.keys + CODES_KEYS - 1) / CODES_KEYS);
    rows->next_key_scale = key_scale_at(g, s, rows, block);
}
INLINE void take_key_scale(const attention_wgmma_arguments *g, const attention_shape s, attention_rows *rows, int block) {
    rows->key_scale = rows->next_key_scale < LEAST_FACTOR ? LEAST_FACTOR : rows->next_key_scale;
    rows->next_key_scale = key_scale_at(g, s, rows, block + 1);
}

/* Scores of keys that are hidden become -inf, where thread blocks stay and look up what queries see. Few blocks are not seen as a whole by all of the tile's rows, so what each row sees lies in shared memory. row: the
 * thread's first. */
INLINE void hide_walked(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, const attention_walk *walk, int row, float *scores) {
    if (agreed(walk->note == WHOLE_BLOCK)) return;
    const int slots = (int)g->call.keys, first = walk->block * s.keys;
    const attention_segment segment = load_segment(m.segments, walk->index);
    attention_rows own;
    int counts[2];
    bool all = first + s.keys <= slots;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const attention_view view = load_view(m.rows, row + 8 * half);
        own.start[half] = view.start;
        counts[half] = row + 8 * half >= segment.first && row + 8 * half < segment.end ? view.count : 0;
        all = all && distance(view.start, first, slots) + s.keys <= counts[half];
    }
    hide_keys(&g->call, s, &own, counts, first, !agreed(!all), scores);
    if (g->call.page != 0) hide_absent(&g->call, s, walk->note | ~NOT_WHOLE, scores);
}

/* Products of a block become scores, and rows grow to the largest of them. Masks of keys: a block without biases is taken as one without a mask. */
/* biases: what comes beside the block's keys, smem (tile_bytes). */
INLINE void score(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile, attention_rows *rows, const attention_walk *walk, int row,
                  uint32_t biases, float *scores, attention_exponents *exponents) {
    const attention_arguments *p = &g->call;
    if (walks(s)) {
        hide_walked(g, s, m, walk, row, scores);
        raise_rows(s, p->scale * LOG2_E, rows, scores, exponents);
        return;
    }
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
        if (s.cached) scale_products_of_blocks(s, rows, biases, scores);
        hide_keys(p, s, rows, counts, first, all, scores);
        if (s.paged && p->page != 0) hide_absent(p, s, walk->note, scores);
        if (s.codes) take_key_scale(g, s, rows, walk->block);
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

/* Is which pieces of a block are there read behind the order for its product, which nothing then waits for? Where registers are left for it. */
INLINE bool reads_late(const attention_shape s) { return s.scores == ATTENTION_PLAIN && !s.cached; }

/* Waits for the keys of the walk's block; false when there are none left. With masks of keys: and finds out which block it is. */
INLINE bool wait_block(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, const attention_rows *rows, attention_walk *walk, ring_turn *turn) {
    if (walks(s)) {
        if (agreed(walk->left == 0)) return false;
        ring_wait_full(m.k_ring, *turn);
        return true;
    }
    if (!has_notes(s)) {
        if (!walk->done) ring_wait_full(m.k_ring, *turn);
        if (!reads_late(s) && s.paged && g->call.page != 0 && !walk->done) walk->note = ld_shared_u32(m.notes + 4 * turn->stage);
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

/* Of keys in pages: which pieces of the block are there; where thread blocks stay and look up what queries see, also which block it is. */
INLINE void read_pieces(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_walk *walk, ring_turn turn) {
    if (walks(s)) {
        const uint32_t place = ld_shared_u32(m.notes + note_bytes(s) * turn.stage + 4);
        walk->note = ld_shared_u32(m.notes + note_bytes(s) * turn.stage);
        walk->block = (int)(place >> PLACE_SEGMENT_BITS);
        walk->index = (int)(place & ((1u << PLACE_SEGMENT_BITS) - 1));
    } else if (reads_late(s) && s.paged && g->call.page != 0) {
        walk->note = ld_shared_u32(m.notes + 4 * turn.stage);
    }
}

INLINE void next_block(const attention_shape s, attention_smem m, attention_walk *walk) {
    if (walks(s)) walk->left--;
    else if (has_notes(s)) walk->index++;
    else walk_next(walk, m);
}

/* The turn before this one. */
INLINE ring_turn ring_before(ring_turn turn, const int stages) {
    const ring_turn before = {turn.stage == 0 ? stages - 1 : turn.stage - 1, turn.phase ^ (turn.stage == 0)};
    return before;
}

/* The turns of who multiplies: of queries, keys and values. */
typedef struct attention_turns { ring_turn q, k, v; } attention_turns;

/* sums [64, value_width] of this warpgroup's queries, in registers. blocks: of keys of the tile, where thread blocks stay and look up what queries see. */
INLINE void attend(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile, attention_rows *rows, int group, int row, int blocks, attention_turns *turns,
                   float *sums) {
    const int k_bytes = s.keys * row_bytes(s), v_bytes = s.keys * s.value_width * 2;
    float scores[64];
    uint32_t weights[32], q = m.q + group * 64 * ROW_BYTES;   /* one stage of queries */
    attention_exponents exponents;
    ring_turn k_turn = turns->k, v_turn = turns->v;
    attention_walk walk = {{0, 0, 0, 0, 0, 0, 0}, 0, 0, blocks, false, 0};
    if (!walks(s)) walk = walk_begin(m);
#pragma unroll
    for (int i = 0; i < s.value_width / 2; i++) sums[i] = 0;
    if (!s.stays) ring_wait_full(m.q_ring, turns->q);
    if (!wait_block(g, s, m, rows, &walk, &k_turn)) return;
    if (s.stays) ring_wait_full(m.q_ring, turns->q);   /* queries that see nothing are not loaded */
    if (s.codes) begin_key_scales(g, s, rows, tile, walk.block);
    if (s.cached == CACHED_NVFP4) rows->key_scale = rows_second(&blocks_of(g)->k, 0);
    multiply_keys(s, scores, q, m.k + k_turn.stage * k_bytes);
    read_pieces(g, s, m, &walk, k_turn);
    wgmma_wait(0);
    if (!is_read_later(s)) release(m.k_ring, k_turn);
    if (walks(s) && agreed(walk.left == 1)) release(m.q_ring, turns->q);   /* behind the last product of queries */
    score(g, s, m, tile, rows, &walk, row, m.tiles + k_turn.stage * tile_bytes(s), scores, &exponents);
    if (s.scores == ATTENTION_TILED) release(m.k_ring, k_turn);
    soften(s, &exponents, rows, scores);
    if (s.cached == CACHED_E4M3) {
        scale_weights(s, m.tiles + k_turn.stage * tile_bytes(s), scores);
        release(m.k_ring, k_turn);
    }
    pack_weights(s, scores, weights);
    ring_next(&k_turn, s.stages);
    if (group == s.groups - 1) order_pass(s, group);
    for (next_block(s, m, &walk); wait_block(g, s, m, rows, &walk, &k_turn); next_block(s, m, &walk)) {
        order_wait(s, group);
        multiply_keys(s, scores, q, m.k + k_turn.stage * k_bytes);
        if (walks(s)) v_turn = ring_before(k_turn, s.stages);
        ring_wait_full(m.v_ring, v_turn);
        add_values(s, sums, weights, m.v + v_turn.stage * v_bytes);
        order_pass(s, group);
        read_pieces(g, s, m, &walk, k_turn);
        wgmma_wait(1);
        if (!is_read_later(s)) release(m.k_ring, k_turn);
        if (walks(s) && agreed(walk.left == 1)) release(m.q_ring, turns->q);
        score(g, s, m, tile, rows, &walk, row, m.tiles + k_turn.stage * tile_bytes(s), scores, &exponents);
        if (s.scores == ATTENTION_TILED) release(m.k_ring, k_turn);
        if (has_notes(s) || s.stays) wgmma_wait(0);
        soften(s, &exponents, rows, scores);
        if (!has_notes(s) && !s.stays) wgmma_wait(0);   /* ptxas waits in front of the powers of 2 even so, where no branch is in the way */
        release(m.v_ring, v_turn);
        if (s.cached == CACHED_E4M3) {
            scale_weights(s, m.tiles + k_turn.stage * tile_bytes(s), scores);
            release(m.k_ring, k_turn);
        }
        pack_weights(s, scores, weights);
#pragma unroll
        for (int i = 0; i < s.value_width / 2; i++) sums[i] *= rows->down[i >> 1 & 1];
        ring_next(&k_turn, s.stages);
        if (!walks(s)) ring_next(&v_turn, s.stages);
    }
    if (group == 0) order_wait(s, group);
    if (walks(s)) v_turn = ring_before(k_turn, s.stages);
    ring_wait_full(m.v_ring, v_turn);
    add_values(s, sums, weights, m.v + v_turn.stage * v_bytes);
    wgmma_wait(0);
    if (!s.stays) return;
    release(m.v_ring, v_turn);
    turns->k = k_turn;
    ring_next(&turns->q, s.q_stages);
}

#endif
