/* Attention by thread blocks that stay, where rows of a cache, positions or pages say what a query sees: the body of the entries whose columns `paged` and `stays` are set. Products, softmax and results are those of
 * wgmma.cuh; tiles are handed out as in persistent.cuh.
 *
 *   the last warpgroup, warp 1   the next tile: what its queries see, segments -> view ring       while the last blocks of the one before are loaded
 *                       warp 0   view ring -> k, q, v by TMA -> full
 *   warpgroups 0 .. groups - 1   view ring, full -> products, softmax, results
 *
 * So a tile does not wait for rows and positions, which come from memory one behind the other, nor for the table's entries. Queries have one stage: they are released behind the last block's product.
 *
 * Registers: 56 (loads), two warpgroups 224, three 152. Speed: README.md. */
#ifndef KERNELS_ATTENTION_WGMMA_WALKING_CUH
#define KERNELS_ATTENTION_WGMMA_WALKING_CUH

#include "kernels/attention/wgmma/persistent.cuh"

/* So many blocks of a tile are left to load when the next one is looked up. */
enum { BLOCKS_AHEAD = 3 };

/* The views and segments of a tile. */
INLINE attention_smem views_at(const attention_shape s, attention_smem m, int stage) {
    const int rows = s.groups * 64;
    m.rows += stage * rows * ATTENTION_ROW_BYTES;
    m.segments += stage * (rows + 1) * ATTENTION_SEGMENT_BYTES;
    return m;
}

/* ---- the next tile, by one warp ---- */

INLINE int blocks_in_segments(attention_smem own) {
    int blocks = 0;
#pragma unroll 1
    for (int i = 0;; i++) {
        const attention_segment segment = load_segment(own.segments, i);
        if (segment.end_block <= segment.block) return blocks;
        blocks += segment.end_block - segment.block;
    }
}

/* Of the first tile all threads have stored what its queries see. */
INLINE void look_up_tiles(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m) {
    const int lane = threadIdx.x % 32;
    ring_turn turn = ring_writer();
    uint32_t phase = 0, answer = 0;
    int number = (int)blockIdx.x;
#pragma unroll 1
    for (bool first = true; number < tile_count(g); first = false, ring_next(&turn, ATTENTION_VIEW_STAGES)) {
        const attention_smem own = views_at(s, m, turn.stage);
        const attention_tile tile = tile_at(g, s, number);
        ring_wait_empty(m.view_ring, turn);
#pragma unroll 1
        for (int row = lane; row < s.groups * 64 && !first; row += 32) store_view(own.rows, row, view_of(&g->call, tile.batch, tile.first + row));
        __syncwarp();
        find_segments(s, (int)g->call.keys, own);
        __syncwarp();
        if (lane == 0) {
            const block_range range = {0, blocks_in_segments(own)};
            store_work(m, turn.stage, tile, range);
            ring_arrive_full(m.view_ring, turn);
        }
        mbarrier_wait(m.go, phase);
        phase ^= 1;
        if (lane == 0) answer = ask_tile(g);
        number = asked_tile(g, __shfl_sync(0xffffffff, answer, 0));
    }
    if (lane != 0) return;
    const attention_tile none = {-1, 0, 0};
    const block_range nothing = {0, 0};
    ring_wait_empty(m.view_ring, turn);
    store_work(m, turn.stage, none, nothing);
    ring_arrive_full(m.view_ring, turn);
}

/* ---- loads, by one warp ---- */

/* The queries of a tile, by one thread. */
INLINE void load_queries(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile, ring_turn turn) {
    const int rows = s.groups * 64;
    ring_wait_empty(m.q_ring, turn);
    const uint32_t full = ring_expect_full(m.q_ring, turn, rows * s.width * 2);
    load_tile((const tensor_map *)g->map_q, m.q, full, rows, s.width, tile.first, tile.head, tile.batch, TMA_EVICT_FIRST);
}

