/* Attention by thread blocks that stay: the body of the entries whose column `stays` is set. What a tile is, products, softmax and results are those of wgmma.cuh; here is the loop over tiles.
 *
 *   the last warpgroup, one thread   q of a tile, its k and v by TMA -> full      rings of q_stages and stages in smem; it runs ahead, into the next tiles
 *   warpgroups 0 .. groups - 1       a tile: q k(i+1)^T issued | weights(i) v(i) issued | largest scores of i+1 under the second product | weights(i+1), sums scaled | ..
 *
 * Between tiles nothing stops: keys of the next one are there, results are staged apart from q and stored by each warp for itself while the others go on. Warpgroups take a turn of issuing
 * products for each block of a tile, those that they see nothing of, too.
 *
 * Tiles have an order (tile_at), longer ones first; a thread block's first has its number, and the next ones go to whoever asks first. The queries of a tile see intervals of keys that move with
 * them: a warpgroup skips the blocks of the tile that none of its queries sees.
 *
 * Registers: two warpgroups 24 (loads) and 240, three 32 and 160; where several thread blocks stay on a multiprocessor all have the same. Speed: README.md. */
#ifndef KERNELS_ATTENTION_WGMMA_PERSISTENT_CUH
#define KERNELS_ATTENTION_WGMMA_PERSISTENT_CUH

#include "kernels/attention/wgmma/wgmma.cuh"
#include "kernels/gpu/ptx/global.cuh"

/* ---- tiles ---- */

INLINE int tile_count(const attention_wgmma_arguments *g) { return g->tiles * (int)(g->call.batches * g->call.heads); }

/* Asks for the next tile, and, where the answer is looked at, its number, beyond the last one where there is none. A thread block asks once for each tile that it makes, so who asks last knows it, and leaves the
 * counter at 0. asked_tile: by who asked, or a warp that has the same answer. */
INLINE uint32_t ask_tile(const attention_wgmma_arguments *g) { return atom_add_relaxed((uint32_t *)g->counter, 1); }
INLINE int asked_tile(const attention_wgmma_arguments *g, uint32_t answer) {
    if ((int)answer == tile_count(g) - 1) *(uint32_t *)g->counter = 0;
    return (int)gridDim.x + (int)answer;
}

/* The keys of a query; queries behind the last one, which are not stored, see what it sees. */
INLINE int keys_begin(const attention_wgmma_arguments *g, int query) { return max(min(query, (int)g->call.queries - 1) + g->begin_shift, 0); }
INLINE int keys_end(const attention_wgmma_arguments *g, int query) { return min(min(query, (int)g->call.queries - 1) + g->end_shift, (int)g->call.keys); }

/* Blocks of keys [begin, end). */
typedef struct block_range { int begin, end; } block_range;

/* Those that one of count queries from first on sees. */
INLINE block_range blocks_of(const attention_wgmma_arguments *g, const attention_shape s, int first, int count) {
    const int begin = keys_begin(g, first), end = keys_end(g, first + count - 1);
    const bool sees = end > begin && first < (int)g->call.queries;
    const block_range range = {sees ? begin / s.keys : 0, sees ? (end + s.keys - 1) / s.keys : 0};
    return range;
}

/* Where all queries see all keys, the last block of keys, which may have few, goes first: what a tile begins with is code of its own, which leaves out the powers of 2 of keys that are not there. Entries with blocks of
 * 128 keys do not have it. */
INLINE bool has_last_first(const attention_shape s) { return s.scores == ATTENTION_PLAIN && s.keys < 128; }

