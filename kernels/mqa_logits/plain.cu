/* The plain mqa_logits: any formats, strides and sizes. A block of 256 threads has a query and 256 positions, a thread one key: products with 8 heads at a time, whose parts of q lie in shared memory.
 *     q [8,128] smem    k [n,d] gmem    dots [8] reg    sum reg
 * Products are fused multiply-adds in fp32, sums over d and over heads in order. Resources: 4 KiB of shared memory. Speed on an H100
 * (2026-11-27): 3.4 TFLOP/s. */
#include "kernels/gpu/plain/device.cuh"
#include "kernels/mqa_logits/plain.h"

enum { HEADS = 8, PART = 128 };

/* The range of a query, within the keys that there are. */
typedef struct span { int64_t begin, end; } span;

DEVICE int64_t within(int64_t x, int64_t keys) { return x < 0 ? 0 : x > keys ? keys : x; }

DEVICE span seen_by(const mqa_arguments *p, int64_t batch, int64_t query) {
    span s;
    s.begin = p->has_start ? within(load_int(&p->start, batch * p->start_strides[0] + query * p->start_strides[1]), p->keys) : 0;
    s.end = p->has_end ? within(load_int(&p->end, batch * p->end_strides[0] + query * p->end_strides[1]), p->keys) : p->keys;
    return s;
}

/* Where the key of a position lies; row -1: its page is not there. */
typedef struct place { int64_t row, slot; } place;

DEVICE place key_of(const mqa_arguments *p, int64_t batch, int64_t position) {
    place at = {batch, position};
    if (!p->has_table) return at;
    at.row = load_int(&p->table, batch * p->table_strides[0] + position / p->page * p->table_strides[1]);
    at.slot = position % p->page;
    if (at.row >= -1 && at.row < p->pages) return at;
    fault_raise(&p->fault, CUDA_FAULT_INDEX, at.row, p->pages);
    at.row = -1;
    return at;
}

/* Columns [first, first + PART) of heads [head, head + HEADS) of a query, zeros outside. */
DEVICE void load_heads(const mqa_plain_arguments *g, int64_t batch, int64_t query, int64_t head, int64_t first, float (*to)[PART]) {
    const mqa_arguments *p = &g->call;
    for (int i = (int)threadIdx.x; i < HEADS * PART; i += CUDA_THREADS) {
        int64_t h = head + i / PART, l = first + i % PART;
        to[i / PART][i % PART] = h < p->heads && l < p->width ? rows_load(&g->q, batch * g->q_strides[0] + query * g->q_strides[1], (batch * p->queries + query) * p->heads, h, l) : 0;
    }
}

KERNEL(mqa_logits_plain, mqa_plain_arguments) {
    const mqa_arguments *p = &arguments.call;
    __shared__ float q[HEADS][PART];
    int64_t chunks = (p->keys + MQA_PLAIN_KEYS - 1) / MQA_PLAIN_KEYS;
    for (int64_t item = blockIdx.x; item < p->batches * p->queries * chunks; item += gridDim.x) {
        int64_t batch = item / chunks / p->queries, query = item / chunks % p->queries, first = item % chunks * MQA_PLAIN_KEYS, key = first + threadIdx.x;
        span seen = seen_by(p, batch, query);
        place at = {-1, 0};
        float sum = 0, factor = p->scale;
        int64_t last = first + MQA_PLAIN_KEYS < seen.end ? first + MQA_PLAIN_KEYS : seen.end, heads = seen.begin < last && first < last ? p->heads : 0;
        if (key >= seen.begin && key < seen.end) at = key_of(p, batch, key);
        if (at.row >= 0 && p->has_factor) factor *= load_float(&p->factor, at.row * p->factor_strides[0] + at.slot * p->factor_strides[1]);
        for (int64_t head = 0; head < heads; head += HEADS) {
            float dots[HEADS];
            for (int i = 0; i < HEADS; i++) dots[i] = 0;
            for (int64_t part = 0; part < p->width; part += PART) {
                int64_t count = p->width - part < PART ? p->width - part : PART;
                __syncthreads();
                load_heads(&arguments, batch, query, head, part, q);
                __syncthreads();
                for (int64_t l = 0; at.row >= 0 && l < count; l++) {
                    float value = rows_load(&arguments.k, at.row * arguments.k_stride, at.row * arguments.key_rows, at.slot, part + l);
                    for (int i = 0; i < HEADS; i++) dots[i] = fmaf(q[i][l], value, dots[i]);
                }
            }
            for (int i = 0; i < HEADS && at.row >= 0; i++) {
                if (head + i >= p->heads) continue;
                float score = dots[i] * (rows_second(&arguments.q, (batch * p->queries + query) * p->heads + head + i) * rows_second(&arguments.k, at.row * arguments.key_rows + at.slot)) * factor;
                float weight = load_float(&p->weights, batch * p->weight_strides[0] + query * p->weight_strides[1] + (head + i) * p->weight_strides[2]);
                sum = fmaf(weight, score < 0 ? 0 : score, sum);
            }
        }
        if (key < p->keys) store_float(&p->out, batch * p->out_strides[0] + query * p->out_strides[1] + key * p->out_strides[2], at.row >= 0 ? sum : -INFINITE);
    }
}
