/* Barriers of the warp, the CTA and the cluster (PTX ISA 9.7.13.1 to 3). */
#include "decode.h"
#include "sim/machine/order.h"
#include "sim/machine/race.h"

static int count_bits(uint32_t mask) { return __builtin_popcount(mask); }

static int live_threads(const sim_cta *cta) {
    int live = 0;
    for (int i = 0; i < cta->warp_count; i++) live += count_bits(cta->warps[i].live);
    return live;
}

/* ---- the warp ---- */

/* Lanes may come from different places: all that wait at a bar.warp.sync with this mask count. */
static bool waits_with(const sim_fragment *f, const sim_op *op, uint32_t members) {
    return f->wait == SIM_WAIT_LANES && f->frame->code->ops[f->pc].run == op->run && f->wait_mask == members;
}

static bool all_at_barrier(sim_warp *w, const sim_op *op, uint32_t group, uint32_t members) {
    for (int i = 0; i < w->fragment_count; i++) {
        if (waits_with(&w->fragments[i], op, members)) group |= w->fragments[i].mask;
    }
    return (members & ~group) == 0;
}

static sim_flow pass_barrier(sim_warp *w, const sim_op *op, uint32_t group) {
    const uint32_t members = ROW(uint32_t, 0)[__builtin_ctz(group)] & w->live;
    for (int i = 0; i < w->fragment_count; i++) {
        sim_fragment *f = &w->fragments[i];
        if (!waits_with(f, op, members)) continue;
        f->wait = SIM_READY;
        f->pc++;
    }
    return SIM_NEXT;
}

static sim_flow do_bar_warp(sim_warp *w, const sim_op *op, uint32_t mask) { return sim_in_groups(w, op, mask, ROW(uint32_t, 0), all_at_barrier, pass_barrier); }

sim_handler select_bar_warp(sim_decoding *d) {
    (void)d;
    return do_bar_warp;
}

/* ---- the CTA ---- */

static bool complete(const sim_cta *cta, const sim_barrier *b) { return b->arrived >= (b->expected > 0 ? b->expected : live_threads(cta)); }

void sim_release_barrier(sim_cta *cta, int barrier) {
    sim_barrier *b = &cta->barriers[barrier];
    *b = (sim_barrier){.all = true, .count_before = b->count, .all_before = b->all, .any_before = b->any};
    for (int k = 0; k < cta->warp_count; k++) {
        sim_warp *w = &cta->warps[k];
        for (int i = 0; i < w->fragment_count; i++) {
            sim_fragment *f = &w->fragments[i];
            if (f->wait != SIM_WAIT_BARRIER || f->barrier != barrier) continue;
            f->wait = SIM_READY;
            order_barrier_pass(w, barrier);
            f->has_result = f->wants_result;
            f->wants_result = false;
        }
    }
}

void sim_barriers_after_exit(sim_cta *cta) {
    for (int i = 0; i < SIM_BARRIERS; i++) {
        sim_barrier *b = &cta->barriers[i];
        if (b->arrived > 0 && b->expected == 0 && complete(cta, b)) sim_release_barrier(cta, i);
    }
}

/* The barrier's number and count of threads (0: all that live), and whether the lanes agree on them. */
static bool read_barrier(sim_warp *w, const sim_op *op, uint32_t mask, int at, int *barrier, int *expected, sim_flow *flow) {
    int lane = __builtin_ctz(mask);
    uint32_t number = ROW(uint32_t, at)[lane], count = op->arg[at + 1] != SIM_NO_ROW ? ROW(uint32_t, at + 1)[lane] : 0;
    if (number >= SIM_BARRIERS) {
        *flow = sim_find(w, op, lane, "barrier %u: a CTA has barriers 0 to %d", number, SIM_BARRIERS - 1);
        return false;
    }
    if (count % LANES != 0 || count > 1024) {
        *flow = sim_find(w, op, lane, "barrier %u is for %u threads, which is no multiple of 32 up to 1024", number, count);
        return false;
    }
    sim_barrier *b = &w->cta->barriers[number];
    if (b->arrived > 0 && b->expected != (int)count) {
        *flow = sim_find(w, op, lane, "barrier %u is awaited with a count of %u threads here and %d elsewhere", number, count, b->expected);
        return false;
    }
    *barrier = (int)number;
    *expected = (int)count;
    return true;
}

/* Threads that an arrival counts as: with a count, whole warps. */
static int weight(const sim_warp *w, const sim_op *op, uint32_t mask, int expected) { return op->small != 0 && expected > 0 ? LANES : count_bits(mask & w->live); }

