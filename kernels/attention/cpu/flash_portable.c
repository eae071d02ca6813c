/* Attention's products in plain C, for processors without AVX2. */
#include <string.h>

#include "kernels/attention/cpu/soften_loops.h"

static void scores(int rows, int count, int64_t d, const float *q, int64_t q_stride, const float *keys, int add, float *to) {
    (void)count;
    for (int r = 0; r < rows; r++, q += q_stride, to += FLASH_KEYS) {
        float sums[FLASH_KEYS] = {0};
        if (add) memcpy(sums, to, sizeof sums);
        for (int64_t i = 0; i < d; i++) {
            for (int key = 0; key < FLASH_KEYS; key++) sums[key] += q[i] * keys[i * FLASH_KEYS + key];
        }
        memcpy(to, sums, sizeof sums);
    }
}

static void values(int rows, int keys, int columns, const float *weights, const float *v, int64_t v_stride, const flash_next *next, const float *factor, float *out,
                   int64_t out_stride) {
    (void)next;
    for (int r = 0; r < rows; r++, weights += FLASH_KEYS, out += out_stride) {
        float sums[FLASH_COLUMNS] = {0};
        for (int c = 0; c < columns; c++) sums[c] = out[c] * factor[r];
        for (int key = 0; key < keys; key++) {
            for (int c = 0; c < columns; c++) sums[c] += weights[key] * v[key * v_stride + c];
        }
        memcpy(out, sums, (size_t)columns * sizeof *sums);
    }
}

static void transpose(int keys, int64_t d, const float *k, int64_t k_stride, const flash_next *next, int first, float *transposed) {
    (void)next;
    for (int64_t i = 0; i < d; i++) {
        for (int key = 0; key < LANES; key++) transposed[i * FLASH_KEYS + first + key] = key < keys ? k[key * k_stride + i] : 0.0f;
    }
}

const flash_isa flash_isa_portable = {.scores = scores, .values = values, .transpose = transpose, .soften = soften, .has_nan = has_nan, .end_row = end_row};
