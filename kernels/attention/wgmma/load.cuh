/* Of attention by wgmma: the loads of a tile's queries and of blocks of keys and values, which may lie in pages, by one thread or one warp. */
#ifndef KERNELS_ATTENTION_WGMMA_LOAD_CUH
#define KERNELS_ATTENTION_WGMMA_LOAD_CUH

#include "kernels/attention/wgmma/place.cuh"

/* ---- the ring ---- */

/* rows x cols, in columns of 64. */
INLINE void load_tile(const tensor_map *map, uint32_t to, uint32_t full, int rows, int cols, int row, int head, int batch, uint64_t cache) {
#pragma unroll
    for (int i = 0; i < chunks_of(cols); i++) tma_load_4d(to + i * rows * ROW_BYTES, map, full, i * CHUNK_COLS, row, head, batch, cache);
}

/* rows of q, or of k, as wide as they are. */
INLINE void load_operand(const attention_shape s, const tensor_map *map, uint32_t to, uint32_t full, int rows, int row, int head, int batch, uint64_t cache) {
    if (s.codes) tma_load_4d(to, map, full, 0, row, head, batch, cache);
    else load_tile(map, to, full, rows, s.width, row, head, batch, cache);
}

INLINE void load_blocks(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile) {
    const int q_rows = s.groups * 64, k_bytes = s.keys * row_bytes(s), v_bytes = s.keys * s.value_width * 2;
    const tensor_map *map_k = (const tensor_map *)g->map_k, *map_v = (const tensor_map *)g->map_v;
    const int group = tile.head / (int)g->call.shared_heads;
    ring_turn turn = ring_writer();
    attention_walk walk = walk_begin(m);
    mbarrier_arrive_expect(m.q_ring.full, q_rows * row_bytes(s));
    load_operand(s, (const tensor_map *)g->map_q, m.q, m.q_ring.full, q_rows, tile.first, tile.head, tile.batch, TMA_EVICT_FIRST);
    for (; !walk.done; walk_next(&walk, m), ring_next(&turn, s.stages)) {
        ring_wait_empty(m.k_ring, turn);
        uint32_t full = ring_expect_full(m.k_ring, turn, k_bytes);
        load_operand(s, map_k, m.k + turn.stage * k_bytes, full, s.keys, walk.block * s.keys, group, walk.segment.cache, TMA_EVICT_LAST);
        ring_wait_empty(m.v_ring, turn);
        full = ring_expect_full(m.v_ring, turn, v_bytes);
        load_tile(map_v, m.v + turn.stage * v_bytes, full, s.keys, s.value_width, walk.block * s.keys, group, walk.segment.cache, TMA_EVICT_LAST);
    }
}

/* ---- pages ---- */

/* A block of keys lies in pieces, one after another: parts of a page where pages hold more keys than a block. A piece has a power of 2 of rows where there are several. */
INLINE int piece_rows(const attention_arguments *p, const attention_shape s) { return p->page < s.keys ? p->page : s.keys; }

/* Does a query of the segment see one of the slots from `from` on? By one thread. */
INLINE bool is_piece_seen(attention_smem m, attention_segment segment, int from, int rows) {
    for (int row = segment.first; row < segment.end; row++) {
        const attention_view view = load_view(m.rows, row);
        if (view.count > 0 && from < view.start + view.count && from + rows > view.start) return true;
    }
    return false;
}

/* Where a lane's piece of a block lies: an entry of the table, and the first slot of that page. */
typedef struct paged_piece { int index, slot; } paged_piece;

INLINE paged_piece piece_at(const attention_arguments *p, int from) {
    const paged_piece piece = {from / p->page, from % p->page};
    return piece;
}

/* The same piece of the next block: entries: how many a block has, where pages hold no more than a block. */
INLINE void piece_next(const attention_arguments *p, const attention_shape s, int entries, paged_piece *piece) {
    piece->index += entries;
    if (entries > 0) return;
    piece->slot += s.keys;
    if (piece->slot < p->page) return;
    piece->slot -= p->page;
    piece->index++;
}

