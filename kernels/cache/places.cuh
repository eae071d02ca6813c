/* Where the tokens of a block go in a cache: found by all of its threads, for the plain kernel and for that in vectors. */
#ifndef KERNELS_CACHE_PLACES_CUH
#define KERNELS_CACHE_PLACES_CUH

#include "kernels/cache/cache_cuda.h"
#include "kernels/gpu/plain/device.cuh"

/* A row that tokens of no text have, an entry of a table whose page is not there; and what lies outside of the cache. */
enum { NOWHERE = -1, OUTSIDE = -2 };

/* Pairs of later tokens of the run that a thread brings at a time. */
enum { CACHE_PAIRS = 4 };
typedef struct __align__(16) cache_pair { int64_t low, high; } cache_pair;

/* row: of the cache, or the page; NOWHERE; OUTSIDE. position: of the text, or the slot in the page. */
typedef struct cache_token { int64_t row, position; } cache_token;

/* row -1: the token is written nowhere. */
typedef struct cache_place { int64_t row, slot; } cache_place;

DEVICE int64_t cache_entry(const cache_arguments *a, int64_t row, int64_t index) {
    const int64_t at = row * a->table_strides[0] + index * a->table_strides[1];
    return a->table.format == CUDA_i32 ? ((const int32_t *)a->table.data)[at] : load_int(&a->table, at);
}

/* What row and position of a token mean: a row and a position, or with a table a page and a slot. */
DEVICE cache_token cache_token_of(const cache_arguments *a, int64_t row, int64_t position) {
    cache_token t = {row, position};
    if (row == NOWHERE) return t;
    if (row < 0 || row >= (a->has_table ? a->table_rows : a->rows) || position < 0) t.row = OUTSIDE;
    if (!a->has_table || t.row == OUTSIDE) return t;
    const int64_t index = a->slot_shift >= 0 ? position >> a->slot_shift : position / a->slots;
    t.position -= index * a->slots;
    t.row = index < a->table_pages ? cache_entry(a, row, index) : OUTSIDE;
    if (t.row < NOWHERE || t.row >= a->rows) t.row = OUTSIDE;
    return t;
}

DEVICE cache_token cache_token_at(const cache_arguments *a, int64_t token) {
    return cache_token_of(a, load_int(&a->row, token * a->row_step), load_int(&a->position, token * a->position_step));
}

DEVICE int64_t cache_slot_of(const cache_arguments *a, int64_t position) {
    if (a->slot_shift >= 0) return position & (a->slots - 1);
    return (position | a->slots) <= UINT32_MAX ? (int64_t)((uint32_t)position % (uint32_t)a->slots) : position % a->slots;
}

/* Where a token that lies in the cache goes; row -1: one that does not. */
DEVICE cache_place cache_place_at(const cache_arguments *a, const cache_token *t) { return t->row < 0 ? (cache_place){-1, 0} : (cache_place){t->row, cache_slot_of(a, t->position)}; }

/* Of a token that lies outside: the first of its row, position and page that does. */
DEVICE void cache_raise(const cache_arguments *a, int64_t token) {
    const int64_t row = load_int(&a->row, token * a->row_step), position = load_int(&a->position, token * a->position_step), rows = a->has_table ? a->table_rows : a->rows;
    const int64_t room = a->has_table ? a->table_pages * a->slots : a->slots;
    if (row < 0 || row >= rows) fault_raise(&a->fault, CUDA_FAULT_INDEX, row, rows);
    else if (position < 0 || (a->has_table && position >= room)) fault_raise(&a->fault, CUDA_FAULT_INDEX, position, room);
    else fault_raise(&a->fault, CUDA_FAULT_INDEX, cache_entry(a, row, position / a->slots), a->rows);
}

/* A block's tokens lie in rows from first_row on, `rows` more of them, at positions from first to last. Of free positions in front of these and behind them none takes a slot of theirs. */
typedef struct cache_range { int64_t first_row, first, last; uint64_t rows, free; } cache_range;

/* One end of the rows (0, 1) or positions (2, 3) of a block's tokens, the largest one, and the least one negated; of those that lie in the cache. */
DEVICE int64_t cache_end(const cache_token *tokens, int count, int which) {
    int64_t end = -INT64_MAX;
    for (int k = 0; k < count; k++) {
        const int64_t x = which < 2 ? tokens[k].row : tokens[k].position, signed_x = which % 2 == 0 ? x : -x;
        if (tokens[k].row >= 0 && signed_x > end) end = signed_x;
    }
    return end;
}

