/* The loops of loops.h, in plain C for the compiler to vectorise; each loops_<instruction set>.c defines SAMPLE_LOOPS, the name of its table, and includes this.
 * What decides which id is drawn is the arithmetic of op/sampling.h, the same on all machines; sums of exponentials are this machine's. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/math.h"
#include "kernels/sample/loops.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

enum { LANES = 16, WORDS = 4 };   /* numbers of a vector; words of a counter */

/* The largest of numbers in lanes, and beside it whether any is a NaN. */
static void maxima(const float *restrict x, int64_t blocks, float *restrict out) {
    for (int64_t block = 0; block < blocks; block++, x += SAMPLE_BLOCK) {
        float lane[LANES];
        int32_t nan[LANES];
        for (int j = 0; j < LANES; j++) {
            const float a = x[j] > x[j + LANES] ? x[j] : x[j + LANES], b = x[j + 2 * LANES] > x[j + 3 * LANES] ? x[j + 2 * LANES] : x[j + 3 * LANES];
            lane[j] = a > b ? a : b;
            nan[j] = (x[j] != x[j]) | (x[j + LANES] != x[j + LANES]) | (x[j + 2 * LANES] != x[j + 2 * LANES]) | (x[j + 3 * LANES] != x[j + 3 * LANES]);
        }
        for (int width = LANES / 2; width > 0; width /= 2)
            for (int j = 0; j < width; j++) {
                lane[j] = lane[j] > lane[j + width] ? lane[j] : lane[j + width];
                nan[j] |= nan[j + width];
            }
        out[block] = nan[0] ? NAN : lane[0];
    }
}

static double exp_sum(const float *x, int64_t blocks, float largest) {
    float lane[SAMPLE_BLOCK] = {0};
    double total[LANES] = {0};
    for (int64_t block = 0; block < blocks; block++, x += SAMPLE_BLOCK)
        for (int j = 0; j < SAMPLE_BLOCK; j++) lane[j] += cpu_exp(x[j] - largest);
    for (int j = 0; j < LANES; j++) total[j] = ((double)lane[j] + (double)lane[j + LANES]) + ((double)lane[j + 2 * LANES] + (double)lane[j + 3 * LANES]);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int j = 0; j < width; j++) total[j] += total[j + width];
    return total[0];
}

/* Most ids have no count. */
static void penalise(float *x, const int32_t *counts, int64_t count, const sampling_settings *settings) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        int32_t any = 0;
        for (int j = 0; j < LANES; j++) any |= counts[i + j];
        for (int j = 0; any != 0 && j < LANES; j++) x[i + j] = sampling_penalise(x[i + j], counts[i + j], settings);
    }
    for (; i < count; i++) x[i] = sampling_penalise(x[i], counts[i], settings);
}

static void mask(float *x, const int32_t *bits, int64_t count) {
    enum { WORD = 32 };
    for (int64_t i = 0; i < count; i += WORD, bits++)
        for (int j = 0; j < WORD && i + j < count; j++) x[i + j] = cpu_select(*bits >> j & 1, x[i + j], -INFINITY);
}

static void orders(const float *restrict x, int64_t count, uint32_t *restrict out) {
    for (int64_t i = 0; i < count; i++) out[i] = sampling_order(x[i]);
}

static void masses(const float *restrict x, int64_t count, float largest, float temperature, uint32_t *restrict out) {
    for (int64_t i = 0; i < count; i++) out[i] = (uint32_t)sampling_mass(sampling_heat(x[i], largest, temperature));
}

/* ---- words: COUNTERS of them at a time, whose first words are given; the last one is 0 ---- */

/* Compilers do not see that a product of 32-bit numbers fits in 64 bits. Numbers lie in the lower halves of 64-bit lanes; what the upper halves hold nobody reads. */
#if defined(__AVX512F__)
enum { COUNTERS = 8 };
typedef __m512i vector;
#define VECTOR_OF(x) _mm512_set1_epi64((long long)(x))
#define VECTOR_LOAD(at) _mm512_loadu_si512(at)
#define VECTOR_STORE(at, x) _mm512_storeu_si512(at, x)
#define MULTIPLY _mm512_mul_epu32
#define XOR _mm512_xor_si512
#define ADD _mm512_add_epi64
#define HIGH(x) _mm512_srli_epi64(x, 32)
#define PAIR(low, high) _mm512_mask_blend_epi32(0xaaaa, low, _mm512_slli_epi64(high, 32))
#elif defined(__AVX2__)
enum { COUNTERS = 4 };
typedef __m256i vector;
#define VECTOR_OF(x) _mm256_set1_epi64x((long long)(x))
#define VECTOR_LOAD(at) _mm256_loadu_si256((const __m256i *)(const void *)(at))
#define VECTOR_STORE(at, x) _mm256_storeu_si256((__m256i *)(void *)(at), x)
#define MULTIPLY _mm256_mul_epu32
#define XOR _mm256_xor_si256
#define ADD _mm256_add_epi64
#define HIGH(x) _mm256_srli_epi64(x, 32)
#define PAIR(low, high) _mm256_blend_epi32(low, _mm256_slli_epi64(high, 32), 0xaa)
#else
enum { COUNTERS = 1 };
typedef uint64_t vector;
#define VECTOR_OF(x) ((uint64_t)(x))
#define VECTOR_LOAD(at) (*(at))
#define VECTOR_STORE(at, x) (*(at) = (x))
#define MULTIPLY(a, b) ((uint64_t)(uint32_t)(a) * (uint32_t)(b))
#define XOR(a, b) ((a) ^ (b))
#define ADD(a, b) ((a) + (b))
#define HIGH(x) ((x) >> 32)
#define PAIR(low, high) ((uint32_t)(low) | (high) << 32)
#endif

