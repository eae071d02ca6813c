/* setmaxnreg (PTX ISA 9.7.20.5): warps give registers back to their CTA and take them from there, and wait until there are enough.
 *
 * A CTA begins with none to give: what its warps have, they have from the launch. Only setmaxnreg.dec gives back; whether a warp that ends does so as well, the
 * ISA does not say, and here it does not. Values of registers do not depend on any of it. */
#include "decode.h"

#include <limits.h>

enum { UNIT_REGISTERS = 65536, UNIT_THREADS = 2048, GRANULE = 8, LEAST = 24, MOST = 256, MOST_OF_A_THREAD = 255, WARPS_OF_A_GROUP = 4 };

/* ---- how many a thread has at launch ---- */

static uint64_t product(const int three[3]) { return (uint64_t)three[0] * (uint64_t)three[1] * (uint64_t)three[2]; }

/* By .maxnreg, or by .minnctapersm with .maxntid or .reqntid (PTX ISA 11.4), as ptxas of CUDA 13.0 has it; 0: they fix no count. Warps come in fours, one for
 * each part of a multiprocessor. */
static int by_directives(const ptx_function *f) {
    const uint64_t threads = product(f->required_threads[0] > 0 ? f->required_threads : f->max_threads);
    const uint64_t warps = base_align_up((threads + LANES - 1) / LANES, WARPS_OF_A_GROUP);
    int count = f->max_registers > 0 ? f->max_registers : 0;
    if (threads > 0 && f->min_blocks > 0 && threads <= UNIT_THREADS && threads * (uint64_t)f->min_blocks <= UNIT_THREADS) {
        const int most = (int)(UNIT_REGISTERS / (warps * LANES * (uint64_t)f->min_blocks) / GRANULE * GRANULE);
        if (count == 0 || most < count) count = most;
    }
    if (count == 0) return 0;
    return count < LEAST ? LEAST : count > MOST_OF_A_THREAD ? MOST_OF_A_THREAD : count;
}

int sim_registers_at_launch(const ptx_function *f) {
    const cubin_registers m = f->machine;
    const bool by_option = m.limit > 0 && m.limit < MOST_OF_A_THREAD && m.count == m.limit;   /* ptxas -maxrregcount */
    const int directed = by_directives(f), count = m.count > 0 && (directed > 0 || by_option) ? m.count : directed;
    return (int)base_align_up((size_t)count, GRANULE);
}

int sim_blocks_by_registers(const ptx_function *f, uint64_t threads) {
    const uint64_t warps = base_align_up((threads + LANES - 1) / LANES, WARPS_OF_A_GROUP);
    if (f->machine.count == 0 || warps == 0) return INT_MAX;
    return (int)(UNIT_REGISTERS / (warps * LANES * base_align_up((size_t)f->machine.count, GRANULE)));
}

/* ---- the instruction ---- */

static bool are_same(const sim_op *a, const sim_op *b) { return a->offset == b->offset && sim_has(&a->mods, SIM_MOD_dec) == sim_has(&b->mods, SIM_MOD_dec); }

/* All warps of a warpgroup execute the same one, wherever it stands, and meet before the next. false: a finding. */
static bool check_group(sim_warp *w, const sim_op *op) {
    sim_cta *cta = w->cta;
    if (w->launch->options->registers_by_warp) return true;
    const int first = w->index / WARPS_OF_A_GROUP * WARPS_OF_A_GROUP;
    for (int i = first; i < cta->warp_count && i < first + WARPS_OF_A_GROUP; i++) {
        const sim_warp *other = &cta->warps[i];
        if (i == w->index) continue;
        if (other->register_changes == w->register_changes + 1 && !are_same(other->register_change, op)) {
            sim_find(w, op, -1, "warp %d of the warpgroup executed the one at PTX line %d instead: all four warps must execute the same (option registers=warps lets each have its own)", i,
                     sim_line(w, other->register_change));
            return false;
        }
        if (other->live == 0 && other->register_changes <= w->register_changes) {
            sim_find(w, op, -1, "warp %d of the warpgroup ended without it: all four warps must execute the same (option registers=warps)", i);
            return false;
        }
        if (other->register_changes < w->register_changes) {
            sim_find(w, op, -1, "warp %d of the warpgroup has not executed the one before: a barrier of the warpgroup must stand between (option registers=warps)", i);
            return false;
        }
    }
    return true;
}

