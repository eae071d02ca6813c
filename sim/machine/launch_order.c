/* Which clusters of a launch start, and in which order: the seed decides. A launch with clusters of two sizes is counted in places of the larger one, each of which becomes a cluster, or
 * several of the smaller size. */
#include "machine.h"

static uint64_t common_divisor(uint64_t a, uint64_t b) { return b == 0 ? a : common_divisor(b, a % b); }

static uint64_t in_order(const sim_launch *l, uint64_t number) {
    const uint64_t held = l->room / sim_ctas_of(l->preferred), resident = held > 0 ? held : 1;
    const uint64_t first = number / resident * resident, count = l->count - first < resident ? l->count - first : resident;
    if (l->options->seed == 0 || count < 2) return number;
    const uint64_t chance = sim_mix(sim_mix(l->options->seed, first + 1), l->epoch);
    uint64_t step = 1 + (chance >> 32) % (count - 1);
    while (common_divisor(step, count) != 1) step++;
    return first + ((number - first) * step + chance) % count;
}

sim_cluster_place sim_launch_place(const sim_launch *l, uint64_t number, bool whole, uint64_t part) {
    sim_cluster_place p = {.index = 0};
    uint64_t place = in_order(l, number), stride = 1;
    for (int i = 0; i < 3; i++) {
        const uint32_t places = l->grid[i] / l->preferred[i], parts = l->preferred[i] / l->cluster[i];
        p.first[i] = (uint32_t)(place % places) * l->preferred[i] + (whole ? 0 : (uint32_t)(part % parts) * l->cluster[i]);
        p.size[i] = whole ? l->preferred[i] : l->cluster[i];
        p.index += p.first[i] / l->cluster[i] * stride;
        stride *= l->grid[i] / l->cluster[i];
        place /= places;
        part /= parts;
    }
    return p;
}

bool sim_launch_whole(const sim_launch *l, uint64_t number, uint64_t free) {
    if (l->parts == 1) return true;
    if (sim_ctas_of(l->preferred) > free || l->options->clusters == SIM_CLUSTERS_REGULAR) return false;
    if (l->options->clusters == SIM_CLUSTERS_PREFERRED) return true;
    return (l->options->seed == 0 ? number : sim_mix(sim_mix(l->options->seed, l->epoch), number + 1) >> 40) % 2 == 0;
}

bool sim_launch_pending(const sim_launch *l) { return l->split < l->parts || l->next < l->count; }

/* One of the smaller size: of the place that has become several, else of the next one, which becomes so. */
static sim_cluster_place next_part(sim_launch *l) {
    if (l->split == l->parts) {
        l->split = 0;
        l->split_place = l->next++;
    }
    return sim_launch_place(l, l->split_place, false, l->split++);
}

bool sim_launch_next(sim_launch *l, uint64_t free, sim_cluster_place *place) {
    const uint64_t larger = sim_ctas_of(l->preferred);
    if (!sim_launch_pending(l) || sim_ctas_of(l->cluster) > free) return false;
    const bool whole = l->split == l->parts && sim_launch_whole(l, l->next, free);
    if (!whole && l->split == l->parts && l->options->clusters == SIM_CLUSTERS_PREFERRED && larger <= l->room) return false;   /* it fits in later */
    *place = whole ? sim_launch_place(l, l->next++, true, 0) : next_part(l);
    return true;
}

bool sim_launch_cancel(sim_launch *l, const uint32_t size[3], sim_cluster_place *place) {
    const bool whole = sim_ctas_of(size) == sim_ctas_of(l->preferred);
    if (whole ? l->next == l->count : !sim_launch_pending(l)) return false;
    *place = whole ? sim_launch_place(l, l->next++, true, 0) : next_part(l);
    return true;
}
