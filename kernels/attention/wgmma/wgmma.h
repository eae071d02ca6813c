/* The arguments of the attention kernel by wgmma: read by its host half, which fills them in, and by the device half. Plain C that nvcc takes, too. */
#ifndef KERNELS_ATTENTION_WGMMA_WGMMA_H
#define KERNELS_ATTENTION_WGMMA_WGMMA_H

#include "kernels/attention/arguments.h"

/* Shared memory besides the tiles: of each query 16 bytes, of each segment 32, and barriers, with them tiles of 32 bytes where thread blocks stay; biases of so many blocks of keys: more than
 * there are stages, as a block's are read after its stage is released. */
enum { ATTENTION_ROW_BYTES = 16, ATTENTION_SEGMENT_BYTES = 32, ATTENTION_WORK_BYTES = 32, ATTENTION_BARRIER_BYTES = 384, ATTENTION_BIAS_STAGES = 8 };

/* Registers move between whole warpgroups, so a block that has a multiprocessor for itself loads by four warps of which three idle. */
#define ATTENTION_THREADS(groups, blocks) (128 * (groups) + ((blocks) > 1 ? 32 : 128))

/* Maps: axes width, sequence, heads, batches; boxes of 64 columns by the tile's queries (q), its keys (k, v), a warpgroup's 64 queries (out) or, where thread blocks stay, a warp's 16; of biases: keys, queries, heads, batches, by the tile's queries. */
typedef struct attention_wgmma_arguments {
    ATTENTION_ALIGNED(128) uint64_t map_q[16];
    uint64_t map_k[16], map_v[16], map_out[16], map_bias[16];
    attention_arguments call;
    int32_t tiles;                /* of the queries of one head */
    int32_t heads_together;       /* heads, of all batches, whose tiles are in flight at a time, so that many read the same k and v */
    int32_t last_tiles;           /* the first tiles of a head, which are made behind all others: short ones, so that blocks end together */
    int32_t begin_shift, end_shift;   /* without rows and positions query i sees keys from i + begin_shift up to i + end_shift, of those that there are */
    int32_t block;                /* of the entries whose results are in blocks: as in block_results (kernels/quantize/blocks_wgmma.cuh), made of a result in call.out.format */
    int64_t out_row_stride, scale_row_stride;
    uint64_t scales;
    int32_t bias_batch, bias_head;   /* with biases in tiles: from one batch, or head, to the next; 0: they share them */
    cuda_array lse;               /* [b,h,s], where has_lse */
    int64_t lse_strides[3];
    int32_t has_lse;
} attention_wgmma_arguments;

/* Where q is in fp8_1x128 and k in fp8_128x128. */
typedef struct attention_codes_arguments {
    attention_wgmma_arguments call;
    uint64_t q_scales, k_scales;
} attention_codes_arguments;

#endif
