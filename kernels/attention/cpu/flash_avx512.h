/* What attention's products for AVX-512 share: a transpose of words, scores, and one step of the softmax. A word is a float, or a pair of bf16: the file that includes this one says by
 * multiply what the products of words are. Not for other files. */
#ifndef KERNELS_ATTENTION_CPU_FLASH_AVX512_H
#define KERNELS_ATTENTION_CPU_FLASH_AVX512_H

#include <immintrin.h>
#include <string.h>

#include "kernels/attention/cpu/fetch.h"
#include "kernels/attention/cpu/soften_loops.h"
#include "kernels/cpu/simd.h"

/* Four steps: pairs of floats, of doubles, and of quarters twice. */
SIMD_INLINE void transpose16(__m512 r[16]) {
    __m512 t[16];
    SIMD_UNROLL
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    SIMD_UNROLL
    for (int i = 0; i < 16; i += 4) {   /* r[i + j]: element j of every quarter of rows i .. i + 3 */
        __m512d a = _mm512_castps_pd(t[i]), b = _mm512_castps_pd(t[i + 1]), c = _mm512_castps_pd(t[i + 2]), d = _mm512_castps_pd(t[i + 3]);
        r[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        r[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        r[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        r[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    SIMD_UNROLL
    for (int j = 0; j < 4; j++) {       /* t[j], t[4 + j]: quarters 0, 2 and 1, 3 of rows 0 .. 7; t[8 + j], t[12 + j]: of rows 8 .. 15 */
        t[j] = _mm512_shuffle_f32x4(r[j], r[4 + j], 0x88);
        t[4 + j] = _mm512_shuffle_f32x4(r[j], r[4 + j], 0xdd);
        t[8 + j] = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x88);
        t[12 + j] = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xdd);
    }
    SIMD_UNROLL
    for (int j = 0; j < 4; j++) {
        r[j] = _mm512_shuffle_f32x4(t[j], t[8 + j], 0x88);
        r[8 + j] = _mm512_shuffle_f32x4(t[j], t[8 + j], 0xdd);
        r[4 + j] = _mm512_shuffle_f32x4(t[4 + j], t[12 + j], 0x88);
        r[12 + j] = _mm512_shuffle_f32x4(t[4 + j], t[12 + j], 0xdd);
    }
}

/* sum + a b, of 16 words; in the file that includes this one. */
SIMD_INLINE __m512 multiply(__m512 sum, __m512i a, __m512i b);

#define BY_ROWS(function, ...)                    \
    switch (rows) {                               \
    case 1: function(1, __VA_ARGS__); break;      \
    case 2: function(2, __VA_ARGS__); break;      \
    case 3: function(3, __VA_ARGS__); break;      \
    case 4: function(4, __VA_ARGS__); break;      \
    case 5: function(5, __VA_ARGS__); break;      \
    default: function(6, __VA_ARGS__); break;     \
    }

/* A word in all lanes. */
SIMD_INLINE __m512i broadcast(const void *from, int64_t word) {
    int32_t value;
    memcpy(&value, (const char *)from + 4 * word, sizeof value);
    return _mm512_set1_epi32(value);
}

/* 24 accumulators, or of the keys of one turn alone 6. */
SIMD_INLINE void scores_of(const int rows, const int turns, int64_t words, const void *q, int64_t q_stride, const char *keys, int add, float *to) {
    __m512 sum[FLASH_ROWS][4];
    SIMD_UNROLL
    for (int r = 0; r < rows; r++) {
        SIMD_UNROLL
        for (int i = 0; i < turns; i++) sum[r][i] = add ? _mm512_loadu_ps(to + r * FLASH_KEYS + 16 * i) : _mm512_setzero_ps();
    }
    for (int64_t at = 0; at < words; at++, keys += 4 * FLASH_KEYS) {
        __m512i key[4];
        SIMD_UNROLL
        for (int i = 0; i < turns; i++) key[i] = _mm512_loadu_si512(keys + 64 * i);
        SIMD_UNROLL
        for (int r = 0; r < rows; r++) {
            const __m512i value = broadcast(q, r * q_stride + at);
            SIMD_UNROLL
            for (int i = 0; i < turns; i++) sum[r][i] = multiply(sum[r][i], value, key[i]);
        }
    }
    SIMD_UNROLL
    for (int r = 0; r < rows; r++) {
        SIMD_UNROLL
        for (int i = 0; i < turns; i++) _mm512_storeu_ps(to + r * FLASH_KEYS + 16 * i, sum[r][i]);
    }
}

static void scores_of_words(int rows, int count, int64_t words, const void *q, int64_t q_stride, const void *keys, int add, float *to) {
    if (count <= FLASH_TURN) {
        BY_ROWS(scores_of, 1, words, q, q_stride, keys, add, to)
    } else {
        BY_ROWS(scores_of, 4, words, q, q_stride, keys, add, to)
    }
}

/* 16 words of 16 keys, k_stride bytes apart. all: none is missing. */
SIMD_INLINE void transpose_part(const int all, int keys, int count, const char *k, int64_t k_stride, char *to) {
    const __mmask16 mask = (__mmask16)(0xffffu >> (16 - count));
    __m512 r[16];
    SIMD_UNROLL
    for (int i = 0; i < 16; i++) {
        if (all) r[i] = _mm512_loadu_ps(k + i * k_stride);
        else r[i] = i < keys ? _mm512_maskz_loadu_ps(mask, k + i * k_stride) : _mm512_setzero_ps();
    }
    transpose16(r);
    SIMD_UNROLL
    for (int i = 0; i < 16; i++) {
        if (all || i < count) _mm512_storeu_ps(to + 4 * i * FLASH_KEYS, r[i]);
    }
}

static void transpose_words(int keys, int64_t words, const char *k, int64_t k_stride, const flash_next *next, void *transposed) {
    char *to = transposed;
    for (int64_t at = 0; at < words; at += 16, k += 64, to += 64 * FLASH_KEYS) {
        for (int64_t i = at / 16; fetch(next, i); i += (words + 15) / 16) {}
        if (keys == 16 && words - at >= 16) transpose_part(1, 16, 16, k, k_stride, to);
        else transpose_part(0, keys, words - at < 16 ? (int)(words - at) : 16, k, k_stride, to);
    }
}

/* The scores of a turn: transposed as above, but multiplied at once. Each row of q has one sum, so the next words are transposed while its products wait for each other. */
SIMD_INLINE void scores_of_turn(const int rows, int64_t words, const void *q, int64_t q_stride, const char *k, int64_t k_stride, const flash_next *next, int add, float *to) {
    __m512 sum[FLASH_ROWS];
    SIMD_UNROLL
    for (int r = 0; r < rows; r++) sum[r] = add ? _mm512_loadu_ps(to + r * FLASH_KEYS) : _mm512_setzero_ps();
    for (int64_t at = 0; at < words; at += 16, k += 64) {
        __m512 key[16];
        for (int64_t i = at * FLASH_TURN / words; i < (at + 16) * FLASH_TURN / words; i++) fetch(next, i);
        SIMD_UNROLL
        for (int i = 0; i < 16; i++) key[i] = _mm512_loadu_ps(k + i * k_stride);
        transpose16(key);
        SIMD_UNROLL
        for (int i = 0; i < 16; i++) {
            SIMD_UNROLL
            for (int r = 0; r < rows; r++) sum[r] = multiply(sum[r], broadcast(q, r * q_stride + at + i), _mm512_castps_si512(key[i]));
        }
    }
    SIMD_UNROLL
    for (int r = 0; r < rows; r++) _mm512_storeu_ps(to + r * FLASH_KEYS, sum[r]);
}

static void scores_of_turn_words(int rows, int64_t words, const void *q, int64_t q_stride, const void *k, int64_t k_stride, const flash_next *next, int add, float *to) {
    BY_ROWS(scores_of_turn, words, q, q_stride, k, k_stride, next, add, to)
}

/* cpu_exp of 16 numbers that are 0 or less, or NaN. */
SIMD_INLINE __m512 exp16(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-105.0f), x);   /* a NaN is the second operand's, and stays */
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-0.693359375f), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.97903413e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.39446591e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.33349675e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.16662954e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.66666657e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r);
    return _mm512_scalef_ps(_mm512_add_ps(p, _mm512_set1_ps(1.0f)), n);
}

