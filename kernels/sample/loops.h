/* The inner loops of sample on the CPU, compiled once for each instruction set from loops_body.h. Logits are fp32, in blocks of SAMPLE_BLOCK. */
#ifndef KERNELS_SAMPLE_LOOPS_H
#define KERNELS_SAMPLE_LOOPS_H

#include "chip/chip.h"
#include "op/op.h"

enum { SAMPLE_BLOCK = 64, SAMPLE_STRETCH = 16 };   /* logits whose largest is kept; blocks that are summed at a time */

typedef struct sample_loops {
    void (*maxima)(const float *x, int64_t blocks, float *maxima);                     /* of each block; NaN where one is in it */
    double (*exp_sum)(const float *x, int64_t blocks, float largest);                  /* of e^(x - largest) */
    void (*penalise)(float *x, const int32_t *counts, int64_t count, const sampling_settings *settings);
    void (*mask)(float *x, const int32_t *mask, int64_t count);                         /* -inf where its bit is 0 */
    void (*orders)(const float *x, int64_t count, uint32_t *orders);
    void (*masses)(const float *x, int64_t count, float largest, float temperature, uint32_t *masses);
    uint32_t (*block_words)(uint64_t seed, uint64_t draw, int64_t block, uint32_t *words);   /* of the block's ids; gives the least */
    void (*words)(uint64_t seed, uint64_t draw, const int32_t *ids, int64_t count, uint32_t *words);
    /* Those of count that are at least so large, in order, and how many they are; ids NULL: they count from first on. May be done in place; values and kept_ids have room for 16 more. */
    int64_t (*keep)(const float *x, const int32_t *ids, int64_t first, int64_t count, float least, float *values, int32_t *kept_ids);
    void (*scores)(const float *x, const uint32_t *words, int64_t count, float largest, float temperature, float least_heat, float *scores);   /* -inf where the heat is less */
} sample_loops;

extern const sample_loops sample_loops_portable;
#if defined(__x86_64__)
extern const sample_loops sample_loops_avx2, sample_loops_avx512;
#endif

#endif
