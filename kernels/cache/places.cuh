/* Where the tokens of a block go in a cache: found by all of its threads, for the plain kernel and for that in vectors. */
#ifndef KERNELS_CACHE_PLACES_CUH
#define KERNELS_CACHE_PLACES_CUH

#include "kernels/cache/cache_cuda.h"
#include "kernels/gpu/plain/device.cuh"

/* A row that tokens of no text have, an entry of a table whose page is not there; and what lies outside of the cache. */
enum { NOWHERE = -1, OUTSIDE = -2 };

/* Later tokens of the run that a thread brings at a time. */
enum { CACHE_BROUGHT = 4 };

/* row: of the cache, or the page; NOWHERE; OUTSIDE. position: of the text, or the slot in the page. */
typedef struct cache_token { int64_t row, position; } cache_token;

/* row -1: the token is written nowhere. */
typedef struct cache_place { int64_t row, slot; } cache_place;

DEVICE int64_t cache_entry(const cache_arguments *a, int64_t row, int64_t index) { return load_int(&a->table, row * a->table_strides[0] + index * a->table_strides[1]); }

DEVICE cache_token cache_token_at(const cache_arguments *a, int64_t token) {
    cache_token t = {load_int(&a->row, token * a->row_step), load_int(&a->position, token * a->position_step)};
    if (t.row == NOWHERE) return t;
    if (t.row < 0 || t.row >= (a->has_table ? a->table_rows : a->rows) || t.position < 0) t.row = OUTSIDE;
    if (!a->has_table || t.row == OUTSIDE) return t;
    const int64_t index = t.position / a->slots;
    t.position -= index * a->slots;
    t.row = index < a->table_pages ? cache_entry(a, t.row, index) : OUTSIDE;
    if (t.row < NOWHERE || t.row >= a->rows) t.row = OUTSIDE;
    return t;
}

/* Of a token that lies outside: the first of its row, position and page that does. */
DEVICE void cache_raise(const cache_arguments *a, int64_t token) {
    const int64_t row = load_int(&a->row, token * a->row_step), position = load_int(&a->position, token * a->position_step), rows = a->has_table ? a->table_rows : a->rows;
    const int64_t room = a->has_table ? a->table_pages * a->slots : a->slots;
    if (row < 0 || row >= rows) fault_raise(&a->fault, CUDA_FAULT_INDEX, row, rows);
    else if (position < 0 || (a->has_table && position >= room)) fault_raise(&a->fault, CUDA_FAULT_INDEX, position, room);
    else fault_raise(&a->fault, CUDA_FAULT_INDEX, cache_entry(a, row, position / a->slots), a->rows);
}

/* Do both take one slot of one row? Positions that differ by less than the slots do not, which is nearly always what decides. */
DEVICE int cache_same_slot(const cache_token *a, const cache_token *b, int64_t slots) {
    int64_t apart = a->position - b->position;
    if (a->row != b->row) return 0;
    if (apart == 0) return 1;
    return apart > -slots && apart < slots ? 0 : apart % slots == 0;
}

/* From the least to the largest row and position of a block's tokens; those that lie outside of the cache do not count. */
typedef struct cache_range { int64_t first_row, last_row, first, last; } cache_range;

DEVICE cache_range cache_range_of(const cache_token *tokens, int count) {
    cache_range range = {INT64_MAX, -1, INT64_MAX, -1};
    for (int k = 0; k < count; k++) {
        if (tokens[k].row < 0) continue;
        if (tokens[k].row < range.first_row) range.first_row = tokens[k].row;
        if (tokens[k].row > range.last_row) range.last_row = tokens[k].row;
        if (tokens[k].position < range.first) range.first = tokens[k].position;
        if (tokens[k].position > range.last) range.last = tokens[k].position;
    }
    return range;
}

/* May a token take the slot of one in the range? No, where it stands in no row of theirs, or away from all of their positions by less than the slots. */
DEVICE int cache_may_meet(const cache_range *range, const cache_token *token, int64_t slots) {
    if (token->row < range->first_row || token->row > range->last_row) return 0;
    if (token->position > range->last) return token->position - range->first >= slots;
    if (token->position < range->first) return range->last - token->position >= slots;
    return 1;
}

