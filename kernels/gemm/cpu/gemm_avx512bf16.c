/* The product core for AVX-512 with BF16 dot products: tiles of up to 12 rows and 32 columns, and products of few rows that decode quantised panels
 * in registers. vdpbf16ps takes subnormal operands as zeros: those are AVX-512's, as the rest is. Measured: kernels/gemm/README.md. */
#include "kernels/gemm/cpu/gemm_avx512.h"

SIMD_INLINE __m512 dot(__m512 sum, __m512i a, __m512i b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }

SIMD_INLINE __m512i broadcast_pair(const uint16_t *a) {
    int32_t pair;
    memcpy(&pair, a, sizeof pair);
    return _mm512_set1_epi32(pair);
}

SIMD_INLINE void tile_bf16(const gemm_tile *t, const int rows) {
    __m512 sum[12][2];
    const uint16_t *a = t->a, *b = t->b;
    const int64_t stride = t->a_stride, steps = t->steps;
    SIMD_UNROLL
    for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    for (int64_t k = 0; k < steps; k++, b += 2 * GEMM_COLS) {
        __m512i b0 = _mm512_loadu_si512(b), b1 = _mm512_loadu_si512(b + 32);
        SIMD_UNROLL
        for (int r = 0; r < rows; r++) {
            __m512i value = broadcast_pair(a + r * stride + 2 * k);
            sum[r][0] = dot(sum[r][0], value, b0);
            sum[r][1] = dot(sum[r][1], value, b1);
        }
    }
    SIMD_UNROLL
    for (int r = 0; r < rows; r++) gemm_put(t, r, sum[r][0], sum[r][1]);
}

static void tile_bf16_rows(const gemm_tile *t) {
    switch (t->rows) {
    case 1: tile_bf16(t, 1); break;
    case 2: tile_bf16(t, 2); break;
    case 3: tile_bf16(t, 3); break;
    case 4: tile_bf16(t, 4); break;
    case 5: tile_bf16(t, 5); break;
    case 6: tile_bf16(t, 6); break;
    case 7: tile_bf16(t, 7); break;
    case 8: tile_bf16(t, 8); break;
    case 9: tile_bf16(t, 9); break;
    case 10: tile_bf16(t, 10); break;
    case 11: tile_bf16(t, 11); break;
    default: tile_bf16(t, 12); break;
    }
}

static bool has_subnormal(const uint16_t *x, int64_t count) {
    const __m512i magnitude = _mm512_set1_epi16(0x7fff), one = _mm512_set1_epi16(1), limit = _mm512_set1_epi16(0x7f);
    __mmask32 found = 0;
    int64_t at = 0;
    for (; at + 32 <= count; at += 32) found |= _mm512_cmplt_epu16_mask(_mm512_sub_epi16(_mm512_and_si512(_mm512_loadu_si512(x + at), magnitude), one), limit);
    for (; at < count; at++) found |= (x[at] & 0x7fff) - 1u < 0x7f;
    return found != 0;
}

