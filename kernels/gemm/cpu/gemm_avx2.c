/* The product core for AVX2 with FMA: tiles of up to 6 rows (bf16: 4) and 16 columns, twice for a panel; decoders of quantised panels; post lists.
 * Same order of sums as the other instruction sets. Measured: kernels/gemm/README.md. */
#include <immintrin.h>

#include "kernels/gemm/cpu/gemm.h"
#include "kernels/gemm/cpu/post_loops.h"
#include "kernels/cpu/simd.h"

typedef struct pair { __m256 even, odd; } pair;

SIMD_INLINE pair split(__m256i pairs) {
    return (pair){_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)), _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000)))};
}

/* The finished sums of 8 * vectors columns from column on. */
SIMD_INLINE void put(const gemm_tile *t, int row, int column, const int vectors, const __m256 *sums) {
    float *c = t->c + row * GEMM_COLS + column;
    SIMD_UNROLL
    for (int i = 0; i < vectors; i++, c += 8) {
        __m256 sum = sums[i];
        if (t->col_scale != NULL) {
            __m256 scale = _mm256_set1_ps(t->row_scale != NULL ? t->row_scale[row * t->row_scale_stride] : 1.0f);
            sum = _mm256_mul_ps(sum, _mm256_mul_ps(scale, _mm256_loadu_ps(t->col_scale + column + i * 8)));
        }
        _mm256_storeu_ps(c, t->add ? _mm256_add_ps(_mm256_loadu_ps(c), sum) : sum);
    }
}

/* vectors: of 8 columns at a time. Few rows take all four, so that enough sums are under way to hide the latency of one. */
SIMD_INLINE void tile_f32(const gemm_tile *t, const int rows, const int vectors) {
    const int64_t stride = t->a_stride, steps = t->steps;
    for (int column = 0; column < GEMM_COLS; column += 8 * vectors) {
        __m256 sum[6][4];
        const float *a = t->a, *b = (const float *)t->b + column;
        SIMD_UNROLL
        for (int r = 0; r < rows; r++) {
            SIMD_UNROLL
            for (int i = 0; i < vectors; i++) sum[r][i] = _mm256_setzero_ps();
        }
        for (int64_t k = 0; k < steps; k++, b += GEMM_COLS) {
            __m256 of_b[4];
            SIMD_UNROLL
            for (int i = 0; i < vectors; i++) of_b[i] = _mm256_loadu_ps(b + 8 * i);
            SIMD_UNROLL
            for (int r = 0; r < rows; r++) {
                __m256 value = _mm256_broadcast_ss(&a[r * stride + k]);
                SIMD_UNROLL
                for (int i = 0; i < vectors; i++) sum[r][i] = _mm256_fmadd_ps(value, of_b[i], sum[r][i]);
            }
        }
        SIMD_UNROLL
        for (int r = 0; r < rows; r++) put(t, r, column, vectors, sum[r]);
    }
}

SIMD_INLINE void tile_bf16(const gemm_tile *t, const int rows, const int vectors) {
    const int64_t stride = t->a_stride, steps = t->steps;
    for (int column = 0; column < GEMM_COLS; column += 8 * vectors) {
        __m256 sum[4][4];
        const uint16_t *a = t->a, *b = (const uint16_t *)t->b + 2 * column;
        SIMD_UNROLL
        for (int r = 0; r < rows; r++) {
            SIMD_UNROLL
            for (int i = 0; i < vectors; i++) sum[r][i] = _mm256_setzero_ps();
        }
        for (int64_t k = 0; k < steps; k++, b += 2 * GEMM_COLS) {
            pair of_b[4];
            SIMD_UNROLL
            for (int i = 0; i < vectors; i++) of_b[i] = split(_mm256_loadu_si256((const __m256i *)(b + 16 * i)));
            SIMD_UNROLL
            for (int r = 0; r < rows; r++) {
                int32_t bits;
                memcpy(&bits, &a[r * stride + 2 * k], sizeof bits);
                pair value = split(_mm256_set1_epi32(bits));
                SIMD_UNROLL
                for (int i = 0; i < vectors; i++) sum[r][i] = _mm256_fmadd_ps(value.odd, of_b[i].odd, sum[r][i]);
                SIMD_UNROLL
                for (int i = 0; i < vectors; i++) sum[r][i] = _mm256_fmadd_ps(value.even, of_b[i].even, sum[r][i]);
            }
        }
        SIMD_UNROLL
        for (int r = 0; r < rows; r++) put(t, r, column, vectors, sum[r]);
    }
}

static void tile_f32_rows(const gemm_tile *t) {
    switch (t->rows) {
    case 1: tile_f32(t, 1, 4); break;
    case 2: tile_f32(t, 2, 4); break;
    case 3: tile_f32(t, 3, 2); break;
    case 4: tile_f32(t, 4, 2); break;
    case 5: tile_f32(t, 5, 2); break;
    default: tile_f32(t, 6, 2); break;
    }
}

