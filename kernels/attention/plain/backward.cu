/* The plain gradients of attention, in fp32: no atomics, every sum in one order. Weights are made again from lse, a pair of tiles of 64 queries and 64 keys at a time, by 256 threads of 4 x 4 each:
 *
 *     scores [queries,keys] = q k^T        dweights [queries,keys] = dout v^T           16 columns at a time through smem
 *     weights = e^(scores - lse), pulls = weights (dweights - dout . out) slope          reg -> smem [64][65] each
 *
 *   attention_backward_rows      a thread for each query: its attention_backward_row
 *   attention_backward_queries   a block for 64 queries and 128 columns of dq: dq += pulls k, over tiles of keys
 *   attention_backward_keys      a block for 64 keys and 128 columns of dk and dv: dk += pulls^T q, dv += weights^T dout, over the heads that share the keys and tiles of queries
 *   attention_backward_bias      a block for 64 x 64 of dbias: the gradients of all scores that it is added to, those of a tile that repeats summed at the end
 *
 * Tiles in which no query sees a key are not visited. What is not seen may be NaN: its weight is -0, which no other is, and where an operand is not finite pairs of such weights are left out.
 * Resources: 46 KiB of shared memory. Speed on an H100 (2026-11-27): 1.7 to 6.6 TFLOP/s of its
 * products (bench/results/h200/attention.md). */
#include "kernels/attention/plain/backward.h"
#include "kernels/gpu/plain/device.cuh"

enum { TILE = ATTENTION_BACKWARD_TILE, COLUMNS = ATTENTION_BACKWARD_COLUMNS, DEPTH = 16, PITCH = TILE + 1, SUMS = 4, STEP = TILE / SUMS, PARTS = COLUMNS / TILE };

/* ---- who sees what ---- */

typedef struct attention_span { int64_t begin, end; } attention_span;

/* The keys that a query sees, but for those that the mask hides; both ends ascend with the query. */
DEVICE attention_span keys_of(const attention_backward_arguments *p, int64_t query) {
    const int64_t position = query + p->offset;
    attention_span seen = {0, p->keys};
    if (p->causal && seen.end - 1 > position) seen.end = position + 1;
    if (p->ahead > 0 && seen.end - p->ahead > position) seen.end = position + p->ahead;
    if (p->window > 0 && position >= p->window) seen.begin = position - p->window + 1;
    if (seen.end < seen.begin) seen.end = seen.begin;
    return seen;
}

/* The queries that see any of the keys [first, first + TILE), from a multiple of TILE on. */
DEVICE attention_span queries_of(const attention_backward_arguments *p, int64_t first) {
    const int64_t end = first + TILE < p->keys ? first + TILE : p->keys;
    attention_span sees = {0, p->queries};
    if (p->causal && first - p->offset > sees.begin) sees.begin = first - p->offset;
    if (p->ahead > 0 && first - p->ahead - p->offset + 1 > sees.begin) sees.begin = first - p->ahead - p->offset + 1;
    if (p->window > 0 && end + p->window - 1 - p->offset < sees.end) sees.end = end + p->window - 1 - p->offset;
    sees.begin = sees.begin / TILE * TILE;
    return sees;
}

/* Where a head's elements begin. */
typedef struct attention_place { int64_t batch, head, group, row, mask, bias; } attention_place;

DEVICE attention_place place_of(const attention_backward_arguments *p, int64_t batch, int64_t head) {
    attention_place place = {batch, head, head / p->shared_heads, (batch * p->heads + head) * p->queries, 0, 0};
    place.mask = batch * p->mask_strides[0] + head * p->mask_strides[1];
    place.bias = batch * p->bias_strides[0] + head * p->bias_strides[1];
    return place;
}

/* A product of q and k as a score, and by how much it grows with the product. A key that is not seen: -inf. */
DEVICE float score_of(const attention_backward_arguments *p, const attention_place *place, int64_t query, int64_t key, float product, float *slope) {
    float score = product * p->scale;
    *slope = p->scale;
    if (p->has_mask && !load_int(&p->mask, place->mask + query * p->mask_strides[2] + key * p->mask_strides[3])) return -INFINITE;
    if (p->softcap > 0) {
        const float x = score / p->softcap, u = expf(-2 * fabsf(x));
        score = p->softcap * tanhf(x);
        *slope = p->scale * (4 * u / ((1 + u) * (1 + u)));   /* 1 - tanh(x)^2, which would cancel */
    }
    if (!p->has_bias) return score;
    const float bias = load_float(&p->bias, place->bias + query * p->bias_strides[2] + key * p->bias_strides[3]);
    return bias <= OP_ATTENTION_HIDES ? bias : score + bias;
}

