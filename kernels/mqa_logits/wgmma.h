/* The arguments of mqa_logits by wgmma, and how its tiles are cut: read by its host half, which fills them in, and by the device half. Plain C that nvcc takes, too. */
#ifndef KERNELS_MQA_LOGITS_WGMMA_H
#define KERNELS_MQA_LOGITS_WGMMA_H

#include "kernels/mqa_logits/arguments.h"

/* A tile is 256 rows of q, of as many queries as that takes. Keys come in blocks of 64, one to a stage. */
enum { MQA_ROWS = 256, MQA_BLOCK = 64, MQA_STAGES = 16, MQA_Q_STAGES = 2, MQA_WGMMA_THREADS = 384 };
/* Beside each tile's q: its weights, [256] fp32, the range of each query, at most 16 of them, the item and what blocks it has. */
enum { MQA_WEIGHT_BYTES = MQA_ROWS * 4, MQA_RANGE_BYTES = 8, MQA_RANGES_BYTES = 16 * MQA_RANGE_BYTES, MQA_WORK_BYTES = MQA_WEIGHT_BYTES + MQA_RANGES_BYTES + 32 };
/* Where a stage's factors begin, and two barriers a stage. */
#define MQA_WGMMA_SHARED(width) \
    (MQA_Q_STAGES * (MQA_ROWS * (width) + MQA_WORK_BYTES + 16) + MQA_STAGES * (MQA_BLOCK * (width) + 8 + 16))

/* Maps: of q axes width, heads, queries, batches, boxes of a tile; of k width, slots, pages or batches, boxes of a block. */
typedef struct mqa_wgmma_arguments {
    MQA_ALIGNED(128) uint64_t map_q[16];
    uint64_t map_k[16];
    mqa_arguments call;
    int32_t tiles, chunks, chunk;   /* of the queries of a batch; of its keys, so many positions each, a multiple of 64 */
    int32_t items;                  /* tiles x chunks x batches */
} mqa_wgmma_arguments;

#endif
