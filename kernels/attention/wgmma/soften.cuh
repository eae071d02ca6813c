/* Of attention by wgmma: what becomes of a warpgroup's products in registers: scores, hidden keys, the largest of each row, weights. */
#ifndef KERNELS_ATTENTION_WGMMA_SOFTEN_CUH
#define KERNELS_ATTENTION_WGMMA_SOFTEN_CUH

#include "kernels/attention/codes.cuh"
#include "kernels/attention/wgmma/notes.cuh"

/* ---- scores ---- */

/* What a score is to be multiplied by to be an exponent of 2: scores with biases have been scaled, others are products. */
INLINE float unit_of(const attention_arguments *p, const attention_shape s) { return is_scaled(s) ? LOG2_E : p->scale * LOG2_E; }

/* The two rows of a thread: rows row and row + 8 of its warp's 16. */
typedef struct attention_rows {
    int start[2], count[2], base[2];
    float max[2], sum[2], down[2];
    float factor[2];              /* of codes: the scale of q, which scores in registers and max have not */
    float key_scale, next_key_scale;   /* of keys in nvfp4: what scales all of them; of codes: that of the block's keys, which scores in registers have not, but max has; of the next block's */
    uint64_t key_scales;          /* of the head */
} attention_rows;

/* How far slot is from the beginning of what the row sees. */
INLINE int distance(int start, int slot, int slots) {
    int from = slot - start;
    return from < 0 ? from + slots : from;
}

/* Scores of keys that are hidden by position become -inf. counts: of keys that a row sees, 0 outside of the segment; all: every key is seen by all rows of the warp. */
INLINE void hide_keys(const attention_arguments *p, const attention_shape s, const attention_rows *rows, const int *counts, int first, bool all, float *scores) {
    int col = first + threadIdx.x % 4 * 2, slots = (int)p->keys;
    if (all) return;
    if (!has_notes(s) && (!s.stays || walks(s)) && p->has_position) {
#pragma unroll
        for (int i = 0; i < s.keys / 2; i++) {
            int half = i >> 1 & 1, slot = col + i / 4 * 8 + (i & 1);
            if (distance(rows->start[half], slot, slots) >= counts[half] || slot >= slots) scores[i] = -INFINITE;
        }
    } else {                      /* no ring: what is seen ends before the last slot */
#pragma unroll
        for (int i = 0; i < s.keys / 2; i++) {
            int half = i >> 1 & 1, from = i / 4 * 8 + (i & 1) - (rows->start[half] - col);
            if ((uint32_t)from >= (uint32_t)counts[half]) scores[i] = -INFINITE;
        }
    }
}

/* Scores of keys whose page is not there become -inf. there: the pieces of the block that are, a bit each, and all bits behind them. */
INLINE void hide_absent(const attention_arguments *p, const attention_shape s, uint32_t there, float *scores) {
    if (agreed(there == ALL_THERE)) return;
    const int shift = __ffs(piece_rows(p, s)) - 1;
#pragma unroll
    for (int i = 0; i < s.keys / 2; i++) {
        const int key = threadIdx.x % 4 * 2 + i / 4 * 8 + (i & 1);
        if ((there >> (key >> shift) & 1) == 0) scores[i] = -INFINITE;
    }
}

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

INLINE float2 unpack_pair(const int element, uint32_t pair) {
    if (element == ELEMENT_BF16) return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000));
    return make_float2(cvt_f32_f16((uint16_t)pair), cvt_f32_f16((uint16_t)(pair >> 16)));
}

/* Four pairs of biases as scores i to i + 7 lie in registers. tile: [rows, keys] smem, swizzled; row: the first of the warp's 16. */
INLINE void read_tile(const attention_shape s, uint32_t tile, int row, const int i, float2 *biases) {
    const int lane = threadIdx.x % 32, from = row + lane % 16;
    const uint4 x = ldmatrix_x4(tile + from * ROW_BYTES + (((i / 4 + lane / 16) ^ from % 8) << 4));
    biases[0] = unpack_pair(s.element, x.x), biases[1] = unpack_pair(s.element, x.y), biases[2] = unpack_pair(s.element, x.z), biases[3] = unpack_pair(s.element, x.w);
}

