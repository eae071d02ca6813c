/* How a warp runs: its lanes as fragments that diverge at branches and merge where they meet, calls and returns, and waiting.
 *
 * Of the fragments that can run, the one in the innermost call and there at the lowest instruction goes first, and those that reach the same
 * instruction of the same activation become one: so lanes meet again behind an if or a loop as compilers lay code out. A fragment that spins is
 * passed over in favour of the others. */
#include "call.h"
#include "order.h"
#include "trace.h"

#include <stdlib.h>

enum { SPIN_LIMIT = 64, MAX_SPARE_BYTES = 1 << 28 };

/* ---- frames: those of warps that ended serve the next ones, since their memory is large and is asked for in every launch ---- */

static bool fits(const sim_frame *frame, size_t room) { return frame->room >= room && frame->room < room * 4 + 4096; }

static sim_frame *take_spare(sim_spares *spares, size_t room) {
    sim_frame *found = NULL;
    pthread_mutex_lock(&spares->lock);
    for (sim_frame **at = &spares->first; *at != NULL; at = &(*at)->parent) {
        if (!fits(*at, room)) continue;
        found = *at;
        *at = found->parent;
        spares->bytes -= found->room;
        break;
    }
    pthread_mutex_unlock(&spares->lock);
    return found;
}

static void free_frame(sim_frame *frame) {
    free(frame->registers);
    free(frame);
}

static void give_spare(sim_spares *spares, sim_frame *frame) {
    pthread_mutex_lock(&spares->lock);
    bool kept = spares->bytes + frame->room <= MAX_SPARE_BYTES;
    if (kept) {
        frame->parent = spares->first;
        spares->first = frame;
        spares->bytes += frame->room;
    }
    pthread_mutex_unlock(&spares->lock);
    if (!kept) free_frame(frame);
}

void sim_spares_free(sim_spares *spares) {
    while (spares->first != NULL) {
        sim_frame *next = spares->first->parent;
        free_frame(spares->first);
        spares->first = next;
    }
    spares->bytes = 0;
}

static sim_frame *take_frame(sim_warp *w, sim_code *code, sim_frame *parent, uint32_t lanes) {
    sim_frame *frame = NULL;
    size_t room = base_align_up(code->register_bytes, 64) + 64;
    for (sim_frame **at = &w->free_frames; *at != NULL; at = &(*at)->parent) {
        if (fits(*at, room)) {
            frame = *at;
            *at = frame->parent;
            break;
        }
    }
    if (frame == NULL) frame = take_spare(w->launch->spares, room);
    if (frame == NULL) {
        frame = malloc(sizeof *frame);
        if (frame == NULL) return NULL;
        *frame = (sim_frame){.room = room, .registers = aligned_alloc(64, room)};
        if (frame->registers == NULL) {
            free(frame);
            return NULL;
        }
    }
    memset(frame->registers, 0, code->shared_rows_at);
    memset(frame->registers + code->shared_rows_end, 0, code->register_bytes - code->shared_rows_end);
    frame->code = code;
    frame->parent = parent;
    frame->lanes = lanes;
    frame->depth = parent != NULL ? parent->depth + 1 : 0;
    frame->local_base = parent != NULL ? parent->local_base + parent->code->local_bytes : 0;
    frame->call = NULL;
    return frame;
}

static void give_frame(sim_warp *w, sim_frame *frame) {
    frame->parent = w->free_frames;
    w->free_frames = frame;
}

static void enter(sim_warp *w, sim_frame *frame) {
    w->base[0] = frame->registers;
    w->base[1] = frame->code->constants;
}

void sim_warp_start(sim_warp *w) {
    sim_code *code = w->launch->code;
    sim_frame *frame = take_frame(w, code, NULL, w->lanes);
    w->live = w->lanes;
    w->fragment_count = 0;
    if (frame == NULL) {
        w->live = 0;
        sim_find(w, NULL, -1, "no memory for the registers of a warp (%zu bytes)", code->register_bytes);
        return;
    }
    w->fragments[0] = (sim_fragment){.mask = w->lanes, .frame = frame};
    w->fragment_count = 1;
    enter(w, frame);
    sim_given_fill(w, frame, w->lanes);
}

