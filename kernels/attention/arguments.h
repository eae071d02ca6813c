/* The arguments that all GPU attentions have: read by their host halves, which fill them in, and by the device halves. Plain C that nvcc takes, too. */
#ifndef KERNELS_ATTENTION_ARGUMENTS_H
#define KERNELS_ATTENTION_ARGUMENTS_H

#include "kernels/gpu/arguments.h"
#include "op/scores.h"

#ifdef __cplusplus
#define ATTENTION_ALIGNED(bytes) alignas(bytes)
#else
#define ATTENTION_ALIGNED(bytes) _Alignas(bytes)
#endif

/* What becomes of products before they are scores: nothing but a positive scale; a bool mask of keys, or a mask or bias, which queries share; a bias that comes in tiles, and a mask of keys; a cap and no
 * mask or bias; anything. */
enum { ATTENTION_PLAIN, ATTENTION_MASKED, ATTENTION_KEYS, ATTENTION_TILED, ATTENTION_CAPPED, ATTENTION_GENERAL };

enum { ATTENTION_WIDTH = 1024 };  /* columns of v that a block makes; of q that it keeps in shared memory */

typedef struct attention_arguments {
    cuda_array q, k, v, mask, bias, sink, row, position, table, out;
    int64_t batches, heads, queries, keys, width, value_width, shared_heads;   /* keys: that a row has room for; query heads for each head of k */
    int64_t q_strides[4], k_strides[4], v_strides[4], mask_strides[4], bias_strides[4], out_strides[4], sink_stride;
    int64_t cache_rows, row_step, position_step, mask_keys, bias_keys;   /* mask_keys, bias_keys: positions that they have; 0: any */
    int64_t table_strides[2];
    int32_t page, pages;          /* with a table: keys of a page, pages of k and v, and cache_rows are the table's; else 0 */
    int64_t offset, window, ahead;
    float scale, softcap;
    int32_t causal, has_mask, has_bias, has_sink, has_row, has_position;
    cuda_fault_place fault;
} attention_arguments;

#endif
