/* How blocks of k of tiles in parts (parts.cuh) are divided among thread blocks. Pure: knows no driver. */
#ifndef KERNELS_GEMM_TCGEN05_DIVIDE_H
#define KERNELS_GEMM_TCGEN05_DIVIDE_H

#include "chip/chip.h"
#include "kernels/gemm/tcgen05/tiles.h"

/* The blocks of k of the first `units` units, one unit behind the other, are cut into ranges: the first `longer` ones have share + 1 of them, the others share. cuts: ends of ranges inside of units, each of which is a part
 * that is written and read again; others: of the parts of a unit all but one, at most; each: units' worth of blocks of k of whoever has most, with whole units; behind: whole units come behind every range. */
typedef struct tiles_division {
    int64_t units, ranges, share, longer, cuts, others;
    double each;
    bool behind;
} tiles_division;

/* Of a range: blocks of k at least, so that what it brings for them is worth a part of sums. */
enum { TILES_LEAST_RANGE = 4 };

/* Of so many units of so many blocks of k, at_a_time of them at a time: those beyond whole waves, with those of one such wave, in ranges of even length, one for each that runs. */
tiles_division tiles_divide_evenly(int64_t units, int64_t at_a_time, int64_t blocks);
/* Those beyond whole waves alone, each in the same number of ranges: fewer parts, and perhaps some thread blocks without any. false: there are none, or not enough thread blocks for two to each. */
bool tiles_divide_rest(int64_t units, int64_t at_a_time, int64_t blocks, tiles_division *division);

#endif