/* The entry of the table, as it lies there; -1 where no query sees one of the slots from `from` on. */
INLINE int64_t ask_page(const attention_arguments *p, attention_segment segment, paged_piece piece, int from, int rows) {
    if (from >= segment.high || from + rows <= segment.low) return -1;
    return load_int(&p->table, segment.cache * p->table_strides[0] + piece.index * p->table_strides[1]);
}

/* The page that an entry says, -1: none. By one thread. */
INLINE int page_of_entry(const attention_arguments *p, attention_smem m, attention_segment segment, int64_t entry, int from, int rows) {
    if (entry >= -1 && entry < p->pages) return (int)entry;
    return is_piece_seen(m, segment, from, rows) ? page_at(p, segment.cache, from / p->page) : -1;
}

/* rows x cols of a page, or zeros (what TMA reads behind the last page), to a part of a tile of so many keys. */
INLINE void load_piece(const tensor_map *map, uint32_t to, uint32_t full, const int keys, const int cols, int slot, int head, int page) {
#pragma unroll
    for (int i = 0; i < cols / CHUNK_COLS; i++) tma_load_4d(to + i * keys * ROW_BYTES, map, full, i * CHUNK_COLS, slot, head, page, TMA_EVICT_LAST);
}

/* Of the pieces of a block those that are there, for the warps that multiply. */
#define ALL_THERE (~0u)

/* What load_blocks does, by one warp, of keys in pages: a piece to a lane. The entries of a block are asked for when the keys of the one before are on their way, and looked at when its values are. */
INLINE void load_paged_blocks(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile) {
    const attention_arguments *p = &g->call;
    const int q_bytes = s.groups * 64 * s.width * 2, k_bytes = s.keys * s.width * 2, v_bytes = s.keys * s.value_width * 2;
    const int group = tile.head / (int)p->shared_heads, rows = piece_rows(p, s), pieces = s.keys / rows, lane = threadIdx.x % 32, from = lane * rows, entries = s.keys / p->page;
    const bool loads = lane < pieces;
    ring_turn turn = ring_writer();
    attention_walk walk = walk_begin(m);
    if (lane == 0) {
        mbarrier_arrive_expect(m.q_ring.full, q_bytes);
        load_tile((const tensor_map *)g->map_q, m.q, m.q_ring.full, s.groups * 64, s.width, tile.first, tile.head, tile.batch, TMA_EVICT_FIRST);
    }
    paged_piece piece = piece_at(p, walk.block * s.keys + from);
    int64_t entry = loads && !walk.done ? ask_page(p, walk.segment, piece, walk.block * s.keys + from, rows) : -1;
#pragma unroll 1
    while (!walk.done) {
        const int found = loads ? page_of_entry(p, m, walk.segment, entry, walk.block * s.keys + from, rows) : -1, page = found < 0 ? p->pages : found, slot = piece.slot;
        const uint32_t there = __ballot_sync(0xffffffff, !loads || found >= 0);
        ring_wait_empty(m.k_ring, turn);
        if (lane == 0) {
            st_shared_u32(m.notes + 4 * turn.stage, there);
            ring_expect_full(m.k_ring, turn, k_bytes);
        }
        __syncwarp();
        if (loads) load_piece((const tensor_map *)g->map_k, m.k + turn.stage * k_bytes + from * ROW_BYTES, ring_full(m.k_ring, turn.stage), s.keys, s.width, slot, group, page);
        if (walk.block + 1 < walk.segment.end_block) piece_next(p, s, entries, &piece), walk.block++;
        else walk_next(&walk, m), piece = piece_at(p, walk.block * s.keys + from);
        entry = loads && !walk.done ? ask_page(p, walk.segment, piece, walk.block * s.keys + from, rows) : -1;
        ring_wait_empty(m.v_ring, turn);
        if (lane == 0) ring_expect_full(m.v_ring, turn, v_bytes);
        __syncwarp();
        if (loads) load_piece((const tensor_map *)g->map_v, m.v + turn.stage * v_bytes + from * ROW_BYTES, ring_full(m.v_ring, turn.stage), s.keys, s.value_width, slot, group, page);
        ring_next(&turn, s.stages);
    }
}

#endif