static bool arrive(sim_warp *w, sim_barrier *b, int number, int expected, int threads) {
    order_barrier_arrive(w, number);
    b->expected = expected;
    b->arrived += threads;
    if (!complete(w->cta, b)) return false;
    sim_release_barrier(w->cta, number);
    return true;
}

static void wait_at(sim_warp *w, int number, bool wants_result) {
    w->now->wait = SIM_WAIT_BARRIER;
    w->now->barrier = number;
    w->now->wants_result = wants_result;
}

/* A fragment whose guard excludes some lanes waits apart from them. */
static void whole_fragment(sim_warp *w, uint32_t mask) {
    if (w->now->mask == mask) return;
    sim_fragment *others = &w->fragments[w->fragment_count++];
    *others = *w->now;
    others->mask = w->now->mask & ~mask;
    others->pc++;
    w->now->mask = mask;
}

static sim_flow do_bar_sync(sim_warp *w, const sim_op *op, uint32_t mask) {
    int number, expected;
    sim_flow flow;
    if (op->small != 0 && !sim_together(w, w->live, mask)) return SIM_WAIT;
    if (!read_barrier(w, op, mask, 0, &number, &expected, &flow)) return flow;
    whole_fragment(w, mask);
    if (arrive(w, &w->cta->barriers[number], number, expected, weight(w, op, mask, expected))) {
        order_barrier_pass(w, number);
        w->now->pc++;
        return SIM_JUMPED;
    }
    w->now->pc++;   /* it goes on behind the barrier */
    wait_at(w, number, false);
    return SIM_WAIT;
}

static sim_flow do_bar_arrive(sim_warp *w, const sim_op *op, uint32_t mask) {
    int number, expected;
    sim_flow flow;
    if (op->small != 0 && !sim_together(w, w->live, mask)) return SIM_WAIT;
    if (!read_barrier(w, op, mask, 0, &number, &expected, &flow)) return flow;
    arrive(w, &w->cta->barriers[number], number, expected, weight(w, op, mask, expected));
    return SIM_NEXT;
}

/* bar and barrier.aligned: all lanes of the warp together. */
static bool is_aligned(const sim_decoding *d) { return sim_mod(d, SIM_MOD_aligned) || strncmp(d->instruction->opcode, "bar.", 4) == 0; }

sim_handler select_bar_sync(sim_decoding *d) {
    d->op->small = is_aligned(d);
    return do_bar_sync;
}

sim_handler select_bar_arrive(sim_decoding *d) {
    d->op->small = is_aligned(d);
    return do_bar_arrive;
}

/* arg 0 result, 1 barrier, 2 count, 3 predicate; offset: its negation. It waits at the instruction itself and reads the result when the barrier has
 * opened. */
static sim_flow do_bar_red(sim_warp *w, const sim_op *op, uint32_t mask) {
    int number, expected;
    sim_flow flow;
    if (op->small != 0 && !sim_together(w, w->live, mask)) return SIM_WAIT;
    sim_barrier *b = &w->cta->barriers[w->now->barrier];
    if (!w->now->has_result) {
        if (!read_barrier(w, op, mask, 1, &number, &expected, &flow)) return flow;
        b = &w->cta->barriers[number];
        uint32_t set = (op->offset != 0 ? ~*ROW(uint32_t, 3) : *ROW(uint32_t, 3)) & mask;
        b->count += (uint32_t)count_bits(set);
        b->all = b->all && set == mask;
        b->any = b->any || set != 0;
        whole_fragment(w, mask);
        if (!arrive(w, b, number, expected, weight(w, op, mask, expected))) {
            wait_at(w, number, true);
            return SIM_WAIT;
        }
        order_barrier_pass(w, number);
    }
    w->now->has_result = false;
    if (sim_has(&op->mods, SIM_MOD_popc)) {
        for (int i = 0; i < LANES; i++) {
            if (mask >> i & 1) ROW(uint32_t, 0)[i] = b->count_before;
        }
    } else {
        bool value = sim_has(&op->mods, SIM_MOD_and) ? b->all_before : b->any_before;
        sim_store_mask(w, op->arg[0], value ? SIM_ALL_LANES : 0, mask);
    }
    w->now->pc++;
    return SIM_JUMPED;   /* the fragment may have been parted */
}

