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

static void scores(int rows, int count, int64_t words, const uint32_t *q, int64_t q_stride, const uint32_t *keys, int add, float *to) {
    scores_of_words(rows, count, words, q, q_stride, keys, add, to);
}

static void scores_in_place(int rows, int64_t words, const uint32_t *q, int64_t q_stride, const uint16_t *k, int64_t k_stride, const flash_next *next, int add, float *to) {
    scores_of_turn_words(rows, words, q, q_stride, k, 2 * k_stride, next, add, to);
}

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

static void straighten(float *out, int64_t count) {
    const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23), high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    for (int64_t i = 0; i < count; i += 32) {
        const __m512 a = _mm512_loadu_ps(out + i), b = _mm512_loadu_ps(out + i + 16);
        _mm512_storeu_ps(out + i, _mm512_permutex2var_ps(a, low, b));
        _mm512_storeu_ps(out + i + 16, _mm512_permutex2var_ps(a, high, b));
    }
}

static void round_pairs(const float *weights, uint32_t *pairs) {
    SIMD_UNROLL
    for (int i = 0; i < 2; i++)
        _mm512_storeu_si512(pairs + 16 * i, (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(weights + 32 * i + 16), _mm512_loadu_ps(weights + 32 * i)));
}

/* 32 codes of e4m3 as bf16: below 8 they are sums of 2^-9, which a table has. */
SIMD_INLINE __m512i e4m3_32(__m256i codes) {
    const __m512i small = _mm512_zextsi128_si512(_mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60));
    const __m512i all = _mm512_cvtepu8_epi16(codes), magnitude = _mm512_and_si512(all, _mm512_set1_epi16(0x7f));
    __m512i bits = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(120 << 7));
    bits = _mm512_mask_permutexvar_epi16(bits, _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8)), magnitude, small);
    bits = _mm512_mask_mov_epi16(bits, _mm512_cmpeq_epu16_mask(magnitude, _mm512_set1_epi16(0x7f)), _mm512_set1_epi16(0x7fff));
    return _mm512_or_si512(bits, _mm512_slli_epi16(_mm512_and_si512(all, _mm512_set1_epi16(0x80)), 8));
}

/* 32 nibbles of e2m1 as bf16. */
SIMD_INLINE __m512i e2m1_32(__m128i codes) {
    const __m512i values = _mm512_zextsi256_si512(_mm256_setr_epi16(0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, (short)0x8000, (short)0xbf00, (short)0xbf80, (short)0xbfc0,
                                                                    (short)0xc000, (short)0xc040, (short)0xc080, (short)0xc0c0));
    const __m512i bytes = _mm512_cvtepu8_epi32(codes);
    const __m512i nibbles = _mm512_or_si512(_mm512_and_si512(bytes, _mm512_set1_epi32(15)), _mm512_slli_epi32(_mm512_srli_epi32(bytes, 4), 16));
    return _mm512_permutexvar_epi16(nibbles, values);
}

/* 16 of them times a factor, in fp32. */
SIMD_INLINE __m512 times(__m256i codes, float factor) {
    return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(codes), 16)), _mm512_set1_ps(factor));
}

/* 16 scales of a byte as floats. */
SIMD_INLINE __m512 scales_16(dw_format format, __m128i codes) {
    const __m512i all = _mm512_cvtepu8_epi32(codes), magnitude = _mm512_and_si512(all, _mm512_set1_epi32(0x7f));
    if (format == DW_FORMAT_e8m0) {
        __m512i bits = _mm512_slli_epi32(all, 23);
        bits = _mm512_mask_mov_epi32(bits, _mm512_testn_epi32_mask(all, all), _mm512_set1_epi32(1 << 22));                       /* 2^-127 */
        return _mm512_castsi512_ps(_mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(all, _mm512_set1_epi32(255)), _mm512_set1_epi32(0x7fffffff)));
    }
    const __m512 small = _mm512_mul_ps(_mm512_cvtepi32_ps(magnitude), _mm512_set1_ps(0x1p-9f));
    __m512i bits = _mm512_add_epi32(_mm512_slli_epi32(magnitude, 20), _mm512_set1_epi32(120 << 23));
    bits = _mm512_mask_mov_epi32(bits, _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(8)), _mm512_castps_si512(small));
    bits = _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7f)), _mm512_set1_epi32(0x7fffffff));
    return _mm512_castsi512_ps(_mm512_or_si512(bits, _mm512_slli_epi32(_mm512_andnot_si512(_mm512_set1_epi32(0x7f), all), 24)));
}

