/* The arithmetic of the op sample, where its reference and its kernels must agree on every bit: what settings make of a logit, the mass of a token and the noise of its draw.
 * fp32 sums, products, quotients and conversions, each rounded by itself, so that a token is the same on all machines. Plain C that nvcc takes, too. */
#ifndef OP_SAMPLING_H
#define OP_SAMPLING_H

#include "num/philox.h"
#include "num/small.h"

#ifdef __CUDACC__
#define SAMPLING_INLINE static __device__ inline
#define SAMPLING_MUL(a, b) __fmul_rn(a, b)
#define SAMPLING_ADD(a, b) __fadd_rn(a, b)
#define SAMPLING_SUB(a, b) __fsub_rn(a, b)
#define SAMPLING_DIV(a, b) __fdiv_rn(a, b)
#else
#define SAMPLING_INLINE static inline
#define SAMPLING_MUL(a, b) ((a) * (b))
#define SAMPLING_ADD(a, b) ((a) + (b))
#define SAMPLING_SUB(a, b) ((a) - (b))
#define SAMPLING_DIV(a, b) ((a) / (b))
#endif

/* The columns of settings, and what they are where nothing is asked for: 0, but for a repetition of 1. */
enum { SAMPLING_TEMPERATURE, SAMPLING_TOP_K, SAMPLING_TOP_P, SAMPLING_MIN_P, SAMPLING_REPETITION, SAMPLING_PRESENCE, SAMPLING_FREQUENCY, SAMPLING_SETTINGS };
/* Ids of rows that have none: a logit is NaN or +inf; no id is left, as each is masked or -inf; the row's settings or its row of counts are out of range. */
enum { SAMPLING_NOT_FINITE = -1, SAMPLING_NOTHING_LEFT = -2, SAMPLING_BAD_SETTINGS = -3 };
/* In counts, beside how often an id was made: it is in the prompt. */
#define SAMPLING_IN_PROMPT (INT32_C(1) << 30)
/* Masses are shares of the largest in units of 2^-30, and so sum up to the same in any order. */
#define SAMPLING_MASS_UNITS 1073741824.0f
/* The largest noise there is: of a draw of 2^-32; and the least logit, less the largest and over the temperature, whose mass is not 0. Both with something to spare. */
#define SAMPLING_MOST_NOISE 22.2f
#define SAMPLING_LEAST_MASS (-20.9f)

typedef struct sampling_settings { float temperature, top_k, top_p, min_p, repetition, presence, frequency; } sampling_settings;

SAMPLING_INLINE sampling_settings sampling_settings_of(const float *row) {
    const sampling_settings s = {row[SAMPLING_TEMPERATURE], row[SAMPLING_TOP_K], row[SAMPLING_TOP_P], row[SAMPLING_MIN_P], row[SAMPLING_REPETITION], row[SAMPLING_PRESENCE], row[SAMPLING_FREQUENCY]};
    return s;
}

SAMPLING_INLINE int sampling_is_finite(float x) { return (small_bits(x) & 0x7fffffff) < SMALL_F32_INFINITY; }

SAMPLING_INLINE int sampling_are_good(const sampling_settings *s) {
    return s->temperature >= 0 && sampling_is_finite(s->temperature) && s->top_k >= 0 && sampling_is_finite(s->top_k) && s->top_p >= 0 && s->top_p <= 1 && s->min_p >= 0 && s->min_p <= 1 &&
           s->repetition > 0 && sampling_is_finite(s->repetition) && sampling_is_finite(s->presence) && sampling_is_finite(s->frequency);
}

/* Does the row look at counts? */
SAMPLING_INLINE int sampling_has_penalties(const sampling_settings *s) { return s->repetition != 1 || s->presence != 0 || s->frequency != 0; }

/* A logit, bias added, of a token with this count. */
SAMPLING_INLINE float sampling_penalise(float x, int32_t count, const sampling_settings *s) {
    const int32_t made = count & (SAMPLING_IN_PROMPT - 1);
    if (count == 0) return x;
    x = x > 0 ? SAMPLING_DIV(x, s->repetition) : SAMPLING_MUL(x, s->repetition);
    x = SAMPLING_SUB(x, SAMPLING_MUL(s->frequency, (float)made));
    return made > 0 ? SAMPLING_SUB(x, s->presence) : x;
}

/* A number that orders as x does, NaN apart; zeros of both signs are one. */
SAMPLING_INLINE uint32_t sampling_order(float x) {
    const uint32_t bits = (uint32_t)small_bits(SAMPLING_ADD(x, 0.0f));
    return bits ^ ((uint32_t)-(int32_t)(bits >> 31) | UINT32_C(0x80000000));
}

/* The logit, less the largest, over the temperature: 0 of the largest, never more. */
SAMPLING_INLINE float sampling_heat(float x, float largest, float temperature) { return SAMPLING_DIV(SAMPLING_SUB(x, largest), temperature); }

