/* Attention's products for AVX-512: up to 6 rows and 64 keys or columns, 24 accumulators; k is transposed in registers, 16 by 16.
 * Measured: README.md. */
#include "kernels/attention/cpu/flash_avx512.h"

SIMD_INLINE __m512 multiply(__m512 sum, __m512i a, __m512i b) { return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sum); }

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

static void scores(int rows, int count, int64_t d, const float *q, int64_t q_stride, const float *keys, int add, float *to) { scores_of_words(rows, count, d, q, q_stride, keys, add, to); }

static void scores_in_place(int rows, int64_t d, const float *q, int64_t q_stride, const float *k, int64_t k_stride, const flash_next *next, int add, float *to) {
    scores_of_turn_words(rows, d, q, q_stride, k, 4 * k_stride, next, add, to);
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

static void transpose(int keys, int64_t d, const float *k, int64_t k_stride, const flash_next *next, int first, float *transposed) {
    transpose_words(keys, d, (const char *)k, 4 * k_stride, next, transposed + first);
}

const flash_isa flash_isa_avx512 = {.scores = scores, .scores_in_place = scores_in_place, .values = values, .transpose = transpose, .soften = soften_block, .has_nan = has_nan, .end_row = end_row};
