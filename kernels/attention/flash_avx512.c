/* Attention's products for AVX-512: up to 6 rows and 64 keys or columns, 24 accumulators; k is transposed in registers, 16 by 16.
 * Measured: README.md. */
#include <immintrin.h>

#include "kernels/attention/soften_loops.h"
#include "kernels/common/cpu/simd.h"

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

SIMD_INLINE void values_of(const int rows, const int vectors, int keys, const float *weights, const float *v, int64_t v_stride, const float *factor, float *out,
                           int64_t out_stride) {
    __m512 sum[FLASH_ROWS][4];
    SIMD_UNROLL
    for (int r = 0; r < rows; r++) {
        __m512 by = _mm512_set1_ps(factor[r]);
        SIMD_UNROLL
        for (int i = 0; i < vectors; i++) sum[r][i] = _mm512_mul_ps(_mm512_loadu_ps(out + r * out_stride + 16 * i), by);
    }
    for (int key = 0; key < keys; key++, v += v_stride) {
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

static void values(int rows, int keys, int columns, const float *weights, const float *v, int64_t v_stride, const float *factor, float *out, int64_t out_stride) {
    switch (columns / 16) {
    case 4: BY_ROWS(values_of, 4, keys, weights, v, v_stride, factor, out, out_stride) break;
    case 3: BY_ROWS(values_of, 3, keys, weights, v, v_stride, factor, out, out_stride) break;
    case 2: BY_ROWS(values_of, 2, keys, weights, v, v_stride, factor, out, out_stride) break;
    default: BY_ROWS(values_of, 1, keys, weights, v, v_stride, factor, out, out_stride) break;
    }
}

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

static void transpose(int keys, int64_t d, const float *k, int64_t k_stride, int first, float *transposed) {
    for (int64_t at = 0; at < d; at += 16) {
        int count = d - at < 16 ? (int)(d - at) : 16;
        __mmask16 mask = (__mmask16)(0xffffu >> (16 - count));
        __m512 r[16];
        SIMD_UNROLL
        for (int i = 0; i < 16; i++) r[i] = i < keys ? _mm512_maskz_loadu_ps(mask, k + i * k_stride + at) : _mm512_setzero_ps();
        transpose16(r);
        float *to = transposed + at * FLASH_KEYS + first;
        SIMD_UNROLL
        for (int i = 0; i < 16; i++) {
            if (i < count) _mm512_storeu_ps(to + i * FLASH_KEYS, r[i]);
        }
    }
}

const flash_isa flash_isa_avx512 = {.scores = scores, .values = values, .transpose = transpose, .soften = soften};
