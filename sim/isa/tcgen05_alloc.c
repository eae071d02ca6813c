/* tcgen05.alloc, dealloc and relinquish_alloc_permit (PTX ISA 9.7.16.7). A CTA has all columns to itself: CTAs that would share a multiprocessor's tensor
 * memory do not wait for each other here. */
#include "sim/machine/order.h"
#include "tmem.h"

/* The whole warp is here, with one .cta_group; false: *flow says what comes of it. */
static bool begin(sim_warp *w, const sim_op *op, uint32_t mask, sim_flow *flow) {
    *flow = SIM_WAIT;
    if (!sim_together(w, w->live, mask)) return false;
    *flow = SIM_STOP;
    if (mask != SIM_ALL_LANES) {
        sim_find(w, op, -1, "all 32 lanes execute this together, and only 0x%08x do", mask);
        return false;
    }
    return tmem_check_group(w, op, -1);
}

/* Both CTAs of a pair come to it before either goes on; false: *flow. */
static bool meet(sim_warp *w, const sim_op *op, sim_flow *flow) {
    if (!sim_has(&op->mods, SIM_MOD_cta_group_2)) return true;
    sim_cta *peer = tmem_peer(w, op, -1);
    *flow = SIM_STOP;
    if (peer == NULL) return false;
    if (w->collective == 0) {
        w->collective = ++w->cta->tmem->collective;
        w->cta->cluster->changes++;
    }
    if (peer->tmem == NULL || peer->tmem->collective < w->collective) {
        if (peer->warps_live == 0) {
            sim_find(w, op, -1, "waits for the other CTA of the pair to do the same, and that has ended");
            return false;
        }
        w->now->wait = SIM_WAIT_POLL;   /* it comes back to this instruction */
        *flow = SIM_WAIT;
        return false;
    }
    w->collective = 0;
    return true;
}

static bool agree(sim_warp *w, const sim_op *op, int arg, uint32_t *value) {
    const uint32_t *values = ROW(uint32_t, arg);
    *value = values[0];
    for (int lane = 1; lane < LANES; lane++) {
        if (values[lane] == values[0]) continue;
        sim_find(w, op, lane, "gives 0x%x, and lane 0 gives 0x%x: a warp gives one value", values[lane], values[0]);
        return false;
    }
    return true;
}

static bool check_columns(sim_warp *w, const sim_op *op, uint32_t columns) {
    if (columns >= TMEM_UNIT && columns <= TMEM_COLUMNS && (columns & (columns - 1)) == 0) return true;
    sim_find(w, op, -1, "%u columns of tensor memory; a power of two from %d to %d is possible", columns, TMEM_UNIT, TMEM_COLUMNS);
    return false;
}

/* The first free place that begins at a multiple of its size. -1: none. */
static int find_place(const sim_tmem *t, int units) {
    for (int at = 0; at + units <= TMEM_UNITS; at += units) {
        if ((t->taken >> at & ((1u << units) - 1)) == 0) return at;
    }
    return -1;
}

