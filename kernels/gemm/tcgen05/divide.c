/* See divide.h. */
#include "kernels/gemm/tcgen05/divide.h"

#include "base/base.h"

static int64_t range_begin(const tiles_division *d, int64_t range) { return range * d->share + (range < d->longer ? range : d->longer); }

/* What follows from units and ranges. whole: units behind them. */
static tiles_division counted(int64_t units, int64_t ranges, int64_t whole, int64_t at_a_time, int64_t blocks) {
    const int64_t all = units * blocks;
    tiles_division d = {.units = units, .ranges = ranges, .share = all / ranges, .longer = all % ranges, .behind = whole >= at_a_time};
    int64_t of_unit = 0;
    d.each = (double)(d.share + (d.longer > 0)) / (double)blocks + (double)base_ceil_div(whole, at_a_time);
    for (int64_t range = 1; range <= ranges; range++) {
        const int64_t begin = range_begin(&d, range);
        of_unit = begin % blocks == 0 || begin / blocks > range_begin(&d, range - 1) / blocks ? 0 : of_unit;
        if (begin % blocks == 0) continue;
        d.cuts++, of_unit++;
        if (of_unit > d.others) d.others = of_unit;
    }
    return d;
}

tiles_division tiles_divide_evenly(int64_t units, int64_t at_a_time, int64_t blocks) {
    const int64_t waves = units / at_a_time, whole = waves > 1 ? (waves - 1) * at_a_time : 0, most = base_ceil_div((units - whole) * blocks, TILES_LEAST_RANGE);
    return counted(units - whole, most < 1 ? 1 : most < at_a_time ? most : at_a_time, whole, at_a_time, blocks);
}

bool tiles_divide_rest(int64_t units, int64_t at_a_time, int64_t blocks, tiles_division *division) {
    const int64_t rest = units % at_a_time;
    if (rest == 0) return false;
    const int64_t most = blocks / TILES_LEAST_RANGE, each = at_a_time / rest < most ? at_a_time / rest : most;
    if (each < 2) return false;
    *division = counted(rest, rest * each, units - rest, at_a_time, blocks);
    return true;
}
