/* The arguments of the attention of latent keys: read by its host half, which fills them in, and by the device half. Plain C that nvcc takes, too. */
#ifndef KERNELS_ATTENTION_DECODE_LATENT_H
#define KERNELS_ATTENTION_DECODE_LATENT_H

#include "kernels/attention/decode/decode.h"

/* Of a block: warps, keys at a time. Columns that keys and values are padded to, a multiple of 64 each. */
enum { LATENT_WARPS = 8, LATENT_KEYS = 32, LATENT_WIDTH = 576, LATENT_VALUE_WIDTH = 512 };
enum { LATENT_STAGE_BYTES = LATENT_KEYS * LATENT_WIDTH * 2, LATENT_STAGES = 8 };   /* at most so many stages */
/* Rows of sums in shared memory are that many floats longer than values are wide, so that lanes write to different banks. */
enum { LATENT_PAD = 8 };

/* Bytes of shared memory of a tile of so many rows, in the order in which they lie behind the stages. Products of the warps' columns and keys; weights, and what sums shrink by, of two blocks of keys; what rows see; of
 * rows the largest scores and sums of weights, and whether they are to be made again. Of a block sums of weights of warps that share rows, and words for barriers, pages, what shrinks, and which tile it is. */
#define LATENT_PRODUCT_BYTES(rows) ((rows) * 256)
#define LATENT_WEIGHT_BYTES(rows) (2 * (rows) * LATENT_KEYS * 2)
#define LATENT_SHRINK_BYTES(rows) (2 * (rows) * 4)
#define LATENT_VIEW_BYTES(rows) ((rows) * 16)
#define LATENT_END_BYTES(rows) ((rows) * 8)
#define LATENT_AGAIN_BYTES(rows) ((rows) * 4)
enum { LATENT_TOTAL_BYTES = LATENT_WARPS * 16 * 4, LATENT_BARRIER_BYTES = 8 * LATENT_STAGES, LATENT_GONE_BYTES = 4 * LATENT_STAGES, LATENT_GROWN_BYTES = 2 * 16, LATENT_TILE_BYTES = 48 };
#define LATENT_STATE_BYTES(rows)                                                                                                                               \
    (LATENT_PRODUCT_BYTES(rows) + LATENT_WEIGHT_BYTES(rows) + LATENT_SHRINK_BYTES(rows) + LATENT_VIEW_BYTES(rows) + LATENT_END_BYTES(rows) + LATENT_AGAIN_BYTES(rows) + \
     LATENT_TOTAL_BYTES + LATENT_BARRIER_BYTES + LATENT_GONE_BYTES + LATENT_GROWN_BYTES + LATENT_TILE_BYTES)

typedef struct attention_latent_arguments {
    attention_decode_arguments decode;   /* maps, the call and how it is divided: nothing early, nothing written */
    int32_t boxes;                /* of a block of keys: one of LATENT_KEYS slots, or two of half as many, where pages are that short */
    int32_t alike;                /* values have the shape and the steps of keys but for their width, which is no larger: where both begin at one address, values are columns of keys */
} attention_latent_arguments;

#endif