/* Rows by 32 elements; what lies behind a row is not read. */
SIMD_INLINE void unpack_rows(const int is_e4m3, const int scaled, const flash_codes *from, int64_t rows, int64_t count, uint16_t *to, int64_t to_stride) {
    const int64_t bytes = is_e4m3 ? 32 : 16, blocks = (count + from->block - 1) / from->block, shift = from->block == 32 ? 5 : 4;
    const uint8_t *codes = from->codes, *scale_codes = from->scales;
    for (int64_t row = 0; row < rows; row++, codes += from->code_stride, to += to_stride) {
        float scales[16];
        if (scaled) {
            _mm512_storeu_ps(scales, scales_16(from->scale, _mm_maskz_loadu_epi8((__mmask16)(0xffffu >> (16 - blocks)), scale_codes)));
            scale_codes += from->scale_stride;
        }
        int64_t at = 0;
        for (; at + 32 <= count; at += 32) {
            __m512i bits = is_e4m3 ? e4m3_32(_mm256_loadu_si256((const __m256i *)(const void *)(codes + at))) : e2m1_32(_mm_loadu_si128((const __m128i *)(const void *)(codes + at / 2)));
            if (scaled) bits = (__m512i)_mm512_cvtne2ps_pbh(times(_mm512_extracti64x4_epi64(bits, 1), scales[(at + 16) >> shift]), times(_mm512_castsi512_si256(bits), scales[at >> shift]));
            _mm512_storeu_si512(to + at, bits);
        }
        for (; at < count; at += 32) {
            const int64_t left = count - at < 32 ? count - at : 32;
            const __mmask32 there = (__mmask32)(UINT64_C(0xffffffff) >> (32 - left)), read = is_e4m3 ? there : (__mmask32)(UINT64_C(0xffffffff) >> (32 - (left + 1) / 2));
            const __m256i some = _mm256_maskz_loadu_epi8(read, codes + at / 32 * bytes);
            __m512i bits = is_e4m3 ? e4m3_32(some) : e2m1_32(_mm256_castsi256_si128(some));
            if (scaled) {
                const float low = scales[at >> shift], high = left > 16 ? scales[(at + 16) >> shift] : 0;
                bits = (__m512i)_mm512_cvtne2ps_pbh(times(_mm512_extracti64x4_epi64(bits, 1), high), times(_mm512_castsi512_si256(bits), low));
            }
            _mm512_mask_storeu_epi16(to + at, there, bits);
        }
    }
}

static bool unpack(const flash_codes *from, int64_t rows, int64_t count, uint16_t *to, int64_t to_stride) {
    if (from->element != DW_FORMAT_e4m3 && from->element != DW_FORMAT_e2m1) return false;
    if (from->scales == NULL) unpack_rows(1, 0, from, rows, count, to, to_stride);      /* fp8_1x128 */
    else if (from->element == DW_FORMAT_e4m3) unpack_rows(1, 1, from, rows, count, to, to_stride);
    else unpack_rows(0, 1, from, rows, count, to, to_stride);
    return true;
}

static const flash_pairs pairs = {.scores = scores, .scores_in_place = scores_in_place, .values = values, .transpose = transpose, .straighten = straighten, .round = round_pairs, .unpack = unpack};
const flash_isa flash_isa_avx512bf16 = {.pairs = &pairs, .soften = soften_block, .has_nan = has_nan, .end_row = end_row};
