/* The decoding attention of a token that it writes itself (kernel_run.write): its keys and values come as the product in front made them, and so do its queries. They are normalised and turned by the lanes of a row,
 * bit for bit as the write of caches does it. All blocks of a cluster have key and value, and put them over what their rings bring of the token's slot; the first one writes them into the caches, once all
 * rings have been read.
 *
 *   queries, key   gmem -> reg, eight elements to a lane: norm, turn -> smem: queries as operands of products, the key as it lies
 *   value          gmem -> reg -> smem */
#ifndef KERNELS_ATTENTION_DECODE_TOKEN_CUH
#define KERNELS_ATTENTION_DECODE_TOKEN_CUH

#include "kernels/attention/decode/products.cuh"
#include "kernels/cache/lanes.cuh"
#include "kernels/gpu/ptx/tma.cuh"

/* Whose and which the token is: both loaded at once, as the host sees to it that they are i64. */
INLINE token_number number_of_token(const attention_arguments *p) { return (token_number){*(const int64_t *)p->row.data, *(const int64_t *)p->position.data}; }

/* Where it goes; a row below 0: nowhere. */
INLINE cache_place token_at(const attention_arguments *p, token_number number) {
    if (number.row < 0 || number.row >= p->cache_rows || number.position < 0 || (p->page != 0 && number.position >= p->keys)) return (cache_place){-1, 0};
    const attention_slot at = early_slot_at(p, (int)number.row, modulo(number.position, (int)p->keys));
    return (cache_place){at.row, at.slot};
}

/* Has a block of 16 slots the token's? */
INLINE bool has_token(const cache_place *token, attention_slot at) { return token->row >= 0 && at.row == token->row && at.slot == (int)token->slot / KEYS * KEYS; }

/* ---- arguments ---- */

/* The arguments of an entry as they are read: those that lie first from there. */
INLINE attention_decode_arguments decode_of_token(const attention_token_arguments *all, const int general) {
    const attention_token_first *first = &all->first;
    attention_decode_arguments g;
    g.call = all->decode.call;
    g.splits = first->splits;
    g.turns_queries = first->turns_queries;
    g.parts = g.queries = g.early = 1;
    g.call.row.data = first->row;
    g.call.position.data = first->position;
    g.call.table = first->table;
    for (int axis = 0; axis < 2; axis++) g.call.table_strides[axis] = first->table_strides[axis];
    g.call.keys = first->keys;
    g.call.cache_rows = first->cache_rows;
    g.call.window = first->window;
    g.call.ahead = first->ahead;
    g.call.page = first->page;
    g.call.pages = first->pages;
    g.call.causal = first->causal;
    g.call.shared_heads = first->shared_heads;
    g.call.width = first->width;
    g.call.value_width = first->value_width;
    g.call.scale = first->scale;
    g.call.out = first->out;
    g.call.has_sink = first->has_sink;
    g.call.queries = g.call.batches = 1;
    if (!general) g.call.mask_keys = g.call.bias_keys = 0;
    g.call.out_strides[1] = first->out_head;
    g.call.out_strides[3] = first->out_col;
    return g;
}

INLINE void take_row_of_token(const attention_token_row *row, cache_part *part) {
    part->from.data = row->from;
    part->from_head = row->from_head;
    part->turned = row->turned;
    part->norm.weight = row->weight;
    part->norm.bias = row->bias;
    part->norm.eps = row->eps;
    part->norm.by_count = row->by_count;
    part->norm.is_there = row->is_normed;
    part->norm.centred = row->centred;
}

INLINE void take_cache_of_token(const attention_token_cache *cache, cache_part *part) {
    part->to.data = cache->to;
    part->to_row = cache->to_row;
    part->to_head = cache->to_head;
    part->to_token = cache->to_token;
}

INLINE cache_arguments token_of_arguments(const attention_token_arguments *all) {
    const attention_token_first *first = &all->first;
    cache_arguments a;
    take_row_of_token(&first->queries, &a.parts[CACHE_TOKEN_QUERIES]);
    take_row_of_token(&first->key, &a.parts[CACHE_TOKEN_KEYS]);
    take_cache_of_token(&first->caches[0], &a.parts[CACHE_TOKEN_KEYS]);
    take_cache_of_token(&first->caches[1], &a.parts[CACHE_TOKEN_VALUES]);
    a.parts[CACHE_TOKEN_VALUES].from.data = first->value;
    a.parts[CACHE_TOKEN_VALUES].from_head = first->value_head;
    a.cosine = first->cosine;
    a.sine = first->sine;
    a.cosine_token = a.sine_token = 0;
    a.width = first->angle_width;
    a.interleaved = first->interleaved;
    return a;
}

