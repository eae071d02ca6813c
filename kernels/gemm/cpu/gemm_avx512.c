/* The product core for AVX-512 without BF16 dot products: tiles of up to 12 rows and 32 columns (24 accumulators, 2 or 4 registers of B, one or two
 * of A), decoders of quantised panels, and the post lists. Measured: kernels/gemm/README.md. */
#include "kernels/gemm/cpu/gemm_avx512.h"
#include "kernels/gemm/cpu/post_loops.h"

SIMD_INLINE void tile_f32(const gemm_tile *t, const int rows) {
    __m512 sum[12][2];
    const float *a = t->a, *b = t->b;
    const int64_t stride = t->a_stride, steps = t->steps;
    SIMD_UNROLL
    for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    for (int64_t k = 0; k < steps; k++, b += GEMM_COLS) {
        __m512 b0 = _mm512_loadu_ps(b), b1 = _mm512_loadu_ps(b + 16);
        SIMD_UNROLL
        for (int r = 0; r < rows; r++) {
            __m512 value = _mm512_set1_ps(a[r * stride + k]);
            sum[r][0] = _mm512_fmadd_ps(value, b0, sum[r][0]);
            sum[r][1] = _mm512_fmadd_ps(value, b1, sum[r][1]);
        }
    }
    SIMD_UNROLL
    for (int r = 0; r < rows; r++) gemm_put(t, r, sum[r][0], sum[r][1]);
}

/* The same order as vdpbf16ps: odd elements, then even ones. */
SIMD_INLINE void tile_bf16(const gemm_tile *t, const int rows) {
    __m512 sum[12][2];
    const uint16_t *a = t->a, *b = t->b;
    const int64_t stride = t->a_stride, steps = t->steps;
    SIMD_UNROLL
    for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    for (int64_t k = 0; k < steps; k++, b += 2 * GEMM_COLS) {
        gemm_pair b0 = gemm_split(_mm512_loadu_si512(b)), b1 = gemm_split(_mm512_loadu_si512(b + 32));
        SIMD_UNROLL
        for (int r = 0; r < rows; r++) {
            int32_t pair;
            memcpy(&pair, &a[r * stride + 2 * k], sizeof pair);
            gemm_pair value = gemm_split(_mm512_set1_epi32(pair));
            sum[r][0] = _mm512_fmadd_ps(value.odd, b0.odd, sum[r][0]);
            sum[r][1] = _mm512_fmadd_ps(value.odd, b1.odd, sum[r][1]);
            sum[r][0] = _mm512_fmadd_ps(value.even, b0.even, sum[r][0]);
            sum[r][1] = _mm512_fmadd_ps(value.even, b1.even, sum[r][1]);
        }
    }
    SIMD_UNROLL
    for (int r = 0; r < rows; r++) gemm_put(t, r, sum[r][0], sum[r][1]);
}

#define BY_ROWS(function, tile)                                                                                       \
    switch ((tile)->rows) {                                                                                           \
    case 1: function(tile, 1); break;                                                                                 \
    case 2: function(tile, 2); break;                                                                                 \
    case 3: function(tile, 3); break;                                                                                 \
    case 4: function(tile, 4); break;                                                                                 \
    case 5: function(tile, 5); break;                                                                                 \
    case 6: function(tile, 6); break;                                                                                 \
    case 7: function(tile, 7); break;                                                                                 \
    case 8: function(tile, 8); break;                                                                                 \
    case 9: function(tile, 9); break;                                                                                 \
    case 10: function(tile, 10); break;                                                                               \
    case 11: function(tile, 11); break;                                                                               \
    default: function(tile, 12); break;                                                                               \
    }

void gemm_avx512_tile_f32(const gemm_tile *t) { BY_ROWS(tile_f32, t) }
void gemm_avx512_tile_bf16(const gemm_tile *t) { BY_ROWS(tile_bf16, t) }

/* Pairs of BF16 of 16 columns (half 0 or 1) into the chunk that a tile reads. */
SIMD_INLINE void put_words(void *chunk, int64_t pair, int half, __m512i words) { _mm512_storeu_si512((uint16_t *)chunk + pair * 64 + half * 32, words); }

/* The same from pairs p of floats that are BF16 numbers. */
SIMD_INLINE void put_pair(gemm_compute compute, void *chunk, int64_t pair, int half, gemm_pair p) {
    if (compute == GEMM_BF16) {
        put_words(chunk, pair, half, gemm_join(p));
    } else {
        _mm512_storeu_ps((float *)chunk + pair * 64 + half * 16, p.even);
        _mm512_storeu_ps((float *)chunk + pair * 64 + 32 + half * 16, p.odd);
    }
}