static void tile_bf16_rows(const gemm_tile *t) {
    switch (t->rows) {
    case 1: tile_bf16(t, 1, 4); break;
    case 2: tile_bf16(t, 2, 2); break;
    case 3: tile_bf16(t, 3, 2); break;
    default: tile_bf16(t, 4, 2); break;
    }
}

/* ---- decoders: see gemm_avx512.h for the tricks ---- */

static int64_t groups_of(int64_t k) { return base_ceil_div(k, GEMM_GROUP); }

static int64_t scale_bytes(gemm_panel panel, int64_t groups) {
    return (groups * GEMM_COLS * (panel == GEMM_PANEL_E2M1_E4M3 ? 2 : 1) + 63) & ~(int64_t)63;
}

SIMD_INLINE __m256 scales8(gemm_panel panel, const uint8_t *scales) {
    __m256i codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)scales));
    if (panel == GEMM_PANEL_E2M1_E4M3) return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(codes, 20)), _mm256_set1_ps(0x1p120f));
    if (panel == GEMM_PANEL_E4M3) codes = _mm256_add_epi32(codes, _mm256_set1_epi32(120));
    if (panel == GEMM_PANEL_E5M2) codes = _mm256_add_epi32(codes, _mm256_set1_epi32(112));
    return _mm256_castsi256_ps(_mm256_slli_epi32(codes, 23));
}

SIMD_INLINE pair pair8(gemm_panel panel, __m256i line, int index, __m256 scale) {
    const __m256i mask = _mm256_set1_epi32(panel == GEMM_PANEL_E4M3 ? (int)0x87f00000 : (int)0x8fe00000);
    __m256i words = index == 0 ? _mm256_slli_epi16(line, 8) : line;
    words = panel == GEMM_PANEL_E4M3 ? _mm256_srai_epi16(words, 4) : _mm256_srai_epi16(words, 3);
    __m256i odd = _mm256_and_si256(words, mask), even = _mm256_and_si256(_mm256_slli_epi32(words, 16), mask);
    return (pair){_mm256_mul_ps(_mm256_castsi256_ps(even), scale), _mm256_mul_ps(_mm256_castsi256_ps(odd), scale)};
}

/* The E2M1 code in the low four bits of each lane: a magnitude from a table of eight, and the sign. */
SIMD_INLINE __m256 e2m1(__m256i code) {
    const __m256 table = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    __m256 sign = _mm256_castsi256_ps(_mm256_and_si256(_mm256_slli_epi32(code, 28), _mm256_set1_epi32(INT32_MIN)));
    return _mm256_or_ps(_mm256_permutevar8x32_ps(table, code), sign);
}

SIMD_INLINE pair pair4(__m256i line, int index, __m256 scale) {
    __m256 even = e2m1(_mm256_srli_epi32(line, 4 * index)), odd = e2m1(_mm256_srli_epi32(line, 16 + 4 * index));
    return (pair){_mm256_mul_ps(even, scale), _mm256_mul_ps(odd, scale)};
}

/* Pairs p of 8 columns (quarter 0 .. 3 of the panel). */
SIMD_INLINE void put_pair(gemm_compute compute, void *chunk, int64_t index, int quarter, pair p) {
    if (compute == GEMM_BF16) {
        __m256i joined = _mm256_or_si256(_mm256_srli_epi32(_mm256_castps_si256(p.even), 16), _mm256_castps_si256(p.odd));
        _mm256_storeu_si256((__m256i *)((uint16_t *)chunk + index * 64 + quarter * 16), joined);
    } else {
        _mm256_storeu_ps((float *)chunk + index * 64 + quarter * 8, p.even);
        _mm256_storeu_ps((float *)chunk + index * 64 + 32 + quarter * 8, p.odd);
    }
}

SIMD_INLINE void decode(gemm_panel panel, gemm_compute compute, const uint8_t *source, int64_t k, void *chunk) {
    const bool nibbles = panel == GEMM_PANEL_E2M1_E8M0 || panel == GEMM_PANEL_E2M1_E4M3;
    const int lines = nibbles ? 4 : 8, pairs = nibbles ? 4 : 2, per_group = panel == GEMM_PANEL_E2M1_E4M3 ? 2 : 1;
    const int64_t groups = groups_of(k);
    const uint8_t *codes = source + scale_bytes(panel, groups);
    for (int64_t group = 0; group < groups; group++) {
        for (int line = 0; line < lines; line++) {
            const uint8_t *scales = source + (group * per_group + line * per_group / lines) * GEMM_COLS;
            for (int quarter = 0; quarter < 4; quarter++) {
                __m256 scale = scales8(panel, scales + quarter * 8);
                __m256i bits = _mm256_loadu_si256((const __m256i *)(codes + (group * lines + line) * 128 + quarter * 32));
                SIMD_UNROLL
                for (int i = 0; i < pairs; i++) {
                    put_pair(compute, chunk, (group * lines + line) * pairs + i, quarter, nibbles ? pair4(bits, i, scale) : pair8(panel, bits, i, scale));
                }
            }
        }
    }
}