/* A tile and its blocks go to the warpgroups beside its queries, so that one thread finds them. */
INLINE void store_work(attention_smem m, int stage, attention_tile tile, block_range range) {
    st_shared_u32x4(m.work + stage * ATTENTION_WORK_BYTES, make_uint4((uint32_t)tile.batch, (uint32_t)tile.head, (uint32_t)tile.first, 0));
    st_shared_u32x4(m.work + stage * ATTENTION_WORK_BYTES + 16, make_uint4((uint32_t)range.begin, (uint32_t)range.end, 0, 0));
}
/* Behind the last tile there is one of batch -1. */
INLINE void store_end(attention_smem m, ring_turn turn) {
    const attention_tile none = {-1, 0, 0};
    const block_range nothing = {0, 0};
    ring_wait_empty(m.q_ring, turn);
    store_work(m, turn.stage, none, nothing);
    ring_arrive_full(m.q_ring, turn);
}
INLINE attention_tile load_work(attention_smem m, int stage, block_range *range) {
    const uint4 x = ld_shared_u32x4(m.work + stage * ATTENTION_WORK_BYTES), y = ld_shared_u32x4(m.work + stage * ATTENTION_WORK_BYTES + 16);
    const attention_tile tile = {(int)x.x, (int)x.y, (int)x.z};
    range->begin = (int)y.x, range->end = (int)y.y;
    return tile;
}

/* ---- loads, by one thread ---- */

INLINE void load_key_part(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, ring_turn *turn, int block, int head, int batch) {
    const int bytes = s.keys * row_bytes(s);
    ring_wait_empty(m.k_ring, *turn);
    const uint32_t full = ring_expect_full(m.k_ring, *turn, bytes);
    load_operand(s, (const tensor_map *)g->map_k, m.k + turn->stage * bytes, full, s.keys, block * s.keys, head, batch, TMA_EVICT_LAST);
    ring_next(turn, s.stages);
}
INLINE void load_value_part(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, ring_turn *turn, int block, int head, int batch) {
    const int bytes = s.keys * value_row_bytes(s);
    ring_wait_empty(m.v_ring, *turn);
    const uint32_t full = ring_expect_full(m.v_ring, *turn, bytes);
    load_tile((const tensor_map *)g->map_v, m.v + turn->stage * bytes, full, s.keys, s.value_width, block * s.keys, head, batch, TMA_EVICT_LAST);
    ring_next(turn, s.stages);
}

/* The first keys of a tile are loaded in front of its queries, which wait for the end of the tile before. */
INLINE void load_tiles(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m) {
    const int rows = s.groups * 64, q_bytes = rows * row_bytes(s);
    ring_turn q_turn = ring_writer(), k_turn = ring_writer(), v_turn = ring_writer();
    int number = (int)blockIdx.x;
    uint32_t answer = 0;
#pragma unroll 1
    for (; number < tile_count(g); number = asked_tile(g, answer), ring_next(&q_turn, s.q_stages)) {
        const attention_tile tile = tile_at(g, s, number);
        const block_range range = blocks_of(g, s, tile.first, rows);
        const int head = tile.head / (int)g->call.shared_heads;
        const bool turned = has_last_first(s) && g->last_first != 0;
        if (range.begin < range.end) load_key_part(g, s, m, &k_turn, turned ? range.end - 1 : range.begin, head, tile.batch);
        ring_wait_empty(m.q_ring, q_turn);
        store_work(m, q_turn.stage, tile, range);
        const uint32_t full = ring_expect_full(m.q_ring, q_turn, q_bytes);
        load_operand(s, (const tensor_map *)g->map_q, m.q + q_turn.stage * q_bytes, full, rows, tile.first, tile.head, tile.batch, TMA_EVICT_FIRST);
        if (range.begin >= range.end) answer = ask_tile(g);
#pragma unroll 1
        for (int block = range.begin; block < range.end; block++) {
            if (block == range.end - 1) answer = ask_tile(g);   /* the answer comes while the last block's loads wait for room */
            const int at = !turned ? block : block == range.begin ? range.end - 1 : block - 1;
            if (block > range.begin) load_key_part(g, s, m, &k_turn, at, head, tile.batch);
            load_value_part(g, s, m, &v_turn, at, head, tile.batch);
        }
    }
    store_end(m, q_turn);
}

