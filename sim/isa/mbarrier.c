/* mbarrier objects: arrivals, bytes of transactions, phases (PTX ISA 9.7.13.15), and the fences that async.c looks at. The 64 bits in shared memory are
 * the simulator's own format; shadow bits distinguish an object from what merely looks like one. */
#include "decode.h"
#include "sim/machine/order.h"

#include <inttypes.h>

enum { COUNT_BITS = 20, MAX_COUNT = (1 << COUNT_BITS) - 1, TX_LIMIT = (1 << 20) - 1 };

/* unseen: a phase ended, and nobody who waited has seen it. */
typedef struct barrier { uint32_t pending, expected; int32_t tx; uint32_t phase; bool unseen; } barrier;

static barrier unpack(const uint8_t *at) {
    uint64_t bits;
    memcpy(&bits, at, sizeof bits);
    return (barrier){.pending = (uint32_t)(bits & MAX_COUNT), .expected = (uint32_t)(bits >> 20 & MAX_COUNT), .tx = (int32_t)((int64_t)(bits << 2) >> 42), .phase = (uint32_t)(bits >> 62 & 1),
                     .unseen = bits >> 63 != 0};
}

static void pack(uint8_t *at, barrier b) {
    uint64_t bits = b.pending | (uint64_t)b.expected << 20 | ((uint64_t)(uint32_t)b.tx & 0x3fffff) << 40 | (uint64_t)b.phase << 62 | (uint64_t)b.unseen << 63;
    memcpy(at, &bits, sizeof bits);
}

/* Writes the object back. A phase is over when nobody is awaited and no bytes are under way; who waits by parity misses one that the next one follows at once.
 * false: a finding. */
static bool settle(sim_warp *w, const sim_op *op, int lane, const sim_cta *cta, uint64_t offset, barrier b) {
    if (b.pending == 0 && b.tx == 0) {
        if (b.unseen && !w->launch->options->phases_unseen) {
            sim_find(w, op, lane, "a phase of the mbarrier at 0x%" PRIx64 " of CTA %d ends, and nobody waited for the one before: an arrival too many, a count too small or a missing wait (option phases=unseen allows it)",
                     offset, cta->rank);
            return false;
        }
        b.phase ^= 1;
        b.pending = b.expected;
        b.unseen = true;
    }
    pack(cta->shared + offset, b);
    sim_changed(w);
    return true;
}

/* The object at an address; false: a finding. */
static bool reach(sim_warp *w, const sim_op *op, int lane, uint64_t address, sim_place *place) {
    if (!sim_reach(w, op, lane, (ptx_space)op->space, address, 8, 8, SIM_ATOMIC, place)) return false;
    if (place->space != PTX_SHARED) {
        sim_find(w, op, lane, "an mbarrier lies in shared memory, and 0x%" PRIx64 " does not", address);
        return false;
    }
    if ((place->shadow[0] & SHADOW_MBARRIER) == 0) {
        sim_find(w, op, lane, "no mbarrier was initialised at 0x%" PRIx64 " of shared memory: mbarrier.init, then a barrier, first", address);
        return false;
    }
    if (place->cta != w->cta) return sim_mbarrier_known(w, op, lane, place->cta, place->offset);
    return order_read(w, op, -1, place->offset, 8, false);   /* behind its initialisation */
}

bool sim_mbarrier_complete(sim_warp *w, const sim_op *op, sim_cta *cta, uint64_t offset, uint32_t bytes) {
    if (offset + 8 > cta->shared_bytes || (cta->shared_shadow[offset] & SHADOW_MBARRIER) == 0) {
        sim_find(w, op, -1, "a copy ends at 0x%" PRIx64 " of CTA %d's shared memory, where there is no mbarrier", offset, cta->rank);
        return false;
    }
    barrier b = unpack(cta->shared + offset);
    b.tx -= (int32_t)bytes;
    if (b.tx < -TX_LIMIT) {
        sim_find(w, op, -1, "the mbarrier at 0x%" PRIx64 " of CTA %d got %d bytes more than it expects: check expect_tx", offset, cta->rank, -b.tx);
        return false;
    }
    return settle(w, op, -1, cta, offset, b);
}

