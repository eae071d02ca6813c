/* The loops of rows.h, in plain C for the compiler to vectorise; each rows_<instruction set>.c defines CPU_ROWS, the name of its table, and includes this.
 * Uses the conversion of F16C where it is compiled for it. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/math.h"
#include "kernels/cpu/rows.h"
#include "num/num.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

enum {
    LANES = 64,          /* partial sums of a row */
    SUM_BLOCK = 4096     /* elements summed in fp32 before the partial sums go to double */
};

static inline float widened(uint16_t x) { return cpu_float((int32_t)((uint32_t)x << 16)); }

/* To bf16, which are the upper 16 bits: nearest even; NaN becomes 0x7fff, as num says. */
static inline uint32_t rounded(float x) {
    const uint32_t bits = (uint32_t)cpu_bits(x), nan = -(uint32_t)((bits & 0x7fffffff) > 0x7f800000);
    return ((bits + 0x7fff + ((bits >> 16) & 1)) & ~nan) | (0x7fff0000 & nan);
}

static void from_bf16(const uint16_t *restrict x, float *restrict y, int64_t count) {
    for (int64_t i = 0; i < count; i++) y[i] = widened(x[i]);
}

static void to_bf16(const float *restrict x, uint16_t *restrict y, int64_t count) {
    for (int64_t i = 0; i < count; i++) y[i] = (uint16_t)(rounded(x[i]) >> 16);
}

/* Two at a time in a word of 32 bits, low and high, so that none is packed. */
static void add_bf16(const uint16_t *restrict x, const uint16_t *restrict y, uint16_t *restrict z, int64_t count) {
    for (int64_t i = 0; i < count / 2; i++) {
        uint32_t a, b;
        memcpy(&a, x + 2 * i, sizeof a);
        memcpy(&b, y + 2 * i, sizeof b);
        const uint32_t low = rounded(cpu_float((int32_t)(a << 16)) + cpu_float((int32_t)(b << 16)));
        const uint32_t high = rounded(cpu_float((int32_t)(a & 0xffff0000)) + cpu_float((int32_t)(b & 0xffff0000)));
        const uint32_t both = low >> 16 | (high & 0xffff0000);
        memcpy(z + 2 * i, &both, sizeof both);
    }
    if (count % 2 != 0) z[count - 1] = (uint16_t)(rounded(widened(x[count - 1]) + widened(y[count - 1])) >> 16);
}

/* Elements of f16 that are converted at a time. To f16: nearest even; NaN becomes 0x7fff, as num says. */
#if defined(__AVX512BW__) && defined(__AVX512VL__)
enum { HALVES = 16 };
static inline __m512 widened_f16(const uint16_t *x) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)x)); }
static inline __m512 sum_f16(const uint16_t *x, const uint16_t *y) { return _mm512_add_ps(widened_f16(x), widened_f16(y)); }
static inline __m512 loaded_f32(const float *x) { return _mm512_loadu_ps(x); }
static inline void store_f32(float *y, __m512 x) { _mm512_storeu_ps(y, x); }
static inline void store_f16(uint16_t *y, __m512 x) {
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    _mm256_storeu_si256((__m256i *)y, _mm256_mask_mov_epi16(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT), is_nan, _mm256_set1_epi16(0x7fff)));
}
#elif defined(__F16C__)
enum { HALVES = 8 };
static inline __m256 widened_f16(const uint16_t *x) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)x)); }
static inline __m256 sum_f16(const uint16_t *x, const uint16_t *y) { return _mm256_add_ps(widened_f16(x), widened_f16(y)); }
static inline __m256 loaded_f32(const float *x) { return _mm256_loadu_ps(x); }
static inline void store_f32(float *y, __m256 x) { _mm256_storeu_ps(y, x); }
static inline void store_f16(uint16_t *y, __m256 x) {
    const __m128i nan = _mm256_cvtps_ph(_mm256_cmp_ps(x, x, _CMP_UNORD_Q), _MM_FROUND_TO_NEAREST_INT);   /* some NaN, else 0 */
    const __m128i is_nan = _mm_cmpgt_epi16(_mm_and_si128(nan, _mm_set1_epi16(0x7fff)), _mm_setzero_si128());
    _mm_storeu_si128((__m128i *)y, _mm_blendv_epi8(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT), _mm_set1_epi16(0x7fff), is_nan));
}
#endif