SIMD_INLINE void decode8(gemm_panel panel, gemm_compute compute, const uint8_t *source, int64_t k, void *chunk) {
    int64_t groups = gemm_groups(k);
    const uint8_t *codes = source + gemm_scale_bytes(panel, groups);
    for (int64_t group = 0; group < groups; group++, codes += GEMM_GROUP * GEMM_COLS) {
        __m512 scale[2] = {gemm_scales(panel, source + group * GEMM_COLS), gemm_scales(panel, source + group * GEMM_COLS + 16)};
        __m512i exponents[2] = {gemm_exponents8(source + group * GEMM_COLS), gemm_exponents8(source + group * GEMM_COLS + 16)};
        for (int quad = 0; quad < 8; quad++) {
            SIMD_UNROLL
            for (int half = 0; half < 2; half++) {
                __m512i line = _mm512_loadu_si512(codes + (quad * 2 + half) * 64);
                if (panel == GEMM_PANEL_E4M3 && compute == GEMM_BF16 && gemm_is_normal8(line)) {
                    put_words(chunk, group * 16 + quad * 2, half, gemm_scaled8(line, 0, exponents[half]));
                    put_words(chunk, group * 16 + quad * 2 + 1, half, gemm_scaled8(line, 1, exponents[half]));
                    continue;
                }
                put_pair(compute, chunk, group * 16 + quad * 2, half, gemm_pair8(panel, line, 0, scale[half]));
                put_pair(compute, chunk, group * 16 + quad * 2 + 1, half, gemm_pair8(panel, line, 1, scale[half]));
            }
        }
    }
}

SIMD_INLINE void decode4(gemm_panel panel, gemm_compute compute, const uint8_t *source, int64_t k, void *chunk) {
    int64_t groups = gemm_groups(k);
    const int per_group = panel == GEMM_PANEL_E2M1_E4M3 ? 2 : 1;
    const uint8_t *codes = source + gemm_scale_bytes(panel, groups);
    const __m512i table = gemm_e2m1_table();
    for (int64_t group = 0; group < groups; group++, codes += GEMM_GROUP * GEMM_COLS / 2) {
        for (int octet = 0; octet < 4; octet++) {
            const uint8_t *scales = source + (group * per_group + octet * per_group / 4) * GEMM_COLS;
            SIMD_UNROLL
            for (int half = 0; half < 2; half++) {
                __m512i line = _mm512_loadu_si512(codes + (octet * 2 + half) * 64);
                SIMD_UNROLL
                for (int pair = 0; pair < 4; pair++) {
                    int64_t to = group * 16 + octet * 4 + pair;
                    if (compute == GEMM_BF16) put_words(chunk, to, half, gemm_scaled4(panel, gemm_table4(panel), line, pair, gemm_scale4_of(panel, scales + half * 16)));
                    else put_pair(compute, chunk, to, half, gemm_pair4(table, line, pair, gemm_scales(panel, scales + half * 16)));
                }
            }
        }
    }
}

SIMD_INLINE void decode(gemm_panel panel, gemm_compute compute, const uint8_t *source, int64_t k, void *chunk) {
    if (panel == GEMM_PANEL_E4M3 || panel == GEMM_PANEL_E5M2) decode8(panel, compute, source, k, chunk);
    else if (panel != GEMM_PANEL_BF16) decode4(panel, compute, source, k, chunk);
    else {
        for (int64_t pair = 0; pair < (k + 1) / 2; pair++) {
            put_pair(compute, chunk, pair, 0, gemm_split(_mm512_loadu_si512(source + pair * 128)));
            put_pair(compute, chunk, pair, 1, gemm_split(_mm512_loadu_si512(source + pair * 128 + 64)));
        }
    }
}

#define DEFINE(panel, compute)                                                                               \
    void gemm_avx512_decode_##panel##_##compute(const uint8_t *source, int64_t k, void *chunk) {             \
        decode(GEMM_PANEL_##panel, GEMM_##compute, source, k, chunk);                                        \
    }
GEMM_AVX512_DECODERS(DEFINE)

void gemm_avx512_fetch(const uint8_t *from, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 64) _mm_prefetch((const char *)from + at, _MM_HINT_T1);
}

/* ---- rows of A ---- */

/* 32 elements, even ones in the lower halves of lanes, times the lanes' factors, as BF16: exact, so the lower halves of the products are zero. */
SIMD_INLINE __m512i scale_pairs(__m512i pairs, __m512 factor) {
    gemm_pair p = gemm_split(pairs);
    return gemm_join((gemm_pair){_mm512_mul_ps(p.even, factor), _mm512_mul_ps(p.odd, factor)});
}