static bool reach_own(sim_warp *w, const sim_op *op, int lane, sim_cta *cta, uint64_t offset) {
    if (offset % 8 == 0 && offset + 8 <= cta->shared_bytes && (cta->shared_shadow[offset] & SHADOW_MBARRIER) != 0) return true;
    sim_find(w, op, lane, "an arrival is to come at 0x%" PRIx64 " of CTA %d's shared memory, where there is no mbarrier", offset, cta->rank);
    return false;
}

bool sim_mbarrier_await(sim_warp *w, const sim_op *op, int lane, sim_cta *cta, uint64_t offset) {
    if (!reach_own(w, op, lane, cta, offset)) return false;
    barrier b = unpack(cta->shared + offset);
    if (b.pending == MAX_COUNT) {
        sim_find(w, op, lane, "more than %d arrivals awaited at an mbarrier", MAX_COUNT);
        return false;
    }
    b.pending++;
    pack(cta->shared + offset, b);
    return true;
}

bool sim_mbarrier_arrive(sim_warp *w, const sim_op *op, int lane, sim_cta *cta, uint64_t offset, const uint32_t *since) {
    if (!reach_own(w, op, lane, cta, offset)) return false;
    barrier b = unpack(cta->shared + offset);
    if (b.pending == 0) {
        sim_find(w, op, lane, "an arrival comes at an mbarrier whose phase awaits nobody: more arrive than it was initialised for (%u)", b.expected);
        return false;
    }
    b.pending--;
    order_mbarrier_arrive(w, cta, offset, since);
    return settle(w, op, lane, cta, offset, b);
}

static uint64_t address_of(sim_warp *w, const sim_op *op, int lane) {
    if (op->address_wide) return ROW(uint64_t, 0)[lane] + (uint64_t)op->offset;
    return (uint32_t)(ROW(uint32_t, 0)[lane] + (uint32_t)op->offset);
}

static sim_flow do_init(sim_warp *w, const sim_op *op, uint32_t mask) {
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        int lane = __builtin_ctz(left);
        uint64_t address = address_of(w, op, lane);
        uint32_t count = ROW(uint32_t, 1)[lane];
        sim_place place;
        if (!sim_reach(w, op, lane, (ptx_space)op->space, address, 8, 8, SIM_WRITE, &place)) return SIM_STOP;
        if (count < 1 || count > MAX_COUNT) return sim_find(w, op, lane, "an mbarrier for %u arrivals; 1 to %d are possible", count, MAX_COUNT);
        if (place.space != PTX_SHARED) return sim_find(w, op, lane, "an mbarrier lies in shared memory, and 0x%" PRIx64 " does not", address);
        if (place.cta == w->cta && !order_write(w, op, -1, place.offset, 8, false)) return SIM_STOP;
        pack(place.bytes, (barrier){.pending = count, .expected = count});
        memset(place.shadow, SHADOW_WRITTEN | SHADOW_GENERIC | SHADOW_MBARRIER, 8);
        place.cta->untold = true;
        sim_mbarrier_made(w, lane, place.cta);
        sim_changed(w);
    }
    return SIM_NEXT;
}

static sim_flow do_inval(sim_warp *w, const sim_op *op, uint32_t mask) {
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        int lane = __builtin_ctz(left);
        sim_place place;
        if (!reach(w, op, lane, address_of(w, op, lane), &place)) return SIM_STOP;
        memset(place.shadow, 0, 8);
    }
    return SIM_NEXT;
}