/* Products become scores by a tile of biases. */
INLINE void add_tile(const attention_shape s, float scale, uint32_t tile, int row, float *scores) {
    float low = 0;
    float2 biases[4];
#pragma unroll
    for (int i = 0; i < s.keys / 2; i += 8) {
        read_tile(s, tile, row, i, biases);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            scores[i + 2 * j] = fmaf(scores[i + 2 * j], scale, biases[j].x);
            scores[i + 2 * j + 1] = fmaf(scores[i + 2 * j + 1], scale, biases[j].y);
            low = fminf(low, fminf(biases[j].x, biases[j].y));
        }
    }
    if (!__any_sync(0xffffffff, low <= OP_ATTENTION_HIDES)) return;
#pragma unroll
    for (int i = 0; i < s.keys / 2; i += 8) {
        read_tile(s, tile, row, i, biases);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            scores[i + 2 * j] = biases[j].x <= OP_ATTENTION_HIDES ? biases[j].x : scores[i + 2 * j];
            scores[i + 2 * j + 1] = biases[j].y <= OP_ATTENTION_HIDES ? biases[j].y : scores[i + 2 * j + 1];
        }
    }
}

/* cap x tanh(product x scale / cap): two functions and three other instructions a score. */
INLINE void cap_products(const attention_arguments *p, const attention_shape s, float *scores) {
    const float unit = p->scale / p->softcap * (2 * LOG2_E), cap = p->softcap;
#pragma unroll
    for (int i = 0; i < s.keys / 2; i++) scores[i] = fmaf(-2 * cap, rcp(1 + ex2(scores[i] * unit)), cap);
}

INLINE void scale_products(const attention_arguments *p, const attention_shape s, float *scores) {
    if (p->softcap > 0) {
        cap_products(p, s, scores);
        return;
    }
#pragma unroll
    for (int i = 0; i < s.keys / 2; i++) scores[i] *= p->scale;
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
            int half = i >> 1 & 1, slot = col + i / 4 * 8 + (i & 1), from = distance(rows->start[half], slot, keys);
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

/* A row's weights are 2^(score x unit - shift) of the scores of a block, as they stand in registers. */
typedef struct attention_exponents { float unit[2], shift[2]; } attention_exponents;

/* The largest score of a block in a row, and `top`. */
INLINE float largest_of(const attention_shape s, const float *scores, const int half, float top) {
#pragma unroll
    for (int i = 2 * half; i < s.keys / 2; i += 4) top = fmaxf(top, fmaxf(scores[i], scores[i + 1]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 1));
    return fmaxf(top, __shfl_xor_sync(0xffffffff, top, 2));
}

/* Rows grow to a block's largest products; sums are to be scaled by down before the block's weights are added. */
INLINE void raise_rows(const attention_shape s, float unit, attention_rows *rows, const float *scores, attention_exponents *exponents) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float own = s.codes ? unit * rows->factor[half] : unit;
        const float top = s.codes ? fmaxf(rows->max[half], rows->key_scale * largest_of(s, scores, half, -INFINITE)) : largest_of(s, scores, half, rows->max[half]);
        const float shift = top == -INFINITE ? 0 : top * own;
        exponents->unit[half] = s.codes ? own * rows->key_scale : own;
        rows->down[half] = rows->max[half] == top ? 1 : ex2(fmaf(rows->max[half], own, -shift));
        rows->max[half] = top;
        exponents->shift[half] = shift;
    }
}

/* So large a score has no room for another base in its last bits: the largest is subtracted before the change then. */
#define NEAR 1024.0f

