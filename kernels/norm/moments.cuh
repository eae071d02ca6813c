/* Statistics of rows held in registers (row_parts.cuh), in fp32 and two passes: the mean, then squares around it, with the mean's own rounding taken out. */
#ifndef KERNELS_NORM_MOMENTS_CUH
#define KERNELS_NORM_MOMENTS_CUH

#include "kernels/gpu/rows/row_parts.cuh"
#include "kernels/norm/norm_rows.h"

/* What is added to a row's elements, and what they are multiplied by then. */
typedef struct moments { float low, scale; } moments;

/* The sum over a row of what each thread has of its pieces. Of more than PIECES_MOST a warp has the row, and stands for two warps that would have it: even pieces are those of the first one. */
INLINE float sum_over_row(const int pieces, const float *sums, int group, row_room *room) {
    float sum = 0, other = 0;
    if (pieces <= PIECES_MOST) {
        EACH_PIECE(c) sum += sums[c];
        return row_sum(sum, group, room);
    }
    EACH_PIECE(c) {
        if (c % 2 == 0) sum += sums[c];
        else other += sums[c];
    }
    return row_sum(sum, 32, room) + row_sum(other, 32, room);
}

/* Of a row's elements; pieces are added side by side. */
INLINE float row_sum_of(const int pieces, float x[][PIECE], int group, row_room *room) {
    float sums[PIECES_HELD];
    EACH_PIECE(c) {
        sums[c] = x[c][0];
#pragma unroll
        for (int i = 1; i < PIECE; i++) sums[c] += x[c][i];
    }
    return sum_over_row(pieces, sums, group, room);
}
INLINE float row_squares_of(const int pieces, float x[][PIECE], int group, row_room *room) {
    float sums[PIECES_HELD];
    EACH_PIECE(c) {
        sums[c] = x[c][0] * x[c][0];
#pragma unroll
        for (int i = 1; i < PIECE; i++) sums[c] = fmaf(x[c][i], x[c][i], sums[c]);
    }
    return sum_over_row(pieces, sums, group, room);
}

/* With the mean of a row that has one taken from its elements. Its own rounding is left to low, so that numbers far from 0 lose nothing. */
INLINE moments row_moments(const int pieces, const bool centred, const norm_rows_arguments *a, const row_place *p, float x[][PIECE], row_room *rooms) {
    float low = 0;
    if (centred) {
        float mean = row_sum_of(pieces, x, p->group, &rooms[0]) * a->by_count;
        EACH_PIECE(c) EACH_OF_PIECE(i) x[c][i] -= mean;
        zero_tail(pieces, p, x);
        low = row_sum_of(pieces, x, p->group, &rooms[1]) * a->by_count;
    }
    float variance = row_squares_of(pieces, x, p->group, &rooms[2]) * a->by_count - low * low;
    return (moments){-low, rsqrtf((variance < 0 ? 0 : variance) + a->eps)};
}

#endif
