/* The arguments of the gradients of attention by wgmma: read by their host half, which fills them in, and by the device half. Plain C that nvcc takes, too. */
#ifndef KERNELS_ATTENTION_WGMMA_BACKWARD_H
#define KERNELS_ATTENTION_WGMMA_BACKWARD_H

#include "kernels/attention/arguments.h"
#include "kernels/attention/backward.h"

/* A thread block owns so many rows; statistics lie in rows of a multiple of it. */
enum { BACKWARD_OWN = 128, BACKWARD_THREADS = 384, BACKWARD_BARRIER_BYTES = 128, JOINED_BARRIER_BYTES = 192 };
/* Position alone, by joined.cuh; a bool mask, too; or a bias, with a mask or without. */
enum { BACKWARD_PLAIN, BACKWARD_MASKED, BACKWARD_GENERAL };
/* A mask is looked through once, in squares of so many queries and keys: of each, whether none, some or all of its pairs are seen. */
enum { BACKWARD_SQUARE = 64, BACKWARD_NONE = 0, BACKWARD_SOME, BACKWARD_ALL };

/* Maps: axes width, sequence, heads, batches; boxes of 64 columns by the rows that a thread block owns, or by those of a block of the others. */
typedef struct attention_backward_wgmma_arguments {
    ATTENTION_ALIGNED(128) uint64_t map_q[16];
    uint64_t map_k[16], map_v[16], map_dout[16];
    attention_backward_arguments call;
    int32_t tiles;                /* of the rows of a head that thread blocks own */
    int32_t heads_together;       /* heads, of all batches, whose tiles are in flight at a time */
    int32_t begin_shift, end_shift;   /* query i sees keys from i + begin_shift up to i + end_shift, of those that there are */
    int32_t padded;               /* queries, up to a multiple of BACKWARD_OWN */
    uint64_t lse, share, part;    /* [b,h,padded] fp32 gmem: lse, without a bias in powers of 2, +inf of rows that there are not or that see nothing; dout . out; with a bias the part that weights are of
                                   * e^(score - lse), which is 1 but where finite numbers hide all keys */
    uint64_t squares;             /* a byte each, where there is a mask */
    int32_t is_general;           /* there is a bias */
    uint64_t sums, turns;         /* by five products: of dq, fp32, in blocks as threads hold them; a counter of tiles, and how many thread blocks have added to each block of queries */
    int32_t turn_count, query_blocks;   /* counters, 0 where there are none; blocks of queries of a head */
    int32_t square_steps[4], square_dims[4];   /* of batches, heads, and squares of queries and of keys; 0 and 1 where the mask repeats */
} attention_backward_wgmma_arguments;

#endif
