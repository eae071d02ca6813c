/* The arguments of mqa_logits by tiles, on tensor cores, and how tiles are cut: read by the host halves, which fill them in, and by the device halves. Plain C that nvcc takes, too. */
#ifndef KERNELS_MQA_LOGITS_TILES_H
#define KERNELS_MQA_LOGITS_TILES_H

#include "kernels/mqa_logits/arguments.h"

/* A tile is 256 rows of q, of as many queries as that takes; of 4 bits 192, so that tensor memory has room for scales. Keys come in blocks, one to a stage, where there are pages by boxes of 64 that lie in one each. */
enum { MQA_ROWS = 256, MQA_SCALED_ROWS = 192, MQA_BOX = 64, MQA_Q_STAGES = 2, MQA_WGMMA_THREADS = 640, MQA_TCGEN05_THREADS = 416 };
enum { MQA_WGMMA_BLOCK = 256, MQA_WGMMA_STAGES = 4, MQA_TCGEN05_BLOCK = 128, MQA_TCGEN05_STAGES = 8 };
/* Beside each tile's q: its weights, [256] fp32, the range of each query, at most 16 of them, the item and what blocks it has. */
enum { MQA_WEIGHT_BYTES = MQA_ROWS * 4, MQA_RANGE_BYTES = 8, MQA_RANGES_BYTES = 16 * MQA_RANGE_BYTES, MQA_WORK_BYTES = MQA_WEIGHT_BYTES + MQA_RANGES_BYTES + 32 };
/* Of a stage keys, their factors, the pages of its boxes, and two barriers; by tcgen05 two barriers for each of two sums, and where those lie. */
#define MQA_SHARED(width, block, stages) \
    (MQA_Q_STAGES * (MQA_ROWS * (width) + MQA_WORK_BYTES + 16) + (stages) * ((block) * (width) + (block) * 4 + (block) / MQA_BOX * 4 + 16))
#define MQA_WGMMA_SHARED(width) MQA_SHARED(width, MQA_WGMMA_BLOCK, MQA_WGMMA_STAGES)
#define MQA_TCGEN05_SHARED(width) (MQA_SHARED(width, MQA_TCGEN05_BLOCK, MQA_TCGEN05_STAGES) + 48)
/* Of 4 bits rows fill up 128 bytes. scales: tiles of 4 scales of 128 rows that a row's scales take. */
enum { MQA_SCALED_ROW_BYTES = 128, MQA_SCALE_TILE = 512 };
#define MQA_SCALED_SHARED(scales) \
    (MQA_TCGEN05_SHARED(MQA_SCALED_ROW_BYTES) - MQA_Q_STAGES * (MQA_ROWS - MQA_SCALED_ROWS) * MQA_SCALED_ROW_BYTES + (2 * MQA_Q_STAGES + MQA_TCGEN05_STAGES) * (scales) * MQA_SCALE_TILE)

/* Maps: of q axes width, heads, queries, batches, boxes of a tile; of k width, slots, pages or batches, boxes of 64 of pages, else of a block. */
typedef struct mqa_tiles_arguments {
    MQA_ALIGNED(128) uint64_t map_q[16];
    uint64_t map_k[16];
    mqa_arguments call;
    int32_t tiles, chunks, chunk;   /* of the queries of a batch; of its keys, so many positions each, a multiple of the block */
    int32_t items;                  /* tiles x chunks x batches */
    cuda_rows q, k;                 /* of 4 bits: their scales */
} mqa_tiles_arguments;

#endif
