/* What the two AVX-512 instruction sets share: the decoders of quantised panels, in registers.
 * A 64-byte line of codes holds 16 columns, one in each 32-bit lane; see gemm_pack.c for the order of k in a lane. */
#ifndef KERNELS_GEMM_CPU_GEMM_AVX512_H
#define KERNELS_GEMM_CPU_GEMM_AVX512_H

#include <immintrin.h>
#include <string.h>

#include "kernels/gemm/cpu/gemm.h"
#include "kernels/cpu/simd.h"

/* Two k of 16 columns as floats: even and odd. */
typedef struct gemm_pair { __m512 even, odd; } gemm_pair;

/* Both are BF16 numbers: their upper halves as pairs, the even one below. */
SIMD_INLINE __m512i gemm_join(gemm_pair p) {
    return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(p.even), 16), _mm512_castps_si512(p.odd));
}

/* Pairs of BF16 as floats. */
SIMD_INLINE gemm_pair gemm_split(__m512i pairs) {
    return (gemm_pair){_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)),
                       _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000)))};
}

/* 16 bytes of scales as factors. e4m3 and e5m2 codes are read as floats 2^-120 and 2^-112 times their value, which the factor makes up for. */
SIMD_INLINE __m512 gemm_scales(gemm_panel panel, const uint8_t *scales) {
    __m512i codes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)scales));
    if (panel == GEMM_PANEL_E2M1_E4M3) return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(codes, 20)), _mm512_set1_ps(0x1p120f));
    if (panel == GEMM_PANEL_E4M3) codes = _mm512_add_epi32(codes, _mm512_set1_epi32(120));
    if (panel == GEMM_PANEL_E5M2) codes = _mm512_add_epi32(codes, _mm512_set1_epi32(112));
    return _mm512_castsi512_ps(_mm512_slli_epi32(codes, 23));
}

/* Pair number pair (0, 1) of a line of 8-bit codes: 4 k of 16 columns. */
SIMD_INLINE gemm_pair gemm_pair8(gemm_panel panel, __m512i line, int pair, __m512 scale) {
    const __m512i mask = _mm512_set1_epi32(panel == GEMM_PANEL_E4M3 ? (int)0x87f00000 : (int)0x8fe00000);
    __m512i words = pair == 0 ? _mm512_slli_epi16(line, 8) : line;
    words = panel == GEMM_PANEL_E4M3 ? _mm512_srai_epi16(words, 4) : _mm512_srai_epi16(words, 3);
    __m512i odd = _mm512_and_si512(words, mask), even = _mm512_and_si512(_mm512_slli_epi32(words, 16), mask);
    return (gemm_pair){_mm512_mul_ps(_mm512_castsi512_ps(even), scale), _mm512_mul_ps(_mm512_castsi512_ps(odd), scale)};
}

/* A line of E4M3 without zeros and subnormal numbers? Its codes are BF16 numbers then but for the place and the bias of their exponents. */
SIMD_INLINE bool gemm_is_normal8(__m512i line) { return _mm512_testn_epi8_mask(line, _mm512_set1_epi8(0x78)) == 0; }

/* 16 bytes of scales as what is added to the exponents of such codes, in both halves of lanes. */
SIMD_INLINE __m512i gemm_exponents8(const uint8_t *scales) {
    enum { BIASES = 127 - 7 - 127 };   /* of BF16, less those of E4M3 and of the scale */
    __m512i codes = _mm512_add_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)scales)), _mm512_set1_epi32(BIASES));
    codes = _mm512_slli_epi32(codes, 7);
    return _mm512_or_si512(_mm512_slli_epi32(codes, 16), _mm512_and_si512(codes, _mm512_set1_epi32(0xffff)));
}

/* gemm_join(gemm_pair8(..)) of a line of normal E4M3 numbers. */
SIMD_INLINE __m512i gemm_scaled8(__m512i line, int pair, __m512i exponents) {
    __m512i words = _mm512_srai_epi16(pair == 0 ? _mm512_slli_epi16(line, 8) : line, 4);
    return _mm512_add_epi16(_mm512_and_si512(words, _mm512_set1_epi16((short)0x87f0)), exponents);
}

/* The BF16 values of the 16 codes of E2M1, twice, for vpermw, which looks at five bits. */
SIMD_INLINE __m512i gemm_e2m1_table(void) {
    const __m256i once = _mm256_setr_epi16(0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, (short)0x8000, (short)0xbf00, (short)0xbf80,
                                           (short)0xbfc0, (short)0xc000, (short)0xc040, (short)0xc080, (short)0xc0c0);
    return _mm512_broadcast_i64x4(once);
}