/* e^z for z from -87 to 0, within 2 ulp; lower ones count as -87. Two parts of ln 2, and a polynomial of degree 7. */
SAMPLING_INLINE float sampling_exp(float z) {
    const float magic = 12582912.0f;   /* 1.5 * 2^23: adding it rounds to an integer, which is then in the low bits */
    z = small_float(small_select(z < -87.0f, small_bits(-87.0f), small_bits(z)));
    const float shifted = SAMPLING_ADD(SAMPLING_MUL(z, 1.44269504f), magic), n = SAMPLING_SUB(shifted, magic);
    float r = SAMPLING_SUB(z, SAMPLING_MUL(n, 0.693359375f)), p = 1.97903413e-4f;
    r = SAMPLING_ADD(r, SAMPLING_MUL(n, 2.12194440e-4f));
    p = SAMPLING_ADD(SAMPLING_MUL(p, r), 1.39446591e-3f);
    p = SAMPLING_ADD(SAMPLING_MUL(p, r), 8.33349675e-3f);
    p = SAMPLING_ADD(SAMPLING_MUL(p, r), 4.16662954e-2f);
    p = SAMPLING_ADD(SAMPLING_MUL(p, r), 1.66666657e-1f);
    p = SAMPLING_ADD(SAMPLING_MUL(p, r), 0.5f);
    p = SAMPLING_ADD(SAMPLING_ADD(SAMPLING_MUL(p, SAMPLING_MUL(r, r)), r), 1.0f);
    return SAMPLING_MUL(p, small_float((int32_t)((uint32_t)(small_bits(shifted) - small_bits(magic) + 127) << 23)));
}

/* The natural logarithm of a positive normal number, to about an ulp: of m, from the root of a half to that of 2, by a polynomial in m - 1 (coefficients of Moshier's Cephes). */
SAMPLING_INLINE float sampling_log(float x) {
    const int32_t bits = small_bits(x), exponent = (bits - 0x3f3504f3) >> 23;
    const float t = SAMPLING_SUB(small_float((int32_t)((uint32_t)bits - ((uint32_t)exponent << 23))), 1.0f), square = SAMPLING_MUL(t, t), n = (float)exponent;
    float p = 7.0376836292e-2f;
    p = SAMPLING_SUB(SAMPLING_MUL(p, t), 1.1514610310e-1f);
    p = SAMPLING_ADD(SAMPLING_MUL(p, t), 1.1676998740e-1f);
    p = SAMPLING_SUB(SAMPLING_MUL(p, t), 1.2420140846e-1f);
    p = SAMPLING_ADD(SAMPLING_MUL(p, t), 1.4249322787e-1f);
    p = SAMPLING_SUB(SAMPLING_MUL(p, t), 1.6668057665e-1f);
    p = SAMPLING_ADD(SAMPLING_MUL(p, t), 2.0000714765e-1f);
    p = SAMPLING_SUB(SAMPLING_MUL(p, t), 2.4999993993e-1f);
    p = SAMPLING_ADD(SAMPLING_MUL(p, t), 3.3333331174e-1f);
    p = SAMPLING_MUL(SAMPLING_MUL(p, t), square);
    p = SAMPLING_SUB(p, SAMPLING_MUL(n, 2.12194440e-4f));
    p = SAMPLING_SUB(p, SAMPLING_MUL(square, 0.5f));
    return SAMPLING_ADD(SAMPLING_ADD(t, p), SAMPLING_MUL(n, 0.693359375f));
}

/* The share that a token has beside the largest. */
SAMPLING_INLINE int32_t sampling_mass(float heat) { return (int32_t)SAMPLING_MUL(sampling_exp(heat), SAMPLING_MASS_UNITS); }

/* The least heat that min_p keeps: its logarithm; where min_p is 0 all are kept. */
SAMPLING_INLINE float sampling_least_heat(float min_p) { return min_p < 1.17549435e-38f ? -3.4e38f : sampling_log(min_p); }

/* The words of ids 4 * group to 4 * group + 3. */
SAMPLING_INLINE philox_words sampling_words(uint64_t seed, uint64_t draw, uint32_t group) {
    const philox_words counter = {{group, (uint32_t)draw, (uint32_t)(draw >> 32), 0}};
    return philox(counter, (uint32_t)seed, (uint32_t)(seed >> 32));
}

/* Gumbel noise of a word, -log(-log(1 - u)), u its 31 upper bits and a half: from -2.9 to 22.2. y and what 1 - u loses in y keep small u exact. */
SAMPLING_INLINE float sampling_noise(uint32_t word) {
    const float most = 0.99999994f, from_word = SAMPLING_MUL(SAMPLING_ADD((float)(int32_t)(word >> 1), 0.5f), 4.656612873e-10f);
    const float u = small_float(small_select(from_word > most, small_bits(most), small_bits(from_word))), y = SAMPLING_SUB(1.0f, u);
    const float lost = SAMPLING_SUB(SAMPLING_SUB(1.0f, y), u);
    return -sampling_log(-SAMPLING_ADD(sampling_log(y), lost));
}

#endif
