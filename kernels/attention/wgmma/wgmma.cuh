/* Fused attention by wgmma: the body of the entries of wgmma.cu, which gives it its constants. A thread block makes tiles of 64 x groups queries of a head:
 * one after another, if all take as long as their places say; one, where masks or texts of several lengths decide, so that the chip hands them out to whoever is free.
 *
 *   the last warpgroup, one warp    q of a tile; k [keys, width], v [keys, value_width] by TMA -> full        rings of stages in smem, in columns of 64; runs ahead into the next tile
 *   warpgroups 0 .. groups - 1      scores [64, keys] = q k^T (wgmma, smem x smem) -> weights in registers -> sums [64, value_width] += weights v (wgmma,
 *                                   registers x smem, v as it lies: keys are rows) -> results through smem, a warp at a time
 *
 *   of a warpgroup:   q k(i+1)^T issued | weights(i) v(i) issued | softmax of i+1 under the second product | ..
 *
 * Warpgroups take turns in issuing products (ordered), so that one's softmax runs under another's products, or run as they come. The softmax is online, in fp32, in powers of 2
 * (soften.cuh); sums are scaled where a row of the warp has outgrown its largest score. Weights are rounded to the operands' format for the second product, their sum is not.
 *
 * Which keys a query sees is an interval (views.cuh). Blocks of keys begin at multiples of keys; those that no query of a warpgroup sees are skipped, those that all queries of a warp see are not
 * masked. A hidden key may hold anything: a row with a NaN among its results while its sum is none is done again without the keys of no weight (store.cuh). Masks of keys: keys.cuh.
 *
 * Registers: loads 24 and products 240, with masks of keys or placed queries 40 and 232; of three warpgroups 32 and 160; where a multiprocessor holds several thread blocks,
 * one warp loads and all have the same. Speed: README.md. */
#ifndef KERNELS_ATTENTION_WGMMA_WGMMA_CUH
#define KERNELS_ATTENTION_WGMMA_WGMMA_CUH

#include "kernels/attention/wgmma/keys.cuh"
#include "kernels/attention/wgmma/store.cuh"
#include "kernels/gpu/pipe/schedule.cuh"
#include "kernels/gpu/ptx/wgmma.cuh"

/* ---- tiles ---- */

/* Tile number `number`: heads in bunches, of a bunch the last tiles first, since with a causal mask they are the longest; behind all others the first tiles of all heads, so that blocks end together. */
INLINE attention_work work_at(const attention_wgmma_arguments *g, const attention_shape s, int number) {
    const int all = (int)(g->call.batches * g->call.heads), longer = g->tiles - g->last_tiles, rest = number - longer * all;
    int head = rest % all, tile = g->last_tiles - 1 - rest / all;
    if (rest < 0) {
        const schedule_place place = schedule_in_bands(number, all, longer, g->heads_together);
        head = place.row;
        tile = g->tiles - 1 - place.col;
    }
    const int first = tile * s.groups * 64;
    const attention_range range = s.placed ? attention_range{0, 0} : blocks_of(g, s, first, s.groups * 64);
    const attention_work work = {head / (int)g->call.heads, head % (int)g->call.heads, first, range.begin, range.end};
    return work;
}

/* The tile of a round of this thread block; thread blocks take them forwards and backwards in turn, as of neighbours the earlier is the longer. Tiles from count on are none. */
INLINE int number_at(int round) { return round * (int)gridDim.x + (round % 2 == 0 ? (int)blockIdx.x : (int)gridDim.x - 1 - (int)blockIdx.x); }

/* ---- loads, by one warp ---- */

/* rows x cols, cols a multiple of 64, in columns of 64. By one thread. */
INLINE void load_tile(const tensor_map *map, uint32_t to, uint32_t full, int rows, int cols, int row, int head, int batch, uint64_t cache) {
#pragma unroll
    for (int i = 0; i < cols / CHUNK_COLS; i++) tma_load_4d(to + i * rows * ROW_BYTES, map, full, i * CHUNK_COLS, row, head, batch, cache);
}

