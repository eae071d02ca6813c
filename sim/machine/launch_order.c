/* In which order clusters of a launch start: the seed decides. */
#include "machine.h"

static uint64_t common_divisor(uint64_t a, uint64_t b) { return b == 0 ? a : common_divisor(b, a % b); }

uint64_t sim_launch_order(const sim_launch *l, uint64_t number) {
    const uint64_t first = number / l->resident * l->resident, count = l->count - first < l->resident ? l->count - first : l->resident;
    if (l->options->seed == 0 || count < 2) return number;
    const uint64_t chance = sim_mix(sim_mix(l->options->seed, first + 1), l->epoch);
    uint64_t step = 1 + (chance >> 32) % (count - 1);
    while (common_divisor(step, count) != 1) step++;
    return first + ((number - first) * step + chance) % count;
}
