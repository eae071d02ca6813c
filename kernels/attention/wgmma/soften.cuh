/* From products of q and k, in registers, to weights, in the attention kernel by wgmma: hidden keys, biases, caps, and the step of the online softmax. */
#ifndef KERNELS_ATTENTION_WGMMA_SOFTEN_CUH
#define KERNELS_ATTENTION_WGMMA_SOFTEN_CUH

#include "kernels/attention/wgmma/views.cuh"

/* The two rows of a thread: rows row and row + 8 of its warp's 16, queries query and query + 8. max: the largest score so far, which weights are relative to;
 * sum: of this thread's weights; down: what sums are to be scaled by, if one of the warp grew; late: hidden keys have been left out (keys.cuh). low, high: keys that all rows of the warp see, [low, high). start, count, base: their views, placed. */
typedef struct attention_rows {
    float max[2], sum[2], down[2];
    bool grew, late;
    int row, query, low, high;
    int start[2], count[2], base[2];
} attention_rows;

/* Whatever a row holds above this, no key of OP_ATTENTION_HIDES or less has weight beside it. */
#define SETTLED (OP_ATTENTION_HIDES / 2)

/* What a score is to be multiplied by to be an exponent of 2: scores with biases have been scaled, others are products. */
INLINE float unit_of(const attention_arguments *p, const attention_shape s) { return s.scores != ATTENTION_PLAIN ? LOG2_E : p->scale * LOG2_E; }

/* ---- hidden keys ---- */

/* Scores of keys outside of what a query sees become -inf. first: the block's first key. */
INLINE void hide_keys(const attention_wgmma_arguments *g, const attention_shape s, const attention_rows *rows, int first, float *scores) {
    const int col = first + threadIdx.x % 4 * 2;
    if (first + s.keys > rows->high) {
        const int left[2] = {end_of(g, rows->query) - col, end_of(g, rows->query + 8) - col};
#pragma unroll
        for (int i = 0; i < s.keys / 2; i++)
            if (i / 4 * 8 + (i & 1) >= left[i >> 1 & 1]) scores[i] = -INFINITE;
    }
    if (first < rows->low) {
        const int passed[2] = {begin_of(g, rows->query) - col, begin_of(g, rows->query + 8) - col};
#pragma unroll
        for (int i = 0; i < s.keys / 2; i++)
            if (i / 4 * 8 + (i & 1) < passed[i >> 1 & 1]) scores[i] = -INFINITE;
    }
}

/* The same of placed queries. counts: of keys that a row sees, 0 outside of the segment. */
INLINE void hide_placed_keys(const attention_arguments *p, const attention_shape s, const attention_rows *rows, const int *counts, int first, float *scores) {
    const int col = first + threadIdx.x % 4 * 2, slots = (int)p->keys;
    bool all = first + s.keys <= slots;
#pragma unroll
    for (int half = 0; half < 2; half++) all = all && distance(rows->start[half], first, slots) + s.keys <= counts[half];
    if (__all_sync(0xffffffff, all)) return;
    if (p->has_position) {
#pragma unroll
        for (int i = 0; i < s.keys / 2; i++) {
            const int half = i >> 1 & 1, slot = col + i / 4 * 8 + (i & 1);
            if (distance(rows->start[half], slot, slots) >= counts[half] || slot >= slots) scores[i] = -INFINITE;
        }
    } else {                      /* no ring: what is seen ends before the last slot */
#pragma unroll
        for (int i = 0; i < s.keys / 2; i++) {
            const int half = i >> 1 & 1, from = i / 4 * 8 + (i & 1) - (rows->start[half] - col);
            if ((uint32_t)from >= (uint32_t)counts[half]) scores[i] = -INFINITE;
        }
    }
}

/* ---- biases, caps ---- */

/* Products become scores by the biases of a block, [keys] smem. */
INLINE void add_key_biases(const attention_shape s, float scale, uint32_t biases, float *scores) {
#pragma unroll
    for (int i = 0; i < s.keys / 2; i += 4) {
        const float2 bias = ld_shared_f32x2(biases + (i * 2 + threadIdx.x % 4 * 2) * 4);
        scores[i] = biased(scores[i] * scale, bias.x);
        scores[i + 1] = biased(scores[i + 1] * scale, bias.y);
        scores[i + 2] = biased(scores[i + 2] * scale, bias.x);
        scores[i + 3] = biased(scores[i + 3] * scale, bias.y);
    }
}