/* The same of scores that have been scaled, which become exponents where one of the warp's rows has a largest that is not near. */
INLINE void raise_rows_by_scores(const attention_shape s, attention_rows *rows, float *scores, attention_exponents *exponents) {
    bool far = false;
    float shifts[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float top = largest_of(s, scores, half, rows->max[half]);
        shifts[half] = top == -INFINITE ? 0 : top;
        far = far || !(fabsf(shifts[half]) < NEAR);
        rows->down[half] = shrink(rows->max[half], top, LOG2_E);
        rows->max[half] = top;
        exponents->shift[half] = shifts[half] * LOG2_E;
    }
    exponents->unit[0] = exponents->unit[1] = LOG2_E;
    if (!__any_sync(0xffffffff, far)) return;
    exponents->unit[0] = exponents->unit[1] = 1;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        exponents->shift[half] = 0;
#pragma unroll
        for (int i = 2 * half; i < s.keys / 2; i += 4) {
            scores[i] = (scores[i] - shifts[half]) * LOG2_E;
            scores[i + 1] = (scores[i + 1] - shifts[half]) * LOG2_E;
        }
    }
}

/* The same of products, where the largest scores so far have been scaled. One near the lowest number has no room for another base, but then no key of this block is seen. */
INLINE void raise_rows_by_products(const attention_shape s, float scale, attention_rows *rows, const float *scores, attention_exponents *exponents) {
    exponents->unit[0] = exponents->unit[1] = scale * LOG2_E;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float top = fmaxf(rows->max[half], scale * largest_of(s, scores, half, -INFINITE));
        rows->down[half] = shrink(rows->max[half], top, LOG2_E);
        rows->max[half] = top;
        exponents->shift[half] = fmaxf(top * LOG2_E, -LARGEST);
    }
}

/* Scores become weights, without a branch: the weights of all blocks go through this code, whatever their scores are. */
INLINE void soften(const attention_shape s, const attention_exponents *exponents, attention_rows *rows, float *scores) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = 0;
#pragma unroll
        for (int i = 2 * half; i < s.keys / 2; i += 4) {
            scores[i] = ex2(fmaf(scores[i], exponents->unit[half], -exponents->shift[half]));
            scores[i + 1] = ex2(fmaf(scores[i + 1], exponents->unit[half], -exponents->shift[half]));
            sum += scores[i] + scores[i + 1];
        }
        rows->sum[half] = fmaf(rows->sum[half], rows->down[half], sum);
    }
}

INLINE uint32_t pack_pair(const int element, float low, float high) { return element == ELEMENT_BF16 ? cvt_bf16x2(low, high) : cvt_f16x2(low, high); }

/* Of keys and values in blocks: products of q and elements times their block scale become products of q and k. factors: of keys in fp8_1x128 their scales, [keys] smem. What of nvfp4 is the same for all, and may be any
 * number, is multiplied by as well. */
INLINE void scale_products_of_blocks(const attention_shape s, const attention_rows *rows, uint32_t factors, float *scores) {
    if (s.cached == CACHED_MXFP8) return;
#pragma unroll
    for (int i = 0; i < s.keys / 2; i += 4) {
        float2 factor = {rows->key_scale, rows->key_scale};
        if (s.cached == CACHED_E4M3) factor = ld_shared_f32x2(factors + (i * 2 + threadIdx.x % 4 * 2) * 4);
        scores[i] *= factor.x, scores[i + 1] *= factor.y, scores[i + 2] *= factor.x, scores[i + 3] *= factor.y;
    }
}

/* Weights times the scales of values in fp8_1x128, which lie behind those of keys. */
INLINE void scale_weights(const attention_shape s, uint32_t factors, float *weights) {
#pragma unroll
    for (int i = 0; i < s.keys / 2; i += 4) {
        const float2 factor = ld_shared_f32x2(factors + (s.keys + i * 2 + threadIdx.x % 4 * 2) * 4);
        weights[i] *= factor.x, weights[i + 1] *= factor.y, weights[i + 2] *= factor.x, weights[i + 3] *= factor.y;
    }
}

/* Weights as the first operand of a product: pairs of k of each step of 16 keys. */
INLINE void pack_weights(const attention_shape s, const float *scores, uint32_t *weights) {
#pragma unroll
    for (int i = 0; i < s.keys / 4; i++) weights[i] = pack_pair(s.element, scores[2 * i], scores[2 * i + 1]);
}

#endif
