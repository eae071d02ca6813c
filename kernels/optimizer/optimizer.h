/* The inner loops of adamw and accumulate, compiled once for each instruction set from optimizer_loops.h. */
#ifndef KERNELS_OPTIMIZER_H
#define KERNELS_OPTIMIZER_H

#include <stdint.h>

#include "op/optimizer.h"

/* count elements side by side: p, m, v and g [count] of before, next[0], next[1] and next[2] those of p, m and v after the step. next overlaps nothing. */
typedef void (*adamw_loop)(const adamw_step *step, const float *p, const float *m, const float *v, const float *g, float *const next[3], int64_t count);

/* next = sum + g factor, count elements side by side. next overlaps nothing. */
typedef void (*sums_loop)(float factor, const float *sum, const float *g, float *next, int64_t count);

void sums_portable(float factor, const float *sum, const float *g, float *next, int64_t count);
void adamw_portable(const adamw_step *step, const float *p, const float *m, const float *v, const float *g, float *const next[3], int64_t count);
#if defined(__x86_64__)
void sums_avx2(float factor, const float *sum, const float *g, float *next, int64_t count);
void sums_avx512(float factor, const float *sum, const float *g, float *next, int64_t count);
void adamw_avx2(const adamw_step *step, const float *p, const float *m, const float *v, const float *g, float *const next[3], int64_t count);
void adamw_avx512(const adamw_step *step, const float *p, const float *m, const float *v, const float *g, float *const next[3], int64_t count);
#endif

#endif
