/* Convolutions: sizes that both ways of computing them need. */
#ifndef CONV_H
#define CONV_H

#include "kernel/kernel.h"

/* One or two dimensions as two; a single one is the width. */
typedef struct conv_shape {
    int64_t batches, groups, channels, outputs;     /* channels and outputs of one group */
    int64_t size[2], taps[2], places[2];            /* height and width of x, of w, and of the result */
    int64_t stride[2], padding[2], dilation[2];
    int64_t x_strides[4], out_strides[4];           /* [b,c,height,width] */
    const dw_tensor *x, *weight, *bias, *out;       /* bias may be NULL */
} conv_shape;

void conv_shape_of(const op_call *call, conv_shape *shape);
/* Multiply-adds of one result. */
static inline int64_t conv_depth(const conv_shape *s) { return s->channels * s->taps[0] * s->taps[1]; }

enum { CONV_LEAST_OUTPUTS = 8 };    /* of a group, for a matrix product to pay */

#endif