sim_handler select_bar_red(sim_decoding *d) {
    const ptx_instruction *in = d->instruction;
    ptx_type type = sim_mod(d, SIM_MOD_popc) ? PTX_u32 : PTX_pred;
    if (in->count != 3 && in->count != 4) {
        d->why = "a result, a barrier, perhaps a count, and a predicate";
        return NULL;
    }
    ptx_operand predicate = in->operands[in->count - 1];
    d->op->offset = predicate.negated;
    predicate.negated = false;
    d->op->small = is_aligned(d);
    if (sim_decode_target(d, &in->operands[0], type, &d->op->arg[0]) != DW_OK || sim_decode_source(d, &in->operands[1], PTX_u32, &d->op->arg[1]) != DW_OK ||
        (in->count == 4 && sim_decode_source(d, &in->operands[2], PTX_u32, &d->op->arg[2]) != DW_OK) || sim_decode_source(d, &predicate, PTX_pred, &d->op->arg[3]) != DW_OK) {
        return NULL;
    }
    return do_bar_red;
}

/* ---- the cluster: threads arrive and wait apart ---- */

static uint32_t cluster_threads(const sim_cluster *cluster) {
    uint32_t live = 0;
    for (int i = 0; i < cluster->cta_count; i++) live += (uint32_t)live_threads(&cluster->ctas[i]);
    return live;
}

void sim_release_cluster(sim_cluster *cluster) {
    if (cluster->arrived == 0 || cluster->arrived < cluster_threads(cluster)) return;
    cluster->arrived = 0;
    cluster->phase++;
    for (int i = 0; i < cluster->cta_count; i++) {
        for (int k = 0; k < cluster->ctas[i].warp_count; k++) {
            sim_warp *w = &cluster->ctas[i].warps[k];
            for (int f = 0; f < w->fragment_count; f++) {
                if (w->fragments[f].wait == SIM_WAIT_CLUSTER) w->fragments[f].wait = SIM_READY;
            }
        }
    }
}

static sim_flow do_cluster_arrive(sim_warp *w, const sim_op *op, uint32_t mask) {
    sim_cluster *cluster = w->cta->cluster;
    if (op->small != 0 && !sim_together(w, w->live, mask)) return SIM_WAIT;
    for (int i = 0; i < LANES; i++) {
        if ((mask >> i & 1) == 0) continue;
        if (w->cluster_phase[i] == cluster->phase + 1) return sim_find(w, op, i, "arrives twice at the cluster's barrier without waiting in between: add barrier.cluster.wait");
        w->cluster_phase[i] = cluster->phase + 1;
    }
    order_through(w);
    if (cluster->cta_count > 1 && !sim_has(&op->mods, SIM_MOD_relaxed)) {
        sim_mbarriers_tell(w->cta);
        race_cluster_release(w);
    }
    cluster->arrived += (uint32_t)count_bits(mask);
    sim_release_cluster(cluster);
    return SIM_NEXT;
}

static sim_flow do_cluster_wait(sim_warp *w, const sim_op *op, uint32_t mask) {
    sim_cluster *cluster = w->cta->cluster;
    if (op->small != 0 && !sim_together(w, w->live, mask)) return SIM_WAIT;
    for (int i = 0; i < LANES; i++) {
        if ((mask >> i & 1) == 0) continue;
        if (w->cluster_phase[i] == 0) return sim_find(w, op, i, "waits at the cluster's barrier without having arrived: add barrier.cluster.arrive");
        if (w->cluster_phase[i] > cluster->phase) {
            whole_fragment(w, mask);
            w->now->wait = SIM_WAIT_CLUSTER;
            return SIM_WAIT;
        }
    }
    for (int i = 0; i < LANES; i++) {
        if ((mask >> i & 1) == 0) continue;
        sim_cluster_met(w->cta, w->cluster_phase[i]);
        w->cluster_phase[i] = 0;
    }
    order_through(w);
    race_cluster_acquire(w);
    return SIM_NEXT;
}

sim_handler select_cluster_arrive(sim_decoding *d) {
    d->op->small = sim_mod(d, SIM_MOD_aligned);
    return do_cluster_arrive;
}

sim_handler select_cluster_wait(sim_decoding *d) {
    d->op->small = sim_mod(d, SIM_MOD_aligned);
    return do_cluster_wait;
}

/* ---- nanosleep ---- */

/* Others first; then on. */
static sim_flow do_nanosleep(sim_warp *w, const sim_op *op, uint32_t mask) {
    (void)op;
    (void)mask;
    w->now->pc++;
    w->now->wait = SIM_WAIT_POLL;
    return SIM_WAIT;
}

sim_handler select_nanosleep(sim_decoding *d) {
    (void)d;
    return do_nanosleep;
}