/* The tile and its queries. */
INLINE void load_queries(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_work work, ring_turn *turn) {
    const int rows = s.groups * 64, bytes = rows * s.width * 2;
    ring_wait_empty(m.q_ring, *turn);
    if (s.placed) place_queries(g, s, work.batch, work.first, m.views + turn->stage * rows * ATTENTION_ROW_BYTES, m.segments + turn->stage * (rows + 1) * ATTENTION_SEGMENT_BYTES);
    if (threadIdx.x % 32 == 0) {
        store_work(m, turn->stage, work);
        const uint32_t full = ring_expect_full(m.q_ring, *turn, bytes);
        load_tile((const tensor_map *)g->map_q, m.q + turn->stage * bytes, full, rows, s.width, work.first, work.head, work.batch, TMA_EVICT_FIRST);
    }
}

INLINE void load_keys(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, ring_turn *turn, int block, int head, int cache) {
    const int bytes = s.keys * s.width * 2;
    ring_wait_empty(m.k_ring, *turn);
    if (threadIdx.x % 32 == 0) {
        const uint32_t full = ring_expect_full(m.k_ring, *turn, bytes);
        load_tile((const tensor_map *)g->map_k, m.k + turn->stage * bytes, full, s.keys, s.width, block * s.keys, head, cache, TMA_EVICT_LAST);
    }
    ring_next(turn, s.stages);
}

INLINE void load_values(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, ring_turn *turn, int block, int head, int cache) {
    const int bytes = s.keys * s.value_width * 2;
    ring_wait_empty(m.v_ring, *turn);
    if (threadIdx.x % 32 == 0) {
        const uint32_t full = ring_expect_full(m.v_ring, *turn, bytes);
        load_tile((const tensor_map *)g->map_v, m.v + turn->stage * bytes, full, s.keys, s.value_width, block * s.keys, head, cache, TMA_EVICT_LAST);
    }
    ring_next(turn, s.stages);
}

/* The first keys of a tile are loaded before its queries, which wait for the end of the tile before. */
INLINE void load_intervals(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_work work, attention_turns *turns) {
    const int head = work.head / (int)g->call.shared_heads;
    if (work.begin < work.end) load_keys(g, s, m, &turns->k, work.begin, head, work.batch);
    load_queries(g, s, m, work, &turns->q);
#pragma unroll 1
    for (int block = work.begin; block < work.end; block++) {
        if (block > work.begin) load_keys(g, s, m, &turns->k, block, head, work.batch);
        load_values(g, s, m, &turns->v, block, head, work.batch);
    }
}

INLINE void load_segments(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_work work, attention_turns *turns) {
    const int head = work.head / (int)g->call.shared_heads;
    const uint32_t segments = m.segments + turns->q.stage * (s.groups * 64 + 1) * ATTENTION_SEGMENT_BYTES;
    load_queries(g, s, m, work, &turns->q);
#pragma unroll 1
    for (int i = 0;; i++) {
        const attention_segment segment = load_segment(segments, i);
        if (segment.block >= segment.end_block) break;
#pragma unroll 1
        for (int block = segment.block; block < segment.end_block; block++) {
            load_keys(g, s, m, &turns->k, block, head, segment.cache);
            load_values(g, s, m, &turns->v, block, head, segment.cache);
        }
    }
}