void sim_warp_free(sim_warp *w) {
    while (w->fragment_count > 0) {   /* of a launch that was stopped: frames are shared, so they are collected first */
        sim_frame *frame = w->fragments[0].frame;
        if (frame == NULL) {
            w->fragments[0] = w->fragments[--w->fragment_count];
            continue;
        }
        for (int i = 0; i < w->fragment_count; i++) {
            if (w->fragments[i].frame->depth > frame->depth) frame = w->fragments[i].frame;
        }
        sim_frame *parent = frame->parent;
        for (int i = 0; i < w->fragment_count; i++) {
            if (w->fragments[i].frame != frame) continue;
            w->fragments[i].frame = parent;
            if (parent == NULL) w->fragments[i--] = w->fragments[--w->fragment_count];
        }
        give_frame(w, frame);
    }
    while (w->free_frames != NULL) {
        sim_frame *next = w->free_frames->parent;
        give_spare(w->launch->spares, w->free_frames);
        w->free_frames = next;
    }
    free(w->local);
    free(w->copies);
    free(w->sources);
    free(w->products);
    free(w->local_shadow);
    w->local = w->local_shadow = NULL;
}

/* ---- fragments ---- */

/* Lanes mask of the running fragment part from it and go to pc; the rest stays the running one. False: there was no rest. */
static sim_fragment *split(sim_warp *w, uint32_t mask) {
    sim_fragment *now = w->now;
    if (mask == now->mask) return now;
    sim_fragment *other = &w->fragments[w->fragment_count++];
    *other = *now;
    other->mask = mask;
    now->mask &= ~mask;
    return other;
}

static void remove_fragment(sim_warp *w, sim_fragment *fragment) { *fragment = w->fragments[--w->fragment_count]; }

static bool before(const sim_fragment *a, const sim_fragment *b) {
    if (a->passed_over != b->passed_over) return b->passed_over;
    return a->frame->depth != b->frame->depth ? a->frame->depth > b->frame->depth : a->pc < b->pc;
}

/* Fragments at one place become one, but those that wait for different lanes. A waiting one that others join looks again. */
static void merge(sim_warp *w) {
    for (int i = 0; i < w->fragment_count; i++) {
        for (int k = i + 1; k < w->fragment_count; k++) {
            sim_fragment *a = &w->fragments[i], *b = &w->fragments[k];
            bool waits = a->wait > SIM_WAIT_LANES || b->wait > SIM_WAIT_LANES;
            bool apart = a->wait == SIM_WAIT_LANES && b->wait == SIM_WAIT_LANES && a->wait_mask != b->wait_mask;
            if (a->pc != b->pc || a->frame != b->frame || waits || apart) continue;
            a->mask |= b->mask;
            a->wait = SIM_READY;
            a->passed_over = a->passed_over && b->passed_over;
            remove_fragment(w, b);
            k = i;
        }
    }
}

static sim_fragment *choose(sim_warp *w) {
    sim_fragment *best = NULL;
    for (int pass = 0; pass < 2 && best == NULL; pass++) {
        for (int i = 0; i < w->fragment_count; i++) {
            sim_fragment *f = &w->fragments[i];
            if (f->wait == SIM_READY && (best == NULL || before(f, best))) best = f;
        }
    }
    if (best != NULL && best->passed_over) {   /* all spin: take turns */
        for (int i = 0; i < w->fragment_count; i++) w->fragments[i].passed_over = false;
    }
    return best;
}

/* The instruction at which the running fragment meets another of its activation; beyond it the other goes first. */
static uint32_t meeting(const sim_warp *w) {
    uint32_t limit = UINT32_MAX;
    for (int i = 0; i < w->fragment_count; i++) {
        const sim_fragment *f = &w->fragments[i];
        if (f == w->now || f->frame != w->now->frame || f->wait > SIM_WAIT_LANES) continue;
        if (f->pc >= w->now->pc && f->pc < limit && (f->pc > w->now->pc || f->wait == SIM_READY)) limit = f->pc;
    }
    return limit;
}

