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

/* Groups of few channels: tiles of windows in shared memory. The elements of a tile of x are counted by 256 threads in steps: along (channel, row, column), or, where channels
 * lie side by side, along (row, column, channel). */
enum { NARROW_RUN = 4 };          /* results of a thread along a row */
typedef struct narrow_arguments {
    conv_arguments conv;
    int32_t tiles_x, tiles_y, group_blocks;
    int32_t groups, outputs_per_group, channels;              /* of a tile: groups; of a group: the others */
    int32_t tile_rows, tile_cols;                             /* of results; rows a multiple of those of a thread, columns of NARROW_RUN */
    int32_t in_rows, in_cols, plane;                          /* of the tile of x in shared memory, fp32; in_cols and plane multiples of 4 */
    int32_t steps[3];             /* 256 in places of the axes that are counted along */
    int32_t x_steps[3], out_steps[2]; /* elements from channel to channel, line to line and column to column of x; from output to output and line to line of the result. What a tile spans fits 32 bits */
    int32_t by_channel, in_runs;  /* channels lie side by side; runs of results are stored as one */
    float by_runs, by_items;      /* 1 / runs of a line; 1 / items of a plane */
} narrow_arguments;

#ifndef __CUDACC__
#include "kernel/kernel.h"

struct conv_shape;
/* Sizes, strides of x and steps of windows. */
void conv_take_windows(const struct conv_shape *shape, conv_arguments *arguments);
/* The bias, where there is one. */
void conv_take_bias(kernel_launch *launch, const kernel_run *run, conv_arguments *arguments);
/* MISMATCH: groups do not divide the outputs. */
dw_status conv_check_groups(const kernel_run *run);
#endif

#endif