/* Pair number pair (0 .. 3) of a line of 4-bit codes: 8 k of 16 columns. */
SIMD_INLINE gemm_pair gemm_pair4(__m512i table, __m512i line, int pair, __m512 scale) {
    __m512i values = _mm512_permutexvar_epi16(_mm512_srli_epi16(line, (unsigned)(4 * pair)), table);
    gemm_pair p = gemm_split(values);
    return (gemm_pair){_mm512_mul_ps(p.even, scale), _mm512_mul_ps(p.odd, scale)};
}

/* ---- E2M1 times a scale as BF16, by whole numbers ----
 *
 * The bits of a BF16 number count its logarithm, so a product is a sum of bits where one factor is a power of two. A table has each code beside a scale
 * larger than all that come, and what the block's scale is less than that one is subtracted. The subtraction saturates at 0, so a zero stays one; -0 becomes
 * 0, which no sum tells. Beside an E4M3 scale of 1 + m/8 the codes 3, 5 and 7, which are 1.5 times a power of two, add bits that depend on m: the table has ODD_BITS there, of which
 * a mask for each scale keeps those. */

typedef struct gemm_scale4 {
    __m512i less;                 /* [16 columns][2] */
    __m512i kept;                 /* E2M1_E4M3 alone */
} gemm_scale4;

enum {
    GEMM_E8M0_MOST = 127 + 112,   /* the largest scale of panels without special ones, and the table's */
    GEMM_E4M3_MOST = 0x7000,      /* the table's scale, in bits */
    GEMM_ODD_BITS = 0x7c          /* all that a code of 3, 5 or 7 may add to those of the power of two in it, and a scale */
};

/* Entries of codes 3, 5, 7 beside E4M3 scales are those of the power of two in them, and ODD_BITS. */
SIMD_INLINE __m512i gemm_table4(gemm_panel panel) {
    const __m256i by_e8m0 = _mm256_setr_epi16(0, 0x7700, 0x7780, 0x77c0, 0x7800, 0x7840, 0x7880, 0x78c0, 0, (short)0xf700, (short)0xf780, (short)0xf7c0,
                                              (short)0xf800, (short)0xf840, (short)0xf880, (short)0xf8c0);
    const __m256i by_e4m3 = _mm256_setr_epi16(0, 0x6f80, 0x7000, 0x707c, 0x7080, 0x70fc, 0x7100, 0x717c, 0, (short)0xef80, (short)0xf000, (short)0xf07c,
                                              (short)0xf080, (short)0xf0fc, (short)0xf100, (short)0xf17c);
    return _mm512_broadcast_i64x4(panel == GEMM_PANEL_E2M1_E8M0 ? by_e8m0 : by_e4m3);
}

/* By m, four times: of ODD_BITS the bits of 1.5 (1 + m/8) less those of 1 + m/8; and all bits that are none of them. */
SIMD_INLINE __m512i gemm_half_more(void) {
    enum { REST = ~GEMM_ODD_BITS };
    return _mm512_broadcast_i32x4(_mm_setr_epi16(REST | 64, REST | 72, REST | 80, REST | 84, REST | 80, REST | 76, REST | 72, REST | 68));
}

/* 16 bytes, each as both words of a lane: a part of 128 bits has four of them. */
SIMD_INLINE __m512i gemm_words_twice(const uint8_t *bytes) {
    const __m512i first = _mm512_set1_epi64((long long)0x8001800180008000), parts = _mm512_set_epi64(0x000e000e000e000e, 0x000c000c000c000c, 0x000a000a000a000a, 0x0008000800080008, 0x0006000600060006,
                                                                                                     0x0004000400040004, 0x0002000200020002, 0);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)bytes)), _mm512_or_si512(first, parts));
}

/* 16 bytes of scales of E4M3 that are no subnormal numbers and no zeros: their codes are BF16 numbers but for the place and the bias of their exponents. */
SIMD_INLINE gemm_scale4 gemm_scale4_normal(const uint8_t *scales) {
    enum { BIASES = (127 - 7) << 7 };   /* of BF16, less that of E4M3 */
    const __m512i codes = gemm_words_twice(scales);
    return (gemm_scale4){_mm512_sub_epi16(_mm512_set1_epi16(GEMM_E4M3_MOST - BIASES), _mm512_slli_epi16(codes, 4)), _mm512_permutexvar_epi16(codes, gemm_half_more())};
}

