/* A row of rotary on the CPU, for kernels that turn rows on their way to somewhere else. */
#ifndef KERNELS_ROTARY_H
#define KERNELS_ROTARY_H

#include "kernels/cpu/rows.h"

/* Rows of cols elements, of which the first width, CPU_BLOCK at most, are turned; steps from one element to the next. */
typedef struct rotary_rows {
    const cpu_rows *rows;
    const dw_tensor *x, *cosine, *sine, *out;
    int64_t width, cols;
    int64_t x_step, cos_step, sin_step, out_step;
    bool interleaved;
} rotary_rows;
/* One of them; at: where it begins in out, x, cosine and sine. It may be turned where it lies. */
void rotary_turn_row(const rotary_rows *rows, const int64_t at[4]);

#endif
