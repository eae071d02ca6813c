/* Post lists on the device: what op/post.def says of each step, in fp32. */
#ifndef KERNELS_GPU_EPILOGUE_POST_CUH
#define KERNELS_GPU_EPILOGUE_POST_CUH

#include "kernels/gpu/plain/device.cuh"
#include "kernels/gpu/epilogue/post.h"

DEVICE float post_swish(float y, float scale) { return y / (1 + expf(-scale * y)); }
DEVICE float post_gelu(float y) { return y * (1 + erff(y * 0.70710678118654752440f)) / 2; }
DEVICE float post_gelu_tanh(float y) { return y * (1 + tanhf(0.79788456080286535588f * (y + 0.044715f * y * y * y))) / 2; }
DEVICE float post_relu(float y) { return y < 0 ? 0 : y; }

DEVICE float post_value(int step, float y, float x) {
    switch (step) {
    case POST_bias:
    case POST_add: return y + x;
    case POST_mul: return y * x;
    case POST_relu: return post_relu(y);
    case POST_silu:
    case POST_quick_gelu: return post_swish(y, step == POST_silu ? 1 : 1.702f);
    case POST_gelu: return post_gelu(y);
    case POST_gelu_tanh: return post_gelu_tanh(y);
    case POST_tanh: return tanhf(y);
    case POST_sigmoid: return 1 / (1 + expf(-y));
    case POST_swiglu: return post_swish(y, 1) * x;
    case POST_geglu: return post_gelu(y) * x;
    case POST_geglu_tanh: return post_gelu_tanh(y) * x;
    default: return post_relu(y) * x;   /* reglu */
    }
}

/* The list on y, and on u of half as many columns further on until a step halves: offsets are those of the batch. */
DEVICE float post_apply(const cuda_post *post, const int64_t *offsets, int64_t row, int64_t group, int64_t col, float y, float u) {
    int halved = post->half == 0, number = 0;
    for (int i = 0; i < post->count; i++) {
        int step = post->steps[i];
        if (post->halves[i]) {
            y = post_value(step, y, u);
            halved = 1;
            continue;
        }
        int takes = post->operand[i] != 0;
        int64_t at = takes ? offsets[number] + (post->operand[i] == 1 ? group : row) * post->row_stride[number] + col * post->col_stride[number] : 0;
        y = post_value(step, y, takes ? load_float(&post->arrays[number], at) : 0);
        if (!halved) u = post_value(step, u, takes ? load_float(&post->arrays[number], at + post->half * post->col_stride[number]) : 0);
        number += takes;
    }
    return y;
}

#endif
