/* The plain fused attention: a block of 256 threads for each query of each head. Keys go by in chunks of 256: a thread makes the score of one key, all together the
 * chunk's largest score and sum (with what came before scaled down when a larger score comes), then each thread adds up its columns of v.
 *     q [d] smem    k [t,d], v [t,e] gmem    weights [256] smem    sums [e] reg: 4 a thread, wider v by more blocks
 * With row and position, q has tokens of several texts, each of which reads its own row of the caches; the key of position p lies at p mod t, or in a page of the table.
 * Scores, weights and sums in fp32. A bias of OP_ATTENTION_HIDES or less is the score; a key whose score is -inf, or that the mask hides, is a key not seen. Resources: 7 KiB of shared memory. Speed: not
 * measured. */
#include "kernels/attention/plain/plain.h"
#include "kernels/gpu/plain/device.cuh"

enum { COLUMNS = ATTENTION_WIDTH / CUDA_THREADS };

BLOCK_REDUCE(block_max, float, a != a || a > b ? a : b)
BLOCK_REDUCE(block_sum, float, a + b)

/* Where one query, its keys and its result begin. */
typedef struct attention_place { int64_t row, q, k, v, mask, bias, out; } attention_place;

/* row: of k and v or the table, mask and bias; k and v: of their row or page 0. */
DEVICE attention_place place_of(const attention_arguments *p, int64_t batch, int64_t row, int64_t head, int64_t query) {
    int64_t group = head / p->shared_heads;
    attention_place place;
    place.q = batch * p->q_strides[0] + head * p->q_strides[1] + query * p->q_strides[2];
    place.row = row;
    place.k = group * p->k_strides[1];
    place.v = group * p->v_strides[1];
    place.mask = row * p->mask_strides[0] + head * p->mask_strides[1] + query * p->mask_strides[2];
    place.bias = row * p->bias_strides[0] + head * p->bias_strides[1] + query * p->bias_strides[2];
    place.out = batch * p->out_strides[0] + head * p->out_strides[1] + query * p->out_strides[2];
    return place;
}

/* Where the key of a position lies; row -1: its page is not there. */
typedef struct attention_key { int64_t row, slot; } attention_key;

DEVICE attention_key key_of(const attention_arguments *p, const attention_place *place, int64_t position) {
    attention_key key = {place->row, position % p->keys};
    if (p->page == 0) return key;
    key.row = load_int(&p->table, place->row * p->table_strides[0] + position / p->page * p->table_strides[1]);
    key.slot = position % p->page;
    if (key.row >= -1 && key.row < p->pages) return key;
    fault_raise(&p->fault, CUDA_FAULT_INDEX, key.row, p->pages);
    key.row = -1;
    return key;
}

/* Element `at` of keys or values. */
DEVICE float cached(int in_blocks, const cuda_rows *rows, const cuda_array *array, int64_t width, int64_t at) {
    if (!in_blocks) return load_float(array, at);
    return rows_scaled(rows, at / width, at % width) * rows_second(rows, 0);
}

/* Element i of a query. */
DEVICE float of_query(const attention_plain_arguments *arguments, const attention_place *place, int64_t i) {
    return cached((int)arguments->q_in_blocks, &arguments->q, &arguments->call.q, arguments->call.width, place->q + i * arguments->call.q_strides[3]);
}

DEVICE float score(const attention_plain_arguments *arguments, const attention_place *place, const float *query, int64_t key) {
    const attention_arguments *p = &arguments->call;
    const attention_blocks *blocks = &arguments->blocks;
    if (p->has_mask && !load_int(&p->mask, place->mask + key * p->mask_strides[3])) return -INFINITE;
    attention_key lies = key_of(p, place, key);
    if (lies.row < 0) return -INFINITE;
    float sum = 0;
    int64_t at = place->k + lies.row * p->k_strides[0] + lies.slot * p->k_strides[2];
    for (int64_t i = 0; i < p->width; i++) {
        float q = i < ATTENTION_WIDTH ? query[i] : of_query(arguments, place, i);
        sum = fmaf(q, cached(blocks->in_blocks, &blocks->k, &p->k, p->width, at + i * p->k_strides[3]), sum);
    }
    sum *= p->scale;
    if (p->softcap > 0) sum = p->softcap * tanhf(sum / p->softcap);
    if (!p->has_bias) return sum;
    float bias = load_float(&p->bias, place->bias + key * p->bias_strides[3]);
    return bias <= OP_ATTENTION_HIDES ? bias : sum + bias;
}