INLINE void scale_products(const attention_arguments *p, const attention_shape s, float *scores) {
#pragma unroll
    for (int i = 0; i < s.keys / 2; i++) scores[i] *= p->scale;
    if (p->softcap > 0) {
#pragma unroll
        for (int i = 0; i < s.keys / 2; i++) scores[i] = capped(scores[i], p->softcap);
    }
}

/* Biases and masks in memory, of one format that the compiler knows, two keys at a time. rows: where the thread's two rows begin; first: the block's first key. */
INLINE void add_biases(const int format, const attention_shape s, const uint64_t *rows, const int *counts, int first, int keys, float *scores) {
    const int bytes = format == CUDA_f32 ? 4 : 2;
#pragma unroll
    for (int i = 0; i < s.keys / 2; i += 2) {
        const int half = i >> 1 & 1, key = first + threadIdx.x % 4 * 2 + i / 4 * 8;
        const uint64_t at = rows[half] + key * bytes;
        float2 bias = {0, 0};
        if (counts[half] > 0 && key + 1 < keys) bias = load_bias_pair(format, at);
        else if (counts[half] > 0 && key < keys) bias.x = load_bias(format, at);
        scores[i] = biased(scores[i], bias.x);
        scores[i + 1] = biased(scores[i + 1], bias.y);
    }
}

INLINE void hide_masked(const attention_shape s, const uint64_t *rows, const int *counts, int first, int keys, float *scores) {
#pragma unroll
    for (int i = 0; i < s.keys / 2; i += 2) {
        const int half = i >> 1 & 1, key = first + threadIdx.x % 4 * 2 + i / 4 * 8;
        uint32_t pair = 0;
        if (counts[half] > 0 && key + 1 < keys) pair = __ldg((const uint16_t *)(rows[half] + key));
        else if (counts[half] > 0 && key < keys) pair = *(const uint8_t *)(rows[half] + key);
        if ((pair & 0xff) == 0) scores[i] = -INFINITE;
        if ((pair & 0xff00) == 0) scores[i + 1] = -INFINITE;
    }
}

/* Products become scores of a general shape. extra: of the thread's two rows. */
INLINE void finish_general(const attention_arguments *p, const attention_shape s, const attention_rows *rows, const int *counts, const attention_extra *extra, int first, float *scores) {
    const uint64_t biases[2] = {extra[0].bias, extra[1].bias}, masks[2] = {extra[0].mask, extra[1].mask};
    const int keys = (int)p->keys, col = first + threadIdx.x % 4 * 2;
    bool in_pairs = !p->has_position && (!p->has_bias || (p->bias_strides[3] == 1 && ((biases[0] | biases[1]) & (2 * p->bias.element_bytes - 1)) == 0));
    in_pairs = in_pairs && (!p->has_mask || (p->mask_strides[3] == 1 && ((masks[0] | masks[1]) & 1) == 0));
    if (!__all_sync(0xffffffff, in_pairs)) {
#pragma unroll
        for (int i = 0; i < s.keys / 2; i++) {
            const int half = i >> 1 & 1, slot = col + i / 4 * 8 + (i & 1), from = distance(rows->start[half], slot, keys);
            scores[i] = from < counts[half] && slot < keys ? score_of(p, scores[i], extra[half], rows->base[half] + from) : -INFINITE;
        }
        return;
    }
    scale_products(p, s, scores);
    if (p->has_bias && p->bias.format == CUDA_f32) add_biases(CUDA_f32, s, biases, counts, first, keys, scores);
    else if (p->has_bias && p->bias.format == CUDA_bf16) add_biases(CUDA_bf16, s, biases, counts, first, keys, scores);
    else if (p->has_bias) add_biases(CUDA_f16, s, biases, counts, first, keys, scores);
    if (p->has_mask) hide_masked(s, masks, counts, first, keys, scores);
}