/* The blocks that are seen, each with its note; those that are all hidden behind the others, and only where they are needed. given: blocks so far, of which biases have a ring of their own; asked: answers so far. */
INLINE void load_seen(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_work work, attention_turns *turns, uint32_t *given, uint32_t *asked) {
    const int head = work.head / (int)g->call.shared_heads;
    const attention_extra extra = extra_of(&g->call, work.batch, work.head, 0);
    const attention_range common = {begin_of(g, work.first + s.groups * 64 - 1), end_of(g, work.first)};   /* keys that all queries see */
    uint32_t note = NOTE_END;
    bool settled = false;
    block_kinds kinds = kinds_of(&g->call, s, extra, work.begin, common);
    load_queries(g, s, m, work, &turns->q);
#pragma unroll 1
    for (int round = 0; round < 2; round++) {
        bool put_off = false;
#pragma unroll 1
        for (int block = work.begin; block < work.end; block++) {
            const uint32_t window = WINDOW_KEYS / s.keys, place = (uint32_t)(block - work.begin) % window;
            if (place == 0 && (block > work.begin || round == 1)) kinds = kinds_of(&g->call, s, extra, block, common);
            const bool plain = kinds.plain >> place & 1, hidden = kinds.hidden >> place & 1, gone = kinds.gone >> place & 1;
            settled = settled || (kinds.settles >> place & 1);
            put_off = put_off || (hidden && !gone);
            if (gone || hidden != (round == 1)) continue;
            ring_wait_empty(m.k_ring, turns->k);
            if (!plain) stage_biases(&g->call, s, extra, block, m.bias + *given % ATTENTION_BIAS_STAGES * s.keys * 4);
            if (threadIdx.x % 32 == 0) st_shared_u32(m.notes + 4 * turns->k.stage, (uint32_t)block * 4 + (plain ? NOTE_PLAIN : NOTE_BIASED));
            load_keys(g, s, m, &turns->k, block, head, work.batch);
            load_values(g, s, m, &turns->v, block, head, work.batch);
            ++*given;
        }
        if (round == 1 || !put_off) break;
        if (settled) {
            note = NOTE_END + NOTE_LATE;
            break;
        }
        give_note(s, m, &turns->k, NOTE_ASK);
        if (!is_answered_yes(s, m, (*asked)++)) break;
    }
    give_note(s, m, &turns->k, note);
}

INLINE void load_tiles(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m) {
    attention_turns turns = {ring_writer(), ring_writer(), ring_writer()};
    uint32_t given = 0, asked = 0;
#pragma unroll 1
    for (int round = 0, number = number_at(0); number < g->count; number = number_at(++round)) {
        const attention_work work = work_at(g, s, number);
        if (s.placed) load_segments(g, s, m, work, &turns);
        else if (s.scores == ATTENTION_KEYS) load_seen(g, s, m, work, &turns, &given, &asked);
        else load_intervals(g, s, m, work, &turns);
        ring_next(&turns.q, s.q_stages);
    }
}

/* ---- products ---- */

INLINE void multiply_keys(const attention_shape s, float *scores, uint32_t q, uint32_t k) {
    const int q_chunk = s.groups * 64 * ROW_BYTES, k_chunk = s.keys * ROW_BYTES;
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < s.width / 16; step++) {
        const uint64_t a = wgmma_descriptor(q + step / 4 * q_chunk) + step % 4 * 2, b = wgmma_descriptor(k + step / 4 * k_chunk) + step % 4 * 2;
#define SHAPE(n)                                                                                   \
    if (s.keys == n && s.element == ELEMENT_BF16) wgmma_n##n##_bf16(scores, a, b, step > 0);       \
    if (s.keys == n && s.element == ELEMENT_F16) wgmma_n##n##_f16(scores, a, b, step > 0);
        SHAPE(32)
        SHAPE(64)
        SHAPE(128)
#undef SHAPE
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
        SHAPE(128)
        SHAPE(256)
#undef SHAPE
    }
    wgmma_commit();
}

/* Warpgroups issue products in turn: number i waits at barrier ORDER + i, which the one before it opens. Each takes a turn for each block of a tile. */
INLINE void order_wait(const attention_shape s, int group) {
    if (s.ordered) barrier_sync(ORDER + group, 256);
}
INLINE void order_pass(const attention_shape s, int group) {
    if (s.ordered) barrier_arrive(ORDER + (group + 1) % s.groups, 256);
}

