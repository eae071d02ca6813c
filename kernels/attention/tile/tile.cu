/* Attention of many queries in fp32 without tensor cores, for operands in any format and at any strides: a block of 256 threads makes 64 queries of one head.
 *
 *     q [width, 64], k [width, 64], v [64, value_width], weights [64 keys, 64 queries], all fp32 in smem
 *     for each block of 64 keys that some query of the tile sees:
 *         scores = q k^T        16 of them a thread, 4 queries x 4 keys
 *         online softmax        16 threads share a query; powers of 2
 *         sums += weights v     4 queries x value_width / 16 columns a thread
 *
 * Keys may lie in pages: then a block's rows are found first. Queries of several texts are taken in runs that read the same row of the caches; which slots a query sees is an interval modulo their number. Where a block of v holds a NaN
 * or an infinity, keys of no weight are left out one by one, as a hidden key may hold anything. Registers and speed: README.md. */
#include "kernels/attention/scores.cuh"
#include "kernels/attention/tile/tile.h"
#include "kernels/gpu/ptx/cluster.cuh"

enum { ROWS = 4, MOST_COLUMNS = 16 };   /* of a thread: queries, and keys; columns of the result */

/* smem, and what is worked on. */
typedef struct tile_place {
    float *q, *k, *v, *weights;
    attention_view *views;        /* [64] */
    attention_slot *slots;        /* [64], of the block's keys */
    int batch, head, group, first;
} tile_place;

/* A matrix [rows,width] of the rows of q, or of keys or values, in memory: row i lies at `at` + i row strides, or, where there are slots, at the row (or page) and slot of each. blocks: NULL, or what they
 * are made of. */
typedef struct tile_matrix { const cuda_array *array; const cuda_rows *blocks; const attention_slot *slots; const int64_t *strides; int64_t at; int first, rows, width; } tile_matrix;

INLINE float element(const tile_matrix *m, int row, int col) {
    int64_t at = m->at + (m->first + row) * m->strides[2];
    if (m->first + row >= m->rows || col >= m->width) return 0;
    if (m->slots != NULL) {
        const attention_slot slot = m->slots[row];
        if (slot.row < 0) return 0;
        at = m->at + slot.row * m->strides[0] + slot.slot * m->strides[2];
    }
    if (m->blocks != NULL) return rows_scaled(m->blocks, at / m->width, col) * rows_second(m->blocks, 0);
    return load_float(m->array, at + col * m->strides[3]);
}

/* 64 rows, turned into [width][64] or as they lie into [64][pitch]; what is not there is zero. The latter tells whether this thread's part is finite. */
INLINE void load_turned(const tile_matrix m, float *to) {
    for (int item = threadIdx.x; item < TILE_KEYS * m.width; item += TILE_THREADS) {
        int row = item / m.width, col = item % m.width;
        to[col * TILE_PITCH + row] = element(&m, row, col);
    }
}
INLINE bool load_straight(const tile_matrix m, int pitch, float *to) {
    bool finite = true;
    for (int item = threadIdx.x; item < TILE_KEYS * pitch; item += TILE_THREADS) {
        float x = element(&m, item / pitch, item % pitch);
        to[item] = x;
        finite = finite && fabsf(x) < INFINITE;
    }
    return finite;
}

/* The run of queries from first on that read the same row of the caches, and the slots [low, high) that they see among them. */
typedef struct tile_run { int end, cache, low, high; } tile_run;

INLINE tile_run run_of(const tile_place *place, int first, int slots) {
    tile_run run = {first, place->views[first].cache, slots, 0};
    for (; run.end < TILE_QUERIES && place->views[run.end].cache == run.cache; run.end++) {
        attention_view view = place->views[run.end];
        bool wraps = view.start + view.count > slots;
        if (view.count == 0) continue;
        run.low = min(run.low, wraps ? 0 : view.start);
        run.high = max(run.high, wraps ? slots : view.start + view.count);
    }
    return run;
}

/* Where the keys of a block lie, of those that some query of the run sees. A barrier ends it. */
INLINE void find_slots(const attention_arguments *p, const tile_run *run, int first, int slots, attention_slot *places) {
    const int slot = first + (int)threadIdx.x;
    if (threadIdx.x < TILE_KEYS) {
        attention_slot place = {-1, 0};
        if (slot >= run->low && slot < min(run->high, slots)) place = slot_of(p, run->cache, slot);
        places[threadIdx.x] = place;
    }
    __syncthreads();
}