/* Which of the block's tokens from first on a later one of the run overtakes, by bits, as far as this thread's share of the later ones says. Several of these are brought at a time. */
DEVICE unsigned cache_overtaken(const cache_arguments *a, const cache_token *tokens, int64_t first) {
    const cache_range range = cache_range_of(tokens, a->together);
    unsigned seen = 0;
    for (int64_t from = first + 1 + threadIdx.x; from < a->tokens; from += CACHE_BROUGHT * CUDA_THREADS) {
        cache_token others[CACHE_BROUGHT];
        for (int i = 0; i < CACHE_BROUGHT; i++) {
            const int64_t later = from + i * CUDA_THREADS;
            others[i].row = NOWHERE;
            if (later < a->tokens) others[i] = cache_token_at(a, later);
        }
        for (int i = 0; i < CACHE_BROUGHT; i++) {
            if (others[i].row < 0 || !cache_may_meet(&range, &others[i], a->slots)) continue;
            for (int k = 0; k < a->together && first + k < from + i * CUDA_THREADS; k++)
                if (cache_same_slot(&tokens[k], &others[i], a->slots)) seen |= 1u << k;
        }
    }
    return seen;
}

/* The place of a run's only token, which nothing overtakes: found by each thread, without a barrier. */
DEVICE cache_place cache_only_place(const cache_arguments *a, int raises) {
    const cache_token t = cache_token_at(a, 0);
    if (t.row == OUTSIDE && raises && threadIdx.x == 0) cache_raise(a, 0);
    return (cache_place){t.row, t.position < 0 ? 0 : t.position % a->slots};
}

/* The places of the tokens from first on, a->together of them, into shared memory; nowhere go those of no row or page, those that lie outside of the cache, and those whose slot a later one of the run
 * takes. raises: this block says which lie outside. Once in a block; a barrier ends it. */
DEVICE const cache_place *cache_places(const cache_arguments *a, int64_t first, int raises) {
    __shared__ cache_token tokens[CACHE_TOKENS];
    __shared__ cache_place places[CACHE_TOKENS];
    __shared__ unsigned overtaken;
    const int64_t mine = first + threadIdx.x;
    if (threadIdx.x == 0) overtaken = 0;
    if (threadIdx.x < (unsigned)a->together) {
        cache_token t = {NOWHERE, 0};
        if (mine < a->tokens) t = cache_token_at(a, mine);
        if (mine < a->tokens && t.row == OUTSIDE && raises) cache_raise(a, mine);
        tokens[threadIdx.x] = t;
    }
    __syncthreads();
    const unsigned seen = cache_overtaken(a, tokens, first);
    if (seen != 0) atomicOr(&overtaken, seen);
    __syncthreads();
    if (threadIdx.x < (unsigned)a->together) {
        const cache_token t = tokens[threadIdx.x];
        const int stays = t.row >= 0 && (overtaken >> threadIdx.x & 1) == 0;
        places[threadIdx.x].row = stays ? t.row : -1;
        places[threadIdx.x].slot = stays ? t.position % a->slots : 0;
    }
    __syncthreads();
    return places;
}

/* A unit of a token's work: which part, head and unit, and where its row begins in to and from; to -1: it is written nowhere. */
typedef struct cache_item { int part; int64_t unit, to, from; } cache_item;

DEVICE cache_item cache_item_at(const cache_arguments *a, int64_t token, const cache_place *place, int64_t rest) {
    cache_item item = {0, 0, -1, 0};
    while (item.part + 1 < a->count && rest >= a->parts[item.part].heads * a->parts[item.part].units) {
        rest -= a->parts[item.part].heads * a->parts[item.part].units;
        item.part++;
    }
    const cache_part *p = &a->parts[item.part];
    const int64_t head = rest <= UINT32_MAX ? (uint32_t)rest / (uint32_t)p->units : rest / p->units;
    item.unit = rest - head * p->units;
    item.from = head * p->from_head + token * p->from_token;
    if (!p->cached) item.to = head * p->to_head + token * p->to_token;
    else if (place->row >= 0) item.to = place->row * p->to_row + place->slot * p->to_token + head * p->to_head;
    return item;
}

#endif
