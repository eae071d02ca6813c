/* Instructions about caches (PTX ISA 9.7.9.16 to 9.7.9.18): policies are opaque values that nothing here looks at; discard makes what was written unwritten. */
#include "decode.h"

#define POLICY 0x12f0000000000000ull

static sim_flow do_policy(sim_warp *w, const sim_op *op, uint32_t mask) {
    uint64_t values[LANES];
    for (int lane = 0; lane < LANES; lane++) values[lane] = POLICY;
    STORE_ROW(uint64_t, 0, values, mask);
    return SIM_NEXT;
}

sim_handler select_createpolicy(sim_decoding *d) {
    const ptx_instruction *in = d->instruction;
    const bool range = sim_mod(d, SIM_MOD_range);
    if (in->count < 1 || (range && in->count != 4) || (!range && in->count > 2)) {
        d->why = "a policy, and [an address] with two sizes, a fraction, or a property";
        return NULL;
    }
    return sim_decode_target(d, &in->operands[0], PTX_b64, &d->op->arg[0]) == DW_OK ? do_policy : NULL;
}

static sim_flow do_discard(sim_warp *w, const sim_op *op, uint32_t mask) {
    enum { LINE = 128 };
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        const int lane = __builtin_ctz(left);
        const uint64_t address = op->address_wide ? ROW(uint64_t, 0)[lane] + (uint64_t)op->offset : (uint32_t)(ROW(uint32_t, 0)[lane] + (uint32_t)op->offset);
        sim_place place;
        if (!sim_reach(w, op, lane, PTX_GLOBAL, address, LINE, LINE, SIM_WRITE, &place) || !sim_check_race(w, op, lane, &place, LINE, address, SIM_WRITE, false)) return SIM_STOP;
        for (int i = 0; i < LINE; i++) place.shadow[i] &= (uint8_t)~SHADOW_WRITTEN;
    }
    return SIM_NEXT;
}

sim_handler select_discard(sim_decoding *d) {
    const ptx_instruction *in = d->instruction;
    if (in->count != 2 || in->operands[1].kind != PTX_OPERAND_INTEGER || in->operands[1].value != 128) {
        d->why = "[an address], 128";
        return NULL;
    }
    return sim_decode_address(d, &in->operands[0], &d->op->arg[0]) == DW_OK ? do_discard : NULL;
}