/* What load_paged_blocks does, or load_blocks where there are no pages, of a tile behind others. left: its blocks. */
INLINE void load_walked_tile(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile, int left, attention_turns *turns) {
    const attention_arguments *p = &g->call;
    const int k_bytes = s.keys * s.width * 2, v_bytes = s.keys * s.value_width * 2;
    const bool in_pages = p->page != 0;
    const int group = tile.head / (int)p->shared_heads, rows = in_pages ? piece_rows(p, s) : s.keys, pieces = s.keys / rows, lane = threadIdx.x % 32, from = lane * rows, entries = in_pages ? s.keys / p->page : 0;
    const bool loads = lane < pieces;
    attention_walk walk = walk_begin(m);
    paged_piece piece = {0, 0};
    int64_t entry = -1;
    bool first = true;
    if (in_pages) {
        piece = piece_at(p, walk.block * s.keys + from);
        entry = loads && !walk.done ? ask_page(p, walk.segment, piece, walk.block * s.keys + from, rows) : -1;
    }
    if (left < BLOCKS_AHEAD && lane == 0) mbarrier_arrive(m.go);
#pragma unroll 1
    for (; agreed(!walk.done); left--) {
        int page = walk.segment.cache, slot = walk.block * s.keys;
        uint32_t there = ALL_THERE;
        if (in_pages) {
            const int found = loads ? page_of_entry(p, m, walk.segment, entry, walk.block * s.keys + from, rows) : -1;
            page = found < 0 ? p->pages : found, slot = piece.slot;
            there = __ballot_sync(0xffffffff, !loads || found >= 0);
        }
        ring_wait_empty(m.k_ring, turns->k);
        if (lane == 0) {
            st_shared_u32(m.notes + 4 * turns->k.stage, there);
            ring_expect_full(m.k_ring, turns->k, k_bytes);
            if (left == BLOCKS_AHEAD) mbarrier_arrive(m.go);
        }
        __syncwarp();
        if (loads) load_piece((const tensor_map *)g->map_k, m.k + turns->k.stage * k_bytes + from * ROW_BYTES, ring_full(m.k_ring, turns->k.stage), s.keys, s.width, slot, group, page);
        ring_next(&turns->k, s.stages);
        if (first && lane == 0) load_queries(g, s, m, tile, turns->q);
        if (first) ring_next(&turns->q, s.q_stages);
        first = false;
        if (walk.block + 1 < walk.segment.end_block) {
            if (in_pages) piece_next(p, s, entries, &piece);
            walk.block++;
        } else {
            walk_next(&walk, m);
            if (in_pages) piece = piece_at(p, walk.block * s.keys + from);
        }
        if (in_pages) entry = loads && !walk.done ? ask_page(p, walk.segment, piece, walk.block * s.keys + from, rows) : -1;
        ring_wait_empty(m.v_ring, turns->v);
        if (lane == 0) ring_expect_full(m.v_ring, turns->v, v_bytes);
        __syncwarp();
        if (loads) load_piece((const tensor_map *)g->map_v, m.v + turns->v.stage * v_bytes + from * ROW_BYTES, ring_full(m.v_ring, turns->v.stage), s.keys, s.value_width, slot, group, page);
        ring_next(&turns->v, s.stages);
    }
}

INLINE void load_walked_tiles(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m) {
    attention_turns turns = {ring_writer(), ring_writer(), ring_writer()};
    ring_turn turn = ring_reader();
#pragma unroll 1
    for (;; ring_next(&turn, ATTENTION_VIEW_STAGES)) {
        block_range blocks;
        ring_wait_full(m.view_ring, turn);
        const attention_tile tile = load_work(m, turn.stage, &blocks);
        if (agreed(tile.batch < 0)) return;
        load_walked_tile(g, s, views_at(s, m, turn.stage), tile, blocks.end, &turns);
        release(m.view_ring, turn);
    }
}

/* ---- a warpgroup ---- */

/* The slots that all 16 rows of the warp see, in rows->start: from the first, up to the second; none where one sees slots on both sides of a ring's end, or reads another row of the cache than the tile's first segment.
 * row: the thread's first. */
