/* The gradients of attention by five products: the body of the entries of joined.cu. A thread block owns 128 keys of one head, and the queries that see them go by in blocks, upwards or downwards.
 *
 *   warp 8, one thread     takes the next tile's number; empty -> TMA q, dout [others, width], lse and dout . out -> full             2 or 4 stages in smem, in columns of 64
 *   warpgroups 0, 1        64 keys each:
 *       scores [64, others] = k q^T, dweights [64, others] = v dout^T         wgmma, smem x smem
 *       weights = 2^(scores - lse)                                            registers, fp32
 *       dv += weights dout                                                    wgmma, registers (bf16) x smem, dout as it lies
 *       pulls = weights (dweights - dout . out)                               registers, and as bf16 in smem [128 keys, others], two of them in turn
 *       dk += pulls q                                                         wgmma, registers (bf16) x smem
 *       both have written their pulls: the block's sums [others, width] = pulls^T k. Of heads of 64 one warpgroup makes all, every other block; else each makes 64 columns     wgmma, smem x smem
 *       the next block's scores are under way while the sums go to smem, two places in turn
 *   warps 9, 10            each has every other block: sums -> gmem, added to what other thread blocks have brought, where it is their turn
 *
 * Order. A block of queries has a counter: thread blocks add to its sums in the order of their keys, down or, in the last band, up, and each waits until those before it have added. The first one writes instead. So every sum has one order, and the bits
 * are the same from run to run; in another batch, or on a chip of other size, a head may be in another band. Nobody waits for ever: thread blocks take tiles' numbers from a counter as they come, and who adds earlier has a smaller number, so each waits for tiles alone that were taken before its own.
 * And nobody waits long: upwards, with a causal mask or a window, thread blocks that begin together come to a block of queries two blocks after one another; else each is a turn behind the one before it, once.
 *
 * Sums of queries lie in gmem in fp32, as the threads hold them: 16 bytes of each of 128 threads side by side. A launch behind makes rows of them.
 *
 * Pairs that are not seen have weight 0. Where an operand is not finite, gradients of what is not seen in the same tile and block may be NaN, too.
 *
 * Registers: 24 (loads, sums), 240. Speed: README.md. */
#ifndef KERNELS_ATTENTION_WGMMA_JOINED_CUH
#define KERNELS_ATTENTION_WGMMA_JOINED_CUH

#include "kernels/attention/wgmma/backward.cuh"
#include "kernels/gpu/ptx/global.cuh"

enum { JOINED_BARRIER = 1, JOINED_CONSUMERS = 256, JOINED_PLACES = 2, PART_BYTES = 64 * 64 * 4, PIECE_BYTES = 128 * 16, KEYS_CHUNK_BYTES = BACKWARD_OWN * ROW_BYTES };

/* Addresses in smem. keys: of a tile its keys and, behind them, its values, own_stages of them; pulls, sums: JOINED_PLACES of them; number: of the tile. */
typedef struct joined_smem { uint32_t keys, q, dout, pulls, sums, lse, share, number; ring_barriers own, tiles, ring, places; } joined_smem;

/* Where a reader is: of tiles' numbers, of their keys, of blocks, of places for sums. */
typedef struct joined_turns { ring_turn tile, own, block, place; } joined_turns;

INLINE constexpr int own_stages(const backward_shape s) { return s.width <= CHUNK_COLS ? 2 : 1; }
INLINE constexpr int own_bytes(const backward_shape s) { return BACKWARD_OWN * s.width * 2; }
INLINE constexpr int block_bytes(const backward_shape s) { return s.others * s.width * 2; }
INLINE constexpr int sums_bytes(const backward_shape s) { return s.others * s.width * 4; }
INLINE constexpr int pulls_bytes(const backward_shape s) { return BACKWARD_OWN * s.others * 2; }

INLINE joined_smem joined_smem_of(const backward_shape s, uint32_t base) {
    joined_smem m;
    m.keys = base;
    m.q = m.keys + own_stages(s) * 2 * own_bytes(s);
    m.dout = m.q + s.stages * block_bytes(s);
    m.pulls = m.dout + s.stages * block_bytes(s);
    m.sums = m.pulls + JOINED_PLACES * pulls_bytes(s);
    m.lse = m.sums + JOINED_PLACES * sums_bytes(s);
    m.share = m.lse + s.stages * s.others * 4;
    m.own = ring_at(m.share + s.stages * s.others * 4, own_stages(s));
    m.tiles = ring_at(ring_end(m.own, own_stages(s)), 1);
    m.ring = ring_at(ring_end(m.tiles, 1), s.stages);
    m.places = ring_at(ring_end(m.ring, s.stages), JOINED_PLACES);
    m.number = ring_end(m.places, JOINED_PLACES);
    return m;
}

