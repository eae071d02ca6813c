/* What orders the warps of a CTA, and races between them in its shared memory (order.c). Of a CTA without such a watch all calls do nothing. */
#ifndef SIM_MACHINE_ORDER_H
#define SIM_MACHINE_ORDER_H

#include "machine.h"

/* A clock for each warp, one for the copies of each of so many mbarriers, and from ORDER_FENCED on, for each warp, up to when a proxy fence stands behind its stores; a writer is its number below its time. */
enum { ORDER_COPIES = 96, ORDER_FENCED = SIM_MAX_WARPS + ORDER_COPIES, ORDER_CLOCKS = ORDER_FENCED + SIM_MAX_WARPS, ORDER_WARP_BITS = 7, ORDER_WRITER_MASK = (1 << ORDER_WARP_BITS) - 1 };

void order_start(sim_cta *cta);
void order_free(sim_cta *cta);

/* A warp is counted by a barrier; goes on behind one. */
void order_barrier_arrive(sim_warp *w, int barrier);
void order_barrier_pass(sim_warp *w, int barrier);
/* The same of the mbarrier at that offset of the CTA. */
void order_mbarrier_arrive(sim_warp *w, sim_cta *cta, uint64_t offset, const uint32_t *since);   /* since: order_now() at the issue of what arrives; NULL: the warp itself arrives now */
/* What has come before, as the warp has it; NULL: nothing is watched. Allocated. */
uint32_t *order_now(sim_warp *w);
uint32_t *order_copy(const uint32_t *clock);   /* of NULL NULL */
void order_mbarrier_pass(sim_warp *w, sim_cta *cta, uint64_t offset);
/* What came before, as the warp has it, goes to a clock; from one clock to another; and to the warp, which goes on behind it. */
void order_release(sim_warp *w, uint32_t clock[ORDER_CLOCKS]);
void order_join(uint32_t to[ORDER_CLOCKS], const uint32_t from[ORDER_CLOCKS]);
void order_acquire(sim_warp *w, const uint32_t clock[ORDER_CLOCKS]);
/* The lanes of a warp meet at an instruction. */
void order_lanes_meet(sim_warp *w);
/* Atomics, ordered accesses and what goes by other CTAs: all of those of a CTA are taken to be ordered. */
void order_through(sim_warp *w);

/* A copy has written there, and the mbarrier of the told CTA counts it: who waits for that knows. */
void order_arrived(sim_cta *cta, uint64_t offset, size_t bytes, const sim_cta *told, uint64_t mbarrier);
/* Does the warp know of the last copy to the 16 bytes there, of a CTA of its cluster? */
bool order_knows_copy(const sim_warp *w, const sim_cta *cta, uint64_t offset);
/* A proxy fence: behind what the warp did, and what came before that; stores: behind its stores, too. */
void order_fence(sim_warp *w, bool stores);
/* A warp that has read some of these bytes with no such fence behind; -1: none. */
int order_unfenced(const sim_cta *cta, uint64_t offset, size_t bytes);
/* A warp that has stored some of these bytes with no such fence, of a warp that knew of it, between that and what w does now; -1: none. Of stores of less than 4 bytes, and of other CTAs, nothing is known here; of a store in
 * another CTA than w's, that there was such a fence is all that is looked at. */
int order_unfenced_store(const sim_warp *w, const sim_cta *cta, uint64_t offset, size_t bytes);

/* Something of another CTA stored there. */
void order_forget(sim_cta *cta, uint64_t offset, size_t bytes);

/* An access of the CTA's own shared memory by a lane (-1: by the warp); asynchronous: by a copy that the warp issues. false: a finding. */
bool order_read(sim_warp *w, const sim_op *op, int lane, uint64_t offset, size_t bytes, bool asynchronous);
bool order_write(sim_warp *w, const sim_op *op, int lane, uint64_t offset, size_t bytes, bool asynchronous);
/* The same of many reads of 16 bytes by a warp, most of words that one warp wrote, as products read their operands. writers: NULL where nothing is watched; clock: the warp's. */
typedef struct order_reader { const uint32_t *writers, *clock; uint32_t *readers; } order_reader;
order_reader order_reader_of(sim_warp *w);
static inline bool order_read_chunk(sim_warp *w, const sim_op *op, uint64_t offset, const order_reader *r) {
    if (r->writers == NULL) return true;
    const uint32_t *writers = r->writers + offset / 4, writer = writers[0];
    const bool alike = ((writers[1] ^ writer) | (writers[2] ^ writer) | (writers[3] ^ writer)) == 0;
    if (!alike || r->clock[writer & ORDER_WRITER_MASK] < writer >> ORDER_WARP_BITS) return order_read(w, op, -1, offset, 16, false);
    for (int i = 0; i < 4; i++) r->readers[offset / 4 + (uint64_t)i] = r->clock[w->index];
    return true;
}
enum { ORDER_TENSOR_UNITS = 16 };
/* Units of 32 columns of tensor memory: somebody loads or stores them; or (frees) they are given back, which all uses of other warps come before. */
bool order_tensor(sim_warp *w, const sim_op *op, int first, int count, bool frees);
/* What a warp does to tensor memory, its waits for that and its fences are numbered in their order: the number of what it does now; 0: nothing is watched. */
uint32_t order_tensor_touch(sim_warp *w);
void order_tensor_wait(sim_warp *w, bool stores);
void order_tensor_fence(sim_warp *w, bool after);
/* What is missing between a load or store of another warp of the CTA, of that number, and what w does now: that warp's wait for it, and its fence behind the wait, in front of what w has waited for; a fence
 * of w behind that. waits: a wait is needed. */
typedef enum order_gap { ORDER_WHOLE, ORDER_NO_WAIT, ORDER_NO_BEFORE, ORDER_NO_AFTER } order_gap;
order_gap order_tensor_gap(const sim_warp *w, const sim_warp *other, uint32_t number, bool stored, bool waits);
/* Did w know, when it last executed a fence, what came before `time` of another warp of the CTA's clock? */
bool order_tensor_knows(const sim_warp *w, const sim_warp *other, uint32_t time);
/* A read of so many lanes from one on, side by side, of 4 bytes or more each; false: order_read would find something. */
bool order_may_read(sim_warp *w, int lane, int lanes, uint64_t offset, size_t bytes);

#endif