/* 32 codes of 8 bits as BF16 numbers too small by the factor of gemm_scales; false: one is a NaN or an infinity. */
SIMD_INLINE bool read_codes8(gemm_panel panel, const uint8_t *codes, __m512i *pairs) {
    __m256i bytes = _mm256_loadu_si256((const __m256i *)codes), magnitude = _mm256_and_si256(bytes, _mm256_set1_epi8(0x7f));
    __m256i limit = _mm256_set1_epi8(panel == GEMM_PANEL_E4M3 ? 0x7e : 0x7b);
    __m512i words = _mm512_slli_epi16(_mm512_cvtepu8_epi16(bytes), 8);
    if (panel == GEMM_PANEL_E4M3) *pairs = _mm512_and_si512(_mm512_srai_epi16(words, 4), _mm512_set1_epi16((short)0x87f0));
    else *pairs = _mm512_and_si512(_mm512_srai_epi16(words, 3), _mm512_set1_epi16((short)0x8fe0));
    return _mm256_cmpgt_epi8_mask(magnitude, limit) == 0;
}

/* 32 codes of 4 bits, the element of even k in the lower half of a byte. */
SIMD_INLINE __m512i read_codes4(__m512i table, const uint8_t *codes) {
    __m512i lanes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)codes));
    return _mm512_permutexvar_epi16(_mm512_or_si512(lanes, _mm512_slli_epi32(lanes, 12)), table);
}

SIMD_INLINE __m512 factor_of(uint32_t bits) { return _mm512_castsi512_ps(_mm512_set1_epi32((int)bits)); }

SIMD_INLINE int64_t decode_row8(gemm_panel panel, bool scaled, const gemm_codes *row) {
    const uint32_t bias = panel == GEMM_PANEL_E4M3 ? 120 : 112, most = panel == GEMM_PANEL_E4M3 ? 127 + 7 : 127 + 15;
    int64_t at = 0;
    for (; at + GEMM_GROUP <= row->k; at += GEMM_GROUP) {
        __m512i pairs;
        uint32_t scale = scaled ? row->scales[at / GEMM_GROUP] : 127;
        if (!read_codes8(panel, row->codes + at, &pairs)) break;
        if (scale > most || (scale < 127 - 110 && _mm512_test_epi16_mask(pairs, _mm512_set1_epi16(0x7fff)) != 0)) break;
        _mm512_storeu_si512(row->to + at, scale_pairs(pairs, factor_of((scale + bias) << 23)));
    }
    return at;
}

SIMD_INLINE int64_t decode_row4(gemm_panel panel, const gemm_codes *row) {
    const __m512i table = gemm_e2m1_table();
    int64_t at = 0;
    for (; at + GEMM_GROUP <= row->k; at += GEMM_GROUP) {
        __m512i pairs = read_codes4(table, row->codes + at / 2);
        __m512 factor;
        if (panel == GEMM_PANEL_E2M1_E8M0) {
            uint32_t scale = row->scales[at / GEMM_GROUP];
            if (scale > 127 + 112 || (scale < 127 - 110 && _mm512_test_epi16_mask(pairs, _mm512_set1_epi16(0x7fff)) != 0)) break;
            factor = factor_of(scale << 23);
        } else {
            uint32_t low = row->scales[at / 16], high = row->scales[at / 16 + 1];
            if (low >= 0x7f || high >= 0x7f) break;
            factor = _mm512_mask_mov_ps(factor_of(low << 20), 0xff00, factor_of(high << 20));
            factor = _mm512_mul_ps(factor, _mm512_set1_ps(0x1p120f));
        }
        _mm512_storeu_si512(row->to + at, scale_pairs(pairs, factor));
    }
    return at;
}

int64_t gemm_avx512_decode_row(const gemm_codes *row) {
    switch (row->format) {
    case DW_FORMAT_mxfp8: return decode_row8(GEMM_PANEL_E4M3, true, row);
    case DW_FORMAT_mxfp8_e5m2: return decode_row8(GEMM_PANEL_E5M2, true, row);
    case DW_FORMAT_fp8_1x128: case DW_FORMAT_fp8_row: case DW_FORMAT_fp8_tensor: return decode_row8(GEMM_PANEL_E4M3, false, row);
    case DW_FORMAT_mxfp4: return decode_row4(GEMM_PANEL_E2M1_E8M0, row);
    case DW_FORMAT_nvfp4: case DW_FORMAT_nvfp4_row: return decode_row4(GEMM_PANEL_E2M1_E4M3, row);
    default: return 0;
    }
}

void gemm_avx512_post(op_post step, float *y, const float *x, int64_t count) { post_steps(step, y, x, count); }
void gemm_avx512_to_bf16(const float *x, uint16_t *y, int64_t count) { narrow_bf16(x, y, count); }
void gemm_avx512_from_bf16(const uint16_t *x, float *y, int64_t count) { widen_bf16(x, y, count); }

/* ---- moves ---- */

