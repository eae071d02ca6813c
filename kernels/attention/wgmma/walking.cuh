/* Attention by thread blocks that stay, where rows of a cache, positions or pages say what a query sees: the body of the entries whose columns `paged` and `stays` are set. Products, softmax and results are those of
 * wgmma.cuh; tiles are handed out as in persistent.cuh.
 *
 *   the last warpgroup, warp 1   the next tile: what its queries see, segments -> view ring       when the last block of the one before has been placed
 *                  warps 2 and 3   view ring -> where a block's pieces lie, by the table, and whether all queries see it -> place ring
 *                       warp 0   place ring -> k, q, v by TMA -> full; what those that multiply read of the block beside k
 *   warpgroups 0 .. groups - 1   view ring, full -> products, softmax, results
 *
 * So a tile does not wait for rows and positions, which come from memory one behind the other, nor a block for the table's entries: places are found up to four blocks ahead of loads. Who multiplies counts blocks, and knows of one no
 * more than what comes with it: three warpgroups have no registers for a walk of their own, and the warps that load have 32 each. Queries have one stage: they are released behind the last block's product.
 *
 * Registers: two warpgroups 40 (loads) and 232, three 32 and 160. Speed: README.md. */
#ifndef KERNELS_ATTENTION_WGMMA_WALKING_CUH
#define KERNELS_ATTENTION_WGMMA_WALKING_CUH

#include "kernels/attention/wgmma/persistent.cuh"

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

/* The slots [begin, end) that all queries of a tile see, and their head of k. */
typedef struct tile_keys { int begin, end, group; } tile_keys;

/* Those slots, if all queries read one row of the caches; none where what one sees goes around the end of a ring. Rows behind the last query are not stored, whatever they see. By one warp. */
INLINE tile_keys seen_by_all(const attention_wgmma_arguments *g, const attention_shape s, attention_smem own, attention_tile tile) {
    const int rows = min(s.groups * 64, (int)g->call.queries - tile.first), keys = (int)g->call.keys;
    const attention_segment segment = load_segment(own.segments, 0);
    tile_keys seen = {0, segment.first == 0 && segment.end >= rows ? keys : 0, tile.head / (int)g->call.shared_heads};
#pragma unroll 1
    for (int row = threadIdx.x % 32; row < rows; row += 32) {
        const attention_view view = load_view(own.rows, row);
        seen.begin = max(seen.begin, view.start), seen.end = min(seen.end, view.start + view.count <= keys ? view.start + view.count : 0);
    }
    seen.begin = __reduce_max_sync(0xffffffff, seen.begin);
    seen.end = __reduce_min_sync(0xffffffff, seen.end);
    return seen;
}

/* A tile for all other warps; then how many blocks of keys it has, and the slots that all of its queries see. */
INLINE void store_walk(attention_smem m, int stage, attention_tile tile) {
    st_shared_u32x4(m.work + stage * ATTENTION_WORK_BYTES, make_uint4((uint32_t)tile.batch, (uint32_t)tile.head, (uint32_t)tile.first, 0));
}
INLINE void store_keys_of_tile(attention_smem m, int stage, int blocks, tile_keys keys) {
    st_shared_u32(m.work + stage * ATTENTION_WORK_BYTES + 12, (uint32_t)blocks);
    st_shared_u32x4(m.work + stage * ATTENTION_WORK_BYTES + 16, make_uint4((uint32_t)keys.begin, (uint32_t)keys.end, (uint32_t)keys.group, 0));
}
INLINE tile_keys load_keys_of_tile(attention_smem m, int stage) {
    const uint4 x = ld_shared_u32x4(m.work + stage * ATTENTION_WORK_BYTES + 16);
    const tile_keys keys = {(int)x.x, (int)x.y, (int)x.z};
    return keys;
}
INLINE attention_tile load_walk(attention_smem m, int stage, int *blocks) {
    const uint4 x = ld_shared_u32x4(m.work + stage * ATTENTION_WORK_BYTES);
    const attention_tile tile = {(int)x.x, (int)x.y, (int)x.z};
    *blocks = (int)x.w;
    return tile;
}
/* What the queries of a tile see, of which the tile itself is stored; the first one's views have been stored by all threads. */
INLINE void look_up_tile(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, int stage, bool has_views) {
    const attention_smem own = views_at(s, m, stage);
    int blocks;
#pragma unroll 1
    for (int row = threadIdx.x % 32; row < s.groups * 64 && !has_views; row += 32) {
        const attention_tile tile = load_walk(m, stage, &blocks);
        store_view(own.rows, row, view_of(&g->call, tile.batch, tile.first + row));
    }
    __syncwarp();
    find_segments(s, (int)g->call.keys, own);
    __syncwarp();
    const tile_keys seen = seen_by_all(g, s, own, load_walk(m, stage, &blocks));
    blocks = blocks_in_segments(own);
    if (threadIdx.x % 32 == 0) store_keys_of_tile(m, stage, blocks, seen);
}

