/* What the fast GPU attentions share: which keys a query sees, and what becomes of a product of q and k before it is a score. */
#ifndef KERNELS_ATTENTION_SCORES_CUH
#define KERNELS_ATTENTION_SCORES_CUH

#include "kernels/attention/attention_cuda.h"
#include "kernels/common/cuda/activations.cuh"
#include "kernels/common/cuda/device.cuh"
#include "kernels/common/cuda/ptx_ldst.cuh"

#define INLINE static __device__ __forceinline__

enum { ELEMENT_BF16, ELEMENT_F16, ELEMENT_F32 };

#define LOG2_E 1.4426950408889634f

/* ---- who sees what ---- */

/* What a query sees: count slots from start on, the first of which holds position base, of row cache. */
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
    if (end <= begin) return view;
    view.start = is_ring ? modulo(begin, (int)p->keys) : (int)begin;
    view.count = (int)(end - begin);
    view.base = (int)begin;
    return view;
}

INLINE attention_view view_of(const attention_arguments *p, int batch, int64_t query) {
    attention_view nothing = {0, 0, 0, -1};
    if (query >= p->queries) return nothing;
    int64_t cache = p->has_row ? load_int(&p->row, query * p->row_step) : batch;
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

/* Where a query's mask and bias lie, in memory. */
typedef struct attention_extra { uint64_t mask, bias; } attention_extra;

INLINE attention_extra extra_of(const attention_arguments *p, int cache, int head, int query) {
    attention_extra extra;
    extra.mask = p->mask.data + cache * p->mask_strides[0] + head * p->mask_strides[1] + query * p->mask_strides[2];
    extra.bias = p->bias.data + p->bias.element_bytes * (cache * p->bias_strides[0] + head * p->bias_strides[1] + query * p->bias_strides[2]);
    return extra;
}

/* A product of q and k as a score, -inf where the mask hides it; position: of the key. */
INLINE float score_of(const attention_arguments *p, float product, attention_extra extra, int position) {
    float score = product * p->scale;
    if (p->softcap > 0) score = p->softcap * tanh_exp(__fdividef(score, p->softcap));
    if (p->has_bias) {
        uint64_t at = extra.bias + position * p->bias_strides[3] * p->bias.element_bytes;
        score += p->bias.format == CUDA_f32 ? *(const float *)at : load_half(p->bias.format == CUDA_bf16 ? ELEMENT_BF16 : ELEMENT_F16, at);
    }
    return p->has_mask && *(const uint8_t *)(extra.mask + position * p->mask_strides[3]) == 0 ? -INFINITE : score;
}

#endif