/* ---- tiles ---- */

/* upwards: queries go by in ascending order, and of a head later keys come first; else the other way round. */
typedef struct joined_tile { backward_tile at; bool upwards; } joined_tile;

INLINE joined_tile joined_tile_of(const attention_backward_wgmma_arguments *g, int number) {
    const int groups = (int)g->call.groups, heads = (int)g->call.batches * groups;
    const schedule_place place = schedule_in_bands(number, heads, g->tiles, g->heads_together);
    const bool upwards = g->heads_together >= heads || place.row / g->heads_together < (heads - 1) / g->heads_together;
    const joined_tile tile = {{place.row / groups, place.row % groups, (upwards ? g->tiles - 1 - place.col : place.col) * BACKWARD_OWN}, upwards};
    return tile;
}

/* Block number i of those that a tile's keys are seen by. */
INLINE int block_at(const joined_tile tile, row_range blocks, int i) { return tile.upwards ? blocks.begin + i : blocks.end - 1 - i; }

INLINE int joined_tiles(const attention_backward_wgmma_arguments *g) { return (int)(g->call.batches * g->call.groups) * g->tiles; }

/* The next tile's number, of joined_tiles or more behind the last. By a warp, or one thread of it alone. */
INLINE int read_number(joined_smem m, joined_turns *turns) {
    ring_wait_full(m.tiles, turns->tile);
    return (int)ld_shared_u32(m.number);
}
INLINE void leave_number(joined_smem m, joined_turns *turns) {
    ring_arrive_empty(m.tiles, turns->tile);
    ring_next(&turns->tile, 1);
}

/* By one thread. */
INLINE int take_number(const attention_backward_wgmma_arguments *g, joined_smem m, ring_turn *turn) {
    const int number = (int)atom_add_relaxed((uint32_t *)g->turns, 1);
    ring_wait_empty(m.tiles, *turn);
    st_shared_u32(m.number, (uint32_t)number);
    ring_arrive_full(m.tiles, *turn);
    ring_next(turn, 1);
    return number;
}

/* ---- loads, by one thread ---- */

INLINE void load_blocks(const attention_backward_wgmma_arguments *g, const backward_shape s, joined_smem m, joined_tile tile, ring_turn *turn) {
    const row_range blocks = blocks_of(g, s, tile.at.first);
    const int row_bytes = s.others * 4, batch = tile.at.batch;
#pragma unroll 1
    for (int i = 0; i < head_count(g, s); i++) {
        const int head = first_head(g, s, tile.at.head) + i;
        const int64_t rows = (int64_t)(batch * (int)g->call.heads + head) * g->padded;
#pragma unroll 1
        for (int j = 0; j < blocks.end - blocks.begin; j++) {
            const int block = block_at(tile, blocks, j);
            ring_wait_empty(m.ring, *turn);
            const uint32_t full = ring_expect_full(m.ring, *turn, 2 * block_bytes(s) + 2 * row_bytes);
            load_rows(g->map_q, m.q + turn->stage * block_bytes(s), full, s.others, s.width, block * s.others, head, batch, TMA_EVICT_LAST);
            bulk_load(m.lse + turn->stage * row_bytes, g->lse + (rows + block * s.others) * 4, row_bytes, full);
            load_rows(g->map_dout, m.dout + turn->stage * block_bytes(s), full, s.others, s.width, block * s.others, head, batch, TMA_EVICT_LAST);
            bulk_load(m.share + turn->stage * row_bytes, g->share + (rows + block * s.others) * 4, row_bytes, full);
            ring_next(turn, s.stages);
        }
    }
}