/* ---- rows ---- */

/* Rows of a matrix in gmem: element [row,col] at begin + row * row_step + col * col_step. */
typedef struct attention_rows { const cuda_array *array; int64_t begin, row_step, col_step, rows; } attention_rows;

DEVICE attention_rows rows_of(const cuda_array *array, const int64_t strides[4], int64_t batch, int64_t head, int64_t rows) {
    attention_rows x = {array, batch * strides[0] + head * strides[1], strides[2], strides[3], rows};
    return x;
}

DEVICE float element_of(const attention_rows *x, int64_t row, int64_t col) { return load_float(x->array, x->begin + row * x->row_step + col * x->col_step); }

/* ---- statistics ---- */

/* What e^(score - lse) are together, where lse has lost how many they are. */
DEVICE float part_of_hidden(const attention_backward_arguments *p, const attention_place *place, int64_t query, float lse) {
    const attention_rows q = rows_of(&p->q, p->q_strides, place->batch, place->head, p->queries), k = rows_of(&p->k, p->k_strides, place->batch, place->group, p->keys);
    const attention_span seen = keys_of(p, query);
    float sum = 0, slope;
    for (int64_t key = seen.begin; key < seen.end; key++) {
        float product = 0;
        for (int64_t i = 0; i < p->width; i++) product = fmaf(element_of(&q, query, i), element_of(&k, key, i), product);
        sum += expf(score_of(p, place, query, key, product, &slope) - lse);
    }
    return 1 / sum;
}

KERNEL(attention_backward_rows, attention_backward_arguments) {
    const attention_backward_arguments *p = &arguments;
    for (int64_t item = item_first(); item < p->batches * p->heads * p->queries; item += item_step()) {
        const int64_t query = item % p->queries, head = item / p->queries % p->heads, batch = item / p->queries / p->heads;
        const attention_place place = place_of(p, batch, head);
        const attention_rows out = rows_of(&p->out, p->out_strides, batch, head, p->queries), dout = rows_of(&p->dout, p->dout_strides, batch, head, p->queries);
        attention_backward_row row = {load_float(&p->lse, batch * p->lse_strides[0] + head * p->lse_strides[1] + query * p->lse_strides[2]), 0, 1};
        double share = 0;
        for (int64_t i = 0; i < p->value_width; i++) share += (double)element_of(&out, query, i) * (double)element_of(&dout, query, i);
        row.share = (float)share;
        if (row.lse > -INFINITE && row.lse <= OP_ATTENTION_HIDES) row.part = part_of_hidden(p, &place, query, row.lse);
        ((attention_backward_row *)p->rows)[item] = row;
    }
}

/* ---- a pair of tiles ---- */

/* DEPTH columns from begin on of a tile of rows, into smem [DEPTH][PITCH]; zeros outside. */
DEVICE void load_columns(const attention_rows *x, int64_t first, int64_t begin, int64_t width, float tile[DEPTH][PITCH]) {
    for (int i = (int)threadIdx.x; i < TILE * DEPTH; i += CUDA_THREADS) {
        const int r = i / DEPTH, c = i % DEPTH;
        tile[c][r] = first + r < x->rows && begin + c < width ? element_of(x, first + r, begin + c) : 0;
    }
}

/* x [64,width] y [64,width]^T */
DEVICE void multiply_rows(const attention_rows *x, int64_t x_first, const attention_rows *y, int64_t y_first, int64_t width, float sums[SUMS][SUMS]) {
    __shared__ float tile_x[DEPTH][PITCH], tile_y[DEPTH][PITCH];
    const int row = (int)threadIdx.x / STEP, col = (int)threadIdx.x % STEP;
    for (int i = 0; i < SUMS; i++)
        for (int j = 0; j < SUMS; j++) sums[i][j] = 0;
    for (int64_t begin = 0; begin < width; begin += DEPTH) {
        __syncthreads();
        load_columns(x, x_first, begin, width, tile_x);
        load_columns(y, y_first, begin, width, tile_y);
        __syncthreads();
        for (int c = 0; c < DEPTH; c++)
            for (int i = 0; i < SUMS; i++)
                for (int j = 0; j < SUMS; j++) sums[i][j] = fmaf(tile_x[c][row + STEP * i], tile_y[c][col + STEP * j], sums[i][j]);
    }
}