/* Words 0 and 1 of each counter side by side, and words 2 and 3. */
static inline void philox_vector(uint64_t seed, uint64_t draw, vector a, vector *first, vector *second) {
    const vector multiply_0 = VECTOR_OF(PHILOX_MULTIPLY_0), multiply_1 = VECTOR_OF(PHILOX_MULTIPLY_1), add_0 = VECTOR_OF(PHILOX_KEY_0), add_1 = VECTOR_OF(PHILOX_KEY_1);
    vector b = VECTOR_OF((uint32_t)draw), c = VECTOR_OF(draw >> 32), d = VECTOR_OF(0), key_0 = VECTOR_OF((uint32_t)seed), key_1 = VECTOR_OF(seed >> 32);
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        const vector of_a = MULTIPLY(a, multiply_0), of_c = MULTIPLY(c, multiply_1);
        a = XOR(XOR(HIGH(of_c), b), key_0);
        b = of_c;
        c = XOR(XOR(HIGH(of_a), d), key_1);
        d = of_a;
        key_0 = ADD(key_0, add_0);
        key_1 = ADD(key_1, add_1);
    }
    *first = PAIR(a, b);
    *second = PAIR(c, d);
}

/* The words of so many groups, [COUNTERS][WORDS]. */
static inline void words_of_groups(uint64_t seed, uint64_t draw, const uint64_t *groups, uint32_t *words) {
    uint64_t pairs[2][COUNTERS];
    vector first, second;
    philox_vector(seed, draw, VECTOR_LOAD(groups), &first, &second);
    VECTOR_STORE(pairs[0], first);
    VECTOR_STORE(pairs[1], second);
    for (int i = 0; i < COUNTERS; i++) {
        memcpy(words + i * WORDS, &pairs[0][i], sizeof pairs[0][i]);
        memcpy(words + i * WORDS + 2, &pairs[1][i], sizeof pairs[1][i]);
    }
}

static uint32_t block_words(uint64_t seed, uint64_t draw, int64_t block, uint32_t *restrict words) {
    enum { GROUPS = SAMPLE_BLOCK / WORDS };
    uint32_t least[LANES];
    for (int i = 0; i < GROUPS; i += COUNTERS) {
        uint64_t groups[COUNTERS];
        for (int j = 0; j < COUNTERS; j++) groups[j] = (uint64_t)(block * GROUPS + i + j);
        words_of_groups(seed, draw, groups, words + i * WORDS);
    }
    for (int j = 0; j < LANES; j++) {
        const uint32_t a = words[j] < words[j + LANES] ? words[j] : words[j + LANES], b = words[j + 2 * LANES] < words[j + 3 * LANES] ? words[j + 2 * LANES] : words[j + 3 * LANES];
        least[j] = a < b ? a : b;
    }
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int j = 0; j < width; j++) least[j] = least[j] < least[j + width] ? least[j] : least[j + width];
    return least[0];
}

static void words(uint64_t seed, uint64_t draw, const int32_t *ids, int64_t count, uint32_t *out) {
    for (int64_t i = 0; i < count; i += COUNTERS) {
        const int64_t here = count - i < COUNTERS ? count - i : COUNTERS;
        uint64_t groups[COUNTERS] = {0};
        uint32_t all[COUNTERS * WORDS];
        for (int64_t j = 0; j < here; j++) groups[j] = (uint64_t)(ids[i + j] / WORDS);
        words_of_groups(seed, draw, groups, all);
        for (int64_t j = 0; j < here; j++) out[i + j] = all[j * WORDS + ids[i + j] % WORDS];
    }
}

/* ---- candidates ---- */

static int64_t keep(const float *x, const int32_t *ids, int64_t first, int64_t count, float least, float *values, int32_t *kept_ids) {
    int64_t kept = 0, i = 0;
#if defined(__AVX512F__)
    const __m512i steps = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (; i + LANES <= count; i += LANES) {
        const __m512 value = _mm512_loadu_ps(x + i);
        const __m512i id = ids != NULL ? _mm512_loadu_si512(ids + i) : _mm512_add_epi32(_mm512_set1_epi32((int32_t)(first + i)), steps);
        const __mmask16 is_kept = _mm512_cmp_ps_mask(value, _mm512_set1_ps(least), _CMP_GE_OQ);
        _mm512_storeu_ps(values + kept, _mm512_maskz_compress_ps(is_kept, value));
        _mm512_storeu_si512(kept_ids + kept, _mm512_maskz_compress_epi32(is_kept, id));
        kept += __builtin_popcount(is_kept);
    }
#endif
    for (; i < count; i++) {
        const float value = x[i];
        kept_ids[kept] = ids != NULL ? ids[i] : (int32_t)(first + i);
        values[kept] = value;
        kept += value >= least;
    }
    return kept;
}

static void scores(const float *restrict x, const uint32_t *restrict words, int64_t count, float largest, float temperature, float least_heat, float *restrict out) {
    for (int64_t i = 0; i < count; i++) {
        const float heat = sampling_heat(x[i], largest, temperature);
        out[i] = cpu_select(heat >= least_heat, heat + sampling_noise(words[i]), -INFINITY);
    }
}

const sample_loops SAMPLE_LOOPS = {
    .maxima = maxima, .exp_sum = exp_sum, .penalise = penalise, .mask = mask, .orders = orders, .masses = masses, .block_words = block_words, .words = words, .keep = keep, .scores = scores,
};
