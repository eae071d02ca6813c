/* What attention by tiles takes at least: cycles of each resource of a chip, which of them binds, seconds; what tiles.h is to products. A pure function of a kernel's variant, a call's size and a chip,
 * whose constants are the rates "of a unit" of chip.def. It is of kernels of the tcgen05 kind, whose scores and sums lie in tensor memory. Estimates, explain and bench/predictions use it. A resource
 * whose rate nobody knows counts as 0. */
#ifndef KERNEL_ATTEND_H
#define KERNEL_ATTEND_H

#include "kernel/tiles.h"

enum { KERNEL_ATTEND_STAGES = 16 };

/* A variant of a kernel. Widths are those that it multiplies. */
typedef struct kernel_attend {
    int rows, keys;               /* of a tile of queries, and of a block of keys */
    int tiles;                    /* of a unit: those that share the reading of a block */
    int width, value_width;
    double emulated;              /* the part of the powers of 2 that is made by multiplying and adding */
    int functions;                /* special functions of a score besides its power of 2 */
    double instructions;          /* machine instructions that a tile's block costs the busiest scheduler: those of a softmax warp, and of what shares it */
    int stages;                   /* of the ring that keys and values take turns in, up to KERNEL_ATTEND_STAGES; 0: enough */
    int key_pieces, value_pieces; /* stages that a block of keys and one of values take; 0: 1 */
} kernel_attend;

/* heads: of all batches; shared: of these that read the same keys. */
typedef struct kernel_attention {
    double heads, shared, queries, keys;
    double seen;                  /* keys that a query sees, on average */
    double texts;                 /* whose keys a unit goes through, on average: its queries see those of one; 0: 1 */
    int score_bits, bits;         /* of an element of q and k, and of v */
    double result_bytes;
} kernel_attention;

void kernel_attend_bound_of(const kernel_attend *kernel, const kernel_attention *call, const chip_caps *chip, kernel_tiles_bound *bound);

#endif
