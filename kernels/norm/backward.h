/* The inner loops of the gradients of norms, compiled once for each instruction set from backward_loops.h. */
#ifndef KERNELS_NORM_BACKWARD_H
#define KERNELS_NORM_BACKWARD_H

#include <stdint.h>

/* Of one row: its statistics, and with g = dy * weight and n = (x - mean - low) * rstd, low what mean has lost by rounding, the means of g (shift; of an rms_norm 0) and of g n (along). */
typedef struct norm_row { float mean, low, rstd, shift, along; } norm_row;

/* Operands of a piece of a row, side by side; weight and plus are there always. */
typedef struct norm_backward_block { const float *x, *dy, *weight, *plus; } norm_backward_block;

/* count: elements of the piece. What is written overlaps nothing. */
typedef struct norm_backward_loops {
    void (*sums)(const norm_row *row, const float *x, const float *dy, const float *weight, int64_t count, double of[2]);      /* adds those of g and of g n */
    void (*write)(const norm_row *row, const norm_backward_block *block, float *dx, float *dweight, float *dbias, int64_t count);      /* adds to dweight and dbias */
    void (*add)(const float *from, int64_t count, double *to);
} norm_backward_loops;

extern const norm_backward_loops norm_backward_portable;
#if defined(__x86_64__)
extern const norm_backward_loops norm_backward_avx2, norm_backward_avx512;
#endif

#endif
