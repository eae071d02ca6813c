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

/* What the scales of a group or half a group are as, of one or two panels by 16 columns. */
typedef struct group_scales {
    __m512 factors[4];            /* codes of 8 bits */
    __m512i exponents[4];         /* E4M3 */
    gemm_scale4 parts[4];         /* codes of 4 bits */
} group_scales;

SIMD_INLINE bool is_nibbles(gemm_panel panel) { return panel == GEMM_PANEL_E2M1_E8M0 || panel == GEMM_PANEL_E2M1_E4M3; }

/* Sums [rows][2 * panels] += a times a line of codes of each half panel. normal: gemm_is_normal8 of all. a: the line's first pair of the first row. */
SIMD_INLINE void direct_line(gemm_panel panel, const bool normal, const int rows, const int halves, const __m512i codes[4], const group_scales *scales, const uint16_t *a,
                             int64_t stride, __m512 sum[4][4]) {
    const __m512i table = gemm_table4(panel);
    const int pairs = is_nibbles(panel) ? 4 : 2;
    SIMD_UNROLL
    for (int pair = 0; pair < pairs; pair++) {
        __m512i b[4];
        SIMD_UNROLL
        for (int i = 0; i < halves; i++) {
            if (is_nibbles(panel)) b[i] = gemm_scaled4(panel, table, codes[i], pair, scales->parts[i]);
            else if (normal) b[i] = gemm_scaled8(codes[i], pair, scales->exponents[i]);
            else b[i] = gemm_join(gemm_pair8(panel, codes[i], pair, scales->factors[i]));
        }
        SIMD_UNROLL
        for (int r = 0; r < rows; r++) {
            __m512i value = broadcast_pair(a + r * stride + pair * 2);
            SIMD_UNROLL
            for (int i = 0; i < halves; i++) sum[r][i] = dot(sum[r][i], value, b[i]);
        }
    }
}

/* The chunk of up to d->depth of k that begins at `at`, of one or two panels, for a few rows. source: where it lies in each panel; next: what is read
 * behind it, and prefetched. */
SIMD_INLINE void direct_chunk(gemm_panel panel, const int rows, const int panels, const gemm_direct *d, const uint8_t *const source[2], const uint8_t *const next[2],
                              int64_t at, int64_t k) {
    const uint16_t *a = d->a + at;
    const int64_t stride = d->a_stride, chunk = at / d->depth;
    const int per_group = panel == GEMM_PANEL_E2M1_E4M3 ? 2 : 1, halves = 2 * panels;
    const int lines = is_nibbles(panel) ? 4 : 8, line_k = is_nibbles(panel) ? 8 : 4;   /* of a group and half panel; k of a line */
    const int64_t groups = gemm_groups(k), codes_at = gemm_scale_bytes(panel, groups);
    __m512 sum[4][4];
    SIMD_UNROLL
    for (int r = 0; r < rows; r++) {
        SIMD_UNROLL
        for (int i = 0; i < halves; i++) sum[r][i] = _mm512_setzero_ps();
    }
    for (int64_t group = 0; group < groups; group++) {
        for (int part = 0; part < per_group; part++) {
            group_scales of;
            SIMD_UNROLL
            for (int i = 0; i < halves; i++) {
                const uint8_t *scales = source[i / 2] + (group * per_group + part) * GEMM_COLS + i % 2 * 16;
                if (is_nibbles(panel)) of.parts[i] = gemm_scale4_of(panel, scales);
                else of.factors[i] = gemm_scales(panel, scales);
                if (panel == GEMM_PANEL_E4M3) of.exponents[i] = gemm_exponents8(scales);
            }
            SIMD_UNROLL
            for (int line = part * lines / per_group; line < (part + 1) * lines / per_group; line++) {
                const int64_t from = codes_at + (group * lines + line) * 128;
                const uint16_t *of_a = a + (group * lines + line) * line_k;
                __m512i codes[4];
                bool normal = panel == GEMM_PANEL_E4M3;
                SIMD_UNROLL
                for (int i = 0; i < halves; i++) {
                    codes[i] = _mm512_loadu_si512(source[i / 2] + from + i % 2 * 64);
                    _mm_prefetch((const char *)next[i / 2] + from + i % 2 * 64, _MM_HINT_T0);
                    if (panel == GEMM_PANEL_E4M3) normal &= gemm_is_normal8(codes[i]);
                }
                if (normal) direct_line(panel, true, rows, halves, codes, &of, of_a, stride, sum);
                else direct_line(panel, false, rows, halves, codes, &of, of_a, stride, sum);
            }
        }
    }
    SIMD_UNROLL
    for (int r = 0; r < rows; r++) {
        SIMD_UNROLL
        for (int i = 0; i < halves; i++) {
            float *to = d->c[i / 2] + r * GEMM_COLS + i % 2 * 16;
            __m512 value = sum[r][i];
            if (d->col_scales[i / 2] != NULL) {
                __m512 scale = _mm512_set1_ps(d->row_scales != NULL ? d->row_scales[r * d->row_scale_stride + chunk] : 1.0f);
                value = _mm512_mul_ps(value, _mm512_mul_ps(scale, _mm512_loadu_ps(d->col_scales[i / 2] + chunk * GEMM_COLS + i % 2 * 16)));
            }
            _mm512_storeu_ps(to, at > 0 ? _mm512_add_ps(_mm512_loadu_ps(to), value) : value);
        }
    }
}

SIMD_INLINE void direct_all(gemm_panel panel, const int rows, const int panels, const gemm_direct *d) {
    size_t offset = 0;
    for (int64_t at = 0; at < d->k; at += d->depth) {
        int64_t k = d->k - at < d->depth ? d->k - at : d->depth;
        const uint8_t *const source[2] = {d->b[0] + offset, panels == 2 ? d->b[1] + offset : d->b[0] + offset};
        int64_t groups = gemm_groups(k);
        bool nibbles = panel == GEMM_PANEL_E2M1_E8M0 || panel == GEMM_PANEL_E2M1_E4M3;
        size_t bytes = (size_t)(gemm_scale_bytes(panel, groups) + groups * GEMM_GROUP * GEMM_COLS / (nibbles ? 2 : 1));
        /* Behind the last chunk comes the first one of the panels behind these. */
        size_t ahead = at + k < d->k ? bytes : (size_t)panels * d->panel_bytes - offset;
        const uint8_t *const next[2] = {source[0] + ahead, source[1] + ahead};
        direct_chunk(panel, rows, panels, d, source, next, at, k);
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
    default: direct_all(panel, 4, 1, d); break;
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
    .to_bf16 = gemm_avx512_to_bf16,
    .from_bf16 = gemm_avx512_from_bf16,
};
