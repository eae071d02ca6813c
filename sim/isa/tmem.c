/* Tensor memory: who may touch which of its cells. */
#include "tmem.h"
#include "sim/machine/order.h"

#include <stdlib.h>

tmem_area tmem_area_of(int lane, int lanes, int column, int columns) {
    tmem_area area = {{0, 0}, column, column + columns};
    for (int i = lane; i < lane + lanes && i < TMEM_LANES; i++) area.lanes[i / 64] |= 1ull << (i % 64);
    return area;
}

bool tmem_overlap(const tmem_area *a, const tmem_area *b) {
    return a->first < b->end && b->first < a->end && ((a->lanes[0] & b->lanes[0]) | (a->lanes[1] & b->lanes[1])) != 0;
}

void tmem_free(sim_cta *cta) {
    if (cta->tmem == NULL) return;
    free(cta->tmem->accesses);
    free(cta->tmem);
    cta->tmem = NULL;
}

sim_tmem *tmem_of(sim_warp *w, const sim_op *op, sim_cta *cta) {
    if (cta->tmem == NULL) cta->tmem = calloc(1, sizeof *cta->tmem);
    if (cta->tmem == NULL) sim_find(w, op, -1, "no host memory for tensor memory");
    return cta->tmem;
}

sim_cta *tmem_peer(sim_warp *w, const sim_op *op, int lane) {
    int peer = w->cta->rank ^ 1;
    if (peer < w->cta->cluster->cta_count) return &w->cta->cluster->ctas[peer];
    sim_find(w, op, lane, ".cta_group::2 needs a pair of CTAs, and this one has rank %d in a cluster of %d: launch clusters of an even size", w->cta->rank, w->cta->cluster->cta_count);
    return NULL;
}

bool tmem_check_group(sim_warp *w, const sim_op *op, int lane) {
    sim_tmem *t = tmem_of(w, op, w->cta);
    int group = sim_has(&op->mods, SIM_MOD_cta_group_2) ? 2 : 1;
    if (t == NULL) return false;
    if (t->group == 0) t->group = group;
    if (t->group == group) return true;
    sim_find(w, op, lane, ".cta_group::%d, where the CTA's other tcgen05 instructions say ::%d: all of a kernel say the same", group, t->group);
    return false;
}

bool tmem_check_area(sim_warp *w, const sim_op *op, int lane, sim_cta *cta, const tmem_area *area, const char *what) {
    const sim_tmem *t = cta->tmem;
    if (area->first < 0 || area->end > TMEM_COLUMNS) {
        sim_find(w, op, lane, "%s takes columns %d to %d of tensor memory, which has %d: out of bounds", what, area->first, area->end - 1, TMEM_COLUMNS);
        return false;
    }
    for (int unit = area->first / TMEM_UNIT; unit * TMEM_UNIT < area->end; unit++) {
        if (t != NULL && (t->taken >> unit & 1) != 0) continue;
        sim_find(w, op, lane, "%s takes columns %d to %d of CTA %d's tensor memory, and from %d on they are not allocated: tcgen05.alloc them, and do not use them after tcgen05.dealloc", what,
                 area->first, area->end - 1, cta->rank, unit * TMEM_UNIT > area->first ? unit * TMEM_UNIT : area->first);
        return false;
    }
    return true;
}

bool tmem_check_accesses(sim_warp *w, const sim_op *op, int lane, const sim_cta *cta, const tmem_area *area, bool writes, const char *what) {
    const sim_tmem *t = cta->tmem;
    for (size_t i = 0; t != NULL && i < t->access_count; i++) {
        const tmem_access *a = &t->accesses[i];
        if (!tmem_overlap(&a->area, area) || (!a->store && !writes)) continue;
        sim_find(w, op, lane, "%s takes columns %d to %d of tensor memory, which a tcgen05.%s of CTA %d's warp %d may still %s: that warp waits by tcgen05.wait::%s first", what, area->first,
                 area->end - 1, a->store ? "st" : "ld", cta->rank, a->warp, a->store ? "write" : "read", a->store ? "st" : "ld");
        return false;
    }
    return true;
}

/* ---- order between threads ---- */

static bool has_partition(const tmem_area *area, int partition) { return (uint32_t)(area->lanes[partition / 2] >> (partition % 2 * TMEM_PARTITION)) != 0; }