/* What a pair is for: the gradients of q . k, or those of the scores. */
enum { OF_PRODUCTS, OF_SCORES };

/* Weights and pulls of queries [query, query + TILE) and keys [key, key + TILE), in smem [TILE][PITCH], queries first; weights may be NULL. Those that are not seen are -0, and no others. */
DEVICE void make_pair(const attention_backward_arguments *p, const attention_place *place, int64_t query, int64_t key, int of, float *weights, float *pulls) {
    const attention_rows q = rows_of(&p->q, p->q_strides, place->batch, place->head, p->queries), k = rows_of(&p->k, p->k_strides, place->batch, place->group, p->keys);
    const attention_rows dout = rows_of(&p->dout, p->dout_strides, place->batch, place->head, p->queries), v = rows_of(&p->v, p->v_strides, place->batch, place->group, p->keys);
    float products[SUMS][SUMS], dweights[SUMS][SUMS];
    multiply_rows(&q, query, &k, key, p->width, products);
    multiply_rows(&dout, query, &v, key, p->value_width, dweights);
    __syncthreads();
    for (int i = 0; i < SUMS; i++) {
        const int r = (int)threadIdx.x / STEP + STEP * i;
        const int is_there = query + r < p->queries;
        attention_backward_row row = {0, 0, 0};
        attention_span seen = {0, 0};
        if (is_there) row = ((const attention_backward_row *)p->rows)[place->row + query + r];
        if (is_there) seen = keys_of(p, query + r);
        for (int j = 0; j < SUMS; j++) {
            const int c = (int)threadIdx.x % STEP + STEP * j;
            float weight = -0.0f, pull = -0.0f, slope, score = -INFINITE;
            if (key + c >= seen.begin && key + c < seen.end) score = score_of(p, place, query + r, key + c, products[i][j], &slope);
            if (!(score == -INFINITE)) {
                weight = expf(score - row.lse) * row.part;
                pull = weight * (dweights[i][j] - row.share);
                pull = (of == OF_PRODUCTS ? pull * slope : pull) + 0.0f;
            }
            if (weights != NULL) weights[r * PITCH + c] = weight;
            pulls[r * PITCH + c] = pull;
        }
    }
}

/* ---- sums over a tile ---- */

DEVICE int is_unseen(float factor) { return small_bits(factor) == INT32_MIN; }

/* sums [64,64] += the sum over l of 64 of the factor of row r and l, at r * row_step + l * l_step of smem, and x [first + l, begin..]. *odd, in smem: an element that was not finite has been met. */
DEVICE void add_product(const float *factors, int row_step, int l_step, const attention_rows *x, int64_t first, int64_t begin, int64_t width, unsigned *odd, float sums[SUMS][SUMS]) {
    __shared__ float tile[DEPTH][PITCH];
    const int row = (int)threadIdx.x / STEP, col = (int)threadIdx.x % STEP;
    for (int from = 0; from < TILE; from += DEPTH) {
        __syncthreads();
        for (int i = (int)threadIdx.x; i < DEPTH * TILE; i += CUDA_THREADS) {
            const int l = i / TILE, c = i % TILE;
            const float value = first + from + l < x->rows && begin + c < width ? element_of(x, first + from + l, begin + c) : 0;
            if (!(fabsf(value) < INFINITE)) atomicOr(odd, 1u);
            tile[l][c] = value;
        }
        __syncthreads();
        const int leaves_out = *odd != 0;
        for (int l = 0; l < DEPTH; l++)
            for (int i = 0; i < SUMS; i++) {
                const float factor = factors[(row + STEP * i) * row_step + (from + l) * l_step];
                if (leaves_out && is_unseen(factor)) continue;
                for (int j = 0; j < SUMS; j++) sums[i][j] = fmaf(factor, tile[l][col + STEP * j], sums[i][j]);
            }
    }
}