/* ---- blocks of keys ---- */

/* The blocks of a tile. Intervals: blocks [block, end) that the warpgroup sees. Placed: those of a segment after the other. Masks of keys: those that the loading warp gives, the index-th of all of
 * the kernel's being what note says. */
typedef struct attention_walk {
    int block, end, index;
    uint32_t note, segments;
    attention_segment segment;
} attention_walk;

INLINE void enter_segment(attention_walk *walk, int index) {
    walk->index = index;
    walk->segment = load_segment(walk->segments, index);
    walk->block = walk->segment.block;
    walk->end = walk->segment.end_block;
}

/* A block that this warpgroup does not need. */
INLINE void skip_block(const attention_shape s, attention_smem m, attention_turns *turns, int group) {
    order_wait(s, group);
    order_pass(s, group);
    release(m.k_ring, turns->k);
    ring_next(&turns->k, s.stages);
    ring_wait_full(m.v_ring, turns->v);
    release(m.v_ring, turns->v);
    ring_next(&turns->v, s.stages);
}
INLINE void skip_blocks(const attention_shape s, attention_smem m, attention_turns *turns, int group, int count) {
#pragma unroll 1
    for (int i = 0; agreed(i < count); i++) {
        ring_wait_full(m.k_ring, turns->k);
        skip_block(s, m, turns, group);
    }
}

/* Waits for the keys of the walk's block; false when there are none left. With masks of keys: and finds out which block it is. */
INLINE bool wait_block(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, const attention_rows *rows, attention_walk *walk, attention_turns *turns, int group) {
    const bool sees = agreed(walk->block < walk->end);
    if (s.scores != ATTENTION_KEYS) {
        if (sees) ring_wait_full(m.k_ring, turns->k);
        return sees;
    }
#pragma unroll 1
    for (;;) {
        ring_wait_full(m.k_ring, turns->k);
        walk->note = ld_shared_u32(m.notes + 4 * turns->k.stage);
        if (agreed(walk->note % 4 <= NOTE_BIASED)) {
            if (sees) return true;
            skip_block(s, m, turns, group);
            walk->index++;
            continue;
        }
        if (walk->note % 4 == NOTE_ASK) answer(g, m, rows, sees);
        release(m.k_ring, turns->k);
        ring_next(&turns->k, s.stages);
        if (agreed(walk->note % 4 == NOTE_END)) return false;
    }
}

INLINE void next_block(const attention_shape s, attention_walk *walk) {
    if (s.scores == ATTENTION_KEYS) walk->index++;
    else if (++walk->block >= walk->end && s.placed) enter_segment(walk, walk->index + 1);
}

/* Products of a block become weights. */
INLINE void weigh(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_work work, attention_rows *rows, const attention_walk *walk, float *scores) {
    const attention_arguments *p = &g->call;
    const int block = s.scores == ATTENTION_KEYS ? (int)(walk->note / 4) : walk->block, first = block * s.keys;
    const bool biased_keys = s.scores == ATTENTION_KEYS && walk->note % 4 == NOTE_BIASED;
    if (biased_keys) add_key_biases(s, p->scale, m.bias + walk->index % ATTENTION_BIAS_STAGES * s.keys * 4, scores);
    if (s.placed) {
        int counts[2];
#pragma unroll
        for (int half = 0; half < 2; half++) counts[half] = rows->row + 8 * half >= walk->segment.first && rows->row + 8 * half < walk->segment.end ? rows->count[half] : 0;
        if (s.scores == ATTENTION_GENERAL) {
            const attention_extra extra[2] = {extra_of(p, walk->segment.cache, work.head, rows->query), extra_of(p, walk->segment.cache, work.head, rows->query + 8)};
            finish_general(p, s, rows, counts, extra, first, scores);
        }
        hide_placed_keys(p, s, rows, counts, first, scores);
    } else {
        hide_keys(g, s, rows, first, scores);
    }
    if (s.scores == ATTENTION_PLAIN) soften(s, unit_of(p, s), rows, scores);
    else if (s.scores == ATTENTION_GENERAL || biased_keys) soften_scores(s, rows, scores);
    else soften_products(s, p->scale, rows, scores);
}

