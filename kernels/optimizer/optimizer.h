/* The inner loop of adamw, compiled once for each instruction set from optimizer_loops.h. */
#ifndef KERNELS_OPTIMIZER_H
#define KERNELS_OPTIMIZER_H

#include <stdint.h>

#include "op/optimizer.h"

/* count elements side by side: p, m, v and g [count] of before, next[0], next[1] and next[2] those of p, m and v after the step. next overlaps nothing. */
typedef void (*adamw_loop)(const adamw_step *step, const float *p, const float *m, const float *v, const float *g, float *const next[3], int64_t count);

void adamw_portable(const adamw_step *step, const float *p, const float *m, const float *v, const float *g, float *const next[3], int64_t count);
#if defined(__x86_64__)
void adamw_avx2(const adamw_step *step, const float *p, const float *m, const float *v, const float *g, float *const next[3], int64_t count);
void adamw_avx512(const adamw_step *step, const float *p, const float *m, const float *v, const float *g, float *const next[3], int64_t count);
#endif

#endif