/* Of subnormal numbers and NaN the instruction makes other codes than num does: those go the long way. */
static void to_bf16(const float *x, uint16_t *y, int64_t count) {
    enum { QUIET_NAN = 0x01, SUBNORMAL = 0x20, SIGNALLING_NAN = 0x80, SPECIAL = QUIET_NAN | SUBNORMAL | SIGNALLING_NAN };
    int64_t at = 0;
    for (; at + 32 <= count; at += 32) {
        const __m512 low = _mm512_loadu_ps(x + at), high = _mm512_loadu_ps(x + at + 16);
        if ((_mm512_fpclass_ps_mask(low, SPECIAL) | _mm512_fpclass_ps_mask(high, SPECIAL)) != 0) gemm_avx512_to_bf16(x + at, y + at, 32);
        else _mm512_storeu_si512(y + at, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
    gemm_avx512_to_bf16(x + at, y + at, count - at);
}

/* What the scales of a group or half a group are as, of a panel by 16 columns. What is decoded from codes follows at once, so that loops stay short: unrolled ones took longer. */
typedef struct group_scales {
    const uint8_t *codes;
    __m512i exponents[2];         /* E4M3 */
    gemm_scale4 parts[2];         /* codes of 4 bits */
} group_scales;

SIMD_INLINE bool is_nibbles(gemm_panel panel) { return panel == GEMM_PANEL_E2M1_E8M0 || panel == GEMM_PANEL_E2M1_E4M3; }

SIMD_INLINE group_scales scales_of(gemm_panel panel, const uint8_t *codes) {
    group_scales of = {.codes = codes};
    const bool normal = panel == GEMM_PANEL_E2M1_E4M3 && _mm256_cmplt_epu8_mask(_mm256_loadu_si256((const __m256i *)codes), _mm256_set1_epi8(8)) == 0;
    SIMD_UNROLL
    for (int i = 0; i < 2; i++) {
        if (is_nibbles(panel)) of.parts[i] = normal ? gemm_scale4_normal(codes + 16 * i) : gemm_scale4_of(panel, codes + 16 * i);
        if (panel == GEMM_PANEL_E4M3) of.exponents[i] = gemm_exponents8(codes + 16 * i);
    }
    return of;
}

/* Pairs `first` and `first` + 1 of two lines of codes, a line for 16 columns, as BF16 numbers. */
SIMD_INLINE void decode_pairs(gemm_panel panel, const __m512i lines[2], int first, const group_scales *scales, __m512i b[2][2]) {
    const bool normal = panel == GEMM_PANEL_E4M3 && gemm_is_normal8(lines[0]) && gemm_is_normal8(lines[1]);
    SIMD_UNROLL
    for (int pair = 0; pair < 2; pair++) {
        SIMD_UNROLL
        for (int i = 0; i < 2; i++) {
            if (is_nibbles(panel)) b[pair][i] = gemm_scaled4(panel, gemm_table4(panel), lines[i], first + pair, scales->parts[i]);
            else if (normal) b[pair][i] = gemm_scaled8(lines[i], pair, scales->exponents[i]);
            else b[pair][i] = gemm_join(gemm_pair8(panel, lines[i], pair, gemm_scales(panel, scales->codes + 16 * i)));
        }
    }
}

/* Sums [rows][2] += a times what is at codes: four k of a panel, or of nibbles eight. a: the first pair of the first row. ahead: from here to what is prefetched. */
SIMD_INLINE void direct_line(gemm_panel panel, const int rows, const uint8_t *codes, size_t ahead, const group_scales *scales, const uint16_t *a, int64_t stride, __m512 sum[][2]) {
    const __m512i lines[2] = {_mm512_loadu_si512(codes), _mm512_loadu_si512(codes + 64)};
    _mm_prefetch((const char *)codes + ahead, _MM_HINT_T1);
    _mm_prefetch((const char *)codes + ahead + 64, _MM_HINT_T1);
    const int pairs = is_nibbles(panel) ? 4 : 2;
    SIMD_UNROLL
    for (int first = 0; first < pairs; first += 2) {
        __m512i b[2][2];
        decode_pairs(panel, lines, first, scales, b);
        SIMD_UNROLL
        for (int pair = 0; pair < 2; pair++) {
            SIMD_UNROLL
            for (int r = 0; r < rows; r++) {
                const __m512i value = broadcast_pair(a + r * stride + (first + pair) * 2);
                sum[r][0] = dot(sum[r][0], value, b[pair][0]);
                sum[r][1] = dot(sum[r][1], value, b[pair][1]);
            }
        }
    }
}

/* The chunk of k of d that begins at `at` and is at source, of each of so many panels. ahead: from here to what is read behind it, and prefetched. */
SIMD_INLINE void direct_chunk(gemm_panel panel, const int rows, const int panels, const gemm_direct *d, const uint8_t *source, size_t ahead, int64_t at, int64_t k) {
    const int per_group = panel == GEMM_PANEL_E2M1_E4M3 ? 2 : 1, lines = (is_nibbles(panel) ? 4 : 8) / per_group, line_k = is_nibbles(panel) ? 8 : 4;
    const int64_t groups = gemm_groups(k), chunk = at / d->depth;
    const uint8_t *codes = source + gemm_scale_bytes(panel, groups);
    const uint16_t *a = d->a + at;
    __m512 sum[2][GEMM_ROWS_MAX][2];
    SIMD_UNROLL
    for (int r = 0; r < rows * panels; r++) sum[r / rows][r % rows][0] = sum[r / rows][r % rows][1] = _mm512_setzero_ps();
    for (int64_t part = 0; part < groups * per_group; part++) {
        group_scales scales[2];
        SIMD_UNROLL
        for (int p = 0; p < panels; p++) {
            const uint8_t *const here = source + (size_t)p * d->panel_bytes + part * GEMM_COLS;
            _mm_prefetch((const char *)here + ahead, _MM_HINT_T1);
            scales[p] = scales_of(panel, here);
        }
        SIMD_ROLL
        for (int line = 0; line < lines; line++, codes += 128, a += line_k) {
            SIMD_UNROLL
            for (int p = 0; p < panels; p++) direct_line(panel, rows, codes + (size_t)p * d->panel_bytes, ahead, &scales[p], a, d->a_stride, sum[p]);
        }
    }
    SIMD_UNROLL
    for (int p = 0; p < panels; p++) {
        gemm_tile put = {.a_stride = d->a_stride, .c = d->c + p * d->c_stride, .add = at > 0, .row_scale_stride = d->row_scale_stride};
        if (d->col_scales != NULL) put.col_scale = (const float *)((const uint8_t *)d->col_scales + (size_t)p * d->panel_bytes) + chunk * GEMM_COLS;
        if (d->row_scales != NULL) put.row_scale = d->row_scales + chunk;
        SIMD_UNROLL
        for (int r = 0; r < rows; r++) gemm_put(&put, r, sum[p][r][0], sum[p][r][1]);
    }
}

SIMD_INLINE void direct_all(gemm_panel panel, const int rows, const int panels, const gemm_direct *d) {
    size_t offset = 0;
    for (int64_t at = 0; at < d->k; at += d->depth) {
        const int64_t k = d->k - at < d->depth ? d->k - at : d->depth, groups = gemm_groups(k);
        const size_t bytes = (size_t)(gemm_scale_bytes(panel, groups) + groups * GEMM_GROUP * GEMM_COLS / (is_nibbles(panel) ? 2 : 1));
        /* Behind the last chunk comes the first one of the panel behind these. */
        direct_chunk(panel, rows, panels, d, d->b + offset, at + k < d->k ? bytes : (size_t)panels * d->panel_bytes - offset, at, k);
        offset += bytes;
    }
}

SIMD_INLINE void direct(gemm_panel panel, const gemm_direct *d) {
    if (d->panels == 2) {
        if (d->rows == 1) direct_all(panel, 1, 2, d);
        else direct_all(panel, 2, 2, d);
        return;
    }
    switch (d->rows) {
    case 1: direct_all(panel, 1, 1, d); break;
    case 2: direct_all(panel, 2, 1, d); break;
    case 3: direct_all(panel, 3, 1, d); break;
    case 4: direct_all(panel, 4, 1, d); break;
    case 5: direct_all(panel, 5, 1, d); break;
    case 6: direct_all(panel, 6, 1, d); break;
    case 7: direct_all(panel, 7, 1, d); break;
    case 8: direct_all(panel, 8, 1, d); break;
    case 9: direct_all(panel, 9, 1, d); break;
    case 10: direct_all(panel, 10, 1, d); break;
    case 11: direct_all(panel, 11, 1, d); break;
    default: direct_all(panel, 12, 1, d); break;
    }
}

#define DIRECT(panel) static void direct_##panel(const gemm_direct *d) { direct(GEMM_PANEL_##panel, d); }
DIRECT(E4M3)
DIRECT(E5M2)
DIRECT(E2M1_E8M0)
DIRECT(E2M1_E4M3)

#define ENTRY(panel, compute) [GEMM_PANEL_##panel][GEMM_##compute] = gemm_avx512_decode_##panel##_##compute,
const gemm_isa gemm_isa_avx512bf16 = {
    .name = "avx512bf16",
    .needs = UINT64_C(1) << CHIP_avx512 | UINT64_C(1) << CHIP_avx512bf16,
    .rows_max = {12, 12},
    .tile = {[GEMM_F32] = gemm_avx512_tile_f32, [GEMM_BF16] = tile_bf16_rows},
    .exact_tile = gemm_avx512_tile_bf16,
    .has_subnormal = has_subnormal,
    .decode = {GEMM_AVX512_DECODERS(ENTRY)},
    .direct = {[GEMM_PANEL_E4M3] = direct_E4M3, [GEMM_PANEL_E5M2] = direct_E5M2, [GEMM_PANEL_E2M1_E8M0] = direct_E2M1_E8M0,
               [GEMM_PANEL_E2M1_E4M3] = direct_E2M1_E4M3},
    .fetch = gemm_avx512_fetch,
    .decode_row = gemm_avx512_decode_row,
    .post = gemm_avx512_post,
    .to_bf16 = to_bf16,
    .from_bf16 = gemm_avx512_from_bf16,
    .turn = gemm_avx512_turn,
    .pair = gemm_avx512_pair,
};
