/* Rows of logits of a model that is cut by vocabulary, where each rank has a part of every row. The step agrees on the likeliest token by itself. A draw needs more: of each rank as many of its likeliest as
 * top_k lets in, with their ids, or all. The others' places are -inf then, which no draw takes, so that every rank draws what one rank alone would. */
#include <math.h>
#include <string.h>

#include "engine/engine.h"

static size_t element_bytes(const generation *g) { return (size_t)dw_format_bits(g->logits_format) / 8; }

/* ---- a rank's likeliest ---- */

typedef struct candidate { uint32_t order; int32_t id; } candidate;

/* In front of another: larger; of equal ones the least id. What is no number is in front of all, so that nobody draws from such a row. */
static bool is_ahead(candidate a, candidate b) { return a.order > b.order || (a.order == b.order && a.id < b.id); }

/* heap[0] is the last of all, and each the last of those below it. */
static void sink(candidate *heap, int count, int at) {
    for (int child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && is_ahead(heap[child], heap[child + 1])) child++;
        if (!is_ahead(heap[at], heap[child])) return;
        const candidate other = heap[at];
        heap[at] = heap[child];
        heap[child] = other;
    }
}

static void insert(candidate *heap, int *count, int most, candidate one) {
    if (*count < most) {
        heap[(*count)++] = one;
        for (int at = *count / 2; *count == most && at-- > 0;) sink(heap, most, at);
        return;
    }
    if (!is_ahead(one, heap[0])) return;
    heap[0] = one;
    sink(heap, most, 0);
}

/* Of one row of count columns; returns how many there are. */
static int find_likeliest(const generation *g, const void *row, int64_t count, int most, candidate *heap) {
    int found = 0;
    for (int64_t i = 0; i < count; i++) {
        const float x = (float)num_load(g->logits_format, row, i);
        if (x == -INFINITY) continue;
        insert(heap, &found, most, (candidate){isnan(x) ? UINT32_MAX : sampling_order(x), (int32_t)i});
    }
    return found;
}

/* ---- what ranks tell each other ---- */

/* Columns of the vocabulary that are a rank's. */
static int64_t columns_of(const generation *g, int rank) {
    const int64_t left = g->vocabulary - rank * g->parts.columns;
    return left < 0 ? 0 : left < g->parts.columns ? left : g->parts.columns;
}

static dw_status bring_all(dw_session *session, const uint8_t *mine, int64_t count) {
    const generation *g = session->generation;
    const generation_parts *parts = &g->parts;
    const size_t size = element_bytes(g), row = (size_t)parts->columns * size, bytes = (size_t)count * row;
    TRY(engine_gather_in(session->context, session->model, mine, bytes, parts->received, parts->workspace));
    for (int rank = 0; rank < parts->ranks; rank++) {
        const size_t from = (size_t)rank * row, some = (size_t)columns_of(g, rank) * size;
        for (int64_t i = 0; i < count && some > 0; i++)
            memcpy((uint8_t *)parts->rows + (size_t)i * (size_t)g->vocabulary * size + from, (const uint8_t *)parts->received + (size_t)rank * bytes + (size_t)i * row, some);
    }
    return DW_OK;
}

/* Rows of nothing but -inf. */
static void clear_rows(const generation *g, int64_t count) {
    uint8_t *rows = g->parts.rows;
    const size_t row = (size_t)g->vocabulary * element_bytes(g);
    for (int64_t i = 0; i < g->vocabulary; i++) num_store(g->logits_format, rows, i, -INFINITY, false);
    for (int64_t i = 1; i < count; i++) memcpy(rows + (size_t)i * row, rows, row);
}

/* Ids of all rows and columns, behind them their logits. An id of -1: there is no such. */
static void fill_sent(const generation *g, const uint8_t *mine, int64_t count, int most, int rank) {
    candidate heap[GENERATION_CANDIDATES];
    int32_t *ids = g->parts.sent;
    const size_t size = element_bytes(g);
    uint8_t *values = (uint8_t *)(ids + count * most);
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *row = mine + (size_t)(i * g->parts.columns) * size;
        const int found = find_likeliest(g, row, columns_of(g, rank), most, heap);
        for (int c = 0; c < most; c++) {
            const int64_t at = i * most + c;
            ids[at] = c < found ? (int32_t)(rank * g->parts.columns) + heap[c].id : -1;
            if (c < found) memcpy(values + (size_t)at * size, row + (size_t)heap[c].id * size, size);
            else memset(values + (size_t)at * size, 0, size);
        }
    }
}

static dw_status bring_likeliest(dw_session *session, const uint8_t *mine, int64_t count, int most) {
    const generation *g = session->generation;
    const size_t size = element_bytes(g), bytes = (size_t)(count * most) * (sizeof(int32_t) + size);
    fill_sent(g, mine, count, most, engine_cut_place(session->model));
    TRY(engine_gather_in(session->context, session->model, g->parts.sent, bytes, g->parts.received, g->parts.workspace));
    clear_rows(g, count);
    for (int rank = 0; rank < g->parts.ranks; rank++) {
        const uint8_t *ids = (const uint8_t *)g->parts.received + (size_t)rank * bytes, *values = ids + (size_t)(count * most) * sizeof(int32_t);
        for (int64_t at = 0; at < count * most; at++) {
            int32_t id;
            memcpy(&id, ids + (size_t)at * sizeof id, sizeof id);
            if (id >= 0) memcpy((uint8_t *)g->parts.rows + (size_t)(at / most * g->vocabulary + id) * size, values + (size_t)at * size, size);
        }
    }
    return DW_OK;
}

/* Is it less than the part that they are of? */
static bool pays(const generation *g, int64_t most) {
    return most > 0 && most <= GENERATION_CANDIDATES && (size_t)most * (sizeof(int32_t) + element_bytes(g)) < (size_t)g->parts.columns * element_bytes(g);
}

dw_status generation_parts_bytes(const dw_session *session, const generation *g, size_t *sent, size_t *received, size_t *rows, size_t *workspace) {
    const size_t size = element_bytes(g), part = (size_t)(g->texts * g->parts.columns) * size;
    *sent = (size_t)(g->texts * GENERATION_CANDIDATES) * (sizeof(int32_t) + size);
    const size_t most = part > *sent ? part : *sent;
    *received = most * (size_t)g->parts.ranks;
    *rows = (size_t)(g->texts * g->vocabulary) * size;
    return engine_gather_room(session->context, session->model, most, workspace);
}

dw_status generation_logits(dw_session *session, int64_t first, int64_t count, int64_t most, const void **rows) {
    const generation *g = session->generation;
    const int64_t columns = g->parts.ranks > 0 ? g->parts.columns : g->vocabulary;
    const uint8_t *mine = (const uint8_t *)g->results[g->output] + (size_t)first * num_row_bytes(g->logits_format, columns);
    *rows = g->parts.ranks > 0 ? g->parts.rows : mine;
    if (g->parts.ranks == 0) return DW_OK;
    return pays(g, most) ? bring_likeliest(session, mine, count, (int)most) : bring_all(session, mine, count);
}