INLINE void find_seen(const attention_wgmma_arguments *g, attention_smem own, int row, attention_rows *rows) {
    const attention_segment segment = load_segment(own.segments, 0);
    int low = 0, high = row / 16 * 16 >= segment.first && row / 16 * 16 + 16 <= segment.end ? (int)g->call.keys : 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const attention_view view = load_view(own.rows, row + 8 * half);
        low = max(low, view.start), high = min(high, view.start + view.count <= (int)g->call.keys ? view.start + view.count : 0);
    }
    rows->start[0] = __reduce_max_sync(0xffffffff, low);
    rows->start[1] = __reduce_min_sync(0xffffffff, high);
}

/* The last warpgroup passes the first turn of a tile before it has had one itself, so it waits until the first one has had its last of the tile before: two passes at once would complete the barrier of a turn without who
 * waits there. Tiles without keys have no turns. */
INLINE void begin_turns(const attention_shape s, int group, bool is_first) {
    if (group == s.groups - 1 && !is_first) barrier_sync(TILE_BARRIER, 256);
}
INLINE void end_turns(int group) {
    if (group == 0) barrier_arrive(TILE_BARRIER, 256);
}

INLINE void make_walked_tiles(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, int group) {
    const int row = group * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    attention_turns turns = {ring_reader(), ring_reader(), ring_reader()};
    ring_turn turn = ring_reader();
    bool is_first = true;         /* of tiles with keys */
#pragma unroll 1
    for (;; ring_next(&turn, ATTENTION_VIEW_STAGES)) {
        float sums[128];
        attention_rows rows;
        block_range blocks;
        ring_wait_full(m.view_ring, turn);
        const attention_tile tile = load_work(m, turn.stage, &blocks);
        if (agreed(tile.batch < 0)) break;
        const attention_smem own = views_at(s, m, turn.stage);
        find_seen(g, own, row, &rows);
        begin_rows(g, s, tile, tile.first + row, &rows);
        const bool has_keys = agreed(blocks.end > 0);
        if (has_keys) begin_turns(s, group, is_first);
        attend(g, s, own, tile, &rows, group, row, blocks.end, &turns, sums);
        if (has_keys) {
            end_turns(group);
            is_first = false;
        }
        if (agreed(tile.first + group * 64 < (int)g->call.queries)) store_rows(g, s, own, tile, group, &rows, sums);
        __syncwarp();
        release(m.view_ring, turn);
    }
    begin_turns(s, group, is_first);   /* and nobody leaves with a turn under way */
    if (threadIdx.x % 32 == 0) tma_wait_read(0);
}

/* ---- a thread block ---- */

INLINE void attention_walking(const attention_wgmma_arguments *g, const attention_shape s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const attention_smem m = smem_of(s, shared_address(shared));
    const int role = __shfl_sync(0xffffffff, threadIdx.x / 128, 0), warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0) - 4 * s.groups;
    if (threadIdx.x == 0) {
        ring_init(m.q_ring, s.q_stages, 1, 4 * s.groups);
        ring_init(m.k_ring, s.stages, 1, 4 * s.groups);
        ring_init(m.v_ring, s.stages, 1, 4 * s.groups);
        ring_init(m.view_ring, ATTENTION_VIEW_STAGES, 1, 4 * s.groups + 1);
        mbarrier_init(m.go, 1);
        fence_mbarrier_init();
    }
    grid_release();
    grid_wait();
    const attention_tile tile = tile_at(g, s, (int)blockIdx.x);
    for (int row = threadIdx.x; row < s.groups * 64; row += blockDim.x) store_view(m.rows, row, view_of(&g->call, tile.batch, tile.first + row));
    __syncthreads();
    if (role == s.groups) {
        setmaxnreg_dec(56);
        if (warp == 0) load_walked_tiles(g, s, m);
        if (warp == 1) look_up_tiles(g, s, m);
    } else {
        if (s.groups == 3) setmaxnreg_inc(152);
        else setmaxnreg_inc(224);
        make_walked_tiles(g, s, m, role);
    }
}

#endif