DEVICE cache_range cache_range_of(const int64_t ends[4], int64_t slots) {
    const int64_t wide = ends[2] + ends[3];
    return (cache_range){-ends[1], -ends[3], ends[2], (uint64_t)(ends[0] + ends[1]), wide < slots ? (uint64_t)(slots - 1 - wide) : 0};
}

DEVICE int cache_is_row_of(const cache_range *range, int64_t row) { return (uint64_t)row - (uint64_t)range->first_row <= range->rows; }

/* May a token take the slot of one in the range? No, where it stands in no row of theirs, or near all of their positions. What lies outside of the cache may be said to. */
DEVICE int cache_may_meet(const cache_range *range, int64_t row, int64_t position) {
    return cache_is_row_of(range, row) && (uint64_t)position - (uint64_t)range->last - 1 >= range->free && (uint64_t)range->first - (uint64_t)position - 1 >= range->free;
}

/* Which of the block's tokens from first on that later one overtakes, by bits. */
DEVICE unsigned cache_overtaken_by(const cache_arguments *a, const cache_place *places, const cache_range *range, int64_t first, int64_t later) {
    const cache_token t = cache_token_at(a, later);
    unsigned seen = 0;
    if (t.row < 0 || !cache_may_meet(range, t.row, t.position)) return 0;
    const int64_t slot = cache_slot_of(a, t.position);
    for (int k = 0; k < a->together && first + k < later; k++)
        if (places[k].row == t.row && places[k].slot == slot) seen |= 1u << k;
    return seen;
}

/* May a token by its row and position? With a table, whose pages have a power of two of slots, by its slot first, then by its page, which is looked up for few of them. */
DEVICE int cache_may_overtake(const cache_arguments *a, const cache_range *range, int64_t row, int64_t position) {
    if (!a->has_table) return cache_may_meet(range, row, position);
    if (row < 0 || row >= a->table_rows || position < 0) return 0;
    const int64_t slot = position & (a->slots - 1), index = position >> a->slot_shift;
    if (slot < range->first || slot > range->last || index >= a->table_pages) return 0;
    return cache_is_row_of(range, cache_entry(a, row, index));
}

/* The same of this thread's share of the later tokens of the run. Where rows and positions are i64 side by side, several are brought at a time, and without a table positions of rows that may meet alone. */
DEVICE unsigned cache_overtaken(const cache_arguments *a, const cache_place *places, const cache_range *range, int64_t first) {
    const int in_pairs = a->row.format == CUDA_i64 && a->position.format == CUDA_i64 && a->row_step == 1 && a->position_step == 1 && ((a->row.data | a->position.data) & 15) == 0;
    const int64_t step = blockDim.x, pairs = in_pairs && (!a->has_table || a->slot_shift >= 0) ? a->tokens / 2 : 0;
    const cache_pair *rows = (const cache_pair *)a->row.data, *positions = (const cache_pair *)a->position.data;
    unsigned seen = 0;
    for (int64_t from = (first + 1) / 2 + threadIdx.x; from < pairs; from += CACHE_PAIRS * step) {
        cache_pair row[CACHE_PAIRS], position[CACHE_PAIRS];
        unsigned meets = 0;
        for (int i = 0; i < CACHE_PAIRS; i++) {
            row[i].low = row[i].high = NOWHERE;
            if (from + i * step < pairs) row[i] = rows[from + i * step];
        }
        for (int i = 0; i < CACHE_PAIRS; i++) {
            position[i].low = position[i].high = -1;
            if (a->has_table ? (row[i].low & row[i].high) >= 0 : cache_is_row_of(range, row[i].low) || cache_is_row_of(range, row[i].high)) position[i] = positions[from + i * step];
        }
        for (int i = 0; i < CACHE_PAIRS; i++) {
            if (cache_may_overtake(a, range, row[i].low, position[i].low)) meets |= 1u << 2 * i;
            if (cache_may_overtake(a, range, row[i].high, position[i].high)) meets |= 2u << 2 * i;
        }
        for (int64_t later = 2 * from; meets != 0; meets >>= 2, later += 2 * step) {
            if (meets & 1) seen |= cache_overtaken_by(a, places, range, first, later);
            if (meets & 2) seen |= cache_overtaken_by(a, places, range, first, later + 1);
        }
    }
    for (int64_t later = (2 * pairs > first ? 2 * pairs : first + 1) + threadIdx.x; later < a->tokens; later += step) seen |= cache_overtaken_by(a, places, range, first, later);
    return seen;
}