/* Scores of 4 queries and 4 keys. */
INLINE void score_keys(const attention_arguments *p, const tile_place *place, const tile_run *run, int first_query, int first, bool general, float (*scores)[ROWS]) {
    int row = (int)threadIdx.x / 16 * ROWS, col = (int)threadIdx.x % 16 * ROWS, slots = (int)p->keys;
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < ROWS; j++) scores[i][j] = 0;
#pragma unroll 4
    for (int d = 0; d < (int)p->width; d++) {
        float4 q = *(const float4 *)(place->q + d * TILE_PITCH + row), k = *(const float4 *)(place->k + d * TILE_PITCH + col);
        const float qs[ROWS] = {q.x, q.y, q.z, q.w}, ks[ROWS] = {k.x, k.y, k.z, k.w};
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < ROWS; j++) scores[i][j] = fmaf(qs[i], ks[j], scores[i][j]);
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        attention_view view = place->views[row + i];
        attention_extra extra = extra_of(p, view.cache, place->head, place->first + row + i);
        int count = row + i >= first_query && row + i < run->end ? view.count : 0;
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            int slot = first + col + j, from = slot < view.start ? slot - view.start + slots : slot - view.start;
            if (from >= count || slot >= slots || (p->page != 0 && place->slots[col + j].row < 0)) scores[i][j] = -INFINITE;
            else scores[i][j] = general ? score_of(p, scores[i][j], extra, view.base + from) : scores[i][j] * p->scale;
        }
    }
}

/* Scores become weights, which go to smem turned; by how much earlier sums shrink. */
INLINE void soften(const tile_place *place, float (*scores)[ROWS], float *max, float *sum, float *down) {
    int row = (int)threadIdx.x / 16 * ROWS, col = (int)threadIdx.x % 16 * ROWS;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        float top = max[i], part = 0;
#pragma unroll
        for (int j = 0; j < ROWS; j++) top = fmaxf(top, scores[i][j]);
#pragma unroll
        for (int other = 8; other > 0; other /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, other));
        float shift = top == -INFINITE ? 0 : top;
        down[i] = shrink(max[i], top, LOG2_E);
        max[i] = top;
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            scores[i][j] = weight_of(scores[i][j], shift, LOG2_E);
            part += scores[i][j];
            place->weights[(col + j) * TILE_PITCH + row + i] = scores[i][j];
        }
        sum[i] = fmaf(sum[i], down[i], part);
    }
}

INLINE void add_values(const tile_place *place, const int columns, const bool guarded, float (*sums)[MOST_COLUMNS]) {
    const int pitch = columns * 16;
    int row = (int)threadIdx.x / 16 * ROWS, thread = (int)threadIdx.x % 16;
#pragma unroll 2
    for (int key = 0; key < TILE_KEYS; key++) {
        float4 w = *(const float4 *)(place->weights + key * TILE_PITCH + row);
        const float ws[ROWS] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int c = 0; c < columns / 4; c++) {
            float4 v = *(const float4 *)(place->v + key * pitch + c * 64 + thread * 4);
            const float vs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int i = 0; i < ROWS; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) sums[i][4 * c + j] = fmaf(ws[i], guarded && ws[i] == 0 ? 0 : vs[j], sums[i][4 * c + j]);
        }
    }
}

INLINE void store_results(const attention_arguments *p, const tile_place *place, const int columns, const float *max, const float *sum, float (*sums)[MOST_COLUMNS]) {
    int row = (int)threadIdx.x / 16 * ROWS, thread = (int)threadIdx.x % 16;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        float total = sum[i];
#pragma unroll
        for (int other = 8; other > 0; other /= 2) total += __shfl_xor_sync(0xffffffff, total, other);
        if (max[i] != max[i]) total = NOT_A_NUMBER;
        int query = place->first + row + i;
        if (query >= p->queries) continue;
        int64_t at = place->batch * p->out_strides[0] + place->head * p->out_strides[1] + query * p->out_strides[2];
#pragma unroll
        for (int c = 0; c < columns; c++) {
            int col = c / 4 * 64 + thread * 4 + c % 4;
            if (col < p->value_width) store_float(&p->out, at + col * p->out_strides[3], total == 0 ? 0 : sums[i][c] / total);
        }
    }
}

