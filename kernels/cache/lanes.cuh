/* A token's rows of heads in vectors: its elements and angles as they lie, and a row that the lanes of a warp share, behind a norm and turned. Of the write of caches (cache_vectors.cu), and of attention that writes
 * its own token (attention/decode/token.cuh). */
#ifndef KERNELS_CACHE_LANES_CUH
#define KERNELS_CACHE_LANES_CUH

#include "kernels/cache/places.cuh"
#include "kernels/gpu/ptx/ldst.cuh"
#include "kernels/rotary/turn.cuh"

/* Eight elements as they lie: of f32 both words. */
typedef struct vector_words { uint4 low, high; } vector_words;

INLINE vector_words bring_vector(const cuda_array *array, int64_t at) {
    if (array->element_bytes == 4) return (vector_words){load_uint4(array, at, 4), load_uint4(array, at + 4, 4)};
    return (vector_words){load_uint4(array, at, 2), {0, 0, 0, 0}};
}

INLINE void unpack_vector(const cuda_array *array, const vector_words *words, float *x) {
    if (array->format == CUDA_bf16) {
        unpack_halves(CUDA_bf16, words->low, x);
    } else if (array->format == CUDA_f16) {
        unpack_halves(CUDA_f16, words->low, x);
    } else {
        const uint32_t bits[PIECE] = {words->low.x, words->low.y, words->low.z, words->low.w, words->high.x, words->high.y, words->high.z, words->high.w};
        EACH_OF_PIECE(i) x[i] = __uint_as_float(bits[i]);
    }
}

/* Angles of a launch's tokens: where they lie, or where the block has those of its own; elements from token to token. */
typedef struct cache_angles { uint64_t cosine, sine; int64_t cosine_token, sine_token; } cache_angles;

INLINE cache_angles angles_of(const cache_arguments *a) { return (cache_angles){a->cosine.data, a->sine.data, a->cosine_token, a->sine_token}; }

INLINE vector_words bring_angle(const cuda_array *array, uint64_t data, int64_t at) {
    cuda_array there = *array;
    there.data = data;
    return bring_vector(&there, at);
}
INLINE vector_words bring_cosine(const cache_arguments *a, const cache_angles *angles, int64_t token, int64_t i) { return bring_angle(&a->cosine, angles->cosine, token * angles->cosine_token + i); }
INLINE vector_words bring_sine(const cache_arguments *a, const cache_angles *angles, int64_t token, int64_t i) { return bring_angle(&a->sine, angles->sine, token * angles->sine_token + i); }

/* ---- a row that lanes share: norms bit for bit as kernels/norm/norm_rows.cu and what turns its result have it ---- */

typedef struct norm_words { vector_words weight, bias; } norm_words;

/* Weight and bias of the heads' norm: as they lie, of one lane, or in shared memory as fp32, where words is none: the first four elements of each lane, then the others. */
enum { COLUMN_LANES = 32 };
typedef struct norm_lanes { float4 weight[2][COLUMN_LANES], bias[2][COLUMN_LANES]; } norm_lanes;
typedef struct norm_columns { const norm_words *words; const norm_lanes *lanes; } norm_columns;

/* What no launch of the run writes. */
INLINE norm_words bring_columns(const cache_part *p, int64_t unit) {
    norm_words words = {{{0, 0, 0, 0}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {0, 0, 0, 0}}};
    if (p->norm.weight.data != 0) words.weight = bring_vector(&p->norm.weight, unit * CUDA_VECTOR);
    if (p->norm.bias.data != 0) words.bias = bring_vector(&p->norm.bias, unit * CUDA_VECTOR);
    return words;
}

/* Those of all parts into shared memory. A barrier of the block's comes behind it. */
INLINE void keep_columns(const cache_arguments *a, norm_lanes *kept) {
    for (int i = (int)threadIdx.x; i < a->count * COLUMN_LANES; i += (int)blockDim.x) {
        const cache_part *p = &a->parts[i / COLUMN_LANES];
        norm_lanes *to = &kept[i / COLUMN_LANES];
        const int unit = i % COLUMN_LANES;
        float x[PIECE];
        if (!p->norm.is_there || unit >= p->lanes) continue;
        const norm_words words = bring_columns(p, unit);
        unpack_vector(&p->norm.weight, &words.weight, x);
        to->weight[0][unit] = make_float4(x[0], x[1], x[2], x[3]), to->weight[1][unit] = make_float4(x[4], x[5], x[6], x[7]);
        unpack_vector(&p->norm.bias, &words.bias, x);
        to->bias[0][unit] = make_float4(x[0], x[1], x[2], x[3]), to->bias[1][unit] = make_float4(x[4], x[5], x[6], x[7]);
    }
}

INLINE void unpack_columns(const cuda_array *array, const vector_words *words, const float4 kept[2][COLUMN_LANES], int64_t unit, float y[PIECE]) {
    if (words != 0) {
        unpack_vector(array, words, y);
        return;
    }
    const float4 low = kept[0][unit], high = kept[1][unit];
    y[0] = low.x, y[1] = low.y, y[2] = low.z, y[3] = low.w, y[4] = high.x, y[5] = high.y, y[6] = high.z, y[7] = high.w;
}

typedef struct head_words { uint4 x; vector_words cosine, sine; } head_words;

INLINE bool is_turned(const cache_arguments *a, const cache_part *p, const cache_item *item) { return p->turned && item->unit * CUDA_VECTOR < a->width; }