bool sim_together(sim_warp *w, uint32_t members, uint32_t mask) {
    members &= w->live;
    if ((members & ~mask) == 0) {
        order_lanes_meet(w);
        return true;
    }
    sim_fragment *mine = split(w, mask);
    if (mine != w->now) w->now->pc++;   /* those whose guard does not hold go on */
    mine->wait = SIM_WAIT_LANES;
    mine->wait_mask = members;
    return false;
}

sim_flow sim_in_groups(sim_warp *w, const sim_op *op, uint32_t mask, const uint32_t *masks, sim_completes completes, sim_handler run) {
    struct { uint32_t lanes, members; } waiting[LANES];
    int count = 0;
    for (uint32_t left = mask, group = 0; left != 0; left &= ~group) {
        int first = __builtin_ctz(left);
        uint32_t members = masks[first];
        group = 0;
        for (int i = first; i < LANES; i++) group |= (uint32_t)((left >> i & 1) != 0 && masks[i] == members) << i;
        uint32_t unnamed = group & ~members, elsewhere = members & mask & ~group;
        if (unnamed != 0) return sim_find(w, op, __builtin_ctz(unnamed), "the lane executes this and is not named in its mask 0x%08x", members);
        if (elsewhere != 0) {
            int lane = __builtin_ctz(elsewhere);
            return sim_find(w, op, lane, "the lane is named in the mask 0x%08x of lane %d, and names the mask 0x%08x itself", members, first, masks[lane]);
        }
        if (!completes(w, op, group, members & w->live)) {
            waiting[count].lanes = group;
            waiting[count++].members = members & w->live;
            continue;
        }
        order_lanes_meet(w);
        sim_flow flow = run(w, op, group);
        if (flow != SIM_NEXT) return flow;
    }
    if (count == 0) return SIM_NEXT;
    for (int i = 0; i < count; i++) {
        sim_fragment *now = w->now, *part = split(w, waiting[i].lanes);
        part->wait = SIM_WAIT_LANES;
        part->wait_mask = waiting[i].members;
        if (part == now) return SIM_WAIT;
    }
    w->now->pc++;   /* the rest: lanes that are done, and those whose guard does not hold */
    return SIM_WAIT;
}

static void wake_pollers(sim_warp *w) {
    for (int i = 0; i < w->fragment_count; i++) {
        if (w->fragments[i].wait != SIM_WAIT_POLL) continue;
        w->fragments[i].wait = SIM_READY;
        w->fragments[i].polled = 0;
    }
}

/* Some lanes left: those who wait for others may be complete. */
static void recheck_waiting(sim_warp *w) {
    for (int i = 0; i < w->fragment_count; i++) {
        sim_fragment *f = &w->fragments[i];
        if (f->wait == SIM_WAIT_LANES && (f->wait_mask & w->live & ~f->mask) == 0) f->wait = SIM_READY;
    }
}

