/* Cluster launch control (PTX ISA 9.7.13.17 and 18): a running cluster takes over one of its size that was not launched yet. A request may be declined though there is one, which the grid then
 * launches. The 16 bytes of a response are the simulator's own format: the first CTA, and whether there is one. */
#include "decode.h"

#define RESPONSE_MARK 0x434c4300u

typedef struct cancel_op { sim_address response, mbarrier; } cancel_op;

enum { DECLINES = 10 };   /* of a hundred, where no option says how many and the seed is not 0 */

/* Is the request for a cluster that there is declined all the same? */
static bool is_declined(sim_launch *l) {
    const sim_options *o = l->options;
    const uint64_t of_hundred = o->declines >= 0 ? (uint64_t)o->declines : o->seed == 0 ? 0 : DECLINES;
    return (sim_mix(sim_mix(o->seed + 1, l->epoch), ++l->requests) >> 32) % 100 < of_hundred;
}

/* Another CTA of the cluster that has ended and would get the response; NULL: none. */
static const sim_cta *ended_cta(const sim_cluster *cluster) {
    for (int i = 0; i < cluster->cta_count; i++) {
        if (cluster->ctas[i].warps_live == 0) return &cluster->ctas[i];
    }
    return NULL;
}

/* The request is decided at once, in the order of launches; its response comes later. */
static sim_flow do_try_cancel(sim_warp *w, const sim_op *op, uint32_t mask) {
    const cancel_op *c = op->extra;
    const sim_cluster *cluster = w->cta->cluster;
    const bool all = sim_has(&op->mods, SIM_MOD_multicast_all);
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        int lane = __builtin_ctz(left);
        uint32_t words[4] = {0, 0, 0, RESPONSE_MARK};
        sim_cluster_place place;
        const sim_cta *ended = all ? ended_cta(cluster) : NULL;
        if (ended != NULL) return sim_find(w, op, lane, "the response is to come to all CTAs of the cluster, and that of rank %d has ended", ended->rank);
        if (w->cta->declined) return sim_find(w, op, lane, "asks for another cluster, and the CTA has seen that a request was declined: what comes of it is not defined; a CTA retires when it sees a decline");
        if (sim_launch_pending(w->launch) && !is_declined(w->launch) && sim_launch_cancel(w->launch, cluster->size, &place)) {
            memcpy(words, place.first, sizeof place.first);
            words[3] |= 1;
        }
        if (!sim_async_respond(w, op, lane, sim_address_of(w, &c->response, lane), sim_address_of(w, &c->mbarrier, lane), words, all)) return SIM_STOP;
    }
    return SIM_NEXT;
}

sim_handler select_try_cancel(sim_decoding *d) {
    const ptx_instruction *in = d->instruction;
    cancel_op *c = sim_decode_new(d, sizeof *c);
    ptx_space space = (ptx_space)d->op->space;
    if (c == NULL) return NULL;
    if (d->module->arch < 100 || in->count != 2) {
        d->why = "targets of sm_100 and later; [a response] and [an mbarrier]";
        return NULL;
    }
    if (sim_mod(d, SIM_MOD_multicast_all) && d->module->arch_suffix == 0) {
        d->why = "a response to all CTAs of the cluster is for targets like sm_100a and sm_100f";
        return NULL;
    }
    if (sim_decode_place(d, &in->operands[0], space, &c->response) != DW_OK || sim_decode_place(d, &in->operands[1], space, &c->mbarrier) != DW_OK) return NULL;
    d->op->extra = c;
    d->code->cancels = true;
    return do_try_cancel;
}

/* rows: of the results; small: the word of the first; arg 0: the response. */
static sim_flow do_query(sim_warp *w, const sim_op *op, uint32_t mask) {
    const uint32_t (*response)[4] = sim_row(w, op->arg[0]);
    uint32_t was = 0;
    for (int lane = 0; lane < LANES; lane++) {
        if ((mask >> lane & 1) == 0) continue;
        if ((response[lane][3] & ~1u) != RESPONSE_MARK) return sim_find(w, op, lane, "what is queried is no response to clusterlaunchcontrol.try_cancel");
        was |= (response[lane][3] & 1) << lane;
        w->cta->declined |= op->count == 0 && (response[lane][3] & 1) == 0;
        if (op->count == 0) continue;
        if ((response[lane][3] & 1) == 0) return sim_find(w, op, lane, "the request found no cluster, so it has no first CTA: query is_canceled first");
        for (int i = 0; i < op->count; i++) ((uint32_t *)sim_row(w, op->rows[i]))[lane] = i < 3 ? response[lane][op->small + i] : 0;
    }
    if (op->count == 0) sim_store_mask(w, op->arg[1], was, mask);
    return SIM_NEXT;
}

sim_handler select_query_cancel(sim_decoding *d) {
    const ptx_instruction *in = d->instruction;
    bool asks = sim_mod(d, SIM_MOD_is_canceled), one = sim_mod(d, SIM_MOD_ctaid_x) || sim_mod(d, SIM_MOD_ctaid_y) || sim_mod(d, SIM_MOD_ctaid_z);
    uint32_t *rows = sim_decode_new(d, 4 * sizeof *rows);
    if (rows == NULL) return NULL;
    if (in->count != 2 || (!asks && !one && (in->operands[0].kind != PTX_OPERAND_VECTOR || in->operands[0].count != 4))) {
        d->why = "a predicate, a register or four of them, and a response";
        return NULL;
    }
    d->op->count = asks ? 0 : one ? 1 : 4;
    d->op->small = sim_mod(d, SIM_MOD_ctaid_y) ? 1 : sim_mod(d, SIM_MOD_ctaid_z) ? 2 : 0;
    d->op->rows = rows;
    if (sim_decode_source(d, &in->operands[1], PTX_b128, &d->op->arg[0]) != DW_OK) return NULL;
    if (asks) return sim_decode_target(d, &in->operands[0], PTX_pred, &d->op->arg[1]) == DW_OK ? do_query : NULL;
    for (int i = 0; i < d->op->count; i++) {
        if (sim_decode_target(d, one ? &in->operands[0] : &in->operands[0].items[i], PTX_b32, &rows[i]) != DW_OK) return NULL;
    }
    return do_query;
}
