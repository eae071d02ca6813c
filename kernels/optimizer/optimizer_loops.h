/* The loops of optimizer.h for the compiler to vectorise; each optimizer_<instruction set>.c defines ADAMW_LOOP and SUMS_LOOP, their names, and includes this. */
#include "kernels/optimizer/optimizer.h"

void ADAMW_LOOP(const adamw_step *step, const float *p, const float *m, const float *v, const float *g, float *const next[3], int64_t count) {
    float *restrict next_p = next[0], *restrict next_m = next[1], *restrict next_v = next[2];
    const adamw_step s = *step;
    for (int64_t i = 0; i < count; i++) {
        float new_p = p[i], new_m = m[i], new_v = v[i];
        ADAMW_ELEMENT(float, sqrtf, &s, new_p, new_m, new_v, g[i]);
        next_p[i] = new_p;
        next_m[i] = new_m;
        next_v[i] = new_v;
    }
}

void SUMS_LOOP(float factor, const float *sum, const float *g, float *next, int64_t count) {
    float *restrict to = next;
    for (int64_t i = 0; i < count; i++) {
        const float share = g[i] * factor;
        to[i] = sum[i] + share;
    }
}