/* ---- the token ---- */

INLINE int format_of(const decode_shape s) { return s.element == ELEMENT_BF16 ? CUDA_bf16 : CUDA_f16; }

/* Eight columns of a row of queries, from number unit * 8 on, as products want them. */
INLINE void store_q_unit(const decode_shape s, uint32_t q, int row, int unit, uint4 words) {
    const uint32_t to = q + (uint32_t)((row / 8 * (s.width / 16) + unit / 2) * Q_BYTES + row % 8 * 32 + unit % 2 * 4);
    st_shared_u32(to, words.x);
    st_shared_u32(to + 8, words.y);
    st_shared_u32(to + 16, words.z);
    st_shared_u32(to + 24, words.w);
}

/* Rows and columns that are not there are zeros. A barrier of the block's comes behind it. */
INLINE void clear_q(const decode_shape s, decode_smem m) {
    for (int at = (int)threadIdx.x * 16; at < s.width / 16 * bunches(s) * Q_BYTES; at += THREADS * 16) st_shared_u32x4(m.q + (uint32_t)at, make_uint4(0, 0, 0, 0));
}

/* What the lanes of a warp do: a row of queries, the key or the value, all of them one of these. */
typedef enum token_kind { TOKEN_QUERY, TOKEN_KEY, TOKEN_VALUE } token_kind;

/* A thread's eight elements of a row: where they lie, found before the launches in front have ended. is_there: it keeps what it makes, else it comes along for the others of its warp. is_made: by lanes that share
 * the row, which part says how, else it is moved as it lies. */
typedef struct token_item {
    token_kind kind;
    int row, unit;
    bool is_there, is_made;
    uint64_t x;
    cache_part part;
    norm_words columns;
} token_item;

/* Of queries in whole warps, then a warp for the key and one for the value. */
INLINE int query_span(const attention_decode_arguments *g, const decode_tile *tile) { return (tile->rows * (int)g->call.width / PIECE + 31) / 32 * 32; }
INLINE int token_items(const attention_decode_arguments *g, const decode_tile *tile) { return query_span(g, tile) + 64; }

/* Item i of a block. Fields of parts are chosen one by one: the address of an argument, once it is not known when compiled, is that of ordinary memory. */
INLINE token_item token_item_at(const attention_decode_arguments *g, const cache_arguments *a, const decode_tile *tile, int i) {
    const cache_part *queries = &a->parts[CACHE_TOKEN_QUERIES], *keys = &a->parts[CACHE_TOKEN_KEYS], *values = &a->parts[CACHE_TOKEN_VALUES];
    const int lanes = (int)g->call.width / PIECE, span = query_span(g, tile);
    token_item item;
    const bool is_query = i < span;
    item.kind = is_query ? TOKEN_QUERY : i < span + 32 ? TOKEN_KEY : TOKEN_VALUE;
    item.row = is_query ? min(i / lanes, tile->rows - 1) : 0;
    item.unit = is_query ? i % lanes : item.kind == TOKEN_KEY ? (i - span) % lanes : i - span - 32;
    item.is_there = is_query ? i < tile->rows * lanes : item.kind == TOKEN_KEY ? i - span < lanes : i < token_items(g, tile) && item.unit < (int)g->call.value_width / PIECE;
    item.is_made = item.kind == TOKEN_KEY || (is_query && g->turns_queries);
    item.x = is_query ? queries->from.data + 2 * (uint64_t)(head_of(tile, item.row) * queries->from_head) :
             item.kind == TOKEN_KEY ? keys->from.data + 2 * (uint64_t)(tile->group * keys->from_head) : values->from.data + 2 * (uint64_t)(tile->group * values->from_head);
    item.x += (uint64_t)item.unit * 16;
    item.part.lanes = lanes;
    item.part.turned = is_query ? queries->turned : keys->turned;
    item.part.norm.is_there = item.is_made && (is_query ? queries->norm.is_there : keys->norm.is_there);
    item.part.norm.centred = is_query ? queries->norm.centred : keys->norm.centred;
    item.part.norm.eps = is_query ? queries->norm.eps : keys->norm.eps;
    item.part.norm.by_count = is_query ? queries->norm.by_count : keys->norm.by_count;
    item.part.norm.weight.data = is_query ? queries->norm.weight.data : keys->norm.weight.data;
    item.part.norm.weight.format = is_query ? queries->norm.weight.format : keys->norm.weight.format;
    item.part.norm.weight.element_bytes = is_query ? queries->norm.weight.element_bytes : keys->norm.weight.element_bytes;
    item.part.norm.bias.data = is_query ? queries->norm.bias.data : keys->norm.bias.data;
    item.part.norm.bias.format = is_query ? queries->norm.bias.format : keys->norm.bias.format;
    item.part.norm.bias.element_bytes = is_query ? queries->norm.bias.element_bytes : keys->norm.bias.element_bytes;
    if (item.part.norm.is_there) item.columns = bring_columns(&item.part, item.unit);
    return item;
}

