/* A post list among the arguments of a GPU kernel. */
#ifndef KERNELS_GPU_EPILOGUE_POST_H
#define KERNELS_GPU_EPILOGUE_POST_H

#include "kernels/gpu/arguments.h"

enum {
#define OP_POST(name, operand, halves, meaning) POST_##name,
#include "op/post.def"
#undef OP_POST
    POST_COUNT
};

enum { CUDA_POSTS = 8, CUDA_POST_OPERANDS = 3 };

typedef struct cuda_post {
    int32_t count;
    int32_t steps[CUDA_POSTS];
    int32_t operand[CUDA_POSTS];      /* 0: none, 1: by column (rows are groups), 2: by element */
    int32_t halves[CUDA_POSTS];
    int64_t half;                     /* columns of the result when a step halves, else 0 */
    cuda_array arrays[CUDA_POST_OPERANDS];
    int64_t row_stride[CUDA_POST_OPERANDS], col_stride[CUDA_POST_OPERANDS];
} cuda_post;

#endif