DEVICE void clear_sums(float sums[PARTS][SUMS][SUMS]) {
    for (int part = 0; part < PARTS; part++)
        for (int i = 0; i < SUMS; i++)
            for (int j = 0; j < SUMS; j++) sums[part][i][j] = 0;
}

DEVICE void store_sums(const attention_rows *x, int64_t first, int64_t begin, int64_t width, float sums[SUMS][SUMS]) {
    for (int i = 0; i < SUMS; i++)
        for (int j = 0; j < SUMS; j++) {
            const int64_t row = first + (int)threadIdx.x / STEP + STEP * i, col = begin + (int)threadIdx.x % STEP + STEP * j;
            if (row < x->rows && col < width) store_float(x->array, x->begin + row * x->row_step + col * x->col_step, sums[i][j]);
        }
}

/* A flag in smem that all threads have seen go down. */
DEVICE void put_down(unsigned *flag) {
    __syncthreads();
    if (threadIdx.x == 0) *flag = 0;
    __syncthreads();
}

KERNEL(attention_backward_queries, attention_backward_arguments) {
    __shared__ float pulls[TILE * PITCH];
    __shared__ unsigned odd;
    const attention_backward_arguments *p = &arguments;
    const int64_t tiles = (p->queries + TILE - 1) / TILE, across = (p->width + COLUMNS - 1) / COLUMNS;
    for (int64_t item = blockIdx.x; item < p->batches * p->heads * tiles * across; item += gridDim.x) {
        const int64_t begin = item % across * COLUMNS, query = item / across % tiles * TILE, head = item / across / tiles % p->heads, batch = item / across / tiles / p->heads;
        const int64_t last = (query + TILE < p->queries ? query + TILE : p->queries) - 1;
        const attention_place place = place_of(p, batch, head);
        const attention_rows k = rows_of(&p->k, p->k_strides, batch, place.group, p->keys), dq = rows_of(&p->dq, p->dq_strides, batch, head, p->queries);
        const attention_span seen = {keys_of(p, query).begin / TILE * TILE, keys_of(p, last).end};
        float sums[PARTS][SUMS][SUMS];
        clear_sums(sums);
        put_down(&odd);
        for (int64_t key = seen.begin; key < seen.end; key += TILE) {
            make_pair(p, &place, query, key, OF_PRODUCTS, NULL, pulls);
            for (int part = 0; part < PARTS; part++)
                if (begin + part * TILE < p->width) add_product(pulls, PITCH, 1, &k, key, begin + part * TILE, p->width, &odd, sums[part]);
        }
        for (int part = 0; part < PARTS; part++) store_sums(&dq, query, begin + part * TILE, p->width, sums[part]);
    }
}

KERNEL(attention_backward_keys, attention_backward_arguments) {
    __shared__ float weights[TILE * PITCH], pulls[TILE * PITCH];
    __shared__ unsigned odd;
    const attention_backward_arguments *p = &arguments;
    const int64_t wide = p->width > p->value_width ? p->width : p->value_width, tiles = (p->keys + TILE - 1) / TILE, across = (wide + COLUMNS - 1) / COLUMNS;
    for (int64_t item = blockIdx.x; item < p->batches * p->groups * tiles * across; item += gridDim.x) {
        const int64_t begin = item % across * COLUMNS, key = item / across % tiles * TILE, group = item / across / tiles % p->groups, batch = item / across / tiles / p->groups;
        const attention_rows dk = rows_of(&p->dk, p->dk_strides, batch, group, p->keys), dv = rows_of(&p->dv, p->dv_strides, batch, group, p->keys);
        const attention_span sees = queries_of(p, key);
        float of_k[PARTS][SUMS][SUMS], of_v[PARTS][SUMS][SUMS];
        clear_sums(of_k);
        clear_sums(of_v);
        put_down(&odd);
        for (int64_t head = group * p->shared_heads; head < (group + 1) * p->shared_heads; head++) {
            const attention_place place = place_of(p, batch, head);
            const attention_rows q = rows_of(&p->q, p->q_strides, batch, head, p->queries), dout = rows_of(&p->dout, p->dout_strides, batch, head, p->queries);
            for (int64_t query = sees.begin; query < sees.end; query += TILE) {
                make_pair(p, &place, query, key, OF_PRODUCTS, weights, pulls);
                for (int part = 0; part < PARTS; part++) {
                    const int64_t at = begin + part * TILE;
                    if (at < p->width) add_product(pulls, 1, PITCH, &q, query, at, p->width, &odd, of_k[part]);
                    if (at < p->value_width) add_product(weights, 1, PITCH, &dout, query, at, p->value_width, &odd, of_v[part]);
                }
            }
        }
        for (int part = 0; part < PARTS; part++) {
            store_sums(&dk, key, begin + part * TILE, p->width, of_k[part]);
            store_sums(&dv, key, begin + part * TILE, p->value_width, of_v[part]);
        }
    }
}