/* Bytes to come are added, bytes that came taken away. small: the sign. */
static sim_flow do_tx(sim_warp *w, const sim_op *op, uint32_t mask) {
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        int lane = __builtin_ctz(left);
        sim_place place;
        if (!reach(w, op, lane, address_of(w, op, lane), &place)) return SIM_STOP;
        barrier b = unpack(place.bytes);
        uint32_t bytes = ROW(uint32_t, 1)[lane];
        int64_t tx = b.tx + (op->small != 0 ? -(int64_t)bytes : (int64_t)bytes);
        if (tx > TX_LIMIT || tx < -TX_LIMIT) return sim_find(w, op, lane, "%lld bytes under way at an mbarrier; 2^20 - 1 is the limit", (long long)tx);
        b.tx = (int32_t)tx;
        if (!settle(w, op, lane, place.cta, place.offset, b)) return SIM_STOP;
    }
    return SIM_NEXT;
}

/* arg 1: the state's row or none; 2: count or bytes, or none. */
static sim_flow do_arrive(sim_warp *w, const sim_op *op, uint32_t mask) {
    bool expects = sim_has(&op->mods, SIM_MOD_expect_tx), drops = sim_has(&op->mods, SIM_MOD_arrive_drop);
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        int lane = __builtin_ctz(left);
        uint32_t given = op->arg[2] != SIM_NO_ROW ? ROW(uint32_t, 2)[lane] : 1, count = expects ? 1 : given;
        sim_place place;
        if (!reach(w, op, lane, address_of(w, op, lane), &place)) return SIM_STOP;
        barrier b = unpack(place.bytes);
        if (op->arg[1] != SIM_NO_ROW) memcpy(&ROW(uint64_t, 1)[lane], place.bytes, 8);
        if (count < 1 || count > b.pending) {
            return sim_find(w, op, lane, "%u arrivals at an mbarrier whose phase awaits %u of %u: more arrive than it was initialised for", count, b.pending, b.expected);
        }
        if (expects) {
            if ((int64_t)b.tx + given > TX_LIMIT) return sim_find(w, op, lane, "%lld bytes under way at an mbarrier; 2^20 - 1 is the limit", (long long)b.tx + given);
            b.tx += (int32_t)given;
        }
        order_mbarrier_arrive(w, place.cta, place.offset, NULL);
        b.pending -= count;
        if (drops) b.expected -= count;
        if (!sim_mbarrier_reached(w, op, lane, place.cta, place.offset)) return SIM_STOP;
        if (!settle(w, op, lane, place.cta, place.offset, b)) return SIM_STOP;
    }
    return SIM_NEXT;
}

/* Do all lanes ask for the same phase of the same mbarrier, by its parity? */
static bool asks_alike(sim_warp *w, const sim_op *op) {
    if (op->address_wide || !sim_has(&op->mods, SIM_MOD_parity)) return false;
    const uint32_t *addresses = ROW(uint32_t, 0), *phases = ROW(uint32_t, 2);
    uint32_t differ = 0;
    for (int lane = 0; lane < LANES; lane++) differ |= (addresses[lane] ^ addresses[0]) | ((phases[lane] ^ phases[0]) & 1);
    return differ == 0;
}

/* arg 1: the predicate; 2: the phase's parity, or a state. A wait that fails lets the others go first. */
static sim_flow do_wait(sim_warp *w, const sim_op *op, uint32_t mask) {
    const bool alike = asks_alike(w, op);
    uint32_t over = 0;
    for (uint32_t left = alike ? mask & (0 - mask) : mask; left != 0; left &= left - 1) {
        int lane = __builtin_ctz(left);
        sim_place place;
        if (!reach(w, op, lane, address_of(w, op, lane), &place)) return SIM_STOP;
        uint32_t phase;
        if (sim_has(&op->mods, SIM_MOD_parity)) phase = ROW(uint32_t, 2)[lane] & 1;
        else phase = (uint32_t)(ROW(uint64_t, 2)[lane] >> 62 & 1);
        bool is_over = unpack(place.bytes).phase != phase;
        over |= (uint32_t)is_over << lane;
        if (is_over) {
            barrier b = unpack(place.bytes);
            b.unseen = false;
            pack(place.bytes, b);
            order_mbarrier_pass(w, place.cta, place.offset);
            continue;
        }
        w->now->polled = place.offset | (uint64_t)place.cta->rank << SIM_RANK_SHIFT;
        w->now->polled_phase = phase;
    }
    if (alike && over != 0) over = mask;
    sim_store_mask(w, op->arg[1], over, mask);
    if (over == mask) return SIM_NEXT;
    w->now->pc++;
    w->now->wait = SIM_WAIT_POLL;
    return SIM_WAIT;
}

