/* What the lanes of a warp do together: shuffles, votes, matches, reductions, election (PTX ISA 9.7.9.6, 9.7.13.10 to 15). All lanes that the mask names
 * must execute the instruction, and a lane that executes it must be named; groups with masks of their own may stand side by side. */
#include "decode.h"
#include "sim/machine/lanes.h"
#include "sim/math/real.h"

static bool all_here(sim_warp *w, const sim_op *op, uint32_t group, uint32_t members) {
    (void)w;
    (void)op;
    return (members & ~group) == 0;
}

/* The masks are the row of argument index. */
static sim_flow together(sim_warp *w, const sim_op *op, uint32_t mask, int index, sim_handler run) { return sim_in_groups(w, op, mask, ROW(uint32_t, index), all_here, run); }

/* ---- shfl: b is the lane or distance, c the clamp (bits 0-4) and segment mask (bits 8-12) ---- */

static sim_flow shfl_group(sim_warp *w, const sim_op *op, uint32_t mask) {
    const uint32_t *a = ROW(uint32_t, 2), *b = ROW(uint32_t, 3), *c = ROW(uint32_t, 4);
    uint32_t out[LANES], in_range = 0;
    for (int i = 0; i < LANES; i++) {
        if ((mask >> i & 1) == 0) continue;
        int segment = (int)(c[i] >> 8 & 31), clamp = (int)(c[i] & 31), by = (int)(b[i] & 31);
        int top = (i & segment) | (clamp & ~segment), bottom = i & segment, from;
        bool inside;
        if (sim_has(&op->mods, SIM_MOD_up)) {
            from = i - by;
            inside = from >= top;
        } else if (sim_has(&op->mods, SIM_MOD_down)) {
            from = i + by;
            inside = from <= top;
        } else if (sim_has(&op->mods, SIM_MOD_bfly)) {
            from = i ^ by;
            inside = from <= top;
        } else {
            from = bottom | (by & ~segment);
            inside = from <= top;
        }
        if (!inside) from = i;
        if ((mask >> from & 1) == 0) return sim_find(w, op, i, "takes a value from lane %d, which does not take part (lanes 0x%08x do)", from, mask);
        out[i] = a[from];
        in_range |= (uint32_t)inside << i;
    }
    STORE_ROW(uint32_t, 0, out, mask);
    if (op->arg[1] != SIM_NO_ROW) sim_store_mask(w, op->arg[1], in_range, mask);
    return SIM_NEXT;
}

static sim_flow do_shfl(sim_warp *w, const sim_op *op, uint32_t mask) { return op->arg[5] != SIM_NO_ROW ? together(w, op, mask, 5, shfl_group) : shfl_group(w, op, mask); }

sim_handler select_shfl(sim_decoding *d) {
    if (sim_mod(d, SIM_MOD_sync) != (d->op->arg[5] != SIM_NO_ROW)) {
        d->why = "shfl.sync has a mask of lanes, and shfl has none";
        return NULL;
    }
    return do_shfl;
}

/* ---- votes ---- */

static sim_flow vote_group(sim_warp *w, const sim_op *op, uint32_t mask) {
    uint32_t set = *ROW(uint32_t, 1) & mask;
    if (sim_has(&op->mods, SIM_MOD_ballot)) {
        uint32_t out[LANES];
        for (int i = 0; i < LANES; i++) out[i] = set;
        STORE_ROW(uint32_t, 0, out, mask);
        return SIM_NEXT;
    }
    bool holds = sim_has(&op->mods, SIM_MOD_all) ? set == mask : sim_has(&op->mods, SIM_MOD_any) ? set != 0 : set == 0 || set == mask;
    sim_store_mask(w, op->arg[0], holds ? SIM_ALL_LANES : 0, mask);
    return SIM_NEXT;
}

static sim_flow do_vote(sim_warp *w, const sim_op *op, uint32_t mask) { return together(w, op, mask, 2, vote_group); }

sim_handler select_vote(sim_decoding *d) {
    (void)d;
    return do_vote;
}

static uint64_t value_at(sim_warp *w, const sim_op *op, int index, int lane) { return op->bytes == 8 ? ROW(uint64_t, index)[lane] : ROW(uint32_t, index)[lane]; }

static sim_flow match_any_group(sim_warp *w, const sim_op *op, uint32_t mask) {
    uint32_t out[LANES] = {0};
    for (int i = 0; i < LANES; i++) {
        for (int k = 0; k < LANES; k++) {
            if ((mask >> i & 1) != 0 && (mask >> k & 1) != 0 && value_at(w, op, 1, i) == value_at(w, op, 1, k)) out[i] |= 1u << k;
        }
    }
    STORE_ROW(uint32_t, 0, out, mask);
    return SIM_NEXT;
}