INLINE void load_tiles(const attention_backward_wgmma_arguments *g, const backward_shape s, joined_smem m) {
    ring_turn number = ring_writer(), own = ring_writer(), turn = ring_writer();
#pragma unroll 1
    for (;;) {
        const int next = take_number(g, m, &number);
        if (next >= joined_tiles(g)) break;
        const joined_tile tile = joined_tile_of(g, next);
        ring_wait_empty(m.own, own);
        const uint32_t full = ring_expect_full(m.own, own, 2 * own_bytes(s)), keys = m.keys + own.stage * 2 * own_bytes(s);
        load_rows(g->map_k, keys, full, BACKWARD_OWN, s.width, tile.at.first, tile.at.head, tile.at.batch, TMA_EVICT_FIRST);
        load_rows(g->map_v, keys + own_bytes(s), full, BACKWARD_OWN, s.width, tile.at.first, tile.at.head, tile.at.batch, TMA_EVICT_FIRST);
        ring_next(&own, own_stages(s));
        load_blocks(g, s, m, tile, &turn);
    }
}

/* ---- sums of queries, by one thread for each place ---- */

/* Thread blocks that add to a block of queries before this one: those of earlier keys, or of later ones. */
INLINE uint32_t turn_of(const attention_backward_wgmma_arguments *g, const backward_shape s, joined_tile tile, int block) {
    const int own = tile.at.first / BACKWARD_OWN, first = block * s.others, last = min(first + s.others, (int)g->call.queries) - 1;
    if (!tile.upwards) return (uint32_t)(own - max(first + g->begin_shift, 0) / BACKWARD_OWN);
    return (uint32_t)((min(last + g->end_shift, (int)g->call.keys) - 1) / BACKWARD_OWN - own);
}

INLINE void add_sums(const attention_backward_wgmma_arguments *g, const backward_shape s, joined_smem m, joined_tile tile, int place, bool *is_mine, uint32_t *phase) {
    const row_range blocks = blocks_of(g, s, tile.at.first);
    const uint32_t from = m.sums + place * sums_bytes(s);
#pragma unroll 1
    for (int i = 0; i < head_count(g, s); i++) {
        const int head = tile.at.batch * (int)g->call.heads + first_head(g, s, tile.at.head) + i;
#pragma unroll 1
        for (int j = 0; j < blocks.end - blocks.begin; j++) {
            const bool mine = *is_mine;
            *is_mine = !mine;
            if (!mine) continue;
            const int block = block_at(tile, blocks, j), index = head * g->query_blocks + block;
            const uint64_t to = g->sums + (int64_t)index * sums_bytes(s);
            uint32_t *counter = (uint32_t *)g->turns + 1 + index;
            const uint32_t before = turn_of(g, s, tile, block);
            mbarrier_wait(ring_full(m.places, place), *phase);
            if (before == 0) {
                bulk_store(to, from, sums_bytes(s));
            } else {
                while (ld_acquire(counter) != before) nanosleep(20);
                fence_proxy_async_global();
                bulk_add_f32(to, from, sums_bytes(s));
            }
            tma_commit();
            tma_wait_read(0);
            mbarrier_arrive(ring_empty(m.places, place));
            tma_wait(0);
            fence_proxy_async_global();
            red_add_release(counter, 1);
            *phase ^= 1;
        }
    }
}

INLINE void add_tiles(const attention_backward_wgmma_arguments *g, const backward_shape s, joined_smem m, int place) {
    joined_turns turns = {ring_reader()};
    bool is_mine = place == 0;
    uint32_t phase = 0;
#pragma unroll 1
    for (;;) {
        const int number = read_number(m, &turns);
        leave_number(m, &turns);
        if (number >= joined_tiles(g)) break;
        add_sums(g, s, m, joined_tile_of(g, number), place, &is_mine, &phase);
    }
}

/* ---- products ---- */

/* Are the keys and values of a warpgroup held in registers, and the sums of queries made by one of them alone, in turns? */
INLINE constexpr bool is_narrow(const backward_shape s) { return s.width <= CHUNK_COLS; }
INLINE constexpr int sums_of(const backward_shape s) { return is_narrow(s) ? 1 : 2; }

/* What a warpgroup knows of its 64 keys while blocks go by. keys: those of both, in smem; k, v: its own, at_k and at_v in registers; begins, ends: who sees the first and the last one. */
typedef struct joined_keys {
    int group;
    uint32_t keys, k, v, at_k[16], at_v[16];
    float unit;
    bool is_ragged;
    row_range begins, ends;
    backward_rows rows;
} joined_keys;

