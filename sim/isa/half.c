/* Half precision and bfloat16, alone and in pairs (PTX ISA 9.7.4). Everything is computed in double, where it is exact or far finer than the result, and
 * rounded once; the approximate functions are as in isa/float.c. */
#include "decode.h"
#include "sim/machine/lanes.h"
#include "num/num.h"
#include "sim/math/real.h"

/* The NaN that copies fill with (async_copy.c), of both formats: fma.oob recognises it, of either sign, in a and b, as an H200 does. */
enum { OOB_NAN = 0x7ff7 };

typedef enum operation { ADD, SUB, MUL, FMA, NEG, ABS, MIN, MAX, TANH, EX2 } operation;

static inline bool is_bf16(const sim_op *op) { return op->type == PTX_bf16 || op->type == PTX_bf16x2; }
static inline uint16_t infinity_of(bool bf16) { return bf16 ? 0x7f80 : 0x7c00; }
static inline bool is_nan16(uint16_t bits, bool bf16) { return (bits & 0x7fff) > infinity_of(bf16); }
static inline uint16_t flush16(uint16_t bits, bool bf16) { return (bits & infinity_of(bf16)) == 0 ? bits & 0x8000 : bits; }
static inline double value_of(uint16_t bits, bool bf16) { return (double)(bf16 ? num_bf16_to_f32(bits) : num_f16_to_f32(bits)); }
static inline uint16_t rounded(double value, bool bf16) { return isnan(value) ? 0x7fff : (uint16_t)num_encode(bf16 ? DW_FORMAT_bf16 : DW_FORMAT_f16, value, false); }

/* a * b + c to odd: the product of two halves is exact, and what the sum loses is left in its last bit, so that rounding it again rounds once. */
static double fused(double a, double b, double c) {
    const double product = a * b, sum = product + c;
    if (!isfinite(sum)) return sum;
    const double part = sum - product, lost = (product - (sum - part)) + (c - part);
    if (lost == 0 || (f64_bits(sum) & 1) != 0) return sum;
    return f64_from((lost > 0) == (sum > 0) ? f64_bits(sum) + 1 : f64_bits(sum) - 1);
}

static uint16_t extreme16(const sim_op *op, uint16_t a, uint16_t b, bool bf16) {
    bool largest = op->small == MAX, nan_wins = sim_has(&op->mods, SIM_MOD_NaN);
    uint16_t sign = (a ^ b) & 0x8000;
    if (sim_has(&op->mods, SIM_MOD_abs)) {
        a &= 0x7fff;
        b &= 0x7fff;
    }
    uint16_t r;
    if (is_nan16(a, bf16) || is_nan16(b, bf16)) {
        r = nan_wins || (is_nan16(a, bf16) && is_nan16(b, bf16)) ? 0x7fff : is_nan16(a, bf16) ? b : a;
    } else {
        int16_t x = (int16_t)((a & 0x8000) != 0 ? ~(a & 0x7fff) : a), y = (int16_t)((b & 0x8000) != 0 ? ~(b & 0x7fff) : b);
        r = (x < y) == largest ? b : a;
    }
    return sim_has(&op->mods, SIM_MOD_xorsign) && !is_nan16(r, bf16) ? (uint16_t)((r & 0x7fff) | sign) : r;
}

static uint16_t compute(const sim_op *op, uint16_t a, uint16_t b, uint16_t c) {
    bool bf16 = is_bf16(op), ftz = sim_has(&op->mods, SIM_MOD_ftz);
    if (sim_has(&op->mods, SIM_MOD_oob) && ((a & 0x7fff) == OOB_NAN || (b & 0x7fff) == OOB_NAN)) return 0;
    if (ftz) {
        a = flush16(a, bf16);
        b = flush16(b, bf16);
        c = flush16(c, bf16);
    }
    double x = value_of(a, bf16), y = value_of(b, bf16), z = value_of(c, bf16);
    uint16_t r;
    switch ((operation)op->small) {
    case ADD: r = rounded(x + y, bf16); break;
    case SUB: r = rounded(x - y, bf16); break;
    case MUL: r = rounded(x * y, bf16); break;
    case FMA: r = rounded(fused(x, y, z), bf16); break;
    case NEG: return is_nan16(a, bf16) ? 0x7fff : a ^ 0x8000;
    case ABS: return is_nan16(a, bf16) ? 0x7fff : a & 0x7fff;
    case TANH: r = rounded(tanh(x), bf16); break;
    case EX2: r = rounded(exp2(x), bf16); break;
    default: return extreme16(op, a, b, bf16);
    }
    /* As in isa/float.c: 2^-14 stays where it is what the exact number rounds to with its own exponent. */
    if (ftz && (r & 0x7fff) == 0x0400 && !bf16 && (op->small == MUL || op->small == FMA)) r = (rounded((op->small == MUL ? x * y : fused(x, y, z)) * 0x1p8, false) & 0x7fff) < 0x2400 ? r & 0x8000 : r;
    if (ftz) r = flush16(r, bf16);
    if (sim_has(&op->mods, SIM_MOD_relu) && !is_nan16(r, bf16) && (r & 0x8000) != 0) r = 0;
    if (sim_has(&op->mods, SIM_MOD_sat)) {
        uint16_t one = bf16 ? 0x3f80 : 0x3c00;
        r = is_nan16(r, bf16) || (r & 0x8000) != 0 ? 0 : r > one ? one : r;
    }
    return r;
}

/* Rows as halves: 32 of them, or 64 of pairs. */
static sim_flow do_half(sim_warp *w, const sim_op *op, uint32_t mask) {
    int each = ptx_types[op->type].bits / 16;
    const uint16_t *a = ROW(uint16_t, 1), *b = op->arg[2] != SIM_NO_ROW ? ROW(uint16_t, 2) : a, *c = op->arg[3] != SIM_NO_ROW ? ROW(uint16_t, 3) : a;
    uint16_t out[2 * LANES], *row = ROW(uint16_t, 0);
    for (int i = 0; i < LANES * each; i++) {
        if (mask >> (i / each) & 1) out[i] = compute(op, a[i], b[i], c[i]);
    }
    for (int i = 0; i < LANES * each; i++) {
        if (mask >> (i / each) & 1) row[i] = out[i];
    }
    return SIM_NEXT;
}

static sim_handler half(sim_decoding *d, operation what) {
    d->op->small = (uint8_t)what;
    return do_half;
}

sim_handler select_add_half(sim_decoding *d) { return half(d, ADD); }
sim_handler select_sub_half(sim_decoding *d) { return half(d, SUB); }
sim_handler select_mul_half(sim_decoding *d) { return half(d, MUL); }
sim_handler select_fma_half(sim_decoding *d) { return half(d, FMA); }
sim_handler select_neg_half(sim_decoding *d) { return half(d, NEG); }
sim_handler select_abs_half(sim_decoding *d) { return half(d, ABS); }
sim_handler select_min_half(sim_decoding *d) { return half(d, MIN); }
sim_handler select_max_half(sim_decoding *d) { return half(d, MAX); }
sim_handler select_tanh_half(sim_decoding *d) { return half(d, TANH); }
sim_handler select_ex2_half(sim_decoding *d) { return half(d, EX2); }