static sim_flow match_all_group(sim_warp *w, const sim_op *op, uint32_t mask) {
    bool same = true;
    for (int i = 0; i < LANES; i++) same &= (mask >> i & 1) == 0 || value_at(w, op, 2, i) == value_at(w, op, 2, __builtin_ctz(mask));
    uint32_t out[LANES];
    for (int i = 0; i < LANES; i++) out[i] = same ? mask : 0;
    STORE_ROW(uint32_t, 0, out, mask);
    if (op->arg[1] != SIM_NO_ROW) sim_store_mask(w, op->arg[1], same ? SIM_ALL_LANES : 0, mask);
    return SIM_NEXT;
}

static sim_flow do_match_any(sim_warp *w, const sim_op *op, uint32_t mask) { return together(w, op, mask, 2, match_any_group); }

sim_handler select_match_any(sim_decoding *d) {
    (void)d;
    return do_match_any;
}

static sim_flow do_match_all(sim_warp *w, const sim_op *op, uint32_t mask) { return together(w, op, mask, 3, match_all_group); }

sim_handler select_match_all(sim_decoding *d) {
    (void)d;
    return do_match_all;
}

static sim_flow do_activemask(sim_warp *w, const sim_op *op, uint32_t mask) {
    uint32_t out[LANES];
    for (int i = 0; i < LANES; i++) out[i] = mask;
    STORE_ROW(uint32_t, 0, out, mask);
    return SIM_NEXT;
}

sim_handler select_activemask(sim_decoding *d) {
    (void)d;
    return do_activemask;
}

/* ---- reductions ---- */

static sim_flow redux_group(sim_warp *w, const sim_op *op, uint32_t mask) {
    const uint32_t *a = ROW(uint32_t, 1);
    uint32_t result = a[__builtin_ctz(mask)];
    for (int i = __builtin_ctz(mask) + 1; i < LANES; i++) {
        if ((mask >> i & 1) == 0) continue;
        bool less = op->type == PTX_s32 ? (int32_t)a[i] < (int32_t)result : a[i] < result;
        if (sim_has(&op->mods, SIM_MOD_add)) result += a[i];
        else if (sim_has(&op->mods, SIM_MOD_min)) result = less ? a[i] : result;
        else if (sim_has(&op->mods, SIM_MOD_max)) result = less ? result : a[i];
        else if (sim_has(&op->mods, SIM_MOD_and)) result &= a[i];
        else if (sim_has(&op->mods, SIM_MOD_or)) result |= a[i];
        else result ^= a[i];
    }
    uint32_t out[LANES];
    for (int i = 0; i < LANES; i++) out[i] = result;
    STORE_ROW(uint32_t, 0, out, mask);
    return SIM_NEXT;
}

static sim_flow do_redux(sim_warp *w, const sim_op *op, uint32_t mask) { return together(w, op, mask, 2, redux_group); }

sim_handler select_redux(sim_decoding *d) {
    (void)d;
    return do_redux;
}

static sim_flow redux_f32_group(sim_warp *w, const sim_op *op, uint32_t mask) {
    const uint32_t *a = ROW(uint32_t, 1);
    uint32_t result = F32_NAN;
    bool started = false, any_nan = false;
    for (int i = 0; i < LANES; i++) {
        if ((mask >> i & 1) == 0) continue;
        uint32_t x = sim_has(&op->mods, SIM_MOD_abs) ? a[i] & 0x7fffffff : a[i];
        if ((x & 0x7fffffff) > 0x7f800000) {
            any_nan = true;
            continue;
        }
        int32_t p = (int32_t)(x ^ ((uint32_t)((int32_t)x >> 31) & 0x7fffffffu)), q = (int32_t)(result ^ ((uint32_t)((int32_t)result >> 31) & 0x7fffffffu));
        if (!started || (sim_has(&op->mods, SIM_MOD_min) ? p < q : p > q)) result = x;
        started = true;
    }
    if (any_nan && sim_has(&op->mods, SIM_MOD_NaN)) result = F32_NAN;
    uint32_t out[LANES];
    for (int i = 0; i < LANES; i++) out[i] = result;
    STORE_ROW(uint32_t, 0, out, mask);
    return SIM_NEXT;
}

static sim_flow do_redux_f32(sim_warp *w, const sim_op *op, uint32_t mask) { return together(w, op, mask, 2, redux_f32_group); }

sim_handler select_redux_f32(sim_decoding *d) {
    (void)d;
    return do_redux_f32;
}

/* The lowest of the members; on hardware too, as far as was seen. */
static sim_flow elect_group(sim_warp *w, const sim_op *op, uint32_t mask) {
    uint32_t leader = (uint32_t)__builtin_ctz(mask), out[LANES];
    for (int i = 0; i < LANES; i++) out[i] = leader;
    STORE_ROW(uint32_t, 0, out, mask);
    if (op->arg[1] != SIM_NO_ROW) sim_store_mask(w, op->arg[1], 1u << leader, mask);
    return SIM_NEXT;
}

static sim_flow do_elect(sim_warp *w, const sim_op *op, uint32_t mask) { return together(w, op, mask, 2, elect_group); }

sim_handler select_elect(sim_decoding *d) {
    (void)d;
    return do_elect;
}
