/* Asynchronous writes to the shared memory of CTAs of the cluster (PTX ISA 9.7.9.11, 9.7.9.25, 9.7.13.7): of registers, st.async and red.async; of bytes of the own shared
 * memory, cp.async.bulk and cp.reduce.async.bulk. An mbarrier of the target's CTA counts the bytes. And st.bulk, which writes zeros at once. */
#include "async.h"

#include <inttypes.h>

typedef struct near_op { sim_address to, from, mbarrier; uint32_t bytes, value[4]; } near_op;

/* Its target and the mbarrier that counts its bytes, which must be in one CTA. */
static bool find_target(sim_warp *w, const sim_op *op, struct sim_async *a) {
    const near_op *n = op->extra;
    a->cta = async_shared_side(w, op, a->lane, sim_address_of(w, &n->to, a->lane), &a->shared);
    if (a->cta == NULL) return false;
    a->mbarrier_cta = async_shared_side(w, op, a->lane, sim_address_of(w, &n->mbarrier, a->lane), &a->mbarrier);
    if (a->mbarrier_cta == NULL) return false;
    if (a->cta == a->mbarrier_cta) return true;
    sim_find(w, op, a->lane, "writes to shared memory of the CTA of rank %d, and the mbarrier is in that of rank %d: they are in one CTA", a->cta->rank, a->mbarrier_cta->rank);
    return false;
}

static sim_flow do_registers(sim_warp *w, const sim_op *op, uint32_t mask) {
    const near_op *n = op->extra;
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        struct sim_async a = {.warp = w, .op = op, .lane = __builtin_ctz(left), .response = true, .reduces = sim_has(&op->mods, SIM_MOD_red)};
        a.bytes = a.arriving = (size_t)op->bytes * op->count;
        for (int i = 0; i < op->count; i++) memcpy((uint8_t *)a.words + (size_t)i * op->bytes, (const uint8_t *)sim_row(w, n->value[i]) + (size_t)a.lane * op->bytes, op->bytes);
        if (!find_target(w, op, &a) || !async_begin(&a, a.bytes)) return SIM_STOP;
    }
    return SIM_NEXT;
}

static sim_flow do_bytes(sim_warp *w, const sim_op *op, uint32_t mask) {
    const near_op *n = op->extra;
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        struct sim_async a = {.warp = w, .op = op, .lane = __builtin_ctz(left), .reduces = sim_has(&op->mods, SIM_MOD_reduce)};
        a.bytes = a.arriving = ((const uint32_t *)sim_row(w, n->bytes))[a.lane];
        if (a.bytes % 16 != 0) return sim_find(w, op, a.lane, "bulk copies move multiples of 16 bytes, not %zu", a.bytes);
        a.from = async_shared_side(w, op, a.lane, sim_address_of(w, &n->from, a.lane), &a.source);
        if (a.from == NULL || !find_target(w, op, &a)) return SIM_STOP;
        if (a.from != w->cta) return sim_find(w, op, a.lane, "the source is in shared memory of the CTA of rank %d, and not in the own", a.from->rank);
        if (!async_begin(&a, 16)) return SIM_STOP;
    }
    return SIM_NEXT;
}

static sim_handler select_registers(sim_decoding *d) {
    const ptx_instruction *in = d->instruction;
    near_op *n = sim_decode_new(d, sizeof *n);
    if (n == NULL) return NULL;
    *n = (near_op){.bytes = SIM_NO_ROW};
    const ptx_operand *value = in->count == 3 ? &in->operands[1] : NULL;
    const bool vector = value != NULL && value->kind == PTX_OPERAND_VECTOR;
    if (value == NULL || (vector ? value->count : 1) != d->op->count || d->op->count * d->op->bytes > 16) {
        d->why = "an address, a value of at most 16 bytes, and an mbarrier";
        return NULL;
    }
    for (int i = 0; i < d->op->count; i++)
        if (sim_decode_source(d, vector ? &value->items[i] : value, d->type, &n->value[i]) != DW_OK) return NULL;
    if (sim_decode_place(d, &in->operands[0], PTX_SHARED, &n->to) != DW_OK || sim_decode_place(d, &in->operands[2], PTX_SHARED, &n->mbarrier) != DW_OK) return NULL;
    d->op->extra = n;
    return do_registers;
}

