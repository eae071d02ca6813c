/* Of attention by tcgen05: the warps that load operands, multiply and store results. Each runs its loop as a whole, and one thread issues. */
#ifndef KERNELS_ATTENTION_TCGEN05_PRODUCTS_CUH
#define KERNELS_ATTENTION_TCGEN05_PRODUCTS_CUH

#include "kernels/attention/tcgen05/place.cuh"

/* ---- loads ---- */

/* 128 rows, in columns of 128 bytes. */
INLINE void load_rows(const tensor_map *map, uint32_t to, uint32_t full, const int columns, int row, int head, int batch, uint64_t cache) {
#pragma unroll
    for (int i = 0; i < columns; i++) tma_load_4d(to + i * ATTEND_COLUMN_BYTES, map, full, i * ATTEND_COLUMN, row, head, batch, cache);
}

/* Keys from slot `first` on in pages come in pieces, a box to each page or part of one, a piece to a lane; of pages that are not there zeros, which is what TMA reads behind the last page. Columns from
 * from_column on. */
INLINE void load_pieces(const attention_arguments *p, const tensor_map *map, uint32_t to, uint32_t full, const int columns, const int keys, int from_column, int first, int head, int cache) {
    const int rows = min(p->page, keys), lane = threadIdx.x % 32, slot = first + lane * rows;
    if (lane * rows >= keys) return;
    const int page = entry_at(p, cache, slot);
    const bool there = page >= 0 && page < p->pages;
#pragma unroll
    for (int i = 0; i < columns; i++)
        tma_load_4d(to + lane * rows * ROW_BYTES + i * keys * ROW_BYTES, map, full, (from_column + i) * ATTEND_COLUMN, slot % p->page, head, there ? page : p->pages, TMA_EVICT_LAST);
}

/* A stage: a block, or a piece of one: so many keys from `first` on, in columns of 64 from from_column on. */
INLINE void load_stage(const attention_tcgen05_arguments *g, const attend_shape s, const attend_place *p, const uint64_t *map, const int columns, const int keys, ring_turn *turn, bool issues, int from_column, int first,
                       int head, int cache) {
    const uint32_t to = p->kv + turn->stage * attend_stage_bytes(s.sizes), full = ring_full(p->kv_ring, turn->stage);
    const bool paged = s.texts && g->call.page != 0;
    ring_wait_empty(p->kv_ring, *turn);
    if (issues) {
        ring_expect_full(p->kv_ring, *turn, columns * keys * ROW_BYTES);
#pragma unroll
        for (int i = 0; i < columns && !paged; i++)
            tma_load_4d(to + i * keys * ROW_BYTES, (const tensor_map *)map, full, (from_column + i) * ATTEND_COLUMN, first, head, cache, TMA_EVICT_LAST);
    }
    __syncwarp();
    if (paged) load_pieces(&g->call, (const tensor_map *)map, to, full, columns, keys, from_column, first, head, cache);
    ring_next(turn, s.stages);
}

/* ---- scales of mxfp8: a word to a row, those of rows lane, lane + 32, .. side by side, as tcgen05.cp reads them ---- */

INLINE uint32_t load_row_scales(uint64_t scales, int64_t row, const int count) {
    const uint64_t at = scales + row * count;
    if (count == 4) return __ldg((const uint32_t *)at);
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 3; i++) word |= i < count ? (uint32_t)__ldg((const uint8_t *)at + i) << 8 * i : 0;
    return word;
}

