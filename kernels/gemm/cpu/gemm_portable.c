/* The product core in plain C, for processors without AVX2: the meaning of each entry, and no speed. */
#include <math.h>

#include "kernels/gemm/cpu/gemm.h"

static float bf16(uint16_t code) { return num_bf16_to_f32(code); }

/* Adds or stores a finished chunk. */
static void put(const gemm_tile *t, int row, int c, float sum) {
    float *to = &t->c[row * GEMM_COLS + c];
    if (t->col_scale != NULL) sum *= (t->row_scale != NULL ? t->row_scale[row * t->row_scale_stride] : 1.0f) * t->col_scale[c];
    *to = t->add ? *to + sum : sum;
}

static void tile_f32(const gemm_tile *t) {
    for (int r = 0; r < t->rows; r++) {
        float sums[GEMM_COLS] = {0};
        const float *a = (const float *)t->a + r * t->a_stride, *b = t->b;
        for (int64_t k = 0; k < t->steps; k++, b += GEMM_COLS) {
            for (int c = 0; c < GEMM_COLS; c++) sums[c] = fmaf(a[k], b[c], sums[c]);
        }
        for (int c = 0; c < GEMM_COLS; c++) put(t, r, c, sums[c]);
    }
}

static void tile_bf16(const gemm_tile *t) {
    for (int r = 0; r < t->rows; r++) {
        float sums[GEMM_COLS] = {0};
        const uint16_t *a = (const uint16_t *)t->a + r * t->a_stride, *b = t->b;
        for (int64_t k = 0; k < t->steps; k++, b += 2 * GEMM_COLS) {
            for (int c = 0; c < GEMM_COLS; c++) {
                sums[c] = fmaf(bf16(a[2 * k + 1]), bf16(b[2 * c + 1]), sums[c]);
                sums[c] = fmaf(bf16(a[2 * k]), bf16(b[2 * c]), sums[c]);
            }
        }
        for (int c = 0; c < GEMM_COLS; c++) put(t, r, c, sums[c]);
    }
}

static void decode_bf16_f32(const uint8_t *source, int64_t k, void *chunk) {
    const uint16_t *codes = (const uint16_t *)source;
    float *to = chunk;
    for (int64_t at = 0; at < (k + 1) / 2 * 2; at++) {
        for (int c = 0; c < GEMM_COLS; c++) to[at * GEMM_COLS + c] = bf16(codes[(at / 2 * GEMM_COLS + c) * 2 + at % 2]);
    }
}

#define DECODER(panel, compute)                                                                                    \
    static void decode_##panel##_##compute(const uint8_t *source, int64_t k, void *chunk) {                        \
        gemm_decode_special(GEMM_PANEL_##panel, GEMM_##compute, source, k, chunk);                                 \
    }
DECODER(E4M3, F32)
DECODER(E4M3, BF16)
DECODER(E5M2, F32)
DECODER(E5M2, BF16)
DECODER(E2M1_E8M0, F32)
DECODER(E2M1_E8M0, BF16)
DECODER(E2M1_E4M3, F32)
DECODER(E2M1_E4M3, BF16)

static void post(op_post step, float *y, const float *x, int64_t count) {
    for (int64_t i = 0; i < count; i++) y[i] = op_post_apply(step, y[i], x != NULL ? x[i] : 0.0f);
}

static void from_bf16(const uint16_t *x, float *y, int64_t count) {
    for (int64_t i = 0; i < count; i++) y[i] = num_bf16_to_f32(x[i]);
}

static void to_bf16(const float *x, uint16_t *y, int64_t count) {
    for (int64_t i = 0; i < count; i++) y[i] = num_f32_to_bf16(x[i]);
}

const gemm_isa gemm_isa_portable = {
    .name = "portable",
    .rows_max = {4, 4},
    .tile = {[GEMM_F32] = tile_f32, [GEMM_BF16] = tile_bf16},
    .decode = {[GEMM_PANEL_BF16] = {[GEMM_F32] = decode_bf16_f32},
               [GEMM_PANEL_E4M3] = {decode_E4M3_F32, decode_E4M3_BF16},
               [GEMM_PANEL_E5M2] = {decode_E5M2_F32, decode_E5M2_BF16},
               [GEMM_PANEL_E2M1_E8M0] = {decode_E2M1_E8M0_F32, decode_E2M1_E8M0_BF16},
               [GEMM_PANEL_E2M1_E4M3] = {decode_E2M1_E4M3_F32, decode_E2M1_E4M3_BF16}},
    .post = post,
    .to_bf16 = to_bf16,
    .from_bf16 = from_bf16,
    .turn = gemm_turn,
    .pair = gemm_pair_rows,
};