/* columns: of the result, for each of 16 threads: 4, 8 or 16. */
INLINE void attention_tile(const attention_tile_arguments *g, const int columns) {
    extern __shared__ __align__(16) float shared[];
    __shared__ attention_view views[TILE_QUERIES];
    __shared__ attention_slot places[TILE_KEYS];
    const attention_arguments *p = &g->call;
    int tile = (int)(blockIdx.x % (uint32_t)g->tiles), item = (int)(blockIdx.x / (uint32_t)g->tiles), width = (int)p->width, slots = (int)p->keys;
    tile_place place = {shared, shared + width * TILE_PITCH, shared + 2 * width * TILE_PITCH, NULL, views, places, item / (int)p->heads, item % (int)p->heads, 0, 0};
    place.weights = place.v + TILE_KEYS * columns * 16;
    place.group = place.head / (int)p->shared_heads;
    place.first = (g->tiles - 1 - tile) * TILE_QUERIES;   /* with a causal mask the longest first */
    bool general = p->has_mask || p->has_bias || p->softcap > 0;
    float max[ROWS], sum[ROWS], down[ROWS], scores[ROWS][ROWS], sums[ROWS][MOST_COLUMNS];
    float sink = p->has_sink ? load_float(&p->sink, place.head * p->sink_stride) : -INFINITE;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        max[i] = sink;
        sum[i] = threadIdx.x % 16 == 0 ? lone_sink_weight(sink) : 0;
#pragma unroll
        for (int c = 0; c < columns; c++) sums[i][c] = 0;
    }
    grid_wait();
    if (threadIdx.x < TILE_QUERIES) views[threadIdx.x] = view_of(p, place.batch, place.first + (int)threadIdx.x);
    int queries = (int)min((int64_t)TILE_QUERIES, p->queries - place.first);
    load_turned((tile_matrix){&p->q, NULL, NULL, p->q_strides, place.batch * p->q_strides[0] + place.head * p->q_strides[1] + place.first * p->q_strides[2], 0, queries, width}, place.q);
    __syncthreads();
    for (int first_query = 0; first_query < TILE_QUERIES;) {
        tile_run run = run_of(&place, first_query, slots);
        const attention_slot *paged = p->page != 0 ? places : NULL;
        const int64_t row = paged != NULL ? 0 : run.cache, k = row * p->k_strides[0] + place.group * p->k_strides[1], v = row * p->v_strides[0] + place.group * p->v_strides[1];
        for (int first = run.low / TILE_KEYS * TILE_KEYS; first < run.high; first += TILE_KEYS) {
            if (paged != NULL) find_slots(p, &run, first, slots, places);
            load_turned((tile_matrix){&p->k, g->blocks.in_blocks ? &g->blocks.k : NULL, paged, p->k_strides, k, first, slots, width}, place.k);
            bool finite = load_straight((tile_matrix){&p->v, g->blocks.in_blocks ? &g->blocks.v : NULL, paged, p->v_strides, v, first, slots, (int)p->value_width}, columns * 16, place.v);
            finite = __syncthreads_and(finite);
            score_keys(p, &place, &run, first_query, first, general, scores);
            soften(&place, scores, max, sum, down);
#pragma unroll
            for (int i = 0; i < ROWS; i++)
#pragma unroll
                for (int c = 0; c < columns; c++) sums[i][c] = shrunk(sums[i][c], down[i]);
            __syncthreads();
            if (finite) add_values(&place, columns, false, sums);
            else add_values(&place, columns, true, sums);
            __syncthreads();
        }
        first_query = run.end;
    }
    store_results(p, &place, columns, max, sum, sums);
}

#define TILE(name, columns)                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(TILE_THREADS) name(const __grid_constant__ attention_tile_arguments arguments) { attention_tile(&arguments, columns); }
TILE(attention_tile_64, 4)
TILE(attention_tile_128, 8)
TILE(attention_tile_256, 16)
