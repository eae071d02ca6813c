/* What orders the warps of a CTA, and races between them in its shared memory (order.c). Of a CTA without such a watch all calls do nothing. */
#ifndef SIM_MACHINE_ORDER_H
#define SIM_MACHINE_ORDER_H

#include "machine.h"

void order_start(sim_cta *cta);
void order_free(sim_cta *cta);

/* A warp is counted by a barrier; goes on behind one. */
void order_barrier_arrive(sim_warp *w, int barrier);
void order_barrier_pass(sim_warp *w, int barrier);
/* The same of the mbarrier at that offset of the CTA. */
void order_mbarrier_arrive(sim_warp *w, sim_cta *cta, uint64_t offset);
void order_mbarrier_pass(sim_warp *w, sim_cta *cta, uint64_t offset);
/* What came before, as the warp has it, goes to a clock; from one clock to another; and to the warp, which goes on behind it. */
void order_release(sim_warp *w, uint32_t clock[SIM_MAX_WARPS]);
void order_join(uint32_t to[SIM_MAX_WARPS], const uint32_t from[SIM_MAX_WARPS]);
void order_acquire(sim_warp *w, const uint32_t clock[SIM_MAX_WARPS]);
/* The lanes of a warp meet at an instruction. */
void order_lanes_meet(sim_warp *w);
/* Atomics, ordered accesses and what goes by other CTAs: all of those of a CTA are taken to be ordered. */
void order_through(sim_warp *w);

/* An access of the CTA's own shared memory by a lane (-1: by the warp); asynchronous: by a copy that the warp issues. false: a finding. */
bool order_read(sim_warp *w, const sim_op *op, int lane, uint64_t offset, size_t bytes, bool asynchronous);
bool order_write(sim_warp *w, const sim_op *op, int lane, uint64_t offset, size_t bytes, bool asynchronous);
/* The same of many reads of 16 bytes by a warp, most of words that one warp wrote, as products read their operands. writers: NULL where nothing is watched; clock: the warp's. */
typedef struct order_reader { const uint32_t *writers, *clock; uint32_t *readers; } order_reader;
order_reader order_reader_of(sim_warp *w);
enum { ORDER_WARP_BITS = 5 };   /* of a writer, below its time */
static inline bool order_read_chunk(sim_warp *w, const sim_op *op, uint64_t offset, const order_reader *r) {
    if (r->writers == NULL) return true;
    const uint32_t *writers = r->writers + offset / 4, writer = writers[0];
    const bool alike = ((writers[1] ^ writer) | (writers[2] ^ writer) | (writers[3] ^ writer)) == 0;
    if (!alike || r->clock[writer & (SIM_MAX_WARPS - 1)] < writer >> ORDER_WARP_BITS) return order_read(w, op, -1, offset, 16, false);
    for (int i = 0; i < 4; i++) r->readers[offset / 4 + (uint64_t)i] = r->clock[w->index];
    return true;
}
enum { ORDER_TENSOR_UNITS = 16 };
/* Units of 32 columns of tensor memory: somebody loads or stores them; or (frees) they are given back, which all uses of other warps come before. */
bool order_tensor(sim_warp *w, const sim_op *op, int first, int count, bool frees);
/* A read of so many lanes from one on, side by side, of 4 bytes or more each; false: order_read would find something. */
bool order_may_read(sim_warp *w, int lane, int lanes, uint64_t offset, size_t bytes);

#endif
