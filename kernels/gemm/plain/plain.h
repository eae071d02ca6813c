/* The arguments of the plain GPU matmul, which is also that of groups. */
#ifndef KERNELS_GEMM_PLAIN_PLAIN_H
#define KERNELS_GEMM_PLAIN_PLAIN_H

#include "kernels/gpu/epilogue/post.h"

enum { MATMUL_TILE = 64, MATMUL_DEPTH = 16, MATMUL_FEW = 8 };

typedef struct matmul_arguments {
    cuda_nest batch;              /* out, a, b, operands of the post list: all axes but the last two */
    cuda_array out;
    cuda_rows a, b;               /* a [m,k], b [n,k] */
    int64_t m, n, k;              /* n: columns of the result */
    int64_t out_row, out_col;
    cuda_post post;
    /* groups: rows [offsets[g-1], offsets[g]) of a times matrix g of b; or, apart > 0, [g apart, g apart + offsets[g]) */
    cuda_array offsets;
    int64_t groups, offsets_step, apart;
    int64_t b_group;              /* from one group's matrix to the next: of b, in matmul_outer of the result */
    cuda_fault_place fault;
} matmul_arguments;

#endif
