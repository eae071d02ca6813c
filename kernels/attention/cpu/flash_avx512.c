/* Attention's products for AVX-512: up to 6 rows and 64 keys or columns, 24 accumulators; k is transposed in registers, 16 by 16.
 * Measured: README.md. */
#include "kernels/attention/cpu/soften_avx512.h"

SIMD_INLINE void scores_of(const int rows, int64_t d, const float *q, int64_t q_stride, const float *keys, int add, float *to) {
    __m512 sum[FLASH_ROWS][4];
    SIMD_UNROLL
    for (int r = 0; r < rows; r++) {
        SIMD_UNROLL
        for (int i = 0; i < 4; i++) sum[r][i] = add ? _mm512_loadu_ps(to + r * FLASH_KEYS + 16 * i) : _mm512_setzero_ps();
    }
    for (int64_t at = 0; at < d; at++, keys += FLASH_KEYS) {
        __m512 key[4];
        SIMD_UNROLL
        for (int i = 0; i < 4; i++) key[i] = _mm512_loadu_ps(keys + 16 * i);
        SIMD_UNROLL
        for (int r = 0; r < rows; r++) {
            __m512 value = _mm512_set1_ps(q[r * q_stride + at]);
            SIMD_UNROLL
            for (int i = 0; i < 4; i++) sum[r][i] = _mm512_fmadd_ps(value, key[i], sum[r][i]);
        }
    }
    SIMD_UNROLL
    for (int r = 0; r < rows; r++) {
        SIMD_UNROLL
        for (int i = 0; i < 4; i++) _mm512_storeu_ps(to + r * FLASH_KEYS + 16 * i, sum[r][i]);
    }
}

SIMD_INLINE void values_of(const int rows, const int vectors, const int fetches, int keys, const float *weights, const float *v, int64_t v_stride, const flash_next *next,
                           const float *factor, float *out, int64_t out_stride) {
    __m512 sum[FLASH_ROWS][4];
    SIMD_UNROLL
    for (int r = 0; r < rows; r++) {
        __m512 by = _mm512_set1_ps(factor[r]);
        SIMD_UNROLL
        for (int i = 0; i < vectors; i++) sum[r][i] = _mm512_mul_ps(_mm512_loadu_ps(out + r * out_stride + 16 * i), by);
    }
    for (int key = 0; key < keys; key++, v += v_stride) {
        if (fetches) fetch(next, key);
        __m512 value[4];
        SIMD_UNROLL
        for (int i = 0; i < vectors; i++) value[i] = _mm512_loadu_ps(v + 16 * i);
        SIMD_UNROLL
        for (int r = 0; r < rows; r++) {
            __m512 weight = _mm512_set1_ps(weights[r * FLASH_KEYS + key]);
            SIMD_UNROLL
            for (int i = 0; i < vectors; i++) sum[r][i] = _mm512_fmadd_ps(weight, value[i], sum[r][i]);
        }
    }
    if (fetches) fetch_rest(next, keys);
    SIMD_UNROLL
    for (int r = 0; r < rows; r++) {
        SIMD_UNROLL
        for (int i = 0; i < vectors; i++) _mm512_storeu_ps(out + r * out_stride + 16 * i, sum[r][i]);
    }
}

#define BY_ROWS(function, ...)                    \
    switch (rows) {                               \
    case 1: function(1, __VA_ARGS__); break;      \
    case 2: function(2, __VA_ARGS__); break;      \
    case 3: function(3, __VA_ARGS__); break;      \
    case 4: function(4, __VA_ARGS__); break;      \
    case 5: function(5, __VA_ARGS__); break;      \
    default: function(6, __VA_ARGS__); break;     \
    }

static void scores(int rows, int64_t d, const float *q, int64_t q_stride, const float *keys, int add, float *to) {
    BY_ROWS(scores_of, d, q, q_stride, keys, add, to)
}

SIMD_INLINE void values_by_vectors(const int fetches, int rows, int keys, int columns, const float *weights, const float *v, int64_t v_stride,
                                   const flash_next *next, const float *factor, float *out, int64_t out_stride) {
    switch (columns / 16) {
    case 4: BY_ROWS(values_of, 4, fetches, keys, weights, v, v_stride, next, factor, out, out_stride) break;
    case 3: BY_ROWS(values_of, 3, fetches, keys, weights, v, v_stride, next, factor, out, out_stride) break;
    case 2: BY_ROWS(values_of, 2, fetches, keys, weights, v, v_stride, next, factor, out, out_stride) break;
    default: BY_ROWS(values_of, 1, fetches, keys, weights, v, v_stride, next, factor, out, out_stride) break;
    }
}

static void values(int rows, int keys, int columns, const float *weights, const float *v, int64_t v_stride, const flash_next *next, const float *factor, float *out,
                   int64_t out_stride) {
    if (next != NULL) values_by_vectors(1, rows, keys, columns, weights, v, v_stride, next, factor, out, out_stride);
    else values_by_vectors(0, rows, keys, columns, weights, v, v_stride, next, factor, out, out_stride);
}

SIMD_INLINE void transpose_part(const int all, int keys, int count, const float *k, int64_t k_stride, float *to) {
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
        if (all || i < count) _mm512_storeu_ps(to + i * FLASH_KEYS, r[i]);
    }
}

static void transpose(int keys, int64_t d, const float *k, int64_t k_stride, const flash_next *next, int first, float *transposed) {
    for (int64_t at = 0; at < d; at += 16) {
        for (int64_t i = at / 16; next != NULL && i < next->rows; i += (d + 15) / 16) fetch(next, i);
        float *to = transposed + at * FLASH_KEYS + first;
        if (keys == 16 && d - at >= 16) transpose_part(1, 16, 16, k + at, k_stride, to);
        else transpose_part(0, keys, d - at < 16 ? (int)(d - at) : 16, k + at, k_stride, to);
    }
}

const flash_isa flash_isa_avx512 = {.scores = scores, .values = values, .transpose = transpose, .soften = soften_block};