/* The four 128-bit parts of a, b, c, d turned as a matrix of parts: first of all, second of all .. */
SIMD_INLINE void turn_parts(__m512 a, __m512 b, __m512 c, __m512 d, __m512 *to, const int step) {
    const __m512 ab_low = _mm512_shuffle_f32x4(a, b, 0x44), ab_high = _mm512_shuffle_f32x4(a, b, 0xee);
    const __m512 cd_low = _mm512_shuffle_f32x4(c, d, 0x44), cd_high = _mm512_shuffle_f32x4(c, d, 0xee);
    to[0] = _mm512_shuffle_f32x4(ab_low, cd_low, 0x88);
    to[step] = _mm512_shuffle_f32x4(ab_low, cd_low, 0xdd);
    to[2 * step] = _mm512_shuffle_f32x4(ab_high, cd_high, 0x88);
    to[3 * step] = _mm512_shuffle_f32x4(ab_high, cd_high, 0xdd);
}

/* 16 x 16 elements. */
SIMD_INLINE void turn_block(const __m512 in[16], __m512 out[16]) {
    __m512 turned[16];            /* [4 rows in][4 columns of each part]: row r of parts holds columns 4 p + c of rows 4 q .. */
    SIMD_UNROLL
    for (int q = 0; q < 4; q++) {
        const __m512 *r = in + 4 * q;
        const __m512d low01 = _mm512_castps_pd(_mm512_unpacklo_ps(r[0], r[1])), high01 = _mm512_castps_pd(_mm512_unpackhi_ps(r[0], r[1]));
        const __m512d low23 = _mm512_castps_pd(_mm512_unpacklo_ps(r[2], r[3])), high23 = _mm512_castps_pd(_mm512_unpackhi_ps(r[2], r[3]));
        turned[4 * q] = _mm512_castpd_ps(_mm512_unpacklo_pd(low01, low23));
        turned[4 * q + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low01, low23));
        turned[4 * q + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high01, high23));
        turned[4 * q + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high01, high23));
    }
    SIMD_UNROLL
    for (int c = 0; c < 4; c++) turn_parts(turned[c], turned[4 + c], turned[8 + c], turned[12 + c], out + c, 4);
}

static __mmask16 first_of(int64_t count) { return count >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << count) - 1); }

void gemm_avx512_turn(const void *from, ptrdiff_t from_bytes, int64_t rows, int64_t cols, void *to, ptrdiff_t to_bytes) {
    for (int64_t c0 = 0; c0 < cols; c0 += 16) {
        const int64_t width = cols - c0 < 16 ? cols - c0 : 16;
        for (int64_t r0 = 0; r0 < rows; r0 += 16) {
            const uint8_t *source = (const uint8_t *)from + r0 * from_bytes + 4 * c0;
            uint8_t *target = (uint8_t *)to + c0 * to_bytes + 4 * r0;
            const int64_t height = rows - r0 < 16 ? rows - r0 : 16;
            __m512 in[16], out[16];
            if (height == 16 && width == 16) {
                SIMD_UNROLL
                for (int i = 0; i < 16; i++) in[i] = _mm512_loadu_ps(source + i * from_bytes);
                turn_block(in, out);
                SIMD_UNROLL
                for (int i = 0; i < 16; i++) _mm512_storeu_ps(target + i * to_bytes, out[i]);
                continue;
            }
            for (int i = 0; i < 16; i++) in[i] = i < height ? _mm512_maskz_loadu_ps(first_of(width), source + i * from_bytes) : _mm512_setzero_ps();
            turn_block(in, out);
            for (int i = 0; i < width; i++) _mm512_mask_storeu_ps(target + i * to_bytes, first_of(height), out[i]);
        }
    }
}

void gemm_avx512_pair(const uint16_t *even, const uint16_t *odd, int64_t count, uint16_t *to) {
    for (int64_t i = 0; i < count; i += 16, to += 32) {
        const __mmask16 some = first_of(count - i);
        const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, even + i));
        const __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, odd + i));
        _mm512_mask_storeu_epi32(to, some, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
}

#define ENTRY(panel, compute) [GEMM_PANEL_##panel][GEMM_##compute] = gemm_avx512_decode_##panel##_##compute,
const gemm_isa gemm_isa_avx512 = {
    .name = "avx512",
    .needs = UINT64_C(1) << CHIP_avx512,
    .rows_max = {12, 12},
    .tile = {[GEMM_F32] = gemm_avx512_tile_f32, [GEMM_BF16] = gemm_avx512_tile_bf16},
    .decode = {GEMM_AVX512_DECODERS(ENTRY)},
    .fetch = gemm_avx512_fetch,
    .decode_row = gemm_avx512_decode_row,
    .post = gemm_avx512_post,
    .to_bf16 = gemm_avx512_to_bf16,
    .from_bf16 = gemm_avx512_from_bf16,
    .turn = gemm_avx512_turn,
    .pair = gemm_avx512_pair,
};
