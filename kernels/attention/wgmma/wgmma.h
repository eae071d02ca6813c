/* The arguments of the attention kernel by wgmma: read by its host half, which fills them in, and by the device half. Plain C that nvcc takes, too. */
#ifndef KERNELS_ATTENTION_WGMMA_WGMMA_H
#define KERNELS_ATTENTION_WGMMA_WGMMA_H

#include "kernels/attention/arguments.h"
#include "kernels/attention/in_blocks.h"

/* Tiles of which is kept what their queries see, where thread blocks stay and rows, positions or pages say it. */
enum { ATTENTION_VIEW_STAGES = 2 };
/* There, so many blocks of keys whose loads are said ahead, each by 16 bytes and 8 for each piece of at least 8 keys. */
enum { ATTENTION_PLACES = 4 };
#define ATTENTION_PLACE_BYTES(keys) (16 + (keys))
/* Shared memory besides the tiles: of each query 16 bytes, of each segment 32, and barriers, with them tiles of 32 bytes where thread blocks stay; biases of so many blocks of keys: more than
 * there are stages, as a block's are read after its stage is released. */
enum { ATTENTION_ROW_BYTES = 16, ATTENTION_SEGMENT_BYTES = 32, ATTENTION_WORK_BYTES = 32, ATTENTION_BARRIER_BYTES = 384, ATTENTION_BIAS_STAGES = 8 };

/* Registers move between whole warpgroups, so a block that has a multiprocessor for itself loads by four warps of which three idle. */
#define ATTENTION_THREADS(groups, blocks) (128 * (groups) + ((blocks) > 1 ? 32 : 128))
/* Where keys and values are in blocks, two warpgroups load: one warp to a scheduler waits for its own results most of the time. */
enum { CACHED_THREADS = 256 };
#define ATTENTION_CACHED_THREADS(groups) (128 * (groups) + CACHED_THREADS)

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
    int32_t last_first;           /* where thread blocks stay and has_last_first (persistent.cuh): all queries see all keys */
    uint64_t counter;             /* where thread blocks stay: of tiles that were asked for, 0 between launches */
} attention_wgmma_arguments;

/* Where q is in fp8_1x128 and k in fp8_128x128. */
typedef struct attention_codes_arguments {
    attention_wgmma_arguments call;
    uint64_t q_scales, k_scales;
} attention_codes_arguments;

/* Where q is bf16 and k and v are in blocks, which become bf16 in shared memory; there are no maps of k and v. */
typedef struct attention_cached_arguments {
    attention_wgmma_arguments call;
    attention_blocks blocks;
} attention_cached_arguments;

/* What k and v are: as q is; or fp8_1x128, mxfp8 or nvfp4. */
enum { CACHED_NOT, CACHED_E4M3, CACHED_MXFP8, CACHED_NVFP4 };
/* Codes come to shared memory in pieces of 16 bytes, with so many of these buffers in turn, of a block's k or v each; with MX and nvfp4 a word that holds a piece's scales beside it; of fp8_1x128 the scales of a
 * key and a value. */
enum { CACHED_BUFFERS = 3, CACHED_PIECE = 16 };
#define CACHED_BITS(cached) ((cached) == CACHED_NVFP4 ? 4 : 8)
/* Bytes of a buffer's codes, and of its scales; of the factors of a stage, which scores and weights are multiplied by. */
#define CACHED_CODE_BYTES(cached, keys, width) ((keys) * (width) * CACHED_BITS(cached) / 8)
#define CACHED_SCALE_BYTES(cached, keys, width) ((cached) == CACHED_E4M3 ? (keys) * 8 : CACHED_CODE_BYTES(cached, keys, width) / CACHED_PIECE * 4)
#define CACHED_FACTOR_BYTES(cached, keys) ((cached) == CACHED_E4M3 ? (keys) * 8 : 0)

#endif
