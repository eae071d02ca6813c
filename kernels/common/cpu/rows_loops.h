/* The loops of rows.h, in plain C for the compiler to vectorise; each rows_<instruction set>.c defines CPU_ROWS, the name of its table, and includes this.
 * Uses the conversion of F16C where it is compiled for it. */
#include <math.h>
#include <string.h>

#include "kernels/common/cpu/math.h"
#include "kernels/common/cpu/rows.h"
#include "num/num.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

enum {
    LANES = 64,          /* partial sums of a row */
    SUM_BLOCK = 4096     /* elements summed in fp32 before the partial sums go to double */
};

static void from_bf16(const uint16_t *restrict x, float *restrict y, int64_t count) {
    for (int64_t i = 0; i < count; i++) y[i] = cpu_float((int32_t)((uint32_t)x[i] << 16));
}

/* Nearest even; NaN becomes 0x7fff, as num says. */
static void to_bf16(const float *restrict x, uint16_t *restrict y, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)cpu_bits(x[i]);
        uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
        uint32_t nan = -(uint32_t)((bits & 0x7fffffff) > 0x7f800000);
        y[i] = (uint16_t)((rounded & ~nan) | (0x7fff & nan));
    }
}

static void from_f16(const uint16_t *restrict x, float *restrict y, int64_t count) {
    int64_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= count; i += 8) _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(x + i))));
#endif
    for (; i < count; i++) y[i] = num_f16_to_f32(x[i]);
}

static void to_f16(const float *restrict x, uint16_t *restrict y, int64_t count) {
    int64_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= count; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i);
        __m128i nan = _mm256_cvtps_ph(_mm256_cmp_ps(v, v, _CMP_UNORD_Q), _MM_FROUND_TO_NEAREST_INT);   /* some NaN, else 0 */
        __m128i is_nan = _mm_cmpgt_epi16(_mm_and_si128(nan, _mm_set1_epi16(0x7fff)), _mm_setzero_si128());
        __m128i code = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(y + i), _mm_blendv_epi8(code, _mm_set1_epi16(0x7fff), is_nan));
    }
#endif
    for (; i < count; i++) y[i] = num_f32_to_f16(x[i]);
}

static void add(const float *restrict x, const float *restrict y, float *restrict z, int64_t count) {
    for (int64_t i = 0; i < count; i++) z[i] = x[i] + y[i];
}

static double lanes_total(const float *lane) {
    double total = 0;
    for (int j = 0; j < LANES; j++) total += (double)lane[j];
    return total;
}

static double sum(const float *x, int64_t count) {
    double total = 0;
    while (count > 0) {
        int64_t part = count < SUM_BLOCK ? count : SUM_BLOCK, i = 0;
        float lane[LANES] = {0};
        for (; i + LANES <= part; i += LANES)
            for (int j = 0; j < LANES; j++) lane[j] += x[i + j];
        for (int j = 0; i + j < part; j++) lane[j] += x[i + j];
        total += lanes_total(lane);
        x += part;
        count -= part;
    }
    return total;
}

static double sum_squares(const float *x, float mean, int64_t count) {
    double total = 0;
    while (count > 0) {
        int64_t part = count < SUM_BLOCK ? count : SUM_BLOCK, i = 0;
        float lane[LANES] = {0};
        for (; i + LANES <= part; i += LANES)
            for (int j = 0; j < LANES; j++) lane[j] = CPU_FMA(x[i + j] - mean, x[i + j] - mean, lane[j]);
        for (int j = 0; i + j < part; j++) lane[j] = CPU_FMA(x[i + j] - mean, x[i + j] - mean, lane[j]);
        total += lanes_total(lane);
        x += part;
        count -= part;
    }
    return total;
}

/* A NaN wins over all, from either side. */
static inline float larger(float a, float b) { return cpu_select((a > b) | (a != a), a, b); }
static inline float smaller(float a, float b) { return cpu_select((a < b) | (a != a), a, b); }