/* 16 rows of each warp as the first operand of products: what stmatrix takes, ldmatrix gives. */
INLINE uint32_t piece_at(uint32_t rows, int chunk_bytes, int step) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16, piece = 2 * step + lane / 16;
    return rows + row * ROW_BYTES + step / 4 * chunk_bytes + (((piece ^ row) % 8) << 4);
}

INLINE void load_pieces(uint32_t rows, uint32_t *pairs) {
#pragma unroll
    for (int step = 0; step < 4; step++) {
        const uint4 x = ldmatrix_x4(piece_at(rows, 0, step));
        pairs[4 * step] = x.x, pairs[4 * step + 1] = x.y, pairs[4 * step + 2] = x.z, pairs[4 * step + 3] = x.w;
    }
}

/* d [64, others] = own [64, width] others^T, as one group. */
INLINE void multiply_own(const backward_shape s, float *d, uint32_t own, const uint32_t *held, uint32_t others) {
    if (!is_narrow(s)) {
        multiply_rows(s, s.width, d, own, others);
        return;
    }
    const uint64_t b = wgmma_descriptor(others);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; step++) {
        if (s.element == ELEMENT_F16) wgmma_n64_f16_registers(d, held + 4 * step, b + 2 * step, step > 0);
        else wgmma_n64_bf16_registers(d, held + 4 * step, b + 2 * step, step > 0);
    }
    wgmma_commit();
}

/* Pulls as rows of keys. */
INLINE void store_pulls(uint32_t rows, const uint32_t *pulls) {
#pragma unroll
    for (int step = 0; step < 4; step++) stmatrix_x4(piece_at(rows, 0, step), pulls[4 * step], pulls[4 * step + 1], pulls[4 * step + 2], pulls[4 * step + 3]);
}

/* sums [64, 64] = pulls [128, 64]^T keys [128, 64], as one group. */
INLINE void multiply_pulls(const backward_shape s, float *sums, uint32_t pulls, uint32_t keys) {
    uint64_t a = wgmma_descriptor_columns(pulls, KEYS_CHUNK_BYTES), b = wgmma_descriptor_columns(keys, KEYS_CHUNK_BYTES);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < BACKWARD_OWN / 16; step++, a += 128, b += 128) {
        if (s.element == ELEMENT_F16) wgmma_n64_f16_both_turned(sums, a, b, step > 0);
        else wgmma_n64_bf16_both_turned(sums, a, b, step > 0);
    }
    wgmma_commit();
}

