/* Which rows a tile of few queries has, what they see, and which blocks of keys a thread block of a cluster goes through: what the kernels of this folder share. */
#ifndef KERNELS_ATTENTION_DECODE_ROWS_CUH
#define KERNELS_ATTENTION_DECODE_ROWS_CUH

#include "kernels/attention/decode/decode.h"
#include "kernels/attention/scores.cuh"
#include "kernels/gpu/pipe/schedule.cuh"

/* ---- rows ---- */

/* Row r is head first_head + r % heads of query first_query + r / heads. view: what any of them sees, by see_tile. */
typedef struct decode_tile { attention_view view; int batch, group, first_head, heads, first_query, rows; } decode_tile;

INLINE int head_of(const decode_tile *tile, int row) { return tile->first_head + row % tile->heads; }
INLINE int query_of(const decode_tile *tile, int row) { return tile->first_query + row / tile->heads; }

/* Several queries are taken together where they have neither rows nor positions, so the first sees the first key and the last the last one. */
INLINE attention_view view_of_queries(const attention_arguments *p, int batch, int first, int count) {
    if (count == 1) return view_of(p, batch, first);
    attention_view from = view_from(p, batch, first + p->offset, false), to = view_from(p, batch, first + count - 1 + p->offset, false);
    int end = to.count > 0 ? to.start + to.count : (int)p->keys;
    from.start = from.count > 0 ? from.start : 0;
    from.count = max(end - from.start, 0);
    return from;
}

/* bunch: of all queries of all batches; part: of all heads; rows: of a tile at most. Divisions are for calls that have several batches, or parts. */
INLINE decode_tile tile_at(const attention_decode_arguments *g, int bunch, int of_heads, const int rows) {
    const attention_arguments *p = &g->call;
    const int shared = (int)p->shared_heads, group = g->parts == 1 ? of_heads : of_heads / g->parts, part = of_heads - group * g->parts;
    decode_tile tile;
    tile.group = group;
    tile.batch = p->batches == 1 ? 0 : bunch / g->bunches;
    tile.first_query = (bunch - tile.batch * g->bunches) * g->queries;
    tile.heads = min(shared - part * rows, rows);
    tile.first_head = tile.group * shared + part * rows;
    int queries = min(g->queries, (int)p->queries - tile.first_query);
    tile.rows = queries * tile.heads;
    return tile;
}

/* Reads rows and positions. */
INLINE void see_tile(const attention_arguments *p, decode_tile *tile) { tile->view = view_of_queries(p, tile->batch, tile->first_query, tile->rows / tile->heads); }

INLINE attention_view view_of_row(const attention_decode_arguments *g, const decode_tile *tile, int row) {
    return g->queries == 1 ? tile->view : view_from(&g->call, tile->batch, query_of(tile, row) + g->call.offset, false);
}

INLINE uint64_t q_of_row(const attention_arguments *p, const decode_tile *tile, int row) {
    return p->q.data + 2 * (tile->batch * p->q_strides[0] + head_of(tile, row) * p->q_strides[1] + query_of(tile, row) * p->q_strides[2]);
}

/* ---- keys ---- */

/* The blocks of `keys` slots that a block of threads goes through: numbers first + begin .. first + end - 1, modulo their count. */
typedef struct decode_walk { int keys, first, count, begin, end; } decode_walk;

INLINE decode_walk walk_of(const attention_decode_arguments *g, const attention_view view, int rank, const int keys) {
    int slots = (int)g->call.keys, end = view.start + view.count;
    decode_walk walk = {keys, view.start / keys, (slots + keys - 1) / keys, 0, 0};
    int all = (min(end, slots) + keys - 1) / keys - walk.first;
    if (end > slots) all = min(all + (end - slots + keys - 1) / keys, walk.count);
    if (view.count == 0) all = 0;
    const schedule_range range = schedule_part(all, g->splits, rank, 1);
    walk.begin = range.first;
    walk.end = range.end;
    return walk;
}

INLINE int first_slot(const decode_walk *walk, int step) {
    int block = walk->first + step;
    return (block < walk->count ? block : block - walk->count) * walk->keys;
}

#endif
