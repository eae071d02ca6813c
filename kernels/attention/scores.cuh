/* What the fast GPU attentions share: which keys a query sees, and what becomes of a product of q and k before it is a score. */
#ifndef KERNELS_ATTENTION_SCORES_CUH
#define KERNELS_ATTENTION_SCORES_CUH

#include "kernels/attention/arguments.h"
#include "kernels/gpu/epilogue/activations.cuh"
#include "kernels/gpu/plain/device.cuh"
#include "kernels/gpu/ptx/ldst.cuh"

#define INLINE static __device__ __forceinline__

enum { ELEMENT_BF16, ELEMENT_F16, ELEMENT_F32 };

#define LOG2_E 1.4426950408889634f
#define LARGEST 3.4028234663852886e38f

/* ---- who sees what ---- */

/* What a query sees: count slots from start on, the first of which holds position base, of row cache (of the table, where there is one). Row -1 sees nothing. */
typedef struct attention_view { int start, count, base, cache; } attention_view;

/* Without a division of 64 bits, which would be a call. */
INLINE int modulo(int64_t position, int slots) {
    uint64_t rest = 0;
    if (position <= INT32_MAX) return (int)position % slots;
    for (int bit = 62; bit >= 0; bit--) {
        rest = rest * 2 + (uint64_t)(position >> bit & 1);
        if (rest >= (uint64_t)slots) rest -= (uint64_t)slots;
    }
    return (int)rest;
}

/* What is seen from a position. is_ring: the operand position is there, and the cache holds position p at p modulo its slots. */
INLINE attention_view view_from(const attention_arguments *p, int cache, int64_t position, bool is_ring) {
    attention_view view = {0, 0, 0, cache};
    int64_t begin = 0, end = p->keys;
    if (is_ring) end = position < INT64_MAX ? position + 1 : position;
    if (p->causal && end - 1 > position) end = position + 1;
    if (p->ahead > 0 && end - p->ahead > position) end = position + p->ahead;
    if (p->window > 0 && position >= p->window) begin = position - p->window + 1;
    if (is_ring && end - p->keys > begin) begin = end - p->keys;
    if (is_ring && ((p->mask_keys > 0 && p->mask_keys < end) || (p->bias_keys > 0 && p->bias_keys < end))) {
        fault_raise(&p->fault, CUDA_FAULT_INDEX, position, p->mask_keys > 0 ? p->mask_keys : p->bias_keys);
        return view;
    }
    if (p->page != 0 && end > p->keys) {
        fault_raise(&p->fault, CUDA_FAULT_INDEX, position, p->keys);
        return view;
    }
    if (end <= begin) return view;
    view.start = is_ring ? modulo(begin, (int)p->keys) : (int)begin;
    view.count = (int)(end - begin);
    view.base = (int)begin;
    return view;
}

/* Entry `index` of a row of the table, -1 where the page is not there. */
INLINE int page_at(const attention_arguments *p, int row, int index) {
    const int64_t page = load_int(&p->table, row * p->table_strides[0] + index * p->table_strides[1]);
    if (page >= -1 && page < p->pages) return (int)page;
    fault_raise(&p->fault, CUDA_FAULT_INDEX, page, p->pages);
    return -1;
}

/* Where slot `slot` of a row's keys lies in k and v; row -1: its page is not there. */
typedef struct attention_slot { int row, slot; } attention_slot;

INLINE attention_slot slot_of(const attention_arguments *p, int row, int slot) {
    attention_slot at = {row, slot};
    if (p->page == 0) return at;
    const int index = slot / p->page;
    at.row = page_at(p, row, index);
    at.slot = slot - index * p->page;
    return at;
}

INLINE attention_view view_of(const attention_arguments *p, int batch, int64_t query) {
    attention_view nothing = {0, 0, 0, -1};
    if (query >= p->queries) return nothing;
    int64_t cache = p->has_row ? load_int(&p->row, query * p->row_step) : batch;
    if (cache == -1) return nothing;
    if (cache < 0 || cache >= p->cache_rows) {
        fault_raise(&p->fault, CUDA_FAULT_INDEX, cache, p->cache_rows);
        return nothing;
    }
    return view_from(p, (int)cache, p->has_position ? load_int(&p->position, query * p->position_step) : query + p->offset, p->has_position);
}