sim_handler select_mbarrier_init(sim_decoding *d) {
    d->code->mbarriers = true;
    return do_init;
}

sim_handler select_mbarrier_inval(sim_decoding *d) {
    (void)d;
    return do_inval;
}

sim_handler select_mbarrier_expect(sim_decoding *d) {
    (void)d;
    return do_tx;
}

sim_handler select_mbarrier_complete(sim_decoding *d) {
    d->op->small = 1;
    return do_tx;
}

sim_handler select_mbarrier_arrive(sim_decoding *d) {
    const ptx_instruction *in = d->instruction;
    int at = in->count > 0 && in->operands[0].kind != PTX_OPERAND_ADDRESS;
    if (in->count < at + 1 || in->count > at + 2) {
        d->why = "a state or _, an address, and perhaps a count";
        return NULL;
    }
    if (sim_mod(d, SIM_MOD_expect_tx) && in->count != at + 2) {
        d->why = "expect_tx says how many bytes";
        return NULL;
    }
    if (at == 1 && in->operands[0].kind != PTX_OPERAND_SINK && sim_decode_target(d, &in->operands[0], PTX_b64, &d->op->arg[1]) != DW_OK) return NULL;
    if (in->count == at + 2 && sim_decode_source(d, &in->operands[at + 1], PTX_u32, &d->op->arg[2]) != DW_OK) return NULL;
    return sim_decode_address(d, &in->operands[at], &d->op->arg[0]) == DW_OK ? do_arrive : NULL;
}

sim_handler select_mbarrier_wait(sim_decoding *d) {
    const ptx_instruction *in = d->instruction;
    ptx_type type = sim_mod(d, SIM_MOD_parity) ? PTX_u32 : PTX_b64;
    if (in->count != 3 && in->count != 4) {
        d->why = "a predicate, an address, a phase, and perhaps a time";
        return NULL;
    }
    if (sim_decode_target(d, &in->operands[0], PTX_pred, &d->op->arg[1]) != DW_OK || sim_decode_source(d, &in->operands[2], type, &d->op->arg[2]) != DW_OK) return NULL;
    return sim_decode_address(d, &in->operands[1], &d->op->arg[0]) == DW_OK ? do_wait : NULL;
}

/* ---- findings about mbarriers when a CTA ends, or no warp goes on ---- */

void sim_mbarrier_describe(const sim_cluster *cluster, uint64_t polled, uint32_t phase, char *text, size_t room) {
    const sim_cta *cta = &cluster->ctas[polled >> SIM_RANK_SHIFT];
    uint64_t offset = polled & ((1u << SIM_RANK_SHIFT) - 1);
    barrier b = unpack(cta->shared + offset);
    snprintf(text, room, " for the end of phase %u of the mbarrier at 0x%" PRIx64 " of CTA %d, which is in phase %u and awaits %u of %u arrivals and %d bytes", phase, offset, cta->rank,
             b.phase, b.pending, b.expected, b.tx);
}

void sim_mbarriers_at_end(sim_warp *w) {
    const sim_cta *cta = w->cta;
    for (uint64_t at = SIM_SHARED_RESERVED; at + 8 <= cta->shared_bytes; at += 8) {
        if ((cta->shared_shadow[at] & SHADOW_MBARRIER) == 0) continue;
        barrier b = unpack(cta->shared + at);
        int32_t tx = b.tx;
        if (tx == 0 && b.pending != b.expected && !w->launch->options->phases_unseen) {
            sim_find(w, NULL, -1, "the CTA ends while the mbarrier at 0x%" PRIx64 " still awaits %u of %u arrivals: one is missing, or it was initialised for too many (option phases=unseen allows it)",
                     at, b.pending, b.expected);
            return;
        }
        if (tx == 0) continue;
        sim_find(w, NULL, -1, "the CTA ends while the mbarrier at 0x%" PRIx64 " %s %d bytes: expect_tx must say as many as its copies bring", at,
                 tx > 0 ? "still expects" : "was brought, beyond what it expected,", tx > 0 ? tx : -tx);
        return;
    }
}

