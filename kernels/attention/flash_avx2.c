/* Attention's products for AVX2 with FMA: up to 6 rows and 16 keys or columns at a time, 12 accumulators; k is transposed in registers, 8 by 8.
 * Measured: README.md. */
#include <immintrin.h>

#include "kernels/attention/soften_loops.h"
#include "kernels/common/cpu/simd.h"

SIMD_INLINE void scores_of(const int rows, int64_t d, const float *q, int64_t q_stride, const float *keys, int add, float *to) {
    for (int first = 0; first < FLASH_KEYS; first += 16) {
        __m256 sum[FLASH_ROWS][2];
        SIMD_UNROLL
        for (int r = 0; r < rows; r++) {
            SIMD_UNROLL
            for (int i = 0; i < 2; i++) sum[r][i] = add ? _mm256_loadu_ps(to + r * FLASH_KEYS + first + 8 * i) : _mm256_setzero_ps();
        }
        for (int64_t at = 0; at < d; at++) {
            __m256 key0 = _mm256_loadu_ps(keys + at * FLASH_KEYS + first), key1 = _mm256_loadu_ps(keys + at * FLASH_KEYS + first + 8);
            SIMD_UNROLL
            for (int r = 0; r < rows; r++) {
                __m256 value = _mm256_broadcast_ss(&q[r * q_stride + at]);
                sum[r][0] = _mm256_fmadd_ps(value, key0, sum[r][0]);
                sum[r][1] = _mm256_fmadd_ps(value, key1, sum[r][1]);
            }
        }
        SIMD_UNROLL
        for (int r = 0; r < rows; r++) {
            SIMD_UNROLL
            for (int i = 0; i < 2; i++) _mm256_storeu_ps(to + r * FLASH_KEYS + first + 8 * i, sum[r][i]);
        }
    }
}

SIMD_INLINE void values_of(const int rows, int columns, int keys, const float *weights, const float *v, int64_t v_stride, const float *factor, float *out,
                           int64_t out_stride) {
    for (int first = 0; first < columns; first += 16) {
        __m256 sum[FLASH_ROWS][2];
        SIMD_UNROLL
        for (int r = 0; r < rows; r++) {
            __m256 by = _mm256_broadcast_ss(&factor[r]);
            SIMD_UNROLL
            for (int i = 0; i < 2; i++) sum[r][i] = _mm256_mul_ps(_mm256_loadu_ps(out + r * out_stride + first + 8 * i), by);
        }
        for (int key = 0; key < keys; key++) {
            __m256 value0 = _mm256_loadu_ps(v + key * v_stride + first), value1 = _mm256_loadu_ps(v + key * v_stride + first + 8);
            SIMD_UNROLL
            for (int r = 0; r < rows; r++) {
                __m256 weight = _mm256_broadcast_ss(&weights[r * FLASH_KEYS + key]);
                sum[r][0] = _mm256_fmadd_ps(weight, value0, sum[r][0]);
                sum[r][1] = _mm256_fmadd_ps(weight, value1, sum[r][1]);
            }
        }
        SIMD_UNROLL
        for (int r = 0; r < rows; r++) {
            SIMD_UNROLL
            for (int i = 0; i < 2; i++) _mm256_storeu_ps(out + r * out_stride + first + 8 * i, sum[r][i]);
        }
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

static void values(int rows, int keys, int columns, const float *weights, const float *v, int64_t v_stride, const flash_next *next, const float *factor, float *out,
                   int64_t out_stride) {
    (void)next;
    BY_ROWS(values_of, columns, keys, weights, v, v_stride, factor, out, out_stride)
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
    (void)next;
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

const flash_isa flash_isa_avx2 = {.scores = scores, .values = values, .transpose = transpose, .soften = soften};