INLINE void look_up_tiles(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m) {
    int number = (int)blockIdx.x;
    uint32_t made = 0;
#pragma unroll 1
    for (; number < tile_count(g); made++) {
        ring_wait_empty(m.view_ring, ring_writer_turn(made, ATTENTION_VIEW_STAGES));
        if (threadIdx.x % 32 == 0) store_walk(m, (int)(made % ATTENTION_VIEW_STAGES), tile_at(g, s, number));
        __syncwarp();
        look_up_tile(g, s, m, (int)(made % ATTENTION_VIEW_STAGES), made == 0);
        if (threadIdx.x % 32 == 0) ring_arrive_full(m.view_ring, ring_writer_turn(made, ATTENTION_VIEW_STAGES));
        mbarrier_wait(m.go, made % 2);
        uint32_t answer = 0;
        if (threadIdx.x % 32 == 0) answer = ask_tile(g);
        number = asked_tile(g, __shfl_sync(0xffffffff, answer, 0));
    }
    if (threadIdx.x % 32 != 0) return;
    const attention_tile none = {-1, 0, 0};
    ring_wait_empty(m.view_ring, ring_writer_turn(made, ATTENTION_VIEW_STAGES));
    store_walk(m, (int)(made % ATTENTION_VIEW_STAGES), none);
    ring_arrive_full(m.view_ring, ring_writer_turn(made, ATTENTION_VIEW_STAGES));
}

/* ---- where the blocks of a tile lie, by two warps in turns ---- */

/* One takes longer to look up a page than a block's products take. */
enum { PLACING_WARPS = 2 };

/* What is said of a block, 16 bytes: what warps that multiply read of it (WHOLE_BLOCK, ..), the head of k, and whether it is a tile's first, of which stage of the views; then of each piece its first slot and row or page. */
enum { PLACE_FIRST = 2, PLACE_END = 4 };   /* beside the stage of the views */
/* No entry of a table; perhaps no query sees what it says. */
enum { CANNOT_BE = -2 };

INLINE uint32_t place_at(const attention_shape s, attention_smem m, int stage) { return m.places + stage * ATTENTION_PLACE_BYTES(s.keys); }

/* The page of a piece, -1: none, by each lane that has one. */
INLINE int page_of_piece(const attention_arguments *p, attention_smem own, int index, int from, int rows, bool has_piece) {
    const int64_t entry = has_piece ? ask_page(p, load_segment(own.segments, index), piece_at(p, from), from, rows) : -1;
    const int page = entry >= -1 && entry < p->pages ? (int)entry : (int)CANNOT_BE;
    if (!agreed(page == CANNOT_BE) || page != CANNOT_BE) return page;
    const attention_segment segment = load_segment(own.segments, index);
    return is_piece_seen(own, segment, from, rows) ? page_at(p, segment.cache, from / p->page) : -1;
}

