/* Races between CTAs in global memory (race.c), and what orders their accesses. */
#ifndef SIM_MACHINE_RACE_H
#define SIM_MACHINE_RACE_H

#include "machine.h"

/* What is known of 4 bytes of global memory: who wrote them last, and who read them. */
typedef struct sim_cell { _Atomic uint64_t writer, readers[2]; } sim_cell;

/* Makes room for the cells of an allocation; where there is none, it is not watched. */
void race_watch(sim_allocation *a);
/* Launches differ in some bits of their number: where these begin again, cells must be cleared. */
bool race_must_clear(uint64_t epoch);
void race_clear(sim_allocation *a);

void race_start(sim_cta *cta);
void race_free(sim_cta *cta);
void race_end(sim_launch *launch);

/* An ordered, volatile or atomic access of global memory, which others may see: of a write releases, of a read acquires say whether the instruction orders by itself; else a fence must. */
void race_strong_write(sim_warp *w, uint64_t address, bool releases);
void race_strong_read(sim_warp *w, uint64_t address, bool acquires);
void race_fence(sim_warp *w);
/* What goes through the cluster: its barrier, arrivals at each other's mbarriers. */
void race_cluster_release(sim_warp *w);
void race_cluster_acquire(sim_warp *w);

#endif