/* ---- a tile ---- */

/* Where the rows of this thread begin. */
INLINE void begin_rows(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_work work, int stage, int group, attention_rows *rows) {
    const attention_arguments *p = &g->call;
    const int warp_row = group * 64 + threadIdx.x % 128 / 32 * 16;
    const float sink = p->has_sink ? load_float(&p->sink, work.head * p->sink_stride) : -INFINITE;
    rows->row = warp_row + threadIdx.x % 32 / 4;
    rows->query = work.first + rows->row;
    rows->low = begin_of(g, work.first + warp_row + 15);
    rows->high = end_of(g, work.first + warp_row);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        rows->max[half] = p->has_sink && s.scores == ATTENTION_PLAIN ? sink / p->scale : sink;
        rows->sum[half] = threadIdx.x % 4 == 0 ? lone_sink_weight(sink) : 0;
        if (!s.placed) continue;
        const attention_view view = load_view(m.views + stage * s.groups * 64 * ATTENTION_ROW_BYTES, rows->row + 8 * half);
        rows->start[half] = view.start;
        rows->count[half] = view.count;
        rows->base[half] = view.base;
    }
}

/* sums [64, value_width] of this warpgroup's queries, in registers. given: blocks that were given before this tile. */
INLINE void attend(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_work work, attention_turns *turns, attention_rows *rows, int group, int *given,
                   float *sums) {
    const int k_bytes = s.keys * s.width * 2, v_bytes = s.keys * s.value_width * 2;
    const attention_range own = s.placed ? attention_range{0, 0} : blocks_of(g, s, work.first + group * 64, 64);
    float scores[64];
    uint32_t weights[32];
    const uint32_t q = m.q + turns->q.stage * s.groups * 64 * s.width * 2 + group * 64 * ROW_BYTES;
    attention_walk walk;
    walk.block = own.begin, walk.end = own.end, walk.index = *given, walk.segments = m.segments + turns->q.stage * (s.groups * 64 + 1) * ATTENTION_SEGMENT_BYTES;
    if (s.placed) enter_segment(&walk, 0);
    const bool skips = !s.placed && s.scores != ATTENTION_KEYS, sees = own.begin < own.end;
    if (skips) skip_blocks(s, m, turns, group, sees ? own.begin - work.begin : 0);
#pragma unroll
    for (int i = 0; i < s.value_width / 2; i++) sums[i] = 0;
    if (wait_block(g, s, m, rows, &walk, turns, group)) {
        order_wait(s, group);
        multiply_keys(s, scores, q, m.k + turns->k.stage * k_bytes);
        order_pass(s, group);
        wgmma_wait(0);
        release(m.k_ring, turns->k);
        ring_next(&turns->k, s.stages);
        weigh(g, s, m, work, rows, &walk, scores);
        pack_weights(s, scores, weights);
        next_block(s, &walk);
#pragma unroll 1
        for (bool more = wait_block(g, s, m, rows, &walk, turns, group); more;) {
            order_wait(s, group);
            multiply_keys(s, scores, q, m.k + turns->k.stage * k_bytes);
            ring_wait_full(m.v_ring, turns->v);
            add_values(s, sums, weights, m.v + turns->v.stage * v_bytes);
            order_pass(s, group);
            wgmma_wait(1);
            release(m.k_ring, turns->k);
            ring_next(&turns->k, s.stages);
            weigh(g, s, m, work, rows, &walk, scores);
            next_block(s, &walk);
            more = wait_block(g, s, m, rows, &walk, turns, group);   /* the loop in it keeps ptxas from waiting for the values' product in front of the softmax */
            wgmma_wait(0);
            release(m.v_ring, turns->v);
            ring_next(&turns->v, s.stages);
            pack_weights(s, scores, weights);
            if (rows->grew) {
#pragma unroll
                for (int i = 0; i < s.value_width / 2; i++) sums[i] *= rows->down[i >> 1 & 1];
            }
        }
        if (s.apart) release(m.q_ring, turns->q);
        ring_wait_full(m.v_ring, turns->v);
        add_values(s, sums, weights, m.v + turns->v.stage * v_bytes);
        wgmma_wait(0);
        release(m.v_ring, turns->v);
        ring_next(&turns->v, s.stages);
    } else if (s.apart) {
        release(m.q_ring, turns->q);
    }
    if (skips) skip_blocks(s, m, turns, group, sees ? work.end - own.end : work.end - work.begin);
    *given = walk.index;
    rows->late = s.scores == ATTENTION_KEYS && agreed(walk.note >= NOTE_LATE);
}