/* ---- the bias ---- */

/* sums += what all pairs of a head give of it: of the tile (down, right), along an axis that repeats of all tiles. */
DEVICE void add_scores(const attention_backward_arguments *p, int64_t batch, int64_t head, int64_t down, int64_t right, float *pulls, float sums[SUMS][SUMS]) {
    const attention_place place = place_of(p, batch, head);
    const int64_t query_end = p->bias_dims[2] == 1 ? p->queries : (down + 1) * TILE, key_end = p->bias_dims[3] == 1 ? p->keys : (right + 1) * TILE;
    for (int64_t key = right * TILE; key < key_end; key += TILE) {
        const attention_span sees = queries_of(p, key);
        const int64_t from = sees.begin > down * TILE ? sees.begin : down * TILE, end = sees.end < query_end ? sees.end : query_end;
        for (int64_t query = from; query < end; query += TILE) {
            make_pair(p, &place, query, key, OF_SCORES, NULL, pulls);
            for (int i = 0; i < SUMS; i++)
                for (int j = 0; j < SUMS; j++) sums[i][j] += pulls[((int)threadIdx.x / STEP + STEP * i) * PITCH + (int)threadIdx.x % STEP + STEP * j];
        }
    }
}

/* The tile of sums, in smem, its rows or columns added up where the bias repeats along them. */
DEVICE void store_bias(const attention_backward_arguments *p, int64_t at, int64_t query, int64_t key, const float *tile) {
    const int down = p->bias_dims[2] == 1, right = p->bias_dims[3] == 1, rows = down ? 1 : TILE, cols = right ? 1 : TILE;
    for (int i = (int)threadIdx.x; i < rows * cols; i += CUDA_THREADS) {
        const int row = i / cols, col = i % cols;
        double sum = 0;
        if (query + row >= p->bias_dims[2] || key + col >= p->bias_dims[3]) continue;
        for (int r = row; r < (down ? TILE : row + 1); r++)
            for (int c = col; c < (right ? TILE : col + 1); c++) sum += (double)tile[r * PITCH + c];
        store_double(&p->dbias, at + (query + row) * p->dbias_strides[2] + (key + col) * p->dbias_strides[3], sum);
    }
}

KERNEL(attention_backward_bias, attention_backward_arguments) {
    __shared__ float pulls[TILE * PITCH];
    const attention_backward_arguments *p = &arguments;
    const int64_t down = (p->bias_dims[2] + TILE - 1) / TILE, right = (p->bias_dims[3] + TILE - 1) / TILE;
    for (int64_t item = blockIdx.x; item < p->bias_dims[0] * p->bias_dims[1] * down * right; item += gridDim.x) {
        const int64_t col = item % right, row = item / right % down, head = item / right / down % p->bias_dims[1], batch = item / right / down / p->bias_dims[1];
        const int64_t batch_end = p->bias_dims[0] == 1 ? p->batches : batch + 1, head_end = p->bias_dims[1] == 1 ? p->heads : head + 1;
        float sums[SUMS][SUMS];
        for (int i = 0; i < SUMS; i++)
            for (int j = 0; j < SUMS; j++) sums[i][j] = 0;
        for (int64_t b = batch; b < batch_end; b++)
            for (int64_t h = head; h < head_end; h++) add_scores(p, b, h, row, col, pulls, sums);
        __syncthreads();
        for (int i = 0; i < SUMS; i++)
            for (int j = 0; j < SUMS; j++) pulls[((int)threadIdx.x / STEP + STEP * i) * PITCH + (int)threadIdx.x % STEP + STEP * j] = sums[i][j];
        __syncthreads();
        store_bias(p, batch * p->dbias_strides[0] + head * p->dbias_strides[1], row * TILE, col * TILE, pulls);
    }
}