INLINE void bring_head_angles(const cache_arguments *a, const cache_part *p, const cache_item *item, const cache_angles *angles, int64_t token, head_words *words) {
    if (!is_turned(a, p, item)) return;
    words->cosine = bring_cosine(a, angles, token, item->unit * CUDA_VECTOR);
    words->sine = bring_sine(a, angles, token, item->unit * CUDA_VECTOR);
}

INLINE head_words bring_head(const cache_arguments *a, const cache_part *p, const cache_item *item, const cache_angles *angles, int64_t token) {
    head_words words = {load_uint4(&p->from, item->from + item->unit * CUDA_VECTOR, 2), {{0, 0, 0, 0}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {0, 0, 0, 0}}};
    bring_head_angles(a, p, item, angles, token, &words);
    return words;
}

/* A warp that has rows of lanes has no others, and all of one token. */
#define ALL_LANES 0xffffffffu

INLINE float lanes_sum(const cache_part *p, float x) {
    if (p->lanes == 16) {         /* rows of 128: without a branch for each step */
#pragma unroll
        for (int step = 8; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
        return x;
    }
#pragma unroll 1
    for (int step = p->lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

INLINE float sum_of_piece(const float x[PIECE]) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < PIECE; i++) sum += x[i];
    return sum;
}
INLINE float squares_of_piece(const float x[PIECE]) {
    float sum = x[0] * x[0];
#pragma unroll
    for (int i = 1; i < PIECE; i++) sum = fmaf(x[i], x[i], sum);
    return sum;
}

INLINE void normalise_piece(const cache_part *p, const norm_columns *columns, int64_t unit, float x[PIECE]) {
    const cache_norm *n = &p->norm;
    float low = 0, y[PIECE];
    if (n->centred) {
        const float mean = lanes_sum(p, sum_of_piece(x)) * n->by_count;
        EACH_OF_PIECE(i) x[i] -= mean;
        low = lanes_sum(p, sum_of_piece(x)) * n->by_count;
    }
    const float variance = lanes_sum(p, squares_of_piece(x)) * n->by_count - low * low, scale = rsqrtf((variance < 0 ? 0 : variance) + n->eps), shift = -low * scale;
    EACH_OF_PIECE(i) x[i] = fmaf(x[i], scale, shift);
    if (n->weight.data != 0) {
        unpack_columns(&n->weight, columns->words == 0 ? 0 : &columns->words->weight, columns->lanes->weight, unit, y);
        EACH_OF_PIECE(i) x[i] *= y[i];
    }
    if (n->bias.data != 0) {
        unpack_columns(&n->bias, columns->words == 0 ? 0 : &columns->words->bias, columns->lanes->bias, unit, y);
        EACH_OF_PIECE(i) x[i] += y[i];
    }
}

/* What the lane of the other half has. */
INLINE uint4 partner_of(const cache_arguments *a, const cache_item *item, uint4 own) {
    const int half = (int)a->width / (2 * CUDA_VECTOR), unit = (int)item->unit, lane = (int)(threadIdx.x % 32) + (unit >= 2 * half ? 0 : unit < half ? half : -half);
    return make_uint4(__shfl_sync(ALL_LANES, own.x, lane), __shfl_sync(ALL_LANES, own.y, lane), __shfl_sync(ALL_LANES, own.z, lane), __shfl_sync(ALL_LANES, own.w, lane));
}

/* turn_pairs of one half: x c - y s is x c + (-y) s bit for bit. */
INLINE void turn_half(const float *x, const float *y, const float *cosine, const float *sine, float *turned) {
    EACH_OF_PIECE(k) turned[k] = x[k] * cosine[k] + y[k] * sine[k];
}

/* Eight elements of a head's row and what becomes of them in front of where they go, as they lie there: behind the norm, and turned. */
INLINE uint4 make_head(const int format, const cache_arguments *a, const cache_part *p, const cache_item *item, const head_words *words, const norm_columns *columns) {
    uint4 own = words->x, other;
    float x[PIECE], y[PIECE], cosine[PIECE], sine[PIECE], turned[PIECE];
    if (p->norm.is_there) {
        unpack_halves(format, own, x);
        normalise_piece(p, columns, item->unit, x);
        own = pack_halves(format, x);
    }
    if (!p->turned) return own;
    if (!a->interleaved) other = partner_of(a, item, own);
    if (!is_turned(a, p, item)) return own;
    unpack_vector(&a->cosine, &words->cosine, cosine);
    unpack_vector(&a->sine, &words->sine, sine);
    unpack_halves(format, own, x);
    if (a->interleaved) {
        turn_four(x, cosine, sine, turned);
    } else {
        const uint32_t sign = item->unit < a->width / (2 * CUDA_VECTOR) ? 0x80008000u : 0;
        unpack_halves(format, make_uint4(other.x ^ sign, other.y ^ sign, other.z ^ sign, other.w ^ sign), y);
        turn_half(x, y, cosine, sine, turned);
    }
    return pack_halves(format, turned);
}

/* ---- where a token goes ---- */

/* Of the run's only one. Without a table row and position are asked for side by side. */
INLINE cache_place place_of_only(const cache_arguments *a) {
    if (a->has_table || a->row.format != CUDA_i64 || a->position.format != CUDA_i64) return cache_only_place(a);
    const cache_token t = {*(const int64_t *)a->row.data, *(const int64_t *)a->position.data};
    if (t.row < 0 || t.row >= a->rows || t.position < 0) return cache_only_place(a);
    return cache_place_at(a, &t);
}

#endif