static void wake(sim_cta *cta) {
    for (int k = 0; k < cta->warp_count; k++) {
        sim_warp *w = &cta->warps[k];
        for (int i = 0; i < w->fragment_count; i++) {
            if (w->fragments[i].wait == SIM_WAIT_REGISTERS) w->fragments[i].wait = SIM_READY;
        }
    }
}

/* offset: how many a thread shall have. */
static sim_flow do_setmaxnreg(sim_warp *w, const sim_op *op, uint32_t mask) {
    const bool gives = sim_has(&op->mods, SIM_MOD_dec);
    const int asked = (int)op->offset, more = asked - w->registers;
    if (!sim_together(w, w->live, mask)) return SIM_WAIT;
    if (w->launch->options->registers_unlimited) return SIM_NEXT;
    if (w->launch->registers == 0) {
        return sim_find(w, op, -1, "the number of registers at launch is not fixed, so that this has no effect: add .maxnreg, or .maxntid and .minnctapersm (__launch_bounds__ with both numbers; option registers=unlimited lets it have none)");
    }
    if (!check_group(w, op)) return SIM_STOP;
    if (gives ? more > 0 : more < 0) {
        return sim_find(w, op, -1, "asks for %d registers a thread, and the warp has %d: .%s cannot %s them", asked, w->registers, gives ? "dec" : "inc", gives ? "raise" : "lower");
    }
    if (more > w->cta->registers_free) {
        w->now->wait = SIM_WAIT_REGISTERS;
        return SIM_WAIT;
    }
    w->cta->registers_free -= more;
    w->registers = asked;
    w->register_changes++;
    w->register_change = op;
    if (more < 0) {
        sim_changed(w);
        wake(w->cta);
    }
    return SIM_NEXT;
}

sim_handler select_setmaxnreg(sim_decoding *d) {
    const ptx_instruction *in = d->instruction;
    if (in->count != 1 || in->operands[0].kind != PTX_OPERAND_INTEGER) {
        d->why = "it takes a number of registers";
        return NULL;
    }
    d->op->offset = in->operands[0].value;
    if (d->op->offset < LEAST || d->op->offset > MOST || d->op->offset % GRANULE != 0) {
        d->why = "its number of registers is a multiple of 8 from 24 to 256";
        return NULL;
    }
    return do_setmaxnreg;
}

void sim_registers_at_end(sim_warp *w) {
    const int first = w->index / WARPS_OF_A_GROUP * WARPS_OF_A_GROUP;
    if (w->launch->options->registers_by_warp) return;
    for (int i = first; i < w->cta->warp_count && i < first + WARPS_OF_A_GROUP; i++) {
        const sim_warp *other = &w->cta->warps[i];
        if (other->register_changes <= w->register_changes) continue;
        sim_find(w, NULL, -1, "the warp ends without the setmaxnreg of PTX line %d, which warp %d of its warpgroup has executed: all four warps must execute the same (option registers=warps)",
                 sim_line(other, other->register_change), i);
        return;
    }
}

void sim_registers_describe(const sim_warp *w, const sim_op *op, char *text, size_t room) {
    snprintf(text, room, " for registers: it has %d a thread and asks for %d, and %d of the %d that it lacks are free (the CTA was launched with %d a thread)", w->registers, (int)op->offset,
             w->cta->registers_free * LANES, ((int)op->offset - w->registers) * LANES, w->launch->registers);
}