/* What soften of soften_loops.h does, in registers: the loops' joining of lanes took longer than the products. Turns behind the last key that is seen have no weight. */
static float soften_block(flash_row *row, float *scores) {
    if (row->softcap > 0) return soften(row, scores);
    const __m512 scale = _mm512_set1_ps(row->scale), hidden = _mm512_set1_ps(-INFINITY);
    __mmask64 seen = (~UINT64_C(0) << row->begin) & (~UINT64_C(0) >> (FLASH_KEYS - row->end));
    if (row->mask != NULL) seen &= _mm512_cmpneq_epi8_mask(_mm512_loadu_si512(row->mask), _mm512_setzero_si512());
    __m512 s[4], most = _mm512_set1_ps(row->max);
    SIMD_UNROLL
    for (int i = 0; i < 4; i++) {
        s[i] = hidden;
        if (FLASH_TURN * i >= row->end) continue;
        s[i] = _mm512_mul_ps(_mm512_loadu_ps(scores + 16 * i), scale);
        if (row->bias != NULL) {
            const __m512 bias = _mm512_loadu_ps(row->bias + 16 * i);
            s[i] = _mm512_mask_add_ps(bias, _mm512_cmp_ps_mask(bias, _mm512_set1_ps(OP_ATTENTION_HIDES), _CMP_NLE_UQ), s[i], bias);
        }
        s[i] = _mm512_mask_mov_ps(hidden, (__mmask16)(seen >> (16 * i)), s[i]);
        most = _mm512_max_ps(s[i], most);
    }
    float new_max = _mm512_reduce_max_ps(most);
    const __m512 max = _mm512_set1_ps(new_max == -INFINITY ? 0.0f : new_max);
    __m512 sums = _mm512_setzero_ps();
    SIMD_UNROLL
    for (int i = 0; i < 4; i++) {
        s[i] = FLASH_TURN * i < row->end ? exp16(_mm512_sub_ps(s[i], max)) : _mm512_setzero_ps();
        sums = _mm512_add_ps(sums, s[i]);
        _mm512_storeu_ps(scores + 16 * i, s[i]);
    }
    float factor = _mm512_cvtss_f32(exp16(_mm512_sub_ps(_mm512_set1_ps(row->max), max)));
    row->sum = row->sum * factor + _mm512_reduce_add_ps(sums);
    row->max = new_max;
    return factor;
}

#endif
