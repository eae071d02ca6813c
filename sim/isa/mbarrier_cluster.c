/* What CTAs of a cluster know of each other's mbarriers: that they were initialised, before one is used from elsewhere; and that arrivals from elsewhere have come, before a CTA ends. What counts
 * is the cluster's barrier, which orders both, and of arrivals that somebody waited for their phase: not whether this schedule happens to go well. */
#include "decode.h"

#include <inttypes.h>
#include <stdlib.h>

/* The first phase of the cluster's barrier whose end comes behind what the lane does now: that for which it arrives next. */
static uint64_t phase_behind(const sim_warp *w, int lane) {
    const uint64_t arrived = w->cluster_phase[lane];
    return (arrived != 0 ? arrived : w->cta->cluster->phase) + 1;
}

void sim_cluster_met(sim_cta *cta, uint64_t phase) {
    if (phase > cta->met) cta->met = phase;
}

void sim_mbarrier_made(const sim_warp *w, int lane, sim_cta *cta) {
    const uint64_t phase = phase_behind(w, lane);
    if (phase > cta->made) cta->made = phase;
}

bool sim_mbarrier_known(sim_warp *w, const sim_op *op, int lane, const sim_cta *cta, uint64_t offset) {
    if (cta == w->cta || (cta->made > 0 && w->cta->met >= cta->made) || w->launch->options->inits_unfenced) return true;
    sim_find(w, op, lane, "uses the mbarrier at 0x%" PRIx64 " of the CTA of rank %d, which may not have initialised it yet: barrier.cluster.wait comes first (option inits=unfenced: any order will do)", offset, cta->rank);
    return false;
}

bool sim_mbarrier_reached(sim_warp *w, const sim_op *op, int lane, sim_cta *cta, uint64_t offset) {
    if (cta == w->cta) return true;
    for (size_t i = 0; i < cta->reached_count; i++) {
        if (cta->reached[i].mbarrier != offset) continue;
        cta->reached[i].phase = phase_behind(w, lane);
        return true;
    }
    sim_reached *larger = realloc(cta->reached, (cta->reached_count + 1) * sizeof *larger);
    if (larger == NULL) {
        sim_find(w, op, lane, "no memory for the list of mbarriers that other CTAs arrive at");
        return false;
    }
    cta->reached = larger;
    cta->reached[cta->reached_count++] = (sim_reached){offset, phase_behind(w, lane), op};
    return true;
}