/* What load_tiles does, by one warp, where a mask of keys says which blocks are seen. */
INLINE void load_seen_tiles(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m) {
    const int rows = s.groups * 64, q_bytes = rows * s.width * 2, end = ((int)g->call.keys + s.keys - 1) / s.keys;
    const block_range all = {0, end};
    ring_turn q_turn = ring_writer();
    giver to = {ring_writer(), ring_writer(), 0, 0};
    int number = (int)blockIdx.x;
    uint32_t answer = 0;
#pragma unroll 1
    for (; number < tile_count(g); number = asked_tile(g, __shfl_sync(0xffffffff, answer, 0)), ring_next(&q_turn, s.q_stages)) {
        const attention_tile tile = tile_at(g, s, number);
        ring_wait_empty(m.q_ring, q_turn);
        if (threadIdx.x % 32 == 0) {
            answer = ask_tile(g);
            store_work(m, q_turn.stage, tile, all);
            const uint32_t full = ring_expect_full(m.q_ring, q_turn, q_bytes);
            load_tile((const tensor_map *)g->map_q, m.q + q_turn.stage * q_bytes, full, rows, s.width, tile.first, tile.head, tile.batch, TMA_EVICT_FIRST);
        }
        give_masked_blocks(g, s, m, tile, end, &to);
    }
    if (threadIdx.x % 32 == 0) store_end(m, q_turn);
}

/* ---- a warpgroup ---- */

/* A warp's 16 rows: the thread's first query, and the keys that all of them see, [low, high). */
typedef struct warp_view { int query, low, high; } warp_view;

INLINE warp_view view_warp(const attention_wgmma_arguments *g, int first) {
    const warp_view view = {first + (int)threadIdx.x % 32 / 4, keys_begin(g, first + 15), keys_end(g, first)};
    return view;
}

/* Scores of keys outside of what a query sees become -inf. first: the block's first key. */
INLINE void hide_outside(const attention_wgmma_arguments *g, const attention_shape s, const warp_view *view, int first, float *scores) {
    const int col = first + threadIdx.x % 4 * 2;
    if (first + s.keys > view->high) {
        const int left[2] = {keys_end(g, view->query) - col, keys_end(g, view->query + 8) - col};
#pragma unroll
        for (int i = 0; i < s.keys / 2; i++)
            if (i / 4 * 8 + (i & 1) >= left[i >> 1 & 1]) scores[i] = -INFINITE;
    }
    if (first < view->low) {
        const int passed[2] = {keys_begin(g, view->query) - col, keys_begin(g, view->query + 8) - col};
#pragma unroll
        for (int i = 0; i < s.keys / 2; i++)
            if (i / 4 * 8 + (i & 1) < passed[i >> 1 & 1]) scores[i] = -INFINITE;
    }
}

/* Blocks of the tile that this warpgroup does not see, and the turns that they would have taken. */
INLINE void skip_blocks(const attention_shape s, attention_smem m, attention_turns *turns, int group, int count) {
#pragma unroll 1
    for (int i = 0; agreed(i < count); i++) {
        ring_wait_full(m.k_ring, turns->k);
        order_wait(s, group);
        order_pass(s, group);
        release(m.k_ring, turns->k);
        ring_next(&turns->k, s.stages);
        ring_wait_full(m.v_ring, turns->v);
        release(m.v_ring, turns->v);
        ring_next(&turns->v, s.stages);
    }
}

/* The last values of a tile; nothing is multiplied beside them in this warpgroup. */
INLINE void add_last(const attention_shape s, attention_smem m, attention_turns *turns, const uint32_t *weights, float *sums) {
    ring_wait_full(m.v_ring, turns->v);
    add_values(s, sums, weights, m.v + turns->v.stage * s.keys * value_row_bytes(s));
    wgmma_wait(0);
    release(m.v_ring, turns->v);
    ring_next(&turns->v, s.stages);
}

/* Waits for the keys of the walk's block, if there is one before `end`, or if the mask of keys has one. */
INLINE bool wait_keys(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, const attention_rows *rows, attention_walk *walk, int end, attention_turns *turns) {
    if (has_notes(s)) return agreed(wait_block(g, s, m, rows, walk, &turns->k));
    const bool is_block = agreed(walk->block < end);
    if (is_block) ring_wait_full(m.k_ring, turns->k);
    return is_block;
}

