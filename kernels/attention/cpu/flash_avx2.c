/* Attention's products for AVX2 with FMA: 12 accumulators for 3 and more rows, 16 keys or columns at a time; 8 for fewer; k is transposed in registers, 8 by 8.
 * Measured: README.md. */
#include <immintrin.h>

#include "kernels/attention/cpu/fetch.h"
#include "kernels/attention/cpu/soften_loops.h"
#include "kernels/cpu/simd.h"

/* vectors: of 8 keys or columns at a time. Few rows take more of them, so that enough sums are under way to hide the latency of one. */
SIMD_INLINE void scores_of(const int rows, const int vectors, int64_t d, const float *q, int64_t q_stride, const float *keys, int add, float *to) {
    for (int first = 0; first < FLASH_KEYS; first += 8 * vectors) {
        __m256 sum[FLASH_ROWS][8];
        SIMD_UNROLL
        for (int r = 0; r < rows; r++) {
            SIMD_UNROLL
            for (int i = 0; i < vectors; i++) sum[r][i] = add ? _mm256_loadu_ps(to + r * FLASH_KEYS + first + 8 * i) : _mm256_setzero_ps();
        }
        for (int64_t at = 0; at < d; at++) {
            __m256 key[8];
            SIMD_UNROLL
            for (int i = 0; i < vectors; i++) key[i] = _mm256_loadu_ps(keys + at * FLASH_KEYS + first + 8 * i);
            SIMD_UNROLL
            for (int r = 0; r < rows; r++) {
                __m256 value = _mm256_broadcast_ss(&q[r * q_stride + at]);
                SIMD_UNROLL
                for (int i = 0; i < vectors; i++) sum[r][i] = _mm256_fmadd_ps(value, key[i], sum[r][i]);
            }
        }
        SIMD_UNROLL
        for (int r = 0; r < rows; r++) {
            SIMD_UNROLL
            for (int i = 0; i < vectors; i++) _mm256_storeu_ps(to + r * FLASH_KEYS + first + 8 * i, sum[r][i]);
        }
    }
}

SIMD_INLINE void values_part(const int rows, const int vectors, int keys, const float *weights, const float *v, int64_t v_stride, const flash_next *next,
                             const float *factor, float *out, int64_t out_stride) {
    __m256 sum[FLASH_ROWS][8];
    SIMD_UNROLL
    for (int r = 0; r < rows; r++) {
        __m256 by = _mm256_broadcast_ss(&factor[r]);
        SIMD_UNROLL
        for (int i = 0; i < vectors; i++) sum[r][i] = _mm256_mul_ps(_mm256_loadu_ps(out + r * out_stride + 8 * i), by);
    }
    for (int key = 0; key < keys; key++) {
        fetch(next, key);
        __m256 value[8];
        SIMD_UNROLL
        for (int i = 0; i < vectors; i++) value[i] = _mm256_loadu_ps(v + key * v_stride + 8 * i);
        SIMD_UNROLL
        for (int r = 0; r < rows; r++) {
            __m256 weight = _mm256_broadcast_ss(&weights[r * FLASH_KEYS + key]);
            SIMD_UNROLL
            for (int i = 0; i < vectors; i++) sum[r][i] = _mm256_fmadd_ps(weight, value[i], sum[r][i]);
        }
    }
    fetch_rest(next, keys);
    SIMD_UNROLL
    for (int r = 0; r < rows; r++) {
        SIMD_UNROLL
        for (int i = 0; i < vectors; i++) _mm256_storeu_ps(out + r * out_stride + 8 * i, sum[r][i]);
    }
}

SIMD_INLINE void values_of(const int rows, const int vectors, int columns, int keys, const float *weights, const float *v, int64_t v_stride, const flash_next *next,
                           const float *factor, float *out, int64_t out_stride) {
    int first = 0;
    for (; first + 8 * vectors <= columns; first += 8 * vectors) values_part(rows, vectors, keys, weights, v + first, v_stride, first == 0 ? next : NULL, factor, out + first, out_stride);
    for (; first < columns; first += 16) values_part(rows, 2, keys, weights, v + first, v_stride, first == 0 ? next : NULL, factor, out + first, out_stride);
}

#define BY_ROWS(function, ...)                       \
    switch (rows) {                                  \
    case 1: function(1, 8, __VA_ARGS__); break;      \
    case 2: function(2, 4, __VA_ARGS__); break;      \
    case 3: function(3, 2, __VA_ARGS__); break;      \
    case 4: function(4, 2, __VA_ARGS__); break;      \
    case 5: function(5, 2, __VA_ARGS__); break;      \
    default: function(6, 2, __VA_ARGS__); break;     \
    }

static void scores(int rows, int count, int64_t d, const float *q, int64_t q_stride, const float *keys, int add, float *to) {
    (void)count;
    BY_ROWS(scores_of, d, q, q_stride, keys, add, to)
}

static void values(int rows, int keys, int columns, const float *weights, const float *v, int64_t v_stride, const flash_next *next, const float *factor, float *out,
                   int64_t out_stride) {
    BY_ROWS(values_of, columns, keys, weights, v, v_stride, next, factor, out, out_stride)
}

/* Pairs of floats, fours, halves. */
SIMD_INLINE void transpose8(__m256 r[8]) {
    __m256 t[8];
    SIMD_UNROLL
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    SIMD_UNROLL
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    SIMD_UNROLL
    for (int i = 0; i < 4; i++) {
        __m256 low = r[i], high = r[4 + i];
        r[i] = _mm256_permute2f128_ps(low, high, 0x20);
        r[4 + i] = _mm256_permute2f128_ps(low, high, 0x31);
    }
}

static void transpose(int keys, int64_t d, const float *k, int64_t k_stride, const flash_next *next, int first, float *transposed) {
    fetch_rest(next, 0);
    static const int32_t masks[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    for (int half = 0; half < 16; half += 8) {
        for (int64_t at = 0; at < d; at += 8) {
            int count = d - at < 8 ? (int)(d - at) : 8;
            __m256i mask = _mm256_loadu_si256((const __m256i *)(masks + 8 - count));
            __m256 r[8];
            SIMD_UNROLL
            for (int i = 0; i < 8; i++) r[i] = half + i < keys ? _mm256_maskload_ps(k + (half + i) * k_stride + at, mask) : _mm256_setzero_ps();
            transpose8(r);
            float *to = transposed + at * FLASH_KEYS + first + half;
            SIMD_UNROLL
            for (int i = 0; i < 8; i++) {
                if (i < count) _mm256_storeu_ps(to + i * FLASH_KEYS, r[i]);
            }
        }
    }
}

const flash_isa flash_isa_avx2 = {.scores = scores, .values = values, .transpose = transpose, .soften = soften, .has_nan = has_nan, .end_row = end_row};