static void from_f16(const uint16_t *restrict x, float *restrict y, int64_t count) {
    int64_t i = 0;
#if defined(__F16C__)
    for (; i + HALVES <= count; i += HALVES) store_f32(y + i, widened_f16(x + i));
#endif
    for (; i < count; i++) y[i] = num_f16_to_f32(x[i]);
}

static void to_f16(const float *restrict x, uint16_t *restrict y, int64_t count) {
    int64_t i = 0;
#if defined(__F16C__)
    for (; i + HALVES <= count; i += HALVES) store_f16(y + i, loaded_f32(x + i));
#endif
    for (; i < count; i++) y[i] = num_f32_to_f16(x[i]);
}

static void add_f16(const uint16_t *restrict x, const uint16_t *restrict y, uint16_t *restrict z, int64_t count) {
    int64_t i = 0;
#if defined(__F16C__)
    for (; i + HALVES <= count; i += HALVES) store_f16(z + i, sum_f16(x + i, y + i));
#endif
    for (; i < count; i++) z[i] = num_f32_to_f16(num_f16_to_f32(x[i]) + num_f16_to_f32(y[i]));
}

static void add(const float *restrict x, const float *restrict y, float *restrict z, int64_t count) {
    for (int64_t i = 0; i < count; i++) z[i] = x[i] + y[i];
}

/* Folds an array of LANES in halves, in a fixed order. */
#define FOLD_HALF(width, statement)                  \
    for (int j = 0; j < (width); j++) {              \
        int other = j + (width);                     \
        statement;                                   \
    }
#define FOLD(statement)                                                                                                             \
    FOLD_HALF(16, statement) FOLD_HALF(8, statement) FOLD_HALF(4, statement) FOLD_HALF(2, statement) FOLD_HALF(1, statement)

static double lanes_total(const float *lane) {
    double total[LANES / 2];
    for (int j = 0; j < LANES / 2; j++) total[j] = (double)lane[j] + (double)lane[j + LANES / 2];
    FOLD(total[j] += total[other])
    return total[0];
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

/* The largest (smallest) of numbers in lanes, and beside it whether any is a NaN. */
#define EXTREME(name, before, start)                                                          \
    static float name(const float *x, int64_t count) {                                        \
        float lane[LANES];                                                                    \
        int32_t nan[LANES] = {0};                                                             \
        int64_t i = 0;                                                                        \
        for (int j = 0; j < LANES; j++) lane[j] = start;                                      \
        for (; i + LANES <= count; i += LANES) {                                              \
            for (int j = 0; j < LANES; j++) lane[j] = x[i + j] before lane[j] ? x[i + j] : lane[j]; \
            for (int j = 0; j < LANES; j++) nan[j] |= x[i + j] != x[i + j];                   \
        }                                                                                     \
        for (int j = 0; i + j < count; j++) {                                                 \
            lane[j] = x[i + j] before lane[j] ? x[i + j] : lane[j];                           \
            nan[j] |= x[i + j] != x[i + j];                                                   \
        }                                                                                     \
        FOLD_HALF(32, lane[j] = lane[other] before lane[j] ? lane[other] : lane[j])           \
        FOLD(lane[j] = lane[other] before lane[j] ? lane[other] : lane[j])                    \
        FOLD_HALF(32, nan[j] |= nan[other])                                                   \
        FOLD(nan[j] |= nan[other])                                                            \
        return nan[0] ? NAN : lane[0];                                                        \
    }
EXTREME(max, >, -INFINITY)
EXTREME(min, <, INFINITY)
#undef EXTREME
#undef FOLD
#undef FOLD_HALF

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

static void add_positive(const float *restrict x, const float *restrict factor, float weight, float *restrict sum, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const float product = x[i] * factor[i];
        sum[i] += weight * (product < 0 ? 0 : product);
    }
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
    .from_bf16 = from_bf16, .to_bf16 = to_bf16, .from_f16 = from_f16, .to_f16 = to_f16, .add = add, .add_bf16 = add_bf16, .add_f16 = add_f16, .sum = sum, .sum_squares = sum_squares,
    .max = max, .min = min, .normalise = normalise, .exp_sum = exp_sum, .scale_shift = scale_shift, .add_positive = add_positive, .rotate = rotate, .rotate_pairs = rotate_pairs,
};