INLINE void take_item(const attention_decode_arguments *g, const cache_arguments *a, const decode_shape s, decode_smem m, const token_item *item) {
    uint4 words = make_uint4(0, 0, 0, 0);
    if (item->is_there || item->is_made) words = *(const uint4 *)item->x;
    if (item->is_made) {
        const cache_angles angles = angles_of(a);
        const cache_item of_row = {0, 0, item->unit, -1, 0};
        const norm_columns columns = {&item->columns, 0};
        head_words bits = {words, {{0, 0, 0, 0}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {0, 0, 0, 0}}};
        bring_head_angles(a, &item->part, &of_row, &angles, 0, &bits);
        words = make_head(format_of(s), a, &item->part, &of_row, &bits, &columns);
    }
    if (!item->is_there) return;
    if (item->kind == TOKEN_QUERY) store_q_unit(s, m.q, item->row, item->unit, words);
    else st_shared_u32x4(m.own + (item->kind == TOKEN_KEY ? 0 : DECODE_OWN_BYTES / 2) + (uint32_t)item->unit * 16, words);
}

/* Queries, key and value of the tile into shared memory. item: a thread's first one. Behind it a barrier of the block's. */
INLINE void take_token(const attention_decode_arguments *g, const cache_arguments *a, const decode_shape s, decode_smem m, const decode_tile *tile, const token_item *item) {
    take_item(g, a, s, m, item);
#pragma unroll 1
    for (int first = THREADS; first < token_items(g, tile); first += THREADS) {
        const token_item more = token_item_at(g, a, tile, first + (int)threadIdx.x);
        take_item(g, a, s, m, &more);
    }
}

/* Over what a stage of the ring has of the token's slot: a warp, whose lanes read it behind that. */
INLINE void patch_own(const attention_decode_arguments *g, const decode_shape s, decode_smem m, const cache_place *token, uint32_t stage) {
    const int lane = threadIdx.x % 32, row = (int)token->slot % KEYS, lanes = (int)g->call.width / PIECE, values = (int)g->call.value_width / PIECE;
    const uint32_t to = stage + (uint32_t)(lane / 8 * CHUNK_BYTES + row * ROW_BYTES + (lane % 8 ^ row % 8) * 16);
    if (lane < lanes) st_shared_u32x4(to, ld_shared_u32x4(m.own + (uint32_t)lane * 16));
    if (lane < values) st_shared_u32x4(to + (uint32_t)key_bytes(s), ld_shared_u32x4(m.own + DECODE_OWN_BYTES / 2 + (uint32_t)lane * 16));
    fence_proxy_async();          /* the next keys may come to lie there */
    __syncwarp();
}

/* Into the caches: behind a barrier of the cluster's, as its blocks have read the slot with others. */
INLINE void write_token(const attention_decode_arguments *g, const cache_arguments *a, decode_smem m, const decode_tile *tile, const cache_place *token) {
    const cache_part *keys = &a->parts[CACHE_TOKEN_KEYS], *values = &a->parts[CACHE_TOKEN_VALUES];
    const int unit = (int)threadIdx.x % 32, kind = (int)threadIdx.x / 32;
    const int64_t row = token->row, slot = token->slot;
    if (row < 0) return;
    if (kind == 0 && unit < (int)g->call.width / PIECE) store_uint4(&keys->to, row * keys->to_row + slot * keys->to_token + tile->group * keys->to_head + unit * PIECE, 2, ld_shared_u32x4(m.own + (uint32_t)unit * 16));
    if (kind == 1 && unit < (int)g->call.value_width / PIECE)
        store_uint4(&values->to, row * values->to_row + slot * values->to_token + tile->group * values->to_head + unit * PIECE, 2, ld_shared_u32x4(m.own + DECODE_OWN_BYTES / 2 + (uint32_t)unit * 16));
}

#endif