/* Products of the walk's block become scores, and rows grow to the largest of them. With a mask of keys all queries see the keys that it has bits for. */
INLINE void score_block(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, const warp_view *view, const attention_walk *walk, attention_rows *rows, float *scores,
                        attention_exponents *exponents) {
    if (s.scores == ATTENTION_PLAIN) hide_outside(g, s, view, walk->block * s.keys, scores);
    else if (walk->note % 4 == NOTE_BIASED) hide_bits(s, m.bias + walk->index % ATTENTION_BIAS_STAGES * s.keys * 4, scores);
    raise_rows(s, unit_of(&g->call, s), rows, scores, exponents);
}

/* Without asking whether a row has grown, which takes longer. */
INLINE void scale_sums(const attention_shape s, const attention_rows *rows, float *sums) {
#pragma unroll
    for (int i = 0; i < s.value_width / 2; i++) sums[i] *= rows->down[i >> 1 & 1];
}

/* As soften, of a block with `left` keys; those behind them have no weight. */
enum { PART_KEYS = 16 };

INLINE void soften_some(const attention_shape s, const attention_exponents *exponents, attention_rows *rows, int left, float *scores) {
    float sums[2] = {0, 0};
#pragma unroll
    for (int part = 0; part * PART_KEYS < s.keys; part++) {
        const bool is_there = agreed(part * PART_KEYS < left);
#pragma unroll
        for (int j = 0; j < PART_KEYS / 2; j++) {
            const int i = part * PART_KEYS / 2 + j;
            if (is_there) {
                scores[i] = ex2(fmaf(scores[i], exponents->unit[i >> 1 & 1], -exponents->shift[i >> 1 & 1]));
                sums[i >> 1 & 1] += scores[i];
            } else {
                scores[i] = 0;
            }
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) rows->sum[half] = fmaf(rows->sum[half], rows->down[half], sums[half]);
}

/* sums [64, value_width] of this warpgroup's queries over the blocks that they see, in registers. */
INLINE void attend_blocks(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile, const warp_view *view, attention_walk *walk, int end, attention_turns *turns, int group,
                          attention_rows *rows, float *sums) {
    const int k_bytes = s.keys * row_bytes(s), v_bytes = s.keys * value_row_bytes(s);
    const uint32_t q = m.q + turns->q.stage * s.groups * 64 * row_bytes(s) + group * 64 * ROW_BYTES;
    float scores[64];
    uint32_t weights[32];
    attention_exponents exponents;
    const bool turned = has_last_first(s) && agreed(g->last_first != 0);
#pragma unroll
    for (int i = 0; i < s.value_width / 2; i++) sums[i] = 0;
    if (wait_keys(g, s, m, rows, walk, end, turns)) {
        const int begin = walk->block;
        if (turned) walk->block = --end;
        if (s.codes) begin_key_scales(g, s, rows, tile, walk->block);
        order_wait(s, group);
        multiply_keys(s, scores, q, m.k + turns->k.stage * k_bytes);
        order_pass(s, group);
        wgmma_wait(0);
        release(m.k_ring, turns->k);
        ring_next(&turns->k, s.stages);
        if (s.codes) take_key_scale(g, s, rows, walk->block);
        score_block(g, s, m, view, walk, rows, scores, &exponents);
        if (has_last_first(s)) soften_some(s, &exponents, rows, turned ? (int)g->call.keys - end * s.keys : s.keys, scores);
        else soften(s, &exponents, rows, scores);
        pack_weights(s, scores, weights);
        walk->block = turned ? begin : walk->block + 1, walk->index++;
#pragma unroll 1
        for (bool more = wait_keys(g, s, m, rows, walk, end, turns); more; more = wait_keys(g, s, m, rows, walk, end, turns)) {
            order_wait(s, group);
            multiply_keys(s, scores, q, m.k + turns->k.stage * k_bytes);
            ring_wait_full(m.v_ring, turns->v);
            add_values(s, sums, weights, m.v + turns->v.stage * v_bytes);
            order_pass(s, group);
            wgmma_wait(1);
            release(m.k_ring, turns->k);
            ring_next(&turns->k, s.stages);
            if (s.codes) take_key_scale(g, s, rows, walk->block);
            score_block(g, s, m, view, walk, rows, scores, &exponents);
            wgmma_wait(0);
            release(m.v_ring, turns->v);
            ring_next(&turns->v, s.stages);
            soften(s, &exponents, rows, scores);
            pack_weights(s, scores, weights);
            scale_sums(s, rows, sums);
            walk->block++, walk->index++;
        }
        release(m.q_ring, turns->q);
        add_last(s, m, turns, weights, sums);
    } else {
        release(m.q_ring, turns->q);
    }
    if (!has_notes(s)) return;
    release(m.k_ring, turns->k);   /* the note that ends the tile */
    ring_next(&turns->k, s.stages);
}

/* The end of a tile: each warp stores its 16 rows while the others go on. */
INLINE void store_rows(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile, int group, attention_rows *rows, float *sums) {
    const int first_row = group * 64 + threadIdx.x % 128 / 32 * 16;
    const bool is_first_lane = threadIdx.x % 32 == 0, wrong = divide(g, s, rows, sums);
    store_lse(g, s, tile, rows, first_row);
    if (is_first_lane) tma_wait_read(0);
    __syncwarp();
    stage_results(g, s, m, tile, rows, first_row, sums, wrong);
    fence_proxy_async();
    __syncwarp();
    if (is_first_lane) store_staged(g, s, m, tile, first_row);
}

INLINE void make_tiles(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, int group) {
    attention_turns turns = {ring_reader(), ring_reader(), ring_reader()};
    attention_walk walk;
    walk.index = 0;
    if (group == s.groups - 1) order_pass(s, group);
#pragma unroll 1
    for (;; ring_next(&turns.q, s.q_stages)) {
        float sums[128];
        attention_rows rows;
        block_range all;
        ring_wait_full(m.q_ring, turns.q);
        const attention_tile tile = load_work(m, turns.q.stage, &all);
        if (agreed(tile.batch < 0)) break;
        const block_range own = has_notes(s) ? all : blocks_of(g, s, tile.first + group * 64, 64);
        const bool sees = own.begin < own.end;
        const warp_view view = view_warp(g, tile.first + group * 64 + threadIdx.x % 128 / 32 * 16);
        begin_rows(g, s, tile, tile.first + group * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, &rows);
        walk.block = own.begin;
        if (!has_notes(s)) skip_blocks(s, m, &turns, group, sees ? own.begin - all.begin : 0);
        attend_blocks(g, s, m, tile, &view, &walk, own.end, &turns, group, &rows, sums);
        if (!has_notes(s)) skip_blocks(s, m, &turns, group, sees ? all.end - own.end : all.end - all.begin);
        if (agreed(tile.first + group * 64 < (int)g->call.queries)) store_rows(g, s, m, tile, group, &rows, sums);
    }
    if (group == 0) order_wait(s, group);
    if (threadIdx.x % 32 == 0) tma_wait_read(0);
}

/* ---- a thread block ---- */

INLINE void attention_persistent(const attention_wgmma_arguments *g, const attention_shape s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const attention_smem m = smem_of(s, shared_address(shared));
    const int role = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        ring_init(m.q_ring, s.q_stages, 1, 4 * s.groups);
        ring_init(m.k_ring, s.stages, 1, 4 * s.groups);
        ring_init(m.v_ring, s.stages, 1, 4 * s.groups);
        fence_mbarrier_init();
    }
    __syncthreads();
    grid_release();
    grid_wait();
    if (role == s.groups) {
        if (s.groups == 3) setmaxnreg_dec(32);
        else if (s.blocks == 1) setmaxnreg_dec(24);
        if (has_notes(s) && threadIdx.x / 32 == 4 * s.groups) load_seen_tiles(g, s, m);
        if (!has_notes(s) && threadIdx.x / 32 == 4 * s.groups && elect_one()) load_tiles(g, s, m);
    } else {
        if (s.groups == 3) setmaxnreg_inc(160);
        else if (s.blocks == 1) setmaxnreg_inc(240);
        make_tiles(g, s, m, role);
    }
}

#endif
