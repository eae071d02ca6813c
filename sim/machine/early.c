/* Launches of a graph that overlap (PTX ISA 9.7.13.14). The simulator runs them one after another, and holds each to what would be right if all launches back to the last
 * one with an ordinary edge still ran. Before its griddepcontrol.wait a thread reads nothing that one of them wrote, and writes nothing; a launch does not end without
 * the wait. */
#include "machine.h"

#include <inttypes.h>
#include <stdlib.h>

enum { CELL = 16 };   /* bytes that share a mark: values of a run lie farther apart */

bool sim_early_watch(sim_allocation *a) {
    if (a->writers == NULL && !a->read_only) a->writers = calloc(a->bytes / CELL + 1, sizeof *a->writers);
    return a->writers != NULL || a->read_only;
}

static bool find(sim_warp *w, const sim_op *op, int lane, size_t bytes, uint64_t address, sim_access access, uint32_t writer) {
    if (access != SIM_READ) {
        sim_find(w, op, lane, "writes %zu bytes of global memory at 0x%" PRIx64 " before griddepcontrol.wait: the launches in front of this one may still read or write there", bytes, address);
    } else if (writer == (uint32_t)w->launch->epoch) {
        sim_find(w, op, lane, "reads %zu bytes of global memory at 0x%" PRIx64 " before griddepcontrol.wait, where this launch itself writes", bytes, address);
    } else {
        sim_find(w, op, lane, "reads %zu bytes of global memory at 0x%" PRIx64 " before griddepcontrol.wait, which a launch wrote that may not have ended: the %" PRIu32 ". in front of this one",
                 bytes, address, (uint32_t)w->launch->epoch - writer);
    }
    return false;
}

bool sim_check_early(sim_warp *w, const sim_op *op, int lane, const sim_place *place, size_t bytes, uint64_t address, sim_access access, bool early) {
    _Atomic uint32_t *writers = place->allocation->writers;
    if (early && access != SIM_READ) return find(w, op, lane, bytes, address, access, 0);
    if (writers == NULL || (!early && access == SIM_READ)) return true;
    for (uint64_t cell = place->offset / CELL; cell <= (place->offset + bytes - 1) / CELL; cell++) {
        if (access != SIM_READ) {
            atomic_store_explicit(&writers[cell], (uint32_t)w->launch->epoch, memory_order_relaxed);
            continue;
        }
        const uint32_t writer = atomic_load_explicit(&writers[cell], memory_order_relaxed);
        if (writer != 0 && writer >= (uint32_t)w->launch->chain) return find(w, op, lane, bytes, address, access, writer);
    }
    return true;
}

void sim_check_waited(sim_launch *l) {
    if (!l->early || l->waited || l->finding.made) return;
    l->finding.made = true;
    snprintf(l->finding.text, sizeof l->finding.text, "kernel %.160s: it began before the launch in front of it had ended, and ended without griddepcontrol.wait: launches behind it "
             "that wait for it would not wait for those in front", l->code->function->name);
}
