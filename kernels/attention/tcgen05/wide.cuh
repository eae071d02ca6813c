/* Of attention by tcgen05: loads and products of heads whose sums take half of tensor memory, so that a unit is one tile. Scores of a block are multiplied in front of the values of the block before, to the
 * other of two places, so a block's softmax runs under both:
 *
 *   scores 0, scores 1, values 0, scores 2, values 1, ..                        softmax 1 runs under values 0 and scores 2
 *
 * Blocks come in pieces of a stage each, in the order of the products: of keys [128, 64 columns], of values [32, value_width]. */
#ifndef KERNELS_ATTENTION_TCGEN05_WIDE_CUH
#define KERNELS_ATTENTION_TCGEN05_WIDE_CUH

#include "kernels/attention/tcgen05/products.cuh"

/* ---- loads ---- */

/* Queries come behind the first keys, as they wait for the last scores of the unit before. */
INLINE void load_wide(const attention_tcgen05_arguments *g, const attend_shape s, const attend_place *p) {
    const bool issues = elect_one();
    ring_turn turn = ring_writer();
    uint32_t q_phase = 1;
    block_walk now = {{0, 0, 0, 0, 0, 0, false, false}, 0, 0, false}, next;
    next_with_blocks(g, s, p, &now);
    next = now;
    now.unit.tiles = 0;           /* before the first block there are no values */
    while (now.there) {
        if (next.there) {
            load_keys(g, s, p, &turn, issues, next.block, head_of(g, &next.unit), &next.unit);
            if (is_begin(&next.unit, next.block)) {
                const ring_turn q_turn = {0, q_phase};
                ring_wait_empty(p->q_ring, q_turn);
                q_phase ^= 1;
                if (issues)
                    load_rows((const tensor_map *)g->map_q, p->q, ring_expect_full(p->q_ring, q_turn, attend_q_bytes(s.sizes)), attend_q_columns(s.sizes), next.unit.first, head_of(g, &next.unit), batch_of(g, &next.unit), TMA_EVICT_FIRST);
            }
        }
        if (now.unit.tiles > 0) load_values(g, s, p, &turn, issues, now.block, head_of(g, &now.unit), now.unit.cache);
        now = next;
        if (next.there) next_block(g, s, p, &next);
    }
}

/* ---- products ---- */

/* Scores of a block to a place, columns of 64 after columns of 64. */
INLINE void multiply_wide_keys(const attention_tcgen05_arguments *g, const attend_shape s, const attend_place *p, ring_turn *turn, bool issues, int place, bool last) {
    const uint64_t rows = tcgen05_descriptor(0);
#pragma unroll 1
    for (int i = 0; i < attend_key_pieces(s.sizes); i++) {
        const uint32_t a = (p->q + i * ATTEND_COLUMN_BYTES) >> 4, b = (p->kv + turn->stage * attend_stage_bytes(s.sizes)) >> 4;
        ring_wait_full(p->kv_ring, *turn);
        if (issues) {
#pragma unroll
            for (int step = 0; step < ATTEND_COLUMN / 16; step++)
                tcgen05_mma_f16(p->tmem + place * ATTEND_KEYS, rows | (a + 2 * step), rows | (b + 2 * step), g->formats | descriptor_of(ATTEND_KEYS, 0), i > 0 || step > 0);
            tcgen05_commit(ring_empty(p->kv_ring, turn->stage));
        }
        ring_next(turn, s.stages);
    }
    if (!issues) return;
    tcgen05_commit(p->scores + place * BARRIER_BYTES);
    if (last) tcgen05_commit(ring_empty(p->q_ring, 0));
}

/* Values of a block times its weights, which lie over its scores; first: of a unit's first block, which begins sums. */
INLINE void multiply_wide_values(const attention_tcgen05_arguments *g, const attend_shape s, const attend_place *p, ring_turn *turn, bool issues, int place, uint32_t phase, bool first) {
    const int pieces = attend_value_pieces(s.sizes), keys = attend_value_keys(s.sizes);
    const uint64_t columns = tcgen05_descriptor_columns(0, keys * ROW_BYTES);
    wait_for_tmem(p->ready + place * BARRIER_BYTES, phase);
#pragma unroll 1
    for (int i = 0; i < pieces; i++) {
        const uint32_t weights = p->tmem + place * ATTEND_KEYS + i * (keys / 2), v = (p->kv + turn->stage * attend_stage_bytes(s.sizes)) >> 4;
        if (i == pieces - 1) wait_for_tmem(p->rest + place * BARRIER_BYTES, phase);
        ring_wait_full(p->kv_ring, *turn);
        if (issues) {
#pragma unroll
            for (int step = 0; step < keys / 16; step++)
                tcgen05_mma_f16_rows(p->tmem + ATTEND_SUMS, weights + 8 * step, columns | (v + step * (16 * ROW_BYTES / 16)), g->formats | descriptor_of(s.value_width, 1), i > 0 || step > 0 || !first);
            tcgen05_commit(ring_empty(p->kv_ring, turn->stage));
        }
        ring_next(turn, s.stages);
    }
    if (issues) tcgen05_commit(p->sums);
}

INLINE void multiply_wide(const attention_tcgen05_arguments *g, const attend_shape s, const attend_place *p) {
    const bool issues = elect_one();
    ring_turn turn = ring_reader();
    uint32_t q_phase = 0, phase = 0;
    int place = 0;                /* of the next block's scores; phase: of the other one's weights */
    block_walk now = {{0, 0, 0, 0, 0, 0, false, false}, 0, 0, false}, next;
    next_with_blocks(g, s, p, &now);
    next = now;
    now.unit.tiles = 0;           /* before the first block there are no values */
    while (now.there) {
        if (next.there) {
            if (is_begin(&next.unit, next.block)) {
                mbarrier_wait(ring_full(p->q_ring, 0), q_phase);
                q_phase ^= 1;
            }
            multiply_wide_keys(g, s, p, &turn, issues, place, is_end(&next.unit, next.block));
        }
        if (now.unit.tiles > 0) {
            multiply_wide_values(g, s, p, &turn, issues, place ^ 1, phase, is_begin(&now.unit, now.block));
            phase ^= place == 0;  /* behind the values of place 1 */
        }
        place ^= 1;
        now = next;
        if (next.there) next_block(g, s, p, &next);
    }
}

#endif