/* What is missing between what another warp's load or store did, where one of the two changes the cell, and what w does now. Of another CTA's warp the times of its fences count alone. */
static order_gap gap_of(const sim_warp *w, const tmem_touch *t, bool writes) {
    if (t->warp == NULL || t->warp == w || !(writes || t->stored)) return ORDER_WHOLE;
    if (t->warp->tensor_before <= t->time) return ORDER_NO_BEFORE;
    if (w->tensor_after <= t->time) return ORDER_NO_AFTER;
    if (t->warp->cta != w->cta) return ORDER_WHOLE;
    return order_tensor_gap(w, t->warp, t->number, t->stored, !(t->stored ? w->launch->options->stores_done : w->launch->options->loads_done));
}

/* Did w execute a fence behind its wait for the tensor core? */
static bool knows_product(const sim_warp *w, const tmem_touch *t, bool writes) {
    if (t->written > w->tensor_after || (writes && t->read > w->tensor_after)) return false;
    if (t->written != 0 && !order_tensor_knows(w, t->written_for, t->written_at)) return false;
    return !writes || t->read == 0 || order_tensor_knows(w, t->read_for, t->read_at);
}

bool tmem_check_order(sim_warp *w, const sim_op *op, int lane, const sim_cta *cta, const tmem_area *area, bool writes, bool tensor) {
    if (w->launch->options->fences_implied || !w->launch->code->tensor_fences || cta->tmem == NULL) return true;
    for (int partition = 0; partition < TMEM_LANES / TMEM_PARTITION; partition++) {
        for (int column = area->first; column < area->end && has_partition(area, partition); column++) {
            const tmem_touch *t = &cta->tmem->touches[partition][column];
            if (!tensor && !knows_product(w, t, writes)) {
                sim_find(w, op, lane, "%s column %d of tensor memory, which a tensor core %s, with no tcgen05.fence::after_thread_sync since that was waited for (option fences=implied takes the wait for enough)",
                         writes ? "writes" : "reads", column, knows_product(w, t, false) ? "read" : "wrote");
                return false;
            }
            const order_gap gap = gap_of(w, t, writes);
            if (gap == ORDER_WHOLE) continue;
            sim_find(w, op, lane, "%s column %d of tensor memory, which warp %d %s, and between the two lacks tcgen05.%s (option fences=implied takes barriers for enough)", writes ? "writes" : "reads", column,
                     t->warp->index, t->stored ? "stored" : "loaded",
                     gap == ORDER_NO_AFTER ? "fence::after_thread_sync in this warp" : gap == ORDER_NO_BEFORE ? "fence::before_thread_sync in that warp" : t->stored ? "wait::st in that warp" : "wait::ld in that warp");
            return false;
        }
    }
    return true;
}

void tmem_touched(sim_warp *w, const tmem_area *area, bool stores) {
    const uint64_t now = ++w->cta->cluster->tensor_time;
    const uint32_t number = order_tensor_touch(w);
    for (int partition = 0; partition < TMEM_LANES / TMEM_PARTITION; partition++) {
        for (int column = area->first; column < area->end && has_partition(area, partition); column++) {
            tmem_touch *t = &w->cta->tmem->touches[partition][column];
            t->warp = w;
            t->time = now;
            t->number = number;
            t->stored = stores;
        }
    }
}

void tmem_finished(sim_cta *cta, const tmem_area *area, bool writes, const sim_warp *warp, uint32_t at) {
    uint64_t now = ++cta->cluster->tensor_time;
    for (int partition = 0; partition < TMEM_LANES / TMEM_PARTITION && cta->tmem != NULL; partition++) {
        for (int column = area->first; column < area->end && column < TMEM_COLUMNS && has_partition(area, partition); column++) {
            tmem_touch *t = &cta->tmem->touches[partition][column];
            if (writes) t->written = now, t->written_for = warp, t->written_at = at;
            else t->read = now, t->read_for = warp, t->read_at = at;
        }
    }
}

void tmem_shift(sim_tmem *t, int first_lane, int column) {
    for (int lane = first_lane; lane < TMEM_LANES; lane++) {
        if (lane % TMEM_PARTITION == TMEM_PARTITION - 1) continue;
        memcpy(&t->cells[lane][column], &t->cells[lane + 1][column], 8 * sizeof t->cells[0][0]);
        memcpy(&t->written[lane][column], &t->written[lane + 1][column], 8 * sizeof t->written[0][0]);
    }
}

int tmem_leaked(const sim_cta *cta) { return cta->tmem == NULL ? 0 : __builtin_popcount(cta->tmem->taken) * TMEM_UNIT; }

bool tmem_has_target(sim_decoding *d, bool exact) {
    int arch = d->module->arch;
    bool family = arch >= 100 && arch < 120;
    if (family && (d->module->arch_suffix == 'a' || (d->module->arch_suffix == 'f' && !exact))) return true;
    d->why = exact ? "this form is for targets like sm_100a, not for families" : "tcgen05 is for targets like sm_100a and sm_100f";
    return false;
}