static sim_flow do_alloc(sim_warp *w, const sim_op *op, uint32_t mask) {
    sim_flow flow;
    uint32_t columns;
    sim_place place;
    if (!begin(w, op, mask, &flow)) return flow;
    sim_tmem *t = w->cta->tmem;
    if (!agree(w, op, 1, &columns) || !check_columns(w, op, columns)) return SIM_STOP;
    if (t->relinquished) return sim_find(w, op, -1, "allocates tensor memory after the CTA gave that right up by tcgen05.relinquish_alloc_permit");
    if (t->last_columns != 0 && columns > t->last_columns) {
        return sim_find(w, op, -1, "allocates %u columns of tensor memory after an allocation of %u: later ones are not larger", columns, t->last_columns);
    }
    if (!meet(w, op, &flow)) return flow;
    int units = (int)columns / TMEM_UNIT, at = find_place(t, units);
    if (at < 0) {
        w->now->wait = SIM_WAIT_POLL;   /* until columns are given back */
        return SIM_WAIT;
    }
    uint64_t address = op->address_wide ? ROW(uint64_t, 0)[0] + (uint64_t)op->offset : (uint32_t)(ROW(uint32_t, 0)[0] + (uint32_t)op->offset);
    if (!sim_reach(w, op, 0, (ptx_space)op->space, address, 4, 4, SIM_WRITE, &place)) return SIM_STOP;
    if (place.space != PTX_SHARED) return sim_find(w, op, 0, "the address of the allocation is written to shared memory, and 0x%llx is elsewhere", (unsigned long long)address);
    if (place.cta == w->cta && !order_write(w, op, -1, place.offset, 4, false)) return SIM_STOP;
    t->taken |= (uint16_t)(((1u << units) - 1) << at);
    t->columns_at[at] = t->last_columns = (uint16_t)columns;
    uint32_t base = (uint32_t)(at * TMEM_UNIT);
    memcpy(place.bytes, &base, sizeof base);
    memset(place.shadow, SHADOW_WRITTEN | SHADOW_GENERIC, sizeof base);
    return SIM_NEXT;
}

/* Nobody may still be at work on them. */
static bool check_idle(sim_warp *w, const sim_op *op, const tmem_area *area) {
    const tensor_task *task = tensor_conflict(w->cta, area, true);
    if (task == NULL) return tmem_check_accesses(w, op, -1, w->cta, area, true, "the deallocation");
    sim_find(w, op, -1, "gives back columns %d to %d of tensor memory, which the operation of PTX line %d may still use: wait for its commit first", area->first, area->end - 1,
             w->launch->code->function->instructions[task->op->instruction].line);
    return false;
}

static sim_flow do_dealloc(sim_warp *w, const sim_op *op, uint32_t mask) {
    sim_flow flow;
    uint32_t address, columns;
    if (!begin(w, op, mask, &flow)) return flow;
    sim_tmem *t = w->cta->tmem;
    if (!agree(w, op, 0, &address) || !agree(w, op, 1, &columns) || !check_columns(w, op, columns)) return SIM_STOP;
    if (!meet(w, op, &flow)) return flow;
    int column = tmem_column(address);
    if (tmem_lane(address) != 0 || column >= TMEM_COLUMNS || column % TMEM_UNIT != 0 || t->columns_at[column / TMEM_UNIT] != columns) {
        return sim_find(w, op, -1, "gives back %u columns at 0x%x of tensor memory, and no allocation of so many begins there", columns, address);
    }
    const tmem_area area = tmem_columns(column, (int)columns);
    if (!check_idle(w, op, &area) || !order_tensor(w, op, column / TMEM_UNIT, (int)columns / TMEM_UNIT, true)) return SIM_STOP;
    t->columns_at[column / TMEM_UNIT] = 0;
    t->taken &= (uint16_t)~(((1u << columns / TMEM_UNIT) - 1) << column / TMEM_UNIT);
    for (int lane = 0; lane < TMEM_LANES; lane++) memset(&t->written[lane][column], 0, columns);
    w->cta->cluster->changes++;
    return SIM_NEXT;
}

static sim_flow do_relinquish(sim_warp *w, const sim_op *op, uint32_t mask) {
    sim_flow flow;
    if (!begin(w, op, mask, &flow)) return flow;
    w->cta->tmem->relinquished = true;
    return SIM_NEXT;
}

sim_handler select_tcgen05_alloc(sim_decoding *d) { return tmem_has_target(d, false) ? do_alloc : NULL; }
sim_handler select_tcgen05_dealloc(sim_decoding *d) { return tmem_has_target(d, false) ? do_dealloc : NULL; }
sim_handler select_tcgen05_relinquish(sim_decoding *d) { return tmem_has_target(d, false) ? do_relinquish : NULL; }