/* The place of a run's only token, which nothing overtakes: found by each thread, without a barrier. */
DEVICE cache_place cache_only_place(const cache_arguments *a) {
    const cache_token t = cache_token_at(a, 0);
    return cache_place_at(a, &t);
}

/* The place of a block's only token of several. The first thread looks at it, the others at later ones of the run at the same time. Two barriers. */
DEVICE cache_place cache_block_place(const cache_arguments *a, int64_t token) {
    __shared__ cache_place own;
    __shared__ unsigned overtaken;
    cache_place place = {-1, 0};
    int meets = 0;
    if (token + threadIdx.x < a->tokens) {
        const cache_token t = cache_token_at(a, token + threadIdx.x);
        place = cache_place_at(a, &t);
    }
    if (threadIdx.x == 0) {
        own = place;
        overtaken = 0;
    }
    __syncthreads();
    if (threadIdx.x > 0) meets = place.row >= 0 && place.row == own.row && place.slot == own.slot;
    for (int64_t later = token + threadIdx.x + blockDim.x; later < a->tokens; later += blockDim.x) {
        const cache_token t = cache_token_at(a, later);
        place = cache_place_at(a, &t);
        meets |= place.row >= 0 && place.row == own.row && place.slot == own.slot;
    }
    if (meets) atomicOr(&overtaken, 1u);
    __syncthreads();
    place = own;
    if (overtaken != 0) place.row = -1;
    return place;
}

/* Of a token that goes nowhere: says so where it lies outside of the cache. */
DEVICE void cache_raise_outside(const cache_arguments *a, int64_t token) {
    if (token < a->tokens && cache_token_at(a, token).row == OUTSIDE) cache_raise(a, token);
}

/* The places of a block's tokens, those that a later one overtakes among them. */
typedef struct cache_found { const cache_place *places; const unsigned *overtaken; } cache_found;

DEVICE cache_place cache_place_of(const cache_found *found, int index) {
    cache_place place = found->places[index];
    if (*found->overtaken >> index & 1) place.row = -1;
    return place;
}

/* The places of the tokens from first on, a->together of them, in shared memory; nowhere go those of no row or page, those that lie outside of the cache, and those whose slot a later one of the run
 * takes. Once in a block, which has a barrier behind it before it looks at one. */
DEVICE cache_found cache_places(const cache_arguments *a, int64_t first) {
    __shared__ cache_token tokens[CACHE_TOKENS];
    __shared__ cache_place places[CACHE_TOKENS];
    __shared__ int64_t ends[4];
    __shared__ unsigned overtaken;
    const cache_found found = {places, &overtaken};
    if (threadIdx.x == 0) overtaken = 0;
    if (threadIdx.x < (unsigned)a->together) {
        cache_token t = {NOWHERE, 0};
        if (first + threadIdx.x < a->tokens) t = cache_token_at(a, first + threadIdx.x);
        tokens[threadIdx.x] = t;
        places[threadIdx.x] = cache_place_at(a, &t);
    }
    if (first + 1 >= a->tokens) return found;
    __syncthreads();
    if (threadIdx.x < 4) ends[threadIdx.x] = cache_end(tokens, a->together, (int)threadIdx.x);
    __syncthreads();
    if (ends[0] >= 0) {           /* some lie in the cache */
        const cache_range range = cache_range_of(ends, a->slots);
        const unsigned seen = cache_overtaken(a, places, &range, first);
        if (seen != 0) atomicOr(&overtaken, seen);
    }
    return found;
}

/* A unit of a token's work: which part, head and unit, and where its row begins in to and from; to -1: it is written nowhere. Behind the heads of a part units may be none of any head. */
typedef struct cache_item { int part; int64_t head, unit, to, from; } cache_item;

DEVICE cache_item cache_item_at(const cache_arguments *a, int64_t token, const cache_place *place, int64_t rest) {
    cache_item item = {0, 0, 0, -1, 0};
    while (item.part + 1 < a->count && rest >= a->parts[item.part].span) {
        rest -= a->parts[item.part].span;
        item.part++;
    }
    const cache_part *p = &a->parts[item.part];
    item.head = rest <= UINT32_MAX ? (uint32_t)rest / (uint32_t)p->units : rest / p->units;
    item.unit = rest - item.head * p->units;
    item.from = item.head * p->from_head + token * p->from_token;
    if (!p->cached) item.to = item.head * p->to_head + token * p->to_token;
    else if (place->row >= 0) item.to = place->row * p->to_row + place->slot * p->to_token + item.head * p->to_head;
    return item;
}

#endif