bool sim_warp_run(sim_warp *w, uint64_t quantum) {
    uint64_t executed = 0, threads = 0;
    bool poll = false;
    wake_pollers(w);
    while (executed < quantum && !poll && !w->cta->cluster->stopped) {
        if (w->fragment_count > 1) merge(w);
        sim_fragment *now = choose(w);
        if (now == NULL) break;
        w->now = now;
        sim_frame *frame = now->frame;
        enter(w, frame);
        const sim_op *ops = frame->code->ops;
        uint32_t limit = w->fragment_count > 1 ? meeting(w) : UINT32_MAX;
        uint32_t pc = now->pc, all = now->mask;
        sim_flow flow = SIM_NEXT;
        bool traced = w->trace != NULL;
        while (executed < quantum) {
            const sim_op *op = &ops[pc];
            uint32_t mask = all;
            if (op->guard != SIM_NO_ROW) {
                uint32_t guard = *(const uint32_t *)sim_row(w, op->guard);
                mask &= op->guard_negated ? ~guard : guard;
            }
            executed++;
            if (traced) sim_trace_before(w, op, mask);
            if (mask != 0) {
                threads += (uint64_t)__builtin_popcount(mask);
                now->pc = pc;
                flow = op->run(w, op, mask);
            }
            if (traced) {
                sim_trace_after(w, op, mask, flow);
                traced = w->trace != NULL;
            }
            if (flow != SIM_NEXT) break;
            pc++;
            if (pc >= limit) {
                flow = SIM_NEXT;
                break;
            }
        }
        if (flow == SIM_NEXT) {
            now->pc = pc;
        } else if (flow == SIM_STOP) {
            w->cta->cluster->stopped = true;
        } else if (flow == SIM_WAIT) {
            for (int i = 0; i < w->fragment_count; i++) poll |= w->fragments[i].wait == SIM_WAIT_POLL;
            if (poll) {
                bool others = false;
                for (int i = 0; i < w->fragment_count; i++) others |= w->fragments[i].wait == SIM_READY;
                poll = !others;
            }
        }
        if (w->fragment_count == 0) break;
    }
    w->executed += executed;
    w->thread_instructions += threads;
    return executed > 0;
}

/* ---- branches ---- */

sim_flow sim_bra(sim_warp *w, const sim_op *op, uint32_t mask) {
    bool back = (uint32_t)op->offset <= w->now->pc;
    sim_fragment *taken = split(w, mask);
    if (taken != w->now) w->now->pc++;
    taken->pc = (uint32_t)op->offset;
    if (back && w->fragment_count > 1 && ++w->spins > SPIN_LIMIT) {
        w->spins = 0;
        taken->passed_over = true;
    }
    return SIM_JUMPED;
}

sim_flow sim_brx(sim_warp *w, const sim_op *op, uint32_t mask) {
    const uint32_t *index = ROW(uint32_t, 0), *targets = op->extra;
    uint32_t left = mask, here = w->now->pc;
    sim_fragment *origin = w->now;
    while (left != 0) {
        int first = __builtin_ctz(left);
        uint32_t same = 0;
        if (index[first] >= (uint64_t)op->offset) {
            return sim_find(w, op, first, "the index %u is outside the table of %lld targets", index[first], (long long)op->offset);
        }
        for (int i = first; i < LANES; i++) {
            if (left >> i & 1 && index[i] == index[first]) same |= 1u << i;
        }
        left &= ~same;
        w->now = origin;
        sim_fragment *taken = split(w, same);
        taken->pc = targets[index[first]];
        if (taken == origin) return SIM_JUMPED;
    }
    origin->pc = here + 1;
    return SIM_JUMPED;
}

/* ---- leaving ---- */

static void leave_frames(sim_warp *w, sim_frame *frame, uint32_t mask) {
    while (frame != NULL) {
        sim_frame *parent = frame->parent;
        frame->lanes &= ~mask;
        if (frame->lanes == 0) give_frame(w, frame);
        frame = parent;
    }
}

sim_flow sim_exit(sim_warp *w, const sim_op *op, uint32_t mask) {
    (void)op;
    sim_fragment *leaving = split(w, mask);
    sim_frame *frame = leaving->frame;
    if (leaving != w->now) w->now->pc++;
    remove_fragment(w, leaving);
    leave_frames(w, frame, mask);
    w->live &= ~mask;
    recheck_waiting(w);
    return SIM_JUMPED;
}

static uint8_t *local_at(sim_warp *w, int lane, size_t at) { return w->local + (size_t)lane * w->local_bytes + at; }
static uint8_t *local_shadow_at(sim_warp *w, int lane, size_t at) { return w->local_shadow + (size_t)lane * w->local_bytes + at; }

