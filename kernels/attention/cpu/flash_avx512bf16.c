/* Attention's products for AVX-512 BF16: sums of pairs of bf16 in fp32, up to 6 rows and 64 keys or columns, 24 accumulators. Words of k, which are pairs along d, are transposed in registers, 16 by
 * 16; rows of v are put together two by two as they are read, by which its columns come out in another order.
 * Measured: README.md. */
#include "kernels/attention/cpu/flash_avx512.h"

SIMD_INLINE __m512 multiply(__m512 sum, __m512i a, __m512i b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }

/* halves: of 32 columns, of which the last has `last` that are there. */
SIMD_INLINE void values_of(const int rows, const int halves, const int fetches, int keys, __mmask32 last, const uint32_t *weights, const uint16_t *v, int64_t v_stride, const flash_next *next,
                           const float *factor, float *out, int64_t out_stride) {
    __m512 sum[FLASH_ROWS][4];
    SIMD_UNROLL
    for (int r = 0; r < rows; r++) {
        const __m512 by = _mm512_set1_ps(factor[r]);
        SIMD_UNROLL
        for (int i = 0; i < 2 * halves; i++) sum[r][i] = _mm512_mul_ps(_mm512_loadu_ps(out + r * out_stride + 16 * i), by);
    }
    for (int key = 0; key < keys; key += 2, v += 2 * v_stride) {
        if (fetches) fetch(next, key);
        if (fetches && key + 1 < keys) fetch(next, key + 1);
        __m512i value[4];
        SIMD_UNROLL
        for (int i = 0; i < halves; i++) {
            const __mmask32 mask = i + 1 < halves ? ~(__mmask32)0 : last;
            const __m512i low = _mm512_maskz_loadu_epi16(mask, v + 32 * i), high = _mm512_maskz_loadu_epi16(key + 1 < keys ? mask : 0, v + v_stride + 32 * i);
            value[2 * i] = _mm512_unpacklo_epi16(low, high);
            value[2 * i + 1] = _mm512_unpackhi_epi16(low, high);
        }
        SIMD_UNROLL
        for (int r = 0; r < rows; r++) {
            const __m512i weight = _mm512_set1_epi32((int)weights[r * FLASH_PAIRS + key / 2]);
            SIMD_UNROLL
            for (int i = 0; i < 2 * halves; i++) sum[r][i] = multiply(sum[r][i], weight, value[i]);
        }
    }
    if (fetches) fetch_rest(next, keys);
    SIMD_UNROLL
    for (int r = 0; r < rows; r++) {
        SIMD_UNROLL
        for (int i = 0; i < 2 * halves; i++) _mm512_storeu_ps(out + r * out_stride + 16 * i, sum[r][i]);
    }
}

static void scores(int rows, int64_t words, const uint32_t *q, int64_t q_stride, const uint32_t *keys, int add, float *to) { scores_of_words(rows, words, q, q_stride, keys, add, to); }

SIMD_INLINE void values_by_halves(const int fetches, int rows, int keys, int columns, const uint32_t *weights, const uint16_t *v, int64_t v_stride, const flash_next *next, const float *factor,
                                  float *out, int64_t out_stride) {
    const __mmask32 last = ~(__mmask32)0 >> (31 - (columns - 1) % 32);
    if (columns > 32) {
        BY_ROWS(values_of, 2, fetches, keys, last, weights, v, v_stride, next, factor, out, out_stride)
    } else {
        BY_ROWS(values_of, 1, fetches, keys, last, weights, v, v_stride, next, factor, out, out_stride)
    }
}

static void values(int rows, int keys, int columns, const uint32_t *weights, const uint16_t *v, int64_t v_stride, const flash_next *next, const float *factor, float *out,
                   int64_t out_stride) {
    if (next != NULL) values_by_halves(1, rows, keys, columns, weights, v, v_stride, next, factor, out, out_stride);
    else values_by_halves(0, rows, keys, columns, weights, v, v_stride, next, factor, out, out_stride);
}

static void transpose(int keys, int64_t words, const uint16_t *k, int64_t k_stride, const flash_next *next, int first, uint32_t *transposed) {
    transpose_words(keys, words, (const char *)k, 2 * k_stride, next, transposed + first);
}

static void round_pairs(const float *weights, uint32_t *pairs) {
    SIMD_UNROLL
    for (int i = 0; i < 2; i++)
        _mm512_storeu_si512(pairs + 16 * i, (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(weights + 32 * i + 16), _mm512_loadu_ps(weights + 32 * i)));
}

static const flash_pairs pairs = {.scores = scores, .values = values, .transpose = transpose, .round = round_pairs};
const flash_isa flash_isa_avx512bf16 = {.pairs = &pairs, .soften = soften_block};
