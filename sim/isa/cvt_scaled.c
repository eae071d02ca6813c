/* cvt of pairs of small numbers to pairs of bf16 (PTX ISA 9.7.9.21): times a power of two each, with .scaled::n2::ue8m0, and of s2f6, fixed-point numbers of 8 bits in 64ths. */
#include "decode.h"
#include "sim/math/real.h"

#include "num/num.h"

/* bits: from one number of the pair to the other. */
static const struct small { ptx_type type; dw_format format; int bits; uint32_t mask; } smalls[] = {
    {PTX_e4m3x2, DW_FORMAT_e4m3, 8, 0xff}, {PTX_e5m2x2, DW_FORMAT_e5m2, 8, 0xff}, {PTX_e2m3x2, DW_FORMAT_e2m3, 8, 0x3f}, {PTX_e3m2x2, DW_FORMAT_e3m2, 8, 0x3f}, {PTX_e2m1x2, DW_FORMAT_e2m1, 4, 15},
};

static double value_of(const struct small *small, uint32_t pair, int which) {
    if (small == NULL) return (double)(int8_t)(pair >> (8 * which)) / 64;
    return num_decode(small->format, pair >> (small->bits * which) & small->mask);
}

static uint32_t bf16_of(const sim_op *op, double value) {
    if (isnan(value)) return 0x7fff;
    if (sim_has(&op->mods, SIM_MOD_relu) && !(value > 0)) return 0;
    return (uint32_t)num_encode(DW_FORMAT_bf16, value, sim_has(&op->mods, SIM_MOD_satfinite));
}

/* The scale of the upper number stands in the upper byte. */
static sim_flow do_scaled(sim_warp *w, const sim_op *op, uint32_t mask) {
    const struct small *small = op->extra;
    const uint16_t *pairs = ROW(uint16_t, 1), *scales = op->arg[2] != SIM_NO_ROW ? ROW(uint16_t, 2) : NULL;
    uint32_t results[LANES] = {0};
    for (int i = 0; i < LANES; i++) {
        for (int which = 0; which < 2 && (mask >> i & 1) != 0; which++) {
            const uint32_t scale = scales != NULL ? scales[i] >> (8 * which) & 0xff : 127;
            const double value = scale == 0xff ? NAN : ldexp(value_of(small, pairs[i], which), (int)scale - 127);
            results[i] |= bf16_of(op, value) << (16 * which);
        }
    }
    STORE_ROW(uint32_t, 0, results, mask);
    return SIM_NEXT;
}

sim_handler select_cvt_scaled(sim_decoding *d) {
    const ptx_instruction *in = d->instruction;
    const bool scaled = sim_mod(d, SIM_MOD_scaled_n2_ue8m0);
    if (in->count != (scaled ? 3 : 2)) {
        d->why = "a result, a pair, and with .scaled::n2::ue8m0 the pair's scale factors";
        return NULL;
    }
    for (size_t i = 0; i < COUNT_OF(smalls); i++) {
        if (smalls[i].type == d->type) d->op->extra = &smalls[i];
    }
    d->op->arg[2] = SIM_NO_ROW;
    if (sim_decode_target(d, &in->operands[0], PTX_b32, &d->op->arg[0]) != DW_OK || sim_decode_source(d, &in->operands[1], d->type == PTX_e2m1x2 ? PTX_b8 : PTX_b16, &d->op->arg[1]) != DW_OK) return NULL;
    if (scaled && sim_decode_source(d, &in->operands[2], PTX_b16, &d->op->arg[2]) != DW_OK) return NULL;
    return do_scaled;
}