static void pass(sim_warp *w, const sim_pass *p, sim_frame *from, sim_frame *to, size_t from_at, size_t to_at, uint32_t from_row, uint32_t to_row, uint32_t mask) {
    for (int lane = 0; lane < LANES; lane++) {
        if ((mask >> lane & 1) == 0) continue;
        if (p->bytes > 0) {
            memcpy(local_at(w, lane, to->local_base + to_at), local_at(w, lane, from->local_base + from_at), p->bytes);
            memcpy(local_shadow_at(w, lane, to->local_base + to_at), local_shadow_at(w, lane, from->local_base + from_at), p->bytes);
        } else {
            const uint8_t *source = (from_row & SIM_CONSTANT_ROW) != 0 ? from->code->constants + (from_row & ~SIM_CONSTANT_ROW) : from->registers + from_row;
            size_t bytes = (size_t)p->row_bits / 8;
            memcpy(to->registers + to_row + (size_t)lane * bytes, source + (size_t)lane * bytes, bytes);
        }
    }
}

sim_flow sim_ret(sim_warp *w, const sim_op *op, uint32_t mask) {
    sim_frame *frame = w->now->frame;
    if (frame->parent == NULL) return sim_exit(w, op, mask);
    const sim_call *call = frame->call;
    sim_frame *parent = frame->parent;
    for (int i = 0; i < call->result_count; i++) {
        const sim_pass *p = &call->results[i];
        pass(w, p, frame, parent, p->callee, p->caller, p->callee_row, p->caller_row, mask);
    }
    sim_fragment *leaving = split(w, mask);
    if (leaving != w->now) w->now->pc++;
    leaving->frame = parent;
    leaving->pc = frame->return_pc;
    frame->lanes &= ~mask;
    if (frame->lanes == 0) give_frame(w, frame);
    return SIM_JUMPED;
}

/* others: lanes that are to call something else stay at the instruction. */
static sim_flow enter_function(sim_warp *w, const sim_op *op, const sim_call *call, uint32_t mask, bool others) {
    sim_frame *from = w->now->frame;
    size_t need = from->local_base + from->code->local_bytes + call->callee->local_bytes;
    if (need > w->local_bytes) {
        return sim_find(w, op, __builtin_ctz(mask), "the call of %s needs %zu bytes of local memory, and a thread has %zu: recursion too deep?", call->name, need, w->local_bytes);
    }
    sim_frame *to = take_frame(w, call->callee, from, mask);
    if (to == NULL) return sim_find(w, op, -1, "no memory for the registers of %s", call->name);
    to->call = call;
    to->return_pc = w->now->pc + 1;
    for (int lane = 0; lane < LANES; lane++) {
        if ((mask >> lane & 1) != 0 && call->callee->local_bytes > 0) memset(local_shadow_at(w, lane, to->local_base), 0, call->callee->local_bytes);
    }
    for (int i = 0; i < call->argument_count; i++) {
        const sim_pass *p = &call->arguments[i];
        pass(w, p, from, to, p->caller, p->callee, p->caller_row, p->callee_row, mask);
    }
    sim_fragment *calling = split(w, mask);
    if (calling != w->now && !others) w->now->pc++;
    calling->frame = to;
    calling->pc = 0;
    enter(w, to);
    sim_given_fill(w, to, mask);
    enter(w, from);
    return SIM_JUMPED;
}

sim_flow sim_call_function(sim_warp *w, const sim_op *op, uint32_t mask) { return enter_function(w, op, op->extra, mask, false); }

sim_flow sim_call_pointer(sim_warp *w, const sim_op *op, uint32_t mask) {
    const sim_targets *targets = op->extra;
    const uint64_t *address = ROW(uint64_t, 0);
    const int first = __builtin_ctz(mask);
    const ptx_function *function = sim_function_at(w->launch->code->module, address[first]);
    uint32_t same = 0;
    for (int lane = first; lane < LANES; lane++) same |= (uint32_t)((mask >> lane & 1) != 0 && address[lane] == address[first]) << lane;
    for (int i = 0; i < targets->count; i++) {
        if (targets->calls[i].callee->function == function) return enter_function(w, op, &targets->calls[i], same, same != mask);
    }
    return sim_find(w, op, first, "calls through the pointer 0x%llx, which is %s%s", (unsigned long long)address[first], function != NULL ? function->name : "no function's address",
                    function != NULL ? ", whose parameters and results are others" : "");
}
