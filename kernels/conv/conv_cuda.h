/* The arguments of the GPU convolution. */
#ifndef KERNELS_CONV_CUDA_H
#define KERNELS_CONV_CUDA_H

#include "kernels/gpu/arguments.h"

/* One spatial axis is two of which the first has size 1. */
typedef struct conv_arguments {
    cuda_array out, x, weight, bias;
    int64_t batches, outputs, rows, cols;          /* of the result */
    int64_t channels, height, width;               /* of a group, and of x */
    int64_t taps_y, taps_x, stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x, outputs_per_group;
    int64_t out_strides[4], x_strides[4], weight_strides[4], bias_step;
    int32_t has_bias;
} conv_arguments;

/* Windows [first, first + count) as rows of patches [groups][count, channels * taps] in the workspace. */
typedef struct patch_arguments {
    conv_arguments conv;          /* x and what says where windows lie */
    uint64_t patches;
    int64_t groups, first, count;
    int32_t in_words;             /* 16 bytes at a time */
} patch_arguments;

#ifndef __CUDACC__
struct conv_shape;
/* Sizes, strides of x and steps of windows. */
void conv_take_windows(const struct conv_shape *shape, conv_arguments *arguments);
#endif

#endif