/* For whom adds them: 16 bytes of each thread side by side. */
INLINE void store_sums(const backward_shape s, joined_smem m, int part, ring_turn place, const float *sums) {
    const uint32_t to = m.sums + place.stage * sums_bytes(s) + part * PART_BYTES + threadIdx.x % 128 * 16;
    ring_wait_empty(m.places, place);
#pragma unroll
    for (int i = 0; i < 8; i++) st_shared_f32x4(to + i * PIECE_BYTES, sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
    fence_proxy_async();
    __syncwarp();
    if (threadIdx.x % 32 == 0) ring_arrive_full(m.places, place);
}

/* The products behind a block's pulls: sums of queries, where this warpgroup makes them; and the scores of the next block, but behind the last. */
INLINE void finish_block(const backward_shape s, joined_smem m, const joined_keys *own, const bool makes_sums, const bool is_last, joined_turns *turns, float *scores) {
    const ring_turn turn = turns->block;
    const int column = is_narrow(s) ? 0 : own->group;
    float sums[32];
    ring_next(&turns->block, s.stages);
    if (makes_sums) {
        barrier_sync(JOINED_BARRIER + turns->place.stage, JOINED_CONSUMERS);
        multiply_pulls(s, sums, m.pulls + turns->place.stage * pulls_bytes(s), own->keys + column * KEYS_CHUNK_BYTES);
    } else {
        barrier_arrive(JOINED_BARRIER + turns->place.stage, JOINED_CONSUMERS);
    }
    if (!is_last) {
        ring_wait_full(m.ring, turns->block);
        if (makes_sums) wgmma_wait(1);   /* registers of pulls and weights */
        multiply_own(s, scores, own->k, own->at_k, m.q + turns->block.stage * block_bytes(s));
        wgmma_wait(1);
    } else {
        wgmma_wait(0);
    }
    release(m.ring, turn);
    if (makes_sums) store_sums(s, m, column, turns->place, sums);
    wgmma_wait(0);
}

/* One block, of queries from `row` on, whose scores are there; and where it is not the last one, the scores of the next. */
INLINE void join_block(const backward_shape s, joined_smem m, const joined_keys *own, const bool is_last, int row, joined_turns *turns, float *scores, float *dk, float *dv) {
    const ring_turn turn = turns->block;
    const uint32_t q = m.q + turn.stage * block_bytes(s), dout = m.dout + turn.stage * block_bytes(s);
    float dweights[32];
    uint32_t factors[16], pulls[16];
    multiply_own(s, dweights, own->v, own->at_v, dout);
    soften(s, own->unit, &own->rows, m.lse + turn.stage * s.others * 4, scores);
    if (agreed(own->is_ragged || row < own->ends.begin || row + s.others > own->begins.end)) hide(s, &own->rows, row, scores);
    pack(s, scores, factors);
    add_rows(s, s.width, dv, factors, dout);
    wgmma_wait(1);
    pull(s, &own->rows, m.share + turn.stage * s.others * 4, scores, dweights);
    pack(s, dweights, pulls);
    store_pulls(m.pulls + turns->place.stage * pulls_bytes(s) + own->group * GROUP_ROWS * ROW_BYTES, pulls);
    add_rows(s, s.width, dk, pulls, q);
    fence_proxy_async();
    if (!is_narrow(s) || agreed(turns->place.stage == own->group)) finish_block(s, m, own, true, is_last, turns, scores);
    else finish_block(s, m, own, false, is_last, turns, scores);
    ring_next(&turns->place, JOINED_PLACES);
}

/* The warpgroup's sums over all blocks: dk, without the scale, and dv; and those of queries, for others to add. */
INLINE void join_sums(const attention_backward_wgmma_arguments *g, const backward_shape s, joined_smem m, joined_tile tile, const joined_keys *own, joined_turns *turns, float *dk, float *dv) {
    const row_range blocks = blocks_of(g, s, tile.at.first);
    const int count = blocks.end - blocks.begin, step = tile.upwards ? s.others : -s.others, first = block_at(tile, blocks, 0) * s.others;
    int left = head_count(g, s) * count, of_head = count, row = first;
    float scores[32];
    if (agreed(left <= 0)) return;
    ring_wait_full(m.ring, turns->block);
    multiply_own(s, scores, own->k, own->at_k, m.q + turns->block.stage * block_bytes(s));
    wgmma_wait(0);
#pragma unroll 1
    for (; agreed(left > 1); left--) {
        join_block(s, m, own, false, row, turns, scores, dk, dv);
        of_head = of_head > 1 ? of_head - 1 : count;
        row = of_head < count ? row + step : first;
    }
    join_block(s, m, own, true, row, turns, scores, dk, dv);
}

INLINE joined_keys keys_of(const attention_backward_wgmma_arguments *g, const backward_shape s, joined_smem m, backward_tile tile, int group, int stage) {
    const int first = tile.first + group * GROUP_ROWS, row = first + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, count = (int)g->call.keys;
    joined_keys own;
    own.group = group;
    own.keys = m.keys + stage * 2 * own_bytes(s);
    own.k = own.keys + group * GROUP_ROWS * ROW_BYTES;
    own.v = own.k + own_bytes(s);
    own.unit = g->call.scale * LOG2_E;
    own.is_ragged = first + GROUP_ROWS > count;
    own.begins = seen_of(g, s, first);
    own.ends = seen_of(g, s, first + GROUP_ROWS - 1);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const row_range seen = seen_of(g, s, row + 8 * half);
        own.rows.begin[half] = seen.begin;
        own.rows.count[half] = row + 8 * half >= count ? 0 : max(seen.end - seen.begin, 0);
    }
    return own;
}