/* ---- scores ---- */

INLINE float load_half(const int element, uint64_t address) {
    uint16_t bits = *(const uint16_t *)address;
    return element == ELEMENT_BF16 ? __uint_as_float((uint32_t)bits << 16) : cvt_f32_f16(bits);
}

/* Weights are powers of 2 of differences of scores: the largest is subtracted before the change of base, as a huge score has no room for it and would lose its last bits. */
INLINE float weight_of(float score, float max, float unit) { return ex2((score - max) * unit); }
/* By how much sums relative to `from` shrink when they become relative to `to`, which is not less. */
INLINE float shrink(float from, float to, float unit) { return from == to ? 1 : weight_of(from, to, unit); }
/* A sum of values so shrunk: keys that have come to no weight leave it whatever they hold, infinities too. */
INLINE float shrunk(float sum, float down) { return down == 0 ? 0 : sum * down; }
/* A sink among scores that have been scaled by unit; a finite one stays finite. */
INLINE float scaled_sink(float sink, float unit) { return fabsf(sink) < INFINITE ? fminf(fmaxf(sink * unit, -LARGEST), LARGEST) : sink; }
/* The sum of weights of a sink before any key: NaN of a sink that is NaN or +inf. */
INLINE float lone_sink_weight(float sink) { return sink == -INFINITE ? 0 : 1 + (sink - sink); }
/* The same, relative to the largest score of a row. */
INLINE float sink_weight(float sink, float max, float unit) { return sink == -INFINITE ? 0 : shrink(sink, max, unit) + (sink - sink); }

/* ---- biases ---- */

/* A score with its bias; one of OP_ATTENTION_HIDES or less is the score. */
INLINE float biased(float score, float bias) { return bias <= OP_ATTENTION_HIDES ? bias : score + bias; }
INLINE float capped(float score, float cap) { return cap * tanh_exp(__fdividef(score, cap)); }

/* Of one key, and of two neighbours, which lie at a multiple of their size. */
INLINE float load_bias(const int format, uint64_t address) {
    return format == CUDA_f32 ? __ldg((const float *)address) : load_half(format == CUDA_bf16 ? ELEMENT_BF16 : ELEMENT_F16, address);
}
INLINE float2 load_bias_pair(const int format, uint64_t address) {
    if (format == CUDA_f32) return __ldg((const float2 *)address);
    const uint32_t pair = __ldg((const uint32_t *)address);
    if (format == CUDA_bf16) return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000));
    return make_float2(cvt_f32_f16((uint16_t)pair), cvt_f32_f16((uint16_t)(pair >> 16)));
}

/* Where a query's mask and bias lie, in memory. */
typedef struct attention_extra { uint64_t mask, bias; } attention_extra;

INLINE attention_extra extra_of(const attention_arguments *p, int cache, int head, int query) {
    attention_extra extra;
    extra.mask = p->mask.data + cache * p->mask_strides[0] + head * p->mask_strides[1] + query * p->mask_strides[2];
    extra.bias = p->bias.data + p->bias.element_bytes * (cache * p->bias_strides[0] + head * p->bias_strides[1] + query * p->bias_strides[2]);
    return extra;
}

INLINE float bias_at(const attention_arguments *p, attention_extra extra, int position) {
    return load_bias(p->bias.format, extra.bias + position * p->bias_strides[3] * p->bias.element_bytes);
}

/* A product of q and k as a score, -inf where the mask hides it; position: of the key. */
INLINE float score_of(const attention_arguments *p, float product, attention_extra extra, int position) {
    float score = product * p->scale;
    if (p->softcap > 0) score = capped(score, p->softcap);
    if (p->has_bias) score = biased(score, bias_at(p, extra, position));
    return p->has_mask && *(const uint8_t *)(extra.mask + position * p->mask_strides[3]) == 0 ? -INFINITE : score;
}

#endif