INLINE void make_tiles(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, int group) {
    attention_turns turns = {ring_reader(), ring_reader(), ring_reader()};
    int given = 0;
    if (group == s.groups - 1) order_pass(s, group);
#pragma unroll 1
    for (int round = 0; agreed(number_at(round) < g->count); round++) {
        attention_rows rows;
        float sums[128];
        ring_wait_full(m.q_ring, turns.q);
        const attention_work work = load_work(m, turns.q.stage);
        begin_rows(g, s, m, work, turns.q.stage, group, &rows);
        attend(g, s, m, work, &turns, &rows, group, &given, sums);
        if (agreed(work.first + group * 64 < (int)g->call.queries)) store_results(g, s, m, work, &rows, group, sums);
        if (!s.apart) release(m.q_ring, turns.q);
        ring_next(&turns.q, s.q_stages);
    }
    if (group == 0) order_wait(s, group);
    if (threadIdx.x % 32 == 0) tma_wait_read(0);
}

/* ---- a thread block ---- */

INLINE void attention_tma(const attention_wgmma_arguments *g, const attention_shape s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const attention_smem m = smem_of(s, shared_address(shared));
    const int role = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    const bool narrow = s.groups == 3, reads = s.placed || s.scores == ATTENTION_KEYS;
    if (threadIdx.x == 0) {
        ring_init(m.q_ring, s.q_stages, 1, 4 * s.groups);
        ring_init(m.k_ring, s.stages, 1, 4 * s.groups);
        ring_init(m.v_ring, s.stages, 1, 4 * s.groups);
        if (s.scores == ATTENTION_KEYS) mbarrier_init(m.answered, 4 * s.groups);
        fence_mbarrier_init();
    }
    __syncthreads();
    grid_release();
    grid_wait();
    if (role == s.groups) {
        if (s.blocks == 1 && narrow) setmaxnreg_dec(32);
        else if (s.blocks == 1 && reads) setmaxnreg_dec(40);
        else if (s.blocks == 1) setmaxnreg_dec(24);
        if (threadIdx.x / 32 == 4 * s.groups) load_tiles(g, s, m);
    } else {
        if (s.blocks == 1 && narrow) setmaxnreg_inc(160);
        else if (s.blocks == 1 && reads) setmaxnreg_inc(232);
        else if (s.blocks == 1) setmaxnreg_inc(240);
        make_tiles(g, s, m, role);
    }
}

#define ATTENTION(name, groups, blocks, ...)                                                                                                             \
    extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS(groups, blocks), blocks) name(const __grid_constant__ attention_wgmma_arguments arguments) { \
        const attention_shape shape = {__VA_ARGS__};                                                                                                     \
        attention_tma(&arguments, shape);                                                                                                                \
    }

#endif