/* One block. is_last: of the tile, so that the next one is looked up. */
INLINE void place_block(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, int stage, uint32_t number, int index, int block, bool is_last) {
    const attention_arguments *p = &g->call;
    const attention_smem own = views_at(s, m, stage);
    const int rows = p->page != 0 ? piece_rows(p, s) : s.keys, lane = threadIdx.x % 32;
    const bool has_piece = lane * rows < s.keys;
    uint32_t there = WHOLE_BLOCK;
    if (is_last && lane == 0) mbarrier_arrive(m.go);
    int page = 0;
    if (p->page != 0) {
        page = page_of_piece(p, own, index, block * s.keys + lane * rows, rows, has_piece);
        there = __ballot_sync(0xffffffff, page >= 0 || !has_piece);
    }
    const attention_segment segment = load_segment(own.segments, index);
    const tile_keys keys = load_keys_of_tile(m, stage);
    const int first = block * s.keys, from = first + lane * rows;
    if (index > 0 || first < keys.begin || first + s.keys > keys.end || there != WHOLE_BLOCK) there &= NOT_WHOLE;
    const ring_turn turn = ring_writer_turn(number, ATTENTION_PLACES);
    const uint32_t to = place_at(s, m, turn.stage);
    ring_wait_empty(m.place_ring, turn);
    if (lane == 0)
        st_shared_u32x4(to, make_uint4(there, (uint32_t)block << PLACE_SEGMENT_BITS | (uint32_t)index, (uint32_t)keys.group, index == 0 && block == segment.block ? PLACE_FIRST | (uint32_t)stage : 0));
    if (has_piece) {
        st_shared_u32(to + 16 + 8 * lane, (uint32_t)(p->page != 0 ? piece_at(p, from).slot : from));
        st_shared_u32(to + 20 + 8 * lane, (uint32_t)(p->page == 0 ? segment.cache : page < 0 ? p->pages : page));
    }
    __syncwarp();
    if (lane == 0) ring_arrive_full(m.place_ring, turn);
}

/* Does the warp place the block of this number? */
INLINE bool is_own_block(uint32_t number) { return agreed(number % PLACING_WARPS == threadIdx.x / 32 % PLACING_WARPS); }

/* stage: of the views; number: of blocks so far. What a block takes of its segment and tile is read again, rather than kept in registers. */
INLINE uint32_t place_tile(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, int stage, uint32_t number) {
    const attention_smem own = views_at(s, m, stage);
    const int lane = threadIdx.x % 32;
    int left, index = 0, block = load_segment(own.segments, 0).block;
    load_walk(m, stage, &left);
    if (left == 0 && is_own_block(0) && lane == 0) mbarrier_arrive(m.go);
#pragma unroll 1
    for (; agreed(left > 0); left--, number++) {
        const int end_block = load_segment(own.segments, index).end_block;
        if (is_own_block(number)) place_block(g, s, m, stage, number, index, block, left == 1);
        if (++block == end_block) block = load_segment(own.segments, ++index).block;
    }
    return number;
}

INLINE void place_tiles(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m) {
    uint32_t tiles = 0, number = 0;
#pragma unroll 1
    for (;; tiles++) {
        int blocks;
        const ring_turn views = ring_reader_turn(tiles, ATTENTION_VIEW_STAGES);
        ring_wait_full(m.view_ring, views);
        if (agreed(load_walk(m, views.stage, &blocks).batch < 0)) break;
        number = place_tile(g, s, m, views.stage, number);
        __syncwarp();
        release(m.view_ring, views);
    }
    const ring_turn turn = ring_writer_turn(number, ATTENTION_PLACES);
    if (!is_own_block(number)) return;
    ring_wait_empty(m.place_ring, turn);
    if (threadIdx.x % 32 != 0) return;
    st_shared_u32x4(place_at(s, m, turn.stage), make_uint4(0, 0, 0, PLACE_END));
    ring_arrive_full(m.place_ring, turn);
}

/* ---- loads, by one warp ---- */

/* The queries of a tile, by one thread. */
INLINE void load_queries(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, int stage, ring_turn turn) {
    const int rows = s.groups * 64;
    int blocks;
    const attention_tile tile = load_walk(m, stage, &blocks);
    ring_wait_empty(m.q_ring, turn);
    const uint32_t full = ring_expect_full(m.q_ring, turn, rows * s.width * 2);
    load_tile((const tensor_map *)g->map_q, m.q, full, rows, s.width, tile.first, tile.head, tile.batch, TMA_EVICT_FIRST);
}