static void decode_BF16_F32(const uint8_t *source, int64_t k, void *chunk) {
    for (int64_t i = 0; i < (k + 1) / 2; i++) {
        for (int quarter = 0; quarter < 4; quarter++) {
            put_pair(GEMM_F32, chunk, i, quarter, split(_mm256_loadu_si256((const __m256i *)(source + i * 128 + quarter * 32))));
        }
    }
}

#define DECODERS(X) X(E4M3, F32) X(E4M3, BF16) X(E5M2, F32) X(E5M2, BF16) X(E2M1_E8M0, F32) X(E2M1_E8M0, BF16) X(E2M1_E4M3, F32) X(E2M1_E4M3, BF16)
#define DEFINE(panel, compute)                                                                               \
    static void decode_##panel##_##compute(const uint8_t *source, int64_t k, void *chunk) {                  \
        decode(GEMM_PANEL_##panel, GEMM_##compute, source, k, chunk);                                        \
    }
DECODERS(DEFINE)

/* ---- moves ---- */

/* 8 x 8 elements. */
SIMD_INLINE void turn_block(const uint8_t *from, ptrdiff_t from_bytes, uint8_t *to, ptrdiff_t to_bytes) {
    __m256 in[8], turned[8];      /* turned: [2][4 columns of each half]: columns c and 4 + c of rows 4 q .. */
    SIMD_UNROLL
    for (int i = 0; i < 8; i++) in[i] = _mm256_loadu_ps((const float *)(const void *)(from + i * from_bytes));
    SIMD_UNROLL
    for (int q = 0; q < 2; q++) {
        const __m256 *r = in + 4 * q;
        const __m256d low01 = _mm256_castps_pd(_mm256_unpacklo_ps(r[0], r[1])), high01 = _mm256_castps_pd(_mm256_unpackhi_ps(r[0], r[1]));
        const __m256d low23 = _mm256_castps_pd(_mm256_unpacklo_ps(r[2], r[3])), high23 = _mm256_castps_pd(_mm256_unpackhi_ps(r[2], r[3]));
        turned[4 * q] = _mm256_castpd_ps(_mm256_unpacklo_pd(low01, low23));
        turned[4 * q + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(low01, low23));
        turned[4 * q + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(high01, high23));
        turned[4 * q + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(high01, high23));
    }
    SIMD_UNROLL
    for (int c = 0; c < 4; c++) {
        _mm256_storeu_ps((float *)(void *)(to + c * to_bytes), _mm256_permute2f128_ps(turned[c], turned[4 + c], 0x20));
        _mm256_storeu_ps((float *)(void *)(to + (4 + c) * to_bytes), _mm256_permute2f128_ps(turned[c], turned[4 + c], 0x31));
    }
}

static void turn(const void *from, ptrdiff_t from_bytes, int64_t rows, int64_t cols, void *to, ptrdiff_t to_bytes) {
    for (int64_t c0 = 0; c0 < cols; c0 += 8) {
        for (int64_t r0 = 0; r0 < rows; r0 += 8) {
            const uint8_t *source = (const uint8_t *)from + r0 * from_bytes + 4 * c0;
            uint8_t *target = (uint8_t *)to + c0 * to_bytes + 4 * r0;
            if (rows - r0 >= 8 && cols - c0 >= 8) turn_block(source, from_bytes, target, to_bytes);
            else gemm_turn(source, from_bytes, rows - r0 < 8 ? rows - r0 : 8, cols - c0 < 8 ? cols - c0 : 8, target, to_bytes);
        }
    }
}

static void pair_rows(const uint16_t *even, const uint16_t *odd, int64_t count, uint16_t *to) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        const __m128i low = _mm_loadu_si128((const __m128i *)(even + i)), high = _mm_loadu_si128((const __m128i *)(odd + i));
        _mm_storeu_si128((__m128i *)(to + 2 * i), _mm_unpacklo_epi16(low, high));
        _mm_storeu_si128((__m128i *)(to + 2 * i + 8), _mm_unpackhi_epi16(low, high));
    }
    gemm_pair_rows(even + i, odd + i, count - i, to + 2 * i);
}

#define ENTRY(panel, compute) [GEMM_PANEL_##panel][GEMM_##compute] = decode_##panel##_##compute,
const gemm_isa gemm_isa_avx2 = {
    .name = "avx2",
    .needs = UINT64_C(1) << CHIP_avx2,
    .rows_max = {6, 4},
    .tile = {[GEMM_F32] = tile_f32_rows, [GEMM_BF16] = tile_bf16_rows},
    .decode = {DECODERS(ENTRY) ENTRY(BF16, F32)},
    .post = post_steps,
    .to_bf16 = narrow_bf16,
    .from_bf16 = widen_bf16,
    .turn = turn,
    .pair = pair_rows,
};