/* 16 bytes of scales. A scale of 0 takes everything away. */
SIMD_INLINE gemm_scale4 gemm_scale4_of(gemm_panel panel, const uint8_t *scales) {
    if (panel == GEMM_PANEL_E2M1_E8M0)
        return (gemm_scale4){_mm512_slli_epi16(_mm512_sub_epi16(_mm512_set1_epi16(GEMM_E8M0_MOST), gemm_words_twice(scales)), 7), _mm512_setzero_si512()};
    const __m512i upper_twice = _mm512_broadcast_i32x4(_mm_setr_epi8(2, 3, 2, 3, 6, 7, 6, 7, 10, 11, 10, 11, 14, 15, 14, 15));
    __m512i bits = _mm512_shuffle_epi8(_mm512_castps_si512(gemm_scales(panel, scales)), upper_twice), all = _mm512_set1_epi16(-1);
    __mmask32 some = _mm512_test_epi16_mask(bits, bits);
    gemm_scale4 of;
    of.less = _mm512_mask_sub_epi16(all, some, _mm512_set1_epi16(GEMM_E4M3_MOST), bits);
    of.kept = _mm512_permutexvar_epi16(_mm512_srli_epi16(bits, 4), gemm_half_more());
    return of;
}

/* Pair number pair (0 .. 3) of a line of 4-bit codes as BF16 numbers. vpermw looks at five bits: tables are there as often as that takes. */
SIMD_INLINE __m512i gemm_scaled4(gemm_panel panel, __m512i table, __m512i line, int pair, gemm_scale4 scale) {
    __m512i values = _mm512_permutexvar_epi16(pair == 0 ? line : _mm512_srli_epi16(line, (unsigned)(4 * pair)), table);
    if (panel == GEMM_PANEL_E2M1_E4M3) values = _mm512_and_si512(values, scale.kept);
    return _mm512_subs_epu16(values, scale.less);
}

static inline int64_t gemm_groups(int64_t k) { return base_ceil_div(k, GEMM_GROUP); }

/* Bytes of scales before the codes of a chunk. */
SIMD_INLINE int64_t gemm_scale_bytes(gemm_panel panel, int64_t groups) {
    return (groups * GEMM_COLS * (panel == GEMM_PANEL_E2M1_E4M3 ? 2 : 1) + 63) & ~(int64_t)63;
}

extern void gemm_avx512_tile_f32(const gemm_tile *tile);
extern void gemm_avx512_tile_bf16(const gemm_tile *tile);
extern void gemm_avx512_fetch(const uint8_t *from, size_t bytes);
extern int64_t gemm_avx512_decode_row(const gemm_codes *row);
extern void gemm_avx512_post(op_post step, float *y, const float *x, int64_t count);
extern void gemm_avx512_to_bf16(const float *x, uint16_t *y, int64_t count);
extern void gemm_avx512_from_bf16(const uint16_t *x, float *y, int64_t count);
extern void gemm_avx512_turn(const void *from, ptrdiff_t from_bytes, int64_t rows, int64_t cols, void *to, ptrdiff_t to_bytes);
extern void gemm_avx512_pair(const uint16_t *even, const uint16_t *odd, int64_t count, uint16_t *to);
#define GEMM_AVX512_DECODERS(X)                                                                                             \
    X(E4M3, F32) X(E4M3, BF16) X(E5M2, F32) X(E5M2, BF16) X(E2M1_E8M0, F32) X(E2M1_E8M0, BF16) X(E2M1_E4M3, F32) X(E2M1_E4M3, BF16) X(BF16, F32)
#define GEMM_AVX512_DECLARE(panel, compute) extern void gemm_avx512_decode_##panel##_##compute(const uint8_t *source, int64_t k, void *chunk);
GEMM_AVX512_DECODERS(GEMM_AVX512_DECLARE)

/* The finished sums of a microkernel into c. */
SIMD_INLINE void gemm_put(const gemm_tile *t, int row, __m512 sum0, __m512 sum1) {
    float *c = t->c + row * GEMM_COLS;
    if (t->col_scale != NULL) {
        __m512 scale = _mm512_set1_ps(t->row_scale != NULL ? t->row_scale[row * t->row_scale_stride] : 1.0f);
        sum0 = _mm512_mul_ps(sum0, _mm512_mul_ps(scale, _mm512_loadu_ps(t->col_scale)));
        sum1 = _mm512_mul_ps(sum1, _mm512_mul_ps(scale, _mm512_loadu_ps(t->col_scale + 16)));
    }
    if (t->add) {
        sum0 = _mm512_add_ps(_mm512_loadu_ps(c), sum0);
        sum1 = _mm512_add_ps(_mm512_loadu_ps(c + 16), sum1);
    }
    _mm512_storeu_ps(c, sum0);
    _mm512_storeu_ps(c + 16, sum1);
}

#endif