/* ---- softmax ---- */

/* The largest score of each row. */
INLINE void largest_scores(const attention_shape s, const float *scores, float *tops) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = fmaxf(scores[2 * half], scores[2 * half + 1]);
#pragma unroll
        for (int i = 2 * half + 4; i < s.keys / 2; i += 4) top = fmaxf(top, fmaxf(scores[i], scores[i + 1]));
        tops[half] = top;
    }
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
        tops[0] = fmaxf(tops[0], __shfl_xor_sync(0xffffffff, tops[0], step));
        tops[1] = fmaxf(tops[1], __shfl_xor_sync(0xffffffff, tops[1], step));
    }
}

/* Weights become relative to the largest scores so far, so that the largest weight of a row is 1, which rounds to itself. */
INLINE void grow(float unit, const float *tops, attention_rows *rows) {
    const bool grows[2] = {tops[0] > rows->max[0], tops[1] > rows->max[1]};
    rows->grew = __any_sync(0xffffffff, grows[0] || grows[1]);
    if (!rows->grew) return;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        rows->down[half] = grows[half] ? weight_of(rows->max[half], tops[half], unit) : 1;
        rows->sum[half] *= rows->down[half];
        if (grows[half]) rows->max[half] = tops[half];
    }
}

/* Products become weights: of a row relative to shifts, exponents of 2. */
INLINE void weigh_products(const attention_shape s, float unit, const float *shifts, attention_rows *rows, float *scores) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = 0;
#pragma unroll
        for (int i = 2 * half; i < s.keys / 2; i += 4) {
            scores[i] = ex2(fmaf(scores[i], unit, -shifts[half]));
            scores[i + 1] = ex2(fmaf(scores[i + 1], unit, -shifts[half]));
            sum += scores[i] + scores[i + 1];
        }
        rows->sum[half] += sum;
    }
}

INLINE void soften(const attention_shape s, float unit, attention_rows *rows, float *scores) {
    float tops[2], shifts[2];
    largest_scores(s, scores, tops);
    grow(unit, tops, rows);
#pragma unroll
    for (int half = 0; half < 2; half++) shifts[half] = rows->max[half] == -INFINITE ? 0 : rows->max[half] * unit;
    weigh_products(s, unit, shifts, rows, scores);
}

/* The same of scores that have been scaled. */
INLINE void soften_scores(const attention_shape s, attention_rows *rows, float *scores) {
    float tops[2];
    largest_scores(s, scores, tops);
    grow(LOG2_E, tops, rows);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = 0, shift = rows->max[half] == -INFINITE ? 0 : rows->max[half];
#pragma unroll
        for (int i = 2 * half; i < s.keys / 2; i += 4) {
            scores[i] = weight_of(scores[i], shift, LOG2_E);
            scores[i + 1] = weight_of(scores[i + 1], shift, LOG2_E);
            sum += scores[i] + scores[i + 1];
        }
        rows->sum[half] += sum;
    }
}

/* The same of products, where the largest scores so far have been scaled. One near the lowest number has no room for another base, but then no key of this block is seen. */
INLINE void soften_products(const attention_shape s, float scale, attention_rows *rows, float *scores) {
    float tops[2], shifts[2];
    largest_scores(s, scores, tops);
    tops[0] *= scale, tops[1] *= scale;
    grow(LOG2_E, tops, rows);
#pragma unroll
    for (int half = 0; half < 2; half++) shifts[half] = fmaxf(rows->max[half] * LOG2_E, -LARGEST);
    weigh_products(s, scale * LOG2_E, shifts, rows, scores);
}

INLINE uint32_t pack_pair(const int element, float low, float high) { return element == ELEMENT_BF16 ? cvt_bf16x2(low, high) : cvt_f16x2(low, high); }

/* Weights as the first operand of a product: pairs of k of each step of 16 keys. */
INLINE void pack_weights(const attention_shape s, const float *scores, uint32_t *weights) {
#pragma unroll
    for (int i = 0; i < s.keys / 4; i++) weights[i] = pack_pair(s.element, scores[2 * i], scores[2 * i + 1]);
}

#endif