bool sim_mbarrier_unseen(const sim_cta *cta, uint64_t offset) {
    return (cta->shared_shadow[offset] & SHADOW_MBARRIER) != 0 && unpack(cta->shared + offset).unseen;
}

void sim_reached_at_end(sim_warp *w) {
    const sim_cta *cta = w->cta;
    for (size_t i = 0; i < cta->reached_count && !w->launch->options->exit_early; i++) {
        const sim_reached *r = &cta->reached[i];
        if (cta->met >= r->phase || !sim_mbarrier_unseen(cta, r->mbarrier)) continue;
        sim_find(w, r->by, -1, "the CTA of rank %d ends, and nothing says that this arrival of another CTA has come to its mbarrier at 0x%" PRIx64 ": wait for that, or at the cluster's barrier (option exit=early allows it)",
                 cta->rank, r->mbarrier);
        return;
    }
}

void sim_mbarriers_tell(sim_cta *cta) {
    uint8_t *shadow = cta->shared_shadow;
    for (size_t i = 0; i < cta->shared_bytes && cta->untold; i++) {
        if ((shadow[i] & SHADOW_MBARRIER) != 0) shadow[i] &= (uint8_t)~SHADOW_GENERIC;
    }
    cta->untold = false;
}

/* fence.mbarrier_init: other CTAs may use the mbarriers that were initialised before. */
static sim_flow do_fence_init(sim_warp *w, const sim_op *op, uint32_t mask) {
    (void)op;
    (void)mask;
    sim_mbarriers_tell(w->cta);
    return SIM_NEXT;
}

sim_handler select_fence_init(sim_decoding *d) {
    (void)d;
    return do_fence_init;
}

/* ---- fence.proxy.async: from here on, asynchronous copies may read what was stored in the CTA's shared memory, and overwrite what was read there ---- */

static sim_flow clear_shadows(sim_warp *w, uint8_t shadows) {
    uint8_t *shadow = w->cta->shared_shadow;
    for (size_t i = 0; i < w->cta->shared_bytes; i++) shadow[i] &= (uint8_t)~shadows;
    order_fence(w, (shadows & SHADOW_GENERIC) != 0);
    return SIM_NEXT;
}

static sim_flow do_fence_proxy(sim_warp *w, const sim_op *op, uint32_t mask) {
    (void)op;
    (void)mask;
    return clear_shadows(w, SHADOW_GENERIC | SHADOW_READ);
}

/* fence.proxy.async::generic.release: reads by ordinary loads come before what copies do next. */
static sim_flow do_fence_release(sim_warp *w, const sim_op *op, uint32_t mask) {
    (void)op;
    (void)mask;
    return clear_shadows(w, SHADOW_READ);
}

sim_handler select_fence_generic(sim_decoding *d) { return sim_mod(d, SIM_MOD_release) ? do_fence_release : select_nothing(d); }

sim_handler select_fence_proxy(sim_decoding *d) { return sim_mod(d, SIM_MOD_global) ? select_nothing(d) : do_fence_proxy; }

/* A state is the object before the arrival. */
static sim_flow do_pending_count(sim_warp *w, const sim_op *op, uint32_t mask) {
    const uint64_t *states = ROW(uint64_t, 1);
    uint32_t counts[LANES];
    for (int i = 0; i < LANES; i++) counts[i] = (uint32_t)(states[i] & MAX_COUNT);
    STORE_ROW(uint32_t, 0, counts, mask);
    return SIM_NEXT;
}

sim_handler select_pending_count(sim_decoding *d) {
    (void)d;
    return do_pending_count;
}