KERNEL(attention_plain, attention_plain_arguments) {
    const attention_arguments *p = &arguments.call;
    __shared__ float query_shared[ATTENTION_WIDTH], weights[CUDA_THREADS];
    int thread = (int)threadIdx.x;
    int64_t parts = p->value_width > 0 ? (p->value_width + ATTENTION_WIDTH - 1) / ATTENTION_WIDTH : 1, rows = p->batches * p->heads * p->queries;
    for (int64_t item = blockIdx.x; item < rows * parts; item += gridDim.x) {
        int64_t row = item / parts, first_col = item % parts * ATTENTION_WIDTH;
        int64_t query = row % p->queries, head = row / p->queries % p->heads, position = query + p->offset;
        int64_t batch = row / p->queries / p->heads, cache = batch, begin = 0, end = p->keys;
        if (p->has_row) cache = load_int(&p->row, query * p->row_step);
        if (p->has_position) position = load_int(&p->position, query * p->position_step);
        if (p->has_position) end = position + 1;
        if (cache < -1 || cache >= p->cache_rows) {
            fault_raise(&p->fault, CUDA_FAULT_INDEX, cache, p->cache_rows);
            continue;
        }
        attention_place place = place_of(p, batch, cache, head, query);
        if (p->causal && end - 1 > position) end = position + 1;
        if (p->ahead > 0 && end - p->ahead > position) end = position + p->ahead;
        if (p->window > 0 && position >= p->window) begin = position - p->window + 1;
        if (p->has_position && end - p->keys > begin) begin = end - p->keys;
        if (cache == -1) begin = end = 0;
        if (p->page != 0 && end > p->keys) {
            fault_raise(&p->fault, CUDA_FAULT_INDEX, position, p->keys);
            continue;
        }
        if ((p->mask_keys > 0 && p->mask_keys < end) || (p->bias_keys > 0 && p->bias_keys < end)) {
            fault_raise(&p->fault, CUDA_FAULT_INDEX, position, p->mask_keys > 0 ? p->mask_keys : p->bias_keys);
            continue;
        }
        float max = p->has_sink ? load_float(&p->sink, head * p->sink_stride) : -INFINITE, sum = max > -INFINITE ? 1.0f : 0.0f, sums[COLUMNS];
        for (int c = 0; c < COLUMNS; c++) sums[c] = 0;
        __syncthreads();
        for (int64_t i = thread; i < p->width && i < ATTENTION_WIDTH; i += CUDA_THREADS) query_shared[i] = of_query(&arguments, &place, i);
        __syncthreads();
        for (int64_t chunk = begin; chunk < end; chunk += CUDA_THREADS) {
            int64_t key = chunk + thread, count = end - chunk < CUDA_THREADS ? end - chunk : CUDA_THREADS;
            float mine = key < end ? score(&arguments, &place, query_shared, key) : -INFINITE;
            float largest = block_max(mine), next = max != max || max > largest ? max : largest;
            if (next == -INFINITE) continue;
            float down = max == -INFINITE ? 0 : expf(max - next), weight = mine == -INFINITE ? 0 : expf(mine - next);
            weights[thread] = weight;
            sum = sum * down + block_sum(weight);
            max = next;
            for (int c = 0; c < COLUMNS; c++) {
                int64_t col = first_col + thread + (int64_t)c * CUDA_THREADS;
                if (col >= p->value_width) continue;
                float of_col = down == 0 ? 0 : sums[c] * down;   /* keys that have come to no weight leave it, infinities too */
                for (int64_t j = 0; j < count; j++) {
                    if (weights[j] == 0) continue;
                    attention_key lies = key_of(p, &place, chunk + j);
                    of_col = fmaf(weights[j], cached(arguments.blocks.in_blocks && !arguments.blocks.values_apart, &arguments.blocks.v, &p->v, p->value_width, place.v + lies.row * p->v_strides[0] + lies.slot * p->v_strides[2] + col * p->v_strides[3]), of_col);
                }
                sums[c] = of_col;
            }
            __syncthreads();
        }
        if (arguments.has_lse && thread == 0 && first_col == 0)
            store_float(&arguments.lse, batch * arguments.lse_strides[0] + head * arguments.lse_strides[1] + query * arguments.lse_strides[2], max < INFINITE ? max + logf(sum) : NOT_A_NUMBER);
        for (int c = 0; c < COLUMNS; c++) {
            int64_t col = first_col + thread + (int64_t)c * CUDA_THREADS;
            if (col >= p->value_width) continue;
            float value = !(max < INFINITE) ? NOT_A_NUMBER : max == -INFINITE ? 0 : sums[c] / sum;
            store_float(&p->out, place.out + col * p->out_strides[3], value);
        }
    }
}
