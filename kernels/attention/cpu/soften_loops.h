/* One step of the running softmax as plain loops over a block, and the end of a row, compiled by each instruction set's file. Sums and maxima run in 16 lanes that are
 * joined in halves, whatever the width of registers. Defines the static functions soften, has_nan and end_row. */
#include <math.h>

#include "kernels/attention/cpu/flash.h"
#include "kernels/cpu/math.h"
#include "num/small.h"

enum { LANES = 16 };

static float soften(flash_row *row, float *restrict scores) {
    float most[LANES], sums[LANES];
    const float scale = row->scale;
    for (int i = 0; i < FLASH_KEYS; i++) scores[i] *= scale;
    if (row->softcap > 0) {
        const float cap = row->softcap;
        for (int i = 0; i < FLASH_KEYS; i++) scores[i] = cap * cpu_tanh(scores[i] / cap);
    }
    if (row->bias != NULL) {
        for (int i = 0; i < FLASH_KEYS; i++) scores[i] = cpu_select(row->bias[i] <= OP_ATTENTION_HIDES, row->bias[i], scores[i] + row->bias[i]);
    }
    if (row->begin > 0 || row->end < FLASH_KEYS) {
        for (int i = 0; i < FLASH_KEYS; i++) scores[i] = cpu_select((i >= row->begin) & (i < row->end), scores[i], -INFINITY);
    }
    if (row->mask != NULL) {
        for (int i = 0; i < FLASH_KEYS; i++) scores[i] = cpu_select(row->mask[i] != 0, scores[i], -INFINITY);
    }
    for (int l = 0; l < LANES; l++) most[l] = row->max;
    for (int i = 0; i < FLASH_KEYS; i += LANES) {
        for (int l = 0; l < LANES; l++) most[l] = scores[i + l] > most[l] ? scores[i + l] : most[l];
    }
    for (int l = 0; l < 8; l++) most[l] = most[l + 8] > most[l] ? most[l + 8] : most[l];
    for (int l = 0; l < 4; l++) most[l] = most[l + 4] > most[l] ? most[l + 4] : most[l];
    for (int l = 0; l < 2; l++) most[l] = most[l + 2] > most[l] ? most[l + 2] : most[l];
    most[0] = most[1] > most[0] ? most[1] : most[0];
    /* Nothing seen so far: any finite number keeps -inf - max from being NaN. */
    const float max = most[0] == -INFINITY ? 0.0f : most[0];
    for (int i = 0; i < FLASH_KEYS; i++) scores[i] = cpu_exp(scores[i] - max);
    for (int l = 0; l < LANES; l++) sums[l] = 0;
    for (int i = 0; i < FLASH_KEYS; i += LANES) {
        for (int l = 0; l < LANES; l++) sums[l] += scores[i + l];
    }
    for (int l = 0; l < 8; l++) sums[l] += sums[l + 8];
    for (int l = 0; l < 4; l++) sums[l] += sums[l + 4];
    for (int l = 0; l < 2; l++) sums[l] += sums[l + 2];
    sums[0] += sums[1];
    float factor = cpu_exp(row->max - max);
    row->sum = row->sum * factor + sums[0];
    row->max = most[0];
    return factor;
}

static bool has_nan(const float *x, int64_t count) {
    int found = 0;
    for (int64_t i = 0; i < count; i++) found |= x[i] != x[i];
    return found != 0;
}

static void end_row(float *restrict out, int64_t count, float sum, uint16_t *restrict to) {
    for (int64_t i = 0; i < count && sum != 0; i++) out[i] /= sum;
    for (int64_t i = 0; i < count && to != NULL; i++) to[i] = (uint16_t)small_bf16(out[i]);
}