INLINE void join_tiles(const attention_backward_wgmma_arguments *g, const backward_shape s, joined_smem m, int group) {
    joined_turns turns = {ring_reader(), ring_reader(), ring_reader(), ring_writer()};
    const int count = (int)g->call.keys;
#pragma unroll 1
    for (;;) {
        const int number = read_number(m, &turns);
        __syncwarp();
        if (threadIdx.x % 32 == 0) ring_arrive_empty(m.tiles, turns.tile);
        ring_next(&turns.tile, 1);
        if (agreed(number >= joined_tiles(g))) break;
        const joined_tile tile = joined_tile_of(g, number);
        joined_keys own = keys_of(g, s, m, tile.at, group, turns.own.stage);
        const int first = tile.at.first + group * GROUP_ROWS;
        float dk[64], dv[64];
#pragma unroll
        for (int i = 0; i < s.width / 2; i++) dk[i] = dv[i] = 0;
        ring_wait_full(m.own, turns.own);
        if (is_narrow(s)) load_pieces(own.k, own.at_k), load_pieces(own.v, own.at_v);
        join_sums(g, s, m, tile, &own, &turns, dk, dv);
        release(m.own, turns.own);
        ring_next(&turns.own, own_stages(s));
        store_rows(s.element, &g->call.dv, g->call.dv_strides, tile.at, first, count, (int)g->call.value_width, s.width, 1, dv);
        store_rows(s.element, &g->call.dk, g->call.dk_strides, tile.at, first, count, (int)g->call.width, s.width, g->call.scale, dk);
    }
}

/* ---- a thread block ---- */

INLINE void joined_backward(const attention_backward_wgmma_arguments *g, const backward_shape s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const joined_smem m = joined_smem_of(s, shared_address(shared));
    const int role = __shfl_sync(0xffffffff, threadIdx.x / 128, 0), warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
    if (threadIdx.x == 0) {
        ring_init(m.own, own_stages(s), 1, JOINED_CONSUMERS / 32);
        ring_init(m.tiles, 1, 1, JOINED_CONSUMERS / 32 + JOINED_PLACES);
        ring_init(m.ring, s.stages, 1, JOINED_CONSUMERS / 32);
        ring_init(m.places, JOINED_PLACES, 4 * sums_of(s), 1);
        fence_mbarrier_init();
    }
    __syncthreads();
    if (role == 2) {
        setmaxnreg_dec(24);
        if (warp == 8 && elect_one()) load_tiles(g, s, m);
        else if (warp > 8 && warp <= 8 + JOINED_PLACES && elect_one()) add_tiles(g, s, m, warp - 9);
    } else {
        setmaxnreg_inc(240);
        join_tiles(g, s, m, role);
    }
}

/* ---- dq: 256 threads for 64 x 64 of its sums ---- */

/* Two neighbours. */
INLINE uint32_t pair_of(const int element, float scale, float x, float y) { return element == ELEMENT_F16 ? cvt_f16x2(x * scale, y * scale) : cvt_bf16x2(x * scale, y * scale); }

INLINE void joined_store_queries(const attention_backward_wgmma_arguments *g, const backward_shape s) {
    const attention_backward_arguments *p = &g->call;
    const int part = (int)blockIdx.x % sums_of(s), block = (int)blockIdx.x / sums_of(s) % g->query_blocks, head = (int)blockIdx.x / sums_of(s) / g->query_blocks;
    const int piece = threadIdx.x % 8, group = threadIdx.x / 8, first = block * s.others, last = min(first + s.others, (int)p->queries) - 1;
    const bool is_seen = max(first + g->begin_shift, 0) < min(last + g->end_shift, (int)p->keys);
    const int row = first + group / 8 * 16 + group % 8, col = part * CHUNK_COLS + 8 * piece;
    const float4 *from = (const float4 *)(g->sums + (int64_t)blockIdx.x * PART_BYTES + piece * PIECE_BYTES) + group * 4;
    uint16_t *to = (uint16_t *)p->dq.data + head / (int)p->heads * p->dq_strides[0] + head % (int)p->heads * p->dq_strides[1] + col;
    float4 x[4];
    if (col >= (int)p->width) return;
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = is_seen ? __ldcs(from + i) : make_float4(0, 0, 0, 0);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t pairs[4];
        uint16_t *at = to + (row + 8 * half) * p->dq_strides[2];
        if (row + 8 * half >= (int)p->queries) continue;
#pragma unroll
        for (int i = 0; i < 4; i++) pairs[i] = half == 0 ? pair_of(s.element, p->scale, x[i].x, x[i].y) : pair_of(s.element, p->scale, x[i].z, x[i].w);
        store_eight(at, pairs);
    }
}

#endif
