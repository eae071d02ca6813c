/* The rotation of eight elements and of their partners in registers: the arithmetic of every kernel that turns rows in vectors. */
#ifndef KERNELS_ROTARY_TURN_CUH
#define KERNELS_ROTARY_TURN_CUH

#include "kernels/gpu/rows/vectors.cuh"

/* Elements i of a half and their partners in the other one, by the angles of either. */
INLINE void turn_pairs(const float *x, const float *y, const float *low_cosine, const float *low_sine, const float *high_cosine, const float *high_sine, float *low, float *high) {
    EACH_OF_PIECE(k) low[k] = x[k] * low_cosine[k] - y[k] * low_sine[k];
    EACH_OF_PIECE(k) high[k] = y[k] * high_cosine[k] + x[k] * high_sine[k];
}

/* Four pairs of neighbours. */
INLINE void turn_four(const float *x, const float *cosine, const float *sine, float *turned) {
#pragma unroll
    for (int k = 0; k < PIECE; k += 2) {
        turned[k] = x[k] * cosine[k] - x[k + 1] * sine[k];
        turned[k + 1] = x[k + 1] * cosine[k + 1] + x[k] * sine[k + 1];
    }
}

#endif