/* A block's keys and values have the same turn. */
INLINE void load_walked_tiles(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m) {
    const int k_bytes = s.keys * s.width * 2, v_bytes = s.keys * s.value_width * 2, rows = g->call.page != 0 ? piece_rows(&g->call, s) : s.keys, lane = threadIdx.x % 32, from = lane * rows;
    ring_turn q_turn = ring_writer(), kv_turn = ring_writer(), turn = ring_reader();
#pragma unroll 1
    for (;; ring_next(&turn, ATTENTION_PLACES), ring_next(&kv_turn, s.stages)) {
        ring_wait_full(m.place_ring, turn);
        const uint32_t at = place_at(s, m, turn.stage);
        const uint4 place = ld_shared_u32x4(at);
        if (agreed(place.w == PLACE_END)) return;
        int slot = 0, row = 0;
        if (from < s.keys) slot = (int)ld_shared_u32(at + 16 + 8 * lane), row = (int)ld_shared_u32(at + 20 + 8 * lane);
        __syncwarp();
        release(m.place_ring, turn);
        ring_wait_empty(m.k_ring, kv_turn);
        if (lane == 0) {
            st_shared_u32(m.notes + note_bytes(s) * kv_turn.stage, place.x);
            st_shared_u32(m.notes + note_bytes(s) * kv_turn.stage + 4, place.y);
            ring_expect_full(m.k_ring, kv_turn, k_bytes);
        }
        __syncwarp();
        if (from < s.keys) load_piece((const tensor_map *)g->map_k, m.k + kv_turn.stage * k_bytes + from * ROW_BYTES, ring_full(m.k_ring, kv_turn.stage), s.keys, s.width, slot, (int)place.z, row);
        if (place.w != 0 && lane == 0) load_queries(g, s, m, (int)(place.w & ~PLACE_FIRST), q_turn);
        if (place.w != 0) ring_next(&q_turn, s.q_stages);
        ring_wait_empty(m.v_ring, kv_turn);
        if (lane == 0) ring_expect_full(m.v_ring, kv_turn, v_bytes);
        __syncwarp();
        if (from < s.keys) load_piece((const tensor_map *)g->map_v, m.v + kv_turn.stage * v_bytes + from * ROW_BYTES, ring_full(m.v_ring, kv_turn.stage), s.keys, s.value_width, slot, (int)place.z, row);
    }
}

/* ---- a warpgroup ---- */

/* The last warpgroup passes the first turn of a tile before it has had one itself, so it waits until the first one has had its last of the tile before: two passes at once would complete the barrier of a turn without who
 * waits there. Tiles without keys have no turns. */
INLINE void begin_turns(const attention_shape s, int group, bool is_first) {
    if (group == s.groups - 1 && !is_first) barrier_sync(TILE_BARRIER, 256);
}
INLINE void end_turns(int group) {
    if (group == 0) barrier_arrive(TILE_BARRIER, 256);
}

INLINE void make_walked_tiles(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, int group) {
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    attention_turns turns = {ring_reader(), ring_reader(), ring_reader()};
    ring_turn turn = ring_reader();
    bool is_first = true;         /* of tiles with keys */
#pragma unroll 1
    for (;; ring_next(&turn, ATTENTION_VIEW_STAGES)) {
        float sums[128];
        attention_rows rows;
        int blocks;
        ring_wait_full(m.view_ring, turn);
        attention_tile tile = load_walk(m, turn.stage, &blocks);
        if (agreed(tile.batch < 0)) break;
        const attention_smem own = views_at(s, m, turn.stage);
        begin_rows(g, s, tile, tile.first + row, &rows);
        const bool has_keys = agreed(blocks > 0);
        if (has_keys) begin_turns(s, group, is_first);
        attend(g, s, own, tile, &rows, group, row, blocks, &turns, sums);
        if (has_keys) {
            end_turns(group);
            is_first = false;
        }
        tile = load_walk(m, turn.stage, &blocks);   /* rather than keep it in registers */
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
        ring_init(m.view_ring, ATTENTION_VIEW_STAGES, 1, 4 * s.groups + PLACING_WARPS);
        ring_init(m.place_ring, ATTENTION_PLACES, 1, 1);
        mbarrier_init(m.go, 1);
        fence_mbarrier_init();
    }
    grid_release();
    grid_wait();
    const attention_tile tile = tile_at(g, s, (int)blockIdx.x);
    for (int row = threadIdx.x; row < s.groups * 64; row += blockDim.x) store_view(m.rows, row, view_of(&g->call, tile.batch, tile.first + row));
    __syncthreads();
    if (role == s.groups) {
        if (s.groups == 3) setmaxnreg_dec(32);
        else setmaxnreg_dec(40);
        if (warp == 0) load_walked_tiles(g, s, m);
        if (warp == 1) look_up_tiles(g, s, m);
        if (warp >= 2) place_tiles(g, s, m);
    } else {
        if (s.groups == 3) setmaxnreg_inc(160);
        else setmaxnreg_inc(232);
        make_walked_tiles(g, s, m, role);
    }
}

#endif
