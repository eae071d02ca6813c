/* What a product by tiles takes at least: cycles of each resource of a chip, which of them binds, seconds. A pure function of a kernel's variant, a product and a chip, whose constants are the rates
 * "of a unit" of chip.def. It holds for wgmma and tcgen05 alike. Estimates, explain, the audit of machine code and bench/predictions use it. A resource whose rate nobody knows counts as 0.
 *
 * A way of tiles says what it is and asks:
 *
 *     const kernel_tiles pair = {.m = 256, .n = 256, .blocks = 2, .stages = 6, .accumulators = 2};
 *     const kernel_product product = {.m = m, .n = n, .k = k, .bits = {4, 4}, .scale_block = 16, .result_bytes = 2};
 *     kernel_tiles_bound bound;
 *     kernel_tiles_bound_of(&pair, &product, run->chip, &bound);
 *     return bound.seconds;
 *
 * A kernel that swaps a and b swaps m with n, and the bits, in the product. */
#ifndef KERNEL_TILES_H
#define KERNEL_TILES_H

#include "chip/chip.h"

enum { KERNEL_K_BLOCK = 128 };    /* bytes of k in a stage */

/* A variant of a kernel. What is 0 is not said. */
typedef struct kernel_tiles {
    int m, n;                     /* a tile of the result; of a pair both blocks' */
    int blocks;                   /* that compute it together: 1, or 2, of which each has half of the rows and reads half of b; 0: 1 */
    int share_a, share_b;         /* multicast: tiles side by side that have rows of a brought once, tiles one below the other that have rows of b; 0: none do. Nobody has measured on tcgen05 that the L2
                                   * cache is where its limit lies, so there it is a hope */
    int stages;                   /* k-blocks that may be on their way; 0: enough */
    int accumulators;             /* tiles whose sums are kept: of 2 the epilogue of one runs under the products of the next; of 1 behind its own */
    int splits;                   /* parts of k, each a tile's work, whose sums are added */
    double sums_cycles;           /* of a tile that its products wait for the epilogue before, where two accumulators have columns in common */
    bool streams;                 /* stream-K: what of a tile's k-blocks others have is added, */
    double share;                 /* where the multiprocessor that has most has k-blocks of so many tiles; 0: all have the same number */
    double cuts;                  /* parts of tiles that are written and read again; 0: as many as are computed at a time */
    double others;                /* that are added to one tile by whoever adds them, at most; 0: as many as even shares make */
    bool whole_behind;            /* a whole tile comes behind each multiprocessor's parts, so that those are added under its products */
    bool restarts;                /* thread blocks begin anew for each tile, rather than stay */
    double lead;                  /* rows of others that a group's tiles begin with, on average; or columns, where groups divide those */
    bool trims;                   /* the last tile of a row multiplies only the sixteens of columns that are there */
    int raster;                   /* tiles down, before the next column of them begins; 0: all */
    double multiply, load;        /* machine instructions of a k-block: of the warp that multiplies, of the one that loads */
    double scale_cycles;          /* of the L1 cache for a k-block's scales, where threads bring them */
    double epilogue_cycles;       /* of a tile besides what is counted here, of each multiprocessor: arithmetic, stores that are not whole lines */
} kernel_tiles;

/* out [m,n] = a [m,k] b [n,k]^T. With groups, m rows of a fall into so many of about even size, each with a matrix of b of its own; or, swapped, the n rows of b do, each with a matrix of a. */
typedef struct kernel_product {
    int64_t m, n, k;
    double groups;                /* that have rows; 0: no groups */
    bool groups_columns;          /* they divide n, not m */
    int bits[2];                  /* of elements of a and of b; where one has more than 4, both lie in bytes in shared memory */
    int scale_block;              /* elements of k with a scale of one byte; 0: none */
    bool k96;                     /* 4 bits by instructions of K = 96 */
    bool promotes;                /* sums of a k-block are added to others by threads */
    double result_bytes;          /* of an element */
    double more_bytes;            /* written besides results */
    int functions;                /* exponentials and the like for an element of the result */
} kernel_product;

typedef enum kernel_resource {
#define KERNEL_RESOURCE(name, of, words) KERNEL_RESOURCE_##name,
#include "kernel/resource.def"
#undef KERNEL_RESOURCE
    KERNEL_RESOURCES
} kernel_resource;
const char *kernel_resource_name(kernel_resource resource);
const char *kernel_resource_words(kernel_resource resource);

typedef struct kernel_tiles_bound {
    double cycles[KERNEL_RESOURCES];   /* of the whole product, on the multiprocessor that has most of it */
    double tiles, waves;
    double behind_cycles;         /* of these, or besides them, what nothing runs under: epilogues with one accumulator, the beginnings of thread blocks, sums of parts */
    double block_cycles;          /* of a k-block, by what binds */
    double stage_bytes;           /* of a k-block that a multiprocessor waits for */
    double l2_bytes, memory_bytes;
    kernel_resource limit;        /* of a multiprocessor's work, with what nothing runs under, or of what all share: whichever takes longer, and of that the longest */
    double clock_hz;
    double seconds;               /* with the kernel's fixed time; where thread blocks restart, which counts their beginnings, with a launch */
    double part;                  /* of seconds the part that the matrix instructions would need if all of them were always busy: 2 m n k FLOPs at their rate */
    double inside_s, inside_part; /* of products, the same from the kernel's first instruction to its last, without any launch: its beginning, the first load and the last epilogue count, of which fixed times do not say how
                                   * much of them they are */
} kernel_tiles_bound;

/* Of a multiprocessor's own resources the one that takes longest. */
kernel_resource kernel_longest_of_unit(const kernel_tiles_bound *bound);
/* Does the chip have what the bound is made of: tensor units, whose rate and clock are known? */
bool kernel_tiles_known(const chip_caps *chip);
void kernel_tiles_bound_of(const kernel_tiles *tiles, const kernel_product *product, const chip_caps *chip, kernel_tiles_bound *bound);
/* Stages that cover a load's latency at the pace of what binds, and main memory's where that binds; most: those that fit. */
int kernel_tiles_stages(const kernel_tiles *tiles, const kernel_product *product, const chip_caps *chip, int most);

#endif