/* Of a block of keys. By a warp. */
INLINE uint4 load_key_scales(const attention_tcgen05_arguments *g, const attend_shape s, int cache, int head, int block) {
    const attention_arguments *p = &g->call;
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const attention_slot at = place_of_slot(p, s, cache, block * ATTEND_KEYS + 32 * i + (int)threadIdx.x % 32);
        words[i] = at.row >= 0 ? load_row_scales(g->k_scales, head_of_keys(p, at.row, head) * keys_of_head(p, s) + at.slot, row_scales(p)) : 0;
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

/* Of 128 queries from `first` on of a head, of which there are so many. By a warp. */
INLINE uint4 load_scales(const attention_arguments *p, uint64_t scales, int64_t head, int64_t rows, int first) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = first + 32 * i + (int)threadIdx.x % 32;
        words[i] = row < (int)rows ? load_row_scales(scales, head * rows + row, row_scales(p)) : 0;
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

/* To shared memory, for who is told of them behind it by one arrival. */
INLINE void store_scales(uint32_t to, uint4 words) {
    st_shared_u32x4(to + threadIdx.x % 32 * 16, words);
    fence_proxy_async();
    __syncwarp();
}

INLINE void load_keys(const attention_tcgen05_arguments *g, const attend_shape s, const attend_place *p, ring_turn *turn, bool issues, int block, int head, const attend_unit *unit) {
    const int columns = attend_q_columns(s.sizes) / attend_key_pieces(s.sizes);
    if (s.codes == ATTEND_MXFP8) {
        const uint4 words = load_key_scales(g, s, unit->cache, head, block);
        ring_wait_empty(p->kv_ring, *turn);
        store_scales(p->k_scales + turn->stage * ATTEND_SCALE_TILE, words);
    }
#pragma unroll 1
    for (int i = 0; i < attend_key_pieces(s.sizes); i++)
        load_stage(g, s, p, g->map_k, columns, ATTEND_KEYS, turn, issues, i * columns, block * ATTEND_KEYS, head / (int)g->call.shared_heads, unit->cache);
}

INLINE void load_values(const attention_tcgen05_arguments *g, const attend_shape s, const attend_place *p, ring_turn *turn, bool issues, int block, int head, int cache) {
    const int keys = attend_value_keys(s.sizes);
#pragma unroll 1
    for (int i = 0; i < attend_value_pieces(s.sizes); i++)
        load_stage(g, s, p, g->map_v, attend_columns(s.value_width), keys, turn, issues, 0, block * ATTEND_KEYS + i * keys, head / (int)g->call.shared_heads, cache);
}

/* In the order in which products read: keys 0, then values i and keys i + 1. Queries come behind the first keys, as they wait for the end of the unit before. */
INLINE void load_units(const attention_tcgen05_arguments *g, const attend_shape s, const attend_place *p) {
    const bool issues = elect_one();
    ring_turn turn = ring_writer();
    uint32_t q_phase[ATTEND_TILES] = {1, 1};
    attend_unit unit;
    for (int number = 0; next_unit(g, s, p, number, &unit); number++) {
        const int head = head_of(g, &unit);
        if (unit.begin == unit.end) continue;
        load_keys(g, s, p, &turn, issues, unit.begin, head, &unit);
#pragma unroll
        for (int tile = 0; tile < ATTEND_TILES; tile++) {
            if (tile >= unit.tiles || !unit.opens) break;
            const ring_turn q_turn = {tile, q_phase[tile]};
            ring_wait_empty(p->q_ring, q_turn);
            q_phase[tile] ^= 1;
            if (s.codes == ATTEND_MXFP8)
                store_scales(p->q_scales + tile * ATTEND_SCALE_TILE, load_scales(&g->call, g->q_scales, unit.head, g->call.queries, unit.first + tile * ATTEND_ROWS));
            if (!issues) continue;
            const uint32_t full = ring_expect_full(p->q_ring, q_turn, attend_q_bytes(s.sizes));
            load_rows((const tensor_map *)g->map_q, p->q + tile * attend_q_bytes(s.sizes), full, attend_q_columns(s.sizes), unit.first + tile * ATTEND_ROWS, head, batch_of(g, &unit), TMA_EVICT_FIRST);
        }
#pragma unroll 1
        for (int block = unit.begin; block < unit.end; block++) {
            load_values(g, s, p, &turn, issues, block, head, unit.cache);
            if (block + 1 < unit.end) load_keys(g, s, p, &turn, issues, block + 1, head, &unit);
        }
    }
}

/* ---- products ---- */

/* PTX ISA, "Instruction descriptor": fp32 sums, M = 128, N; and whether b's rows are k. */
INLINE constexpr uint32_t descriptor_of(const int n, const int b_in_columns) { return (uint32_t)n / 8 << 17 | 1u << 4 | (uint32_t)(ATTEND_ROWS / 16) << 24 | (uint32_t)b_in_columns << 16; }

/* The same of mxfp8, whose sums are fp32: the type of scales, M = 128, N, and which of a row's scales they are. */
INLINE constexpr uint32_t scaled_descriptor_of(const int n, const int scale) { return (uint32_t)n / 8 << 17 | 1u << 23 | (uint32_t)(ATTEND_ROWS / 128) << 27 | (uint32_t)scale << 4 | (uint32_t)scale << 29; }

/* scores [128, 128] = q k^T of a tile, of codes 32 to a step; scales: where those of q and k lie in tensor memory. */
INLINE void multiply_codes(const attend_shape s, uint32_t scores, uint32_t q, uint32_t k, uint32_t scales) {
    const uint64_t rows = tcgen05_descriptor(0);
    const uint32_t a = q >> 4, b = k >> 4;
#pragma unroll
    for (int step = 0; step < s.width / 32; step++) {
        if (s.codes == ATTEND_E4M3) tcgen05_mma_f8(scores, rows | (a + 2 * step), rows | (b + 2 * step), descriptor_of(ATTEND_KEYS, 0), step > 0);
        else tcgen05_mma_mxf8(scores, rows | (a + 2 * step), rows | (b + 2 * step), scaled_descriptor_of(ATTEND_KEYS, step), scales, scales + ATTEND_SCALE_COLUMNS, step > 0);
    }
}

/* The same of 16 bits, [128, 16 steps] of q and k at a time; of heads narrower than the entry only the columns that there are. begins: these are the first ones. */
INLINE void multiply_keys(uint32_t scores, uint32_t q, uint32_t k, uint32_t formats, const int steps, const bool begins) {
    const uint64_t rows = tcgen05_descriptor(0);
    const uint32_t a = q >> 4, b = k >> 4;
#pragma unroll
    for (int step = 0; step < steps; step++) {
        const int at = step / 4 * (ATTEND_COLUMN_BYTES / 16) + step % 4 * 2;
        tcgen05_mma_f16(scores, rows | (a + at), rows | (b + at), formats | descriptor_of(ATTEND_KEYS, 0), step > 0 || !begins);
    }
}

/* sums [128, value_width] += weights v, of 16 keys each step, those of v from step `base` on; `first`: of the unit's first block, which begins them. */
INLINE void add_values(const attend_shape s, uint32_t sums, uint32_t weights, uint32_t v, uint32_t formats, const int base, const int from, const int upto, bool first) {
    const uint64_t columns = tcgen05_descriptor_columns(0, attend_value_keys(s.sizes) * ROW_BYTES);
#pragma unroll
    for (int step = from; step < upto; step++)
        tcgen05_mma_f16_rows(sums, weights + 8 * step, columns | ((v >> 4) + (step - base) * (16 * ROW_BYTES / 16)), formats | descriptor_of(s.value_width, 1), step > 0 || !first);
}

/* The scores of a tile. Of pieces of keys the unit's first tile waits for each, its last one (frees) gives each back; for the first piece, and of keys that are one, the caller does. The scores of a last block free the
 * tile's queries. */
INLINE void issue_scores(const attention_tcgen05_arguments *g, const attend_shape s, const attend_place *p, bool issues, const int tile, ring_turn turn, bool frees, bool last) {
    const int pieces = attend_key_pieces(s.sizes);
    const uint32_t scores = p->tmem + tile * ATTEND_KEYS, scales = p->tmem + (ATTEND_TILES - 1 - tile) * ATTEND_KEYS + ATTEND_SCALES_AT, q = p->q + tile * attend_q_bytes(s.sizes);
#pragma unroll
    for (int i = 0; i < pieces; i++) {
        const uint32_t k = p->kv + turn.stage * attend_stage_bytes(s.sizes);
        if (tile == 0 && i > 0) ring_wait_full(p->kv_ring, turn);
        if (issues) {
            if (s.codes == ATTEND_MXFP8) {
                tcgen05_copy_scales(scales, tcgen05_rows_descriptor(p->q_scales + tile * ATTEND_SCALE_TILE));
                tcgen05_copy_scales(scales + ATTEND_SCALE_COLUMNS, tcgen05_rows_descriptor(p->k_scales + turn.stage * ATTEND_SCALE_TILE));
            }
            if (s.codes != ATTEND_HALVES) multiply_codes(s, scores, q, k, scales);
            else multiply_keys(scores, q + i * ATTEND_COLUMN_BYTES, k, g->formats, s.width / 16 / pieces, i == 0);
            if (frees && pieces > 1) tcgen05_commit(ring_empty(p->kv_ring, turn.stage));
        }
        ring_next(&turn, s.stages);
    }
    if (!issues) return;
    tcgen05_commit(p->scores + tile * BARRIER_BYTES);
    if (last) tcgen05_commit(ring_empty(p->q_ring, tile));
}

/* The values' product of a tile: three quarters of the keys, and then the last one. The first tile waits for each piece, the last one (frees) gives each back. */
INLINE void issue_values(const attention_tcgen05_arguments *g, const attend_shape s, const attend_place *p, bool issues, const int tile, ring_turn turn, bool frees, bool first, bool last, uint32_t phase) {
    enum { STEPS = ATTEND_KEYS / 16, READY = STEPS * 3 / 4 };
    const uint32_t sums = p->tmem + ATTEND_SUMS + tile * ATTEND_SUMS_STEP, weights = p->tmem + tile * ATTEND_KEYS;
    const int pieces = attend_value_pieces(s.sizes);
#pragma unroll
    for (int i = 0; i < pieces; i++) {
        const int from = i * STEPS / pieces, upto = (i + 1) * STEPS / pieces;
        const uint32_t v = p->kv + turn.stage * attend_stage_bytes(s.sizes);
        if (tile == 0) ring_wait_full(p->kv_ring, turn);
        if (i == 0) wait_for_tmem(p->ready + tile * BARRIER_BYTES, phase);
        if (issues) add_values(s, sums, weights, v, g->formats, from, from, min(upto, READY), first);
        if (upto == STEPS) {
            wait_for_tmem(p->rest + tile * BARRIER_BYTES, phase);
            if (issues) add_values(s, sums, weights, v, g->formats, from, max(from, READY), upto, first);
        }
        if (issues && frees) tcgen05_commit(ring_empty(p->kv_ring, turn.stage));
        ring_next(&turn, s.stages);
    }
    if (issues && last) tcgen05_commit(p->sums + tile * BARRIER_BYTES);
}

/* Behind so many stages. */
INLINE void pass_stages(ring_turn *turn, const int count, const int stages) {
#pragma unroll
    for (int i = 0; i < count; i++) ring_next(turn, stages);
}

/* The blocks of all units that have some, one after the other. */
typedef struct block_walk { attend_unit unit; int block, number; bool there; } block_walk;

INLINE void next_with_blocks(const attention_tcgen05_arguments *g, const attend_shape s, const attend_place *p, block_walk *walk) {
    do walk->there = next_unit(g, s, p, walk->number++, &walk->unit);
    while (walk->there && walk->unit.begin == walk->unit.end);
    walk->block = walk->unit.begin;
}
INLINE void next_block(const attention_tcgen05_arguments *g, const attend_shape s, const attend_place *p, block_walk *walk) {
    if (++walk->block == walk->unit.end) next_with_blocks(g, s, p, walk);
}

/* Scores of each tile that may not be in registers yet, and the parity of the barrier that says they are. */
typedef struct unread_scores { bool there[ATTEND_TILES]; uint32_t phase[ATTEND_TILES]; } unread_scores;

INLINE void wait_until_read(const attend_place *p, const int tile, unread_scores *unread) {
    if (!unread->there[tile]) return;
    mbarrier_wait(p->read + tile * BARRIER_BYTES, unread->phase[tile]);
    unread->phase[tile] ^= 1;
    unread->there[tile] = false;
}

/* With mxfp8: scales of a tile may lie over the other tile's scores, as these are in registers. Its own have been there before its weights were, so that wait is for the barrier's next turn alone. */
INLINE void make_room_for_scales(const attend_place *p, const int tile, unread_scores *unread) {
    wait_until_read(p, tile, unread);
    wait_until_read(p, ATTEND_TILES - 1 - tile, unread);
    tcgen05_fence_after();
}

/* Values of a block and scores of the next one of tile 0, the same of tile 1, and so on, from unit to unit: a tile's softmax runs under the other's products. Products are done in the order of
 * their issue, so a tile's next scores may be written over its weights. */
INLINE void multiply_units(const attention_tcgen05_arguments *g, const attend_shape s, const attend_place *p) {
    const bool issues = elect_one();
    ring_turn turn = ring_reader();
    uint32_t q_phase[ATTEND_TILES] = {0, 0}, phase[ATTEND_TILES] = {0, 0};
    unread_scores unread = {{false, false}, {0, 0}};
    block_walk now = {{0, 0, 0, 0, 0, 0, false, false}, 0, 0, false}, next;
    next_with_blocks(g, s, p, &now);
    next = now;
    now.unit.tiles = 0;           /* before the first block there are no values */
    while (now.there) {
        const bool first = is_begin(&now.unit, now.block), last = is_end(&now.unit, now.block), begins = is_begin(&next.unit, next.block);
        const ring_turn values = turn;
        if (now.unit.tiles > 0) pass_stages(&turn, attend_value_pieces(s.sizes), s.stages);
#pragma unroll
        for (int tile = 0; tile < ATTEND_TILES; tile++) {
            if (tile < now.unit.tiles) {
                issue_values(g, s, p, issues, tile, values, tile + 1 == now.unit.tiles, first, last, phase[tile]);
                phase[tile] ^= 1;
            }
            if (!next.there) continue;
            if (tile == 0) ring_wait_full(p->kv_ring, turn);
            if (tile >= next.unit.tiles) continue;
            if (begins) {
                mbarrier_wait(ring_full(p->q_ring, tile), q_phase[tile]);
                q_phase[tile] ^= 1;
            }
            if (s.codes == ATTEND_MXFP8) make_room_for_scales(p, tile, &unread);
            issue_scores(g, s, p, issues, tile, turn, tile + 1 == next.unit.tiles, is_end(&next.unit, next.block));
            unread.there[tile] = true;
        }
        now = next;
        if (!next.there) continue;
        if (issues && attend_key_pieces(s.sizes) == 1) tcgen05_commit(ring_empty(p->kv_ring, turn.stage));
        pass_stages(&turn, attend_key_pieces(s.sizes), s.stages);
        next_block(g, s, p, &next);
    }
}

/* ---- stores ---- */

/* Staged results of a tile to memory, columns from from_column on, as many rows as there are. By one thread. */
INLINE void store_tile(const attention_tcgen05_arguments *g, const attend_shape s, uint32_t from, const attend_unit *unit, int row, int from_column) {
#pragma unroll
    for (int i = 0; i < attend_out_columns(s.sizes); i++)
        tma_store_4d((const tensor_map *)g->map_out, from + i * ATTEND_COLUMN_BYTES, (from_column + i) * ATTEND_COLUMN, row, head_of(g, unit), batch_of(g, unit));
    tma_commit();
}

/* Results of a unit part by part, columns of a tile. Places take turns; where there are two, one is given back when the next part's store has been issued. */
INLINE void store_units(const attention_tcgen05_arguments *g, const attend_shape s, const attend_place *p) {
    const int of_tile = attend_out_parts(s.sizes);
    const bool issues = elect_one();
    uint32_t phase[2] = {0, 0};
    attend_unit unit;
    for (int number = 0; next_unit(g, s, p, number, &unit); number++) {
        if (!unit.closes || s.blocks) continue;   /* results in blocks are stored by those who correct */
        const int parts = unit.tiles * of_tile;
#pragma unroll
        for (int part = 0; part < ATTEND_TILES * of_tile; part++) {
            const int slot = part % s.outs;
            if (part >= parts) break;
            mbarrier_wait(ring_full(p->out_ring, slot), phase[slot]);
            phase[slot] ^= 1;
            if (!issues) continue;
            store_tile(g, s, p->out + slot * attend_out_bytes(s.sizes), &unit, unit.first + part / of_tile * ATTEND_ROWS, part % of_tile * attend_out_columns(s.sizes));
            if (s.outs > 1 && part > 0) {
                tma_wait_read(1);
                mbarrier_arrive(ring_empty(p->out_ring, slot ^ 1));
            }
            if (s.outs > 1 && part + 1 < parts) continue;
            tma_wait_read(0);
            mbarrier_arrive(ring_empty(p->out_ring, slot));
        }
    }
}

#endif
