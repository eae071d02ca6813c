/* Statistics of rows held in registers (row_parts.cuh), in fp32 and two passes: the mean, then squares around it, with the mean's own rounding taken out. */
#ifndef KERNELS_NORM_MOMENTS_CUH
#define KERNELS_NORM_MOMENTS_CUH

#include "kernels/gpu/rows/row_parts.cuh"
#include "kernels/norm/norm_rows.h"

/* What is added to a row's elements, and what they are multiplied by then. */
typedef struct moments { float low, scale; } moments;

/* Of a thread's elements; pieces are added side by side. */
INLINE float sum_pieces(const int pieces, float x[][PIECE]) {
    float sums[PIECES_MOST], sum = 0;
    EACH_PIECE(c) {
        sums[c] = x[c][0];
#pragma unroll
        for (int i = 1; i < PIECE; i++) sums[c] += x[c][i];
    }
    EACH_PIECE(c) sum += sums[c];
    return sum;
}
INLINE float sum_squares(const int pieces, float x[][PIECE]) {
    float sums[PIECES_MOST], sum = 0;
    EACH_PIECE(c) {
        sums[c] = x[c][0] * x[c][0];
#pragma unroll
        for (int i = 1; i < PIECE; i++) sums[c] = fmaf(x[c][i], x[c][i], sums[c]);
    }
    EACH_PIECE(c) sum += sums[c];
    return sum;
}

/* With the mean of a row that has one taken from its elements. Its own rounding is left to low, so that numbers far from 0 lose nothing. */
INLINE moments row_moments(const int pieces, const bool centred, const norm_rows_arguments *a, const row_place *p, float x[][PIECE], row_room *rooms) {
    float low = 0;
    if (centred) {
        float mean = row_sum(sum_pieces(pieces, x), p->group, &rooms[0]) * a->by_count;
        EACH_PIECE(c) EACH_OF_PIECE(i) x[c][i] -= mean;
        zero_tail(pieces, p, x);
        low = row_sum(sum_pieces(pieces, x), p->group, &rooms[1]) * a->by_count;
    }
    float variance = row_sum(sum_squares(pieces, x), p->group, &rooms[2]) * a->by_count - low * low;
    return (moments){-low, rsqrtf((variance < 0 ? 0 : variance) + a->eps)};
}

#endif