#define EXTREME(name, pick, start)                                                       \
    static float name(const float *x, int64_t count) {                                   \
        float lane[LANES], result = start;                                               \
        int64_t i = 0;                                                                   \
        for (int j = 0; j < LANES; j++) lane[j] = start;                                 \
        for (; i + LANES <= count; i += LANES)                                           \
            for (int j = 0; j < LANES; j++) lane[j] = pick(lane[j], x[i + j]);           \
        for (; i < count; i++) result = pick(result, x[i]);                              \
        for (int j = 0; j < LANES; j++) result = pick(result, lane[j]);                  \
        return result;                                                                   \
    }
EXTREME(max, larger, -INFINITY)
EXTREME(min, smaller, INFINITY)
#undef EXTREME

static void normalise(const float *restrict x, float mean, float low, float scale, const float *restrict weight, const float *restrict bias,
                      float *restrict y, int64_t count) {
    if (weight != NULL && bias != NULL) {
        for (int64_t i = 0; i < count; i++) y[i] = (x[i] - mean - low) * scale * weight[i] + bias[i];
    } else if (weight != NULL) {
        for (int64_t i = 0; i < count; i++) y[i] = (x[i] - mean - low) * scale * weight[i];
    } else if (bias != NULL) {
        for (int64_t i = 0; i < count; i++) y[i] = (x[i] - mean - low) * scale + bias[i];
    } else {
        for (int64_t i = 0; i < count; i++) y[i] = (x[i] - mean - low) * scale;
    }
}

static double exp_sum(const float *x, float max, float *y, int64_t count) {
    double total = 0;
    while (count > 0) {
        int64_t part = count < SUM_BLOCK ? count : SUM_BLOCK, i = 0;
        float lane[LANES] = {0};
        for (; i + LANES <= part; i += LANES) {
            float value[LANES];
            for (int j = 0; j < LANES; j++) value[j] = cpu_exp(x[i + j] - max);
            for (int j = 0; j < LANES; j++) lane[j] += value[j];
            memcpy(y + i, value, sizeof value);
        }
        for (int j = 0; i + j < part; j++) lane[j] += y[i + j] = cpu_exp(x[i + j] - max);
        total += lanes_total(lane);
        x += part;
        y += part;
        count -= part;
    }
    return total;
}

static void scale_shift(const float *x, float scale, float shift, float *y, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        float value[LANES];
        for (int j = 0; j < LANES; j++) value[j] = x[i + j] * scale + shift;
        memcpy(y + i, value, sizeof value);
    }
    for (; i < count; i++) y[i] = x[i] * scale + shift;
}

static void rotate(const float *restrict a, const float *restrict b, const float *restrict cos_a, const float *restrict sin_a, const float *restrict cos_b,
                   const float *restrict sin_b, float *restrict y, float *restrict z, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        y[i] = a[i] * cos_a[i] - b[i] * sin_a[i];
        z[i] = b[i] * cos_b[i] + a[i] * sin_b[i];
    }
}

static void rotate_pairs(const float *restrict x, const float *restrict c, const float *restrict s, float *restrict y, int64_t pairs) {
    for (int64_t i = 0; i < pairs; i++) {
        y[2 * i] = x[2 * i] * c[2 * i] - x[2 * i + 1] * s[2 * i];
        y[2 * i + 1] = x[2 * i + 1] * c[2 * i + 1] + x[2 * i] * s[2 * i + 1];
    }
}

const cpu_rows CPU_ROWS = {
    .from_bf16 = from_bf16, .to_bf16 = to_bf16, .from_f16 = from_f16, .to_f16 = to_f16, .add = add, .sum = sum, .sum_squares = sum_squares,
    .max = max, .min = min, .normalise = normalise, .exp_sum = exp_sum, .scale_shift = scale_shift, .rotate = rotate, .rotate_pairs = rotate_pairs,
};
