/* The arguments of the Hopper attention kernel: read by its host half, which fills them in, and by the device half. Plain C that nvcc takes, too. */
#ifndef KERNELS_ATTENTION_SM90_H
#define KERNELS_ATTENTION_SM90_H

#include "kernels/attention/attention_cuda.h"

#ifdef __cplusplus
#define ATTENTION_ALIGNED(bytes) alignas(bytes)
#else
#define ATTENTION_ALIGNED(bytes) _Alignas(bytes)
#endif

/* Shared memory besides the tiles: of each query 16 bytes, of each segment 32, and barriers. */
enum { ATTENTION_ROW_BYTES = 16, ATTENTION_SEGMENT_BYTES = 32, ATTENTION_BARRIER_BYTES = 128, ATTENTION_STAGES = 2 };

/* Registers move between whole warpgroups, so a block that has a multiprocessor for itself loads by four warps of which three idle. */
#define ATTENTION_THREADS(groups, blocks) (128 * (groups) + ((blocks) > 1 ? 32 : 128))

/* Maps: axes width, sequence, heads, batches; boxes of 64 columns by the tile's queries (q), its keys (k, v), 64 queries (out). */
typedef struct attention_sm90_arguments {
    ATTENTION_ALIGNED(128) uint64_t map_q[16];
    uint64_t map_k[16], map_v[16], map_out[16];
    attention_arguments call;
    int32_t tiles;                /* of the queries of one head */
    int32_t heads_together;       /* heads, of all batches, whose tiles are in flight at a time, so that their k and v stay in L2 */
} attention_sm90_arguments;

#endif
