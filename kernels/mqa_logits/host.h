/* What the host halves of mqa_logits on GPUs share. */
#ifndef KERNELS_MQA_LOGITS_HOST_H
#define KERNELS_MQA_LOGITS_HOST_H

#include "kernel/kernel.h"
#include "kernels/mqa_logits/arguments.h"

void mqa_take(kernel_launch *launch, const kernel_run *run, mqa_arguments *arguments);

/* ---- kernels by tiles ---- */

/* How a call is cut for kernels whose thread blocks stay: tiles of so many queries of a batch, chunks of so many positions, a multiple of `block`. */
typedef struct mqa_cut { int64_t tiles, chunk, chunks, items; double seconds; } mqa_cut;
/* Of the least time: a block of keys for a tile takes block_s, an item start_s besides, and the thread blocks of the chip take items in turns. */
mqa_cut mqa_cut_of(const kernel_run *run, int64_t queries, int64_t block, double block_s, double start_s);

/* Why tensor maps of q and k, in bytes, cannot be: where rows lie. NULL: they can. block: keys of a box. */
const char *mqa_lacks_maps(const kernel_run *run, int64_t block, text *why);
/* Why there are more keys, queries or items than 32 bits count; or none. */
const char *mqa_counts_refusal(const kernel_run *run, int64_t items, text *why);
/* Maps of q, a box a tile of heads x queries, and of k, a box a block of keys; width: bytes of a row of the box, 64 or 128. */
void mqa_take_maps(kernel_launch *launch, const kernel_run *run, const void *q, const void *k, int width, int heads, int queries, int block);

#endif
