/* The arguments of the gradients of attention on GPUs: read by their host halves, which fill them in, and by the device halves. Plain C that nvcc takes, too. */
#ifndef KERNELS_ATTENTION_BACKWARD_H
#define KERNELS_ATTENTION_BACKWARD_H

#include "kernels/gpu/arguments.h"
#include "op/scores.h"

/* What is kept of a query between the launches, in the workspace: lse, dout . out, and the part that its weights are of e^(score - lse), which is 1 but where finite numbers hide all keys. */
typedef struct attention_backward_row { float lse, share, part; } attention_backward_row;

typedef struct attention_backward_arguments {
    cuda_array q, k, v, out, lse, dout, mask, bias, dq, dk, dv, dbias;
    int64_t q_strides[4], k_strides[4], v_strides[4], out_strides[4], dout_strides[4], dq_strides[4], dk_strides[4], dv_strides[4], lse_strides[3];
    int64_t mask_strides[4], bias_strides[4], dbias_strides[4];   /* over [b,h,s,t], 0 where they repeat */
    int64_t batches, heads, groups, queries, keys, width, value_width, shared_heads;   /* groups: heads of k; shared_heads: heads of q for each */
    int64_t bias_dims[4];         /* of dbias over [b,h,s,t], 1 where it repeats */
    int64_t offset, window, ahead;
    float scale, softcap;
    int32_t causal, has_mask, has_bias;
    uint64_t rows;                /* attention_backward_row [b,h,s] gmem */
} attention_backward_arguments;

#endif