sim_handler select_st_async(sim_decoding *d) { return select_registers(d); }
sim_handler select_red_async(sim_decoding *d) { return sim_decode_combination(d) ? select_registers(d) : NULL; }

sim_handler select_bulk_near(sim_decoding *d) {
    const ptx_instruction *in = d->instruction;
    near_op *n = sim_decode_new(d, sizeof *n);
    if (n == NULL) return NULL;
    if (in->count != 4) {
        d->why = "a target, a source, a count of bytes and an mbarrier";
        return NULL;
    }
    if (sim_mod(d, SIM_MOD_reduce) && !sim_decode_combination(d)) return NULL;
    if (sim_decode_place(d, &in->operands[0], PTX_SHARED, &n->to) != DW_OK || sim_decode_place(d, &in->operands[1], PTX_SHARED, &n->from) != DW_OK ||
        sim_decode_source(d, &in->operands[2], PTX_u32, &n->bytes) != DW_OK || sim_decode_place(d, &in->operands[3], PTX_SHARED, &n->mbarrier) != DW_OK) {
        return NULL;
    }
    d->op->extra = n;
    return do_bytes;
}

/* ---- st.bulk ---- */

static sim_flow do_clear(sim_warp *w, const sim_op *op, uint32_t mask) {
    const near_op *n = op->extra;
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        const int lane = __builtin_ctz(left);
        const uint64_t address = sim_address_of(w, &n->to, lane), bytes = op->small != 0 ? ((const uint64_t *)sim_row(w, n->bytes))[lane] : ((const uint32_t *)sim_row(w, n->bytes))[lane];
        sim_place place;
        if (bytes == 0) continue;
        if (bytes % 8 != 0 || bytes > 1 << 24) return sim_find(w, op, lane, "%" PRIu64 " bytes are cleared; a multiple of 8 up to 2^24 can be", bytes);
        if (!sim_reach(w, op, lane, (ptx_space)n->to.space, address, (size_t)bytes, 8, SIM_WRITE, &place)) return SIM_STOP;
        if (place.space != PTX_SHARED) return sim_find(w, op, lane, "0x%" PRIx64 " is no address of shared memory", address);
        for (size_t i = 0; i < bytes; i++) {
            if ((place.shadow[i] & (SHADOW_FLIGHT | SHADOW_SOURCE | SHADOW_TENSOR)) != 0) return sim_find(w, op, lane, "clears byte %zu of 0x%" PRIx64 ", which something asynchronous still uses", i, address);
            place.shadow[i] = SHADOW_WRITTEN | SHADOW_GENERIC;
        }
        memset(place.bytes, 0, (size_t)bytes);
        sim_changed(w);
    }
    return SIM_NEXT;
}

sim_handler select_st_bulk(sim_decoding *d) {
    const ptx_instruction *in = d->instruction;
    near_op *n = sim_decode_new(d, sizeof *n);
    if (n == NULL) return NULL;
    if (in->count != 3 || in->operands[2].kind != PTX_OPERAND_INTEGER || in->operands[2].value != 0) {
        d->why = "an address, a count of bytes, and the value 0";
        return NULL;
    }
    const ptx_type held = sim_decode_register_type(d, &in->operands[1]);
    d->op->small = held != PTX_NO_TYPE && ptx_types[held].bits == 64;
    const ptx_space space = (ptx_space)d->op->space;
    if (sim_decode_source(d, &in->operands[1], d->op->small != 0 ? PTX_u64 : PTX_u32, &n->bytes) != DW_OK || sim_decode_place(d, &in->operands[0], space, &n->to) != DW_OK) return NULL;
    d->op->extra = n;
    return do_clear;
}
