/* Integer arithmetic (PTX ISA 9.7.1): additions, products, quotients, extremes. Arithmetic wraps; it is done on unsigned types, where C lets it. */
#include "decode.h"
#include "sim/machine/lanes.h"

__extension__ typedef unsigned __int128 u128;   /* of gcc and clang on 64-bit machines */

/* ---- sums ---- */

LANES_2(add_16, uint16_t, uint16_t, uint16_t, a + b)
LANES_2(add_32, uint32_t, uint32_t, uint32_t, a + b)
LANES_2(add_64, uint64_t, uint64_t, uint64_t, a + b)
LANES_2(add_16x2, uint32_t, uint32_t, uint32_t, ((a + b) & 0xffff) | ((a & 0xffff0000) + (b & 0xffff0000)))
LANES_2(sub_16, uint16_t, uint16_t, uint16_t, a - b)
LANES_2(sub_32, uint32_t, uint32_t, uint32_t, a - b)
LANES_2(sub_64, uint64_t, uint64_t, uint64_t, a - b)

static inline int32_t saturate_s32(int64_t value) { return (int32_t)(value < INT32_MIN ? INT32_MIN : value > INT32_MAX ? INT32_MAX : value); }

LANES_2(add_sat_s32, int32_t, int32_t, int32_t, saturate_s32((int64_t)a + b))
LANES_2(sub_sat_s32, int32_t, int32_t, int32_t, saturate_s32((int64_t)a - b))

sim_handler select_add(sim_decoding *d) {
    if (ptx_types[d->type].class == PTX_PACKED) return add_16x2;
    return ptx_types[d->type].bits == 16 ? add_16 : ptx_types[d->type].bits == 32 ? add_32 : add_64;
}
SELECT_BITS(sub, sub_16, sub_32, sub_64)

sim_handler select_add_sat(sim_decoding *d) { return sim_mod(d, SIM_MOD_sat) ? add_sat_s32 : add_32; }
sim_handler select_sub_sat(sim_decoding *d) { return sim_mod(d, SIM_MOD_sat) ? sub_sat_s32 : sub_32; }

/* ---- products ---- */

static inline uint64_t high_u64(uint64_t a, uint64_t b) { return (uint64_t)((u128)a * b >> 64); }
static inline uint64_t high_s64(int64_t a, int64_t b) { return high_u64((uint64_t)a, (uint64_t)b) - (a < 0 ? (uint64_t)b : 0) - (b < 0 ? (uint64_t)a : 0); }

LANES_2(mul_lo_16, uint16_t, uint16_t, uint16_t, (uint32_t)a * b)
LANES_2(mul_lo_32, uint32_t, uint32_t, uint32_t, a * b)
LANES_2(mul_lo_64, uint64_t, uint64_t, uint64_t, a * b)
LANES_2(mul_hi_u16, uint16_t, uint16_t, uint16_t, (uint32_t)a * b >> 16)
LANES_2(mul_hi_s16, int16_t, int16_t, int16_t, (int32_t)a * b >> 16)
LANES_2(mul_hi_u32, uint32_t, uint32_t, uint32_t, (uint64_t)a * b >> 32)
LANES_2(mul_hi_s32, int32_t, int32_t, int32_t, (int64_t)a * b >> 32)
LANES_2(mul_hi_u64, uint64_t, uint64_t, uint64_t, high_u64(a, b))
LANES_2(mul_hi_s64, uint64_t, int64_t, int64_t, high_s64(a, b))
LANES_2(mul_wide_u16, uint32_t, uint16_t, uint16_t, (uint32_t)a * b)
LANES_2(mul_wide_s16, int32_t, int16_t, int16_t, (int32_t)a * b)
LANES_2(mul_wide_u32, uint64_t, uint32_t, uint32_t, (uint64_t)a * b)
LANES_2(mul_wide_s32, int64_t, int32_t, int32_t, (int64_t)a * b)
LANES_3(mad_lo_16, uint16_t, uint16_t, uint16_t, uint16_t, (uint32_t)a * b + c)
LANES_3(mad_lo_32, uint32_t, uint32_t, uint32_t, uint32_t, a * b + c)
LANES_3(mad_lo_64, uint64_t, uint64_t, uint64_t, uint64_t, a * b + c)
LANES_3(mad_hi_u16, uint16_t, uint16_t, uint16_t, uint16_t, ((uint32_t)a * b >> 16) + c)
LANES_3(mad_hi_s16, uint16_t, int16_t, int16_t, uint16_t, (uint32_t)((int32_t)a * b >> 16) + c)
LANES_3(mad_hi_u32, uint32_t, uint32_t, uint32_t, uint32_t, ((uint64_t)a * b >> 32) + c)
LANES_3(mad_hi_s32, uint32_t, int32_t, int32_t, uint32_t, (uint64_t)((int64_t)a * b >> 32) + c)
LANES_3(mad_hi_u64, uint64_t, uint64_t, uint64_t, uint64_t, high_u64(a, b) + c)
LANES_3(mad_hi_s64, uint64_t, int64_t, int64_t, uint64_t, high_s64(a, b) + c)
LANES_3(mad_hi_sat, int32_t, int32_t, int32_t, int32_t, saturate_s32(((int64_t)a * b >> 32) + c))
LANES_3(mad_wide_u16, uint32_t, uint16_t, uint16_t, uint32_t, (uint32_t)a * b + c)
LANES_3(mad_wide_s16, uint32_t, int16_t, int16_t, uint32_t, (uint32_t)((int32_t)a * b) + c)
LANES_3(mad_wide_u32, uint64_t, uint32_t, uint32_t, uint64_t, (uint64_t)a * b + c)
LANES_3(mad_wide_s32, uint64_t, int32_t, int32_t, uint64_t, (uint64_t)((int64_t)a * b) + c)

SELECT_BITS(mul_low, mul_lo_16, mul_lo_32, mul_lo_64)
SELECT_INTEGER(mul_high, mul_hi_u16, mul_hi_u32, mul_hi_u64, mul_hi_s16, mul_hi_s32, mul_hi_s64)
SELECT_BITS(mad_low, mad_lo_16, mad_lo_32, mad_lo_64)
SELECT_INTEGER(mad_high, mad_hi_u16, mad_hi_u32, mad_hi_u64, mad_hi_s16, mad_hi_s32, mad_hi_s64)
SELECT_INTEGER(mul_wide, mul_wide_u16, mul_wide_u32, NULL, mul_wide_s16, mul_wide_s32, NULL)
SELECT_INTEGER(mad_wide, mad_wide_u16, mad_wide_u32, NULL, mad_wide_s16, mad_wide_s32, NULL)

sim_handler select_mul(sim_decoding *d) { return sim_mod(d, SIM_MOD_lo) ? select_mul_low(d) : select_mul_high(d); }
sim_handler select_mad(sim_decoding *d) { return sim_mod(d, SIM_MOD_lo) ? select_mad_low(d) : select_mad_high(d); }

sim_handler select_mad_sat(sim_decoding *d) {
    (void)d;
    return mad_hi_sat;
}

static inline int64_t s24(int32_t a) { return (int32_t)((uint32_t)a << 8) >> 8; }
static inline uint64_t u24(uint32_t a) { return a & 0xffffff; }

LANES_2(mul24_lo_u, uint32_t, uint32_t, uint32_t, u24(a) * u24(b))
LANES_2(mul24_hi_u, uint32_t, uint32_t, uint32_t, u24(a) * u24(b) >> 16)
LANES_2(mul24_lo_s, uint32_t, int32_t, int32_t, s24(a) * s24(b))
LANES_2(mul24_hi_s, uint32_t, int32_t, int32_t, s24(a) * s24(b) >> 16)
LANES_3(mad24_lo_u, uint32_t, uint32_t, uint32_t, uint32_t, u24(a) * u24(b) + c)
LANES_3(mad24_hi_u, uint32_t, uint32_t, uint32_t, uint32_t, (u24(a) * u24(b) >> 16) + c)
LANES_3(mad24_lo_s, uint32_t, int32_t, int32_t, uint32_t, (uint64_t)(s24(a) * s24(b)) + c)
LANES_3(mad24_hi_s, uint32_t, int32_t, int32_t, uint32_t, (uint64_t)(s24(a) * s24(b) >> 16) + c)

LANES_3(mad24_hi_sat, int32_t, int32_t, int32_t, int32_t, saturate_s32((s24(a) * s24(b) >> 16) + c))

sim_handler select_mul24(sim_decoding *d) {
    if (d->type == PTX_u32) return sim_mod(d, SIM_MOD_lo) ? mul24_lo_u : mul24_hi_u;
    return sim_mod(d, SIM_MOD_lo) ? mul24_lo_s : mul24_hi_s;
}

sim_handler select_mad24(sim_decoding *d) {
    if (d->type == PTX_u32) return sim_mod(d, SIM_MOD_lo) ? mad24_lo_u : mad24_hi_u;
    return sim_mod(d, SIM_MOD_lo) ? mad24_lo_s : mad24_hi_s;
}

sim_handler select_mad24_sat(sim_decoding *d) {
    (void)d;
    return mad24_hi_sat;
}

/* ---- differences, quotients. A division by zero gives all ones, its remainder the dividend: what the hardware's own sequence gives. ---- */

LANES_3(sad_u16, uint16_t, uint16_t, uint16_t, uint16_t, c + (a > b ? a - b : b - a))
LANES_3(sad_s16, uint16_t, int16_t, int16_t, uint16_t, c + (a > b ? a - b : b - a))
LANES_3(sad_u32, uint32_t, uint32_t, uint32_t, uint32_t, c + (a > b ? a - b : b - a))
LANES_3(sad_s32, uint32_t, int32_t, int32_t, uint32_t, c + (a > b ? (uint32_t)a - (uint32_t)b : (uint32_t)b - (uint32_t)a))
LANES_3(sad_u64, uint64_t, uint64_t, uint64_t, uint64_t, c + (a > b ? a - b : b - a))
LANES_3(sad_s64, uint64_t, int64_t, int64_t, uint64_t, c + (a > b ? (uint64_t)a - (uint64_t)b : (uint64_t)b - (uint64_t)a))
SELECT_INTEGER(sad, sad_u16, sad_u32, sad_u64, sad_s16, sad_s32, sad_s64)

static inline int64_t quotient(int64_t a, int64_t b) { return b == 0 ? -1 : b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b; }
static inline int64_t remainder_of(int64_t a, int64_t b) { return b == 0 ? a : b == -1 ? 0 : a % b; }

LANES_2(div_u16, uint16_t, uint16_t, uint16_t, b == 0 ? 0xffff : a / b)
LANES_2(div_u32, uint32_t, uint32_t, uint32_t, b == 0 ? UINT32_MAX : a / b)
LANES_2(div_u64, uint64_t, uint64_t, uint64_t, b == 0 ? UINT64_MAX : a / b)
LANES_2(div_s16, int16_t, int16_t, int16_t, quotient(a, b))
LANES_2(div_s32, int32_t, int32_t, int32_t, quotient(a, b))
LANES_2(div_s64, int64_t, int64_t, int64_t, quotient(a, b))
LANES_2(rem_u16, uint16_t, uint16_t, uint16_t, b == 0 ? a : a % b)
LANES_2(rem_u32, uint32_t, uint32_t, uint32_t, b == 0 ? a : a % b)
LANES_2(rem_u64, uint64_t, uint64_t, uint64_t, b == 0 ? a : a % b)
LANES_2(rem_s16, int16_t, int16_t, int16_t, remainder_of(a, b))
LANES_2(rem_s32, int32_t, int32_t, int32_t, remainder_of(a, b))
LANES_2(rem_s64, int64_t, int64_t, int64_t, remainder_of(a, b))
SELECT_INTEGER(div, div_u16, div_u32, div_u64, div_s16, div_s32, div_s64)
SELECT_INTEGER(rem, rem_u16, rem_u32, rem_u64, rem_s16, rem_s32, rem_s64)

/* ---- signs and extremes ---- */

LANES_1(abs_s16, uint16_t, int16_t, a < 0 ? -a : a)
LANES_1(abs_s32, uint32_t, int32_t, a < 0 ? 0 - (uint32_t)a : (uint32_t)a)
LANES_1(abs_s64, uint64_t, int64_t, a < 0 ? 0 - (uint64_t)a : (uint64_t)a)
LANES_1(neg_16, uint16_t, uint16_t, 0 - a)
LANES_1(neg_32, uint32_t, uint32_t, 0 - a)
LANES_1(neg_64, uint64_t, uint64_t, 0 - a)
SELECT_BITS(abs, abs_s16, abs_s32, abs_s64)
SELECT_BITS(neg, neg_16, neg_32, neg_64)

LANES_2(min_u16, uint16_t, uint16_t, uint16_t, a < b ? a : b)
LANES_2(min_u32, uint32_t, uint32_t, uint32_t, a < b ? a : b)
LANES_2(min_u64, uint64_t, uint64_t, uint64_t, a < b ? a : b)
LANES_2(min_s16, int16_t, int16_t, int16_t, a < b ? a : b)
LANES_2(min_s32, int32_t, int32_t, int32_t, a < b ? a : b)
LANES_2(min_s64, int64_t, int64_t, int64_t, a < b ? a : b)
LANES_2(max_u16, uint16_t, uint16_t, uint16_t, a > b ? a : b)
LANES_2(max_u32, uint32_t, uint32_t, uint32_t, a > b ? a : b)
LANES_2(max_u64, uint64_t, uint64_t, uint64_t, a > b ? a : b)
LANES_2(max_s16, int16_t, int16_t, int16_t, a > b ? a : b)
LANES_2(max_s32, int32_t, int32_t, int32_t, a > b ? a : b)
LANES_2(max_s64, int64_t, int64_t, int64_t, a > b ? a : b)
LANES_2(min_relu_s32, int32_t, int32_t, int32_t, (a < b ? a : b) > 0 ? (a < b ? a : b) : 0)
LANES_2(max_relu_s32, int32_t, int32_t, int32_t, (a > b ? a : b) > 0 ? (a > b ? a : b) : 0)
SELECT_INTEGER(min_plain, min_u16, min_u32, min_u64, min_s16, min_s32, min_s64)
SELECT_INTEGER(max_plain, max_u16, max_u32, max_u64, max_s16, max_s32, max_s64)

static inline uint32_t halves(uint32_t low, uint32_t high) { return (low & 0xffff) | high << 16; }
static inline int32_t lower_s(uint32_t a) { return (int16_t)a; }
static inline int32_t upper_s(uint32_t a) { return (int16_t)(a >> 16); }
#define SMALLER(a, b) ((a) < (b) ? (a) : (b))
#define LARGER(a, b) ((a) > (b) ? (a) : (b))

LANES_2(min_u16x2, uint32_t, uint32_t, uint32_t, halves(SMALLER(a & 0xffff, b & 0xffff), SMALLER(a >> 16, b >> 16)))
LANES_2(max_u16x2, uint32_t, uint32_t, uint32_t, halves(LARGER(a & 0xffff, b & 0xffff), LARGER(a >> 16, b >> 16)))
LANES_2(min_s16x2, uint32_t, uint32_t, uint32_t, halves((uint32_t)SMALLER(lower_s(a), lower_s(b)), (uint32_t)SMALLER(upper_s(a), upper_s(b))))
LANES_2(max_s16x2, uint32_t, uint32_t, uint32_t, halves((uint32_t)LARGER(lower_s(a), lower_s(b)), (uint32_t)LARGER(upper_s(a), upper_s(b))))
LANES_2(min_relu_s16x2, uint32_t, uint32_t, uint32_t,
        halves((uint32_t)LARGER(SMALLER(lower_s(a), lower_s(b)), 0), (uint32_t)LARGER(SMALLER(upper_s(a), upper_s(b)), 0)))
LANES_2(max_relu_s16x2, uint32_t, uint32_t, uint32_t,
        halves((uint32_t)LARGER(LARGER(lower_s(a), lower_s(b)), 0), (uint32_t)LARGER(LARGER(upper_s(a), upper_s(b)), 0)))

static sim_handler select_extreme(sim_decoding *d, bool largest) {
    bool relu = sim_mod(d, SIM_MOD_relu);
    if (relu && d->type != PTX_s32 && d->type != PTX_s16x2) {
        d->why = ".relu goes with .s32 and .s16x2 only";
        return NULL;
    }
    if (d->type == PTX_u16x2) return largest ? max_u16x2 : min_u16x2;
    if (d->type == PTX_s16x2) return relu ? (largest ? max_relu_s16x2 : min_relu_s16x2) : (largest ? max_s16x2 : min_s16x2);
    if (relu) return largest ? max_relu_s32 : min_relu_s32;
    return largest ? select_max_plain(d) : select_min_plain(d);
}

sim_handler select_min(sim_decoding *d) { return select_extreme(d, false); }
sim_handler select_max(sim_decoding *d) { return select_extreme(d, true); }

/* ---- dot products ---- */

static inline int64_t byte_of(uint32_t word, int i, bool is_signed) {
    uint8_t byte = (uint8_t)(word >> (8 * i));
    return is_signed ? (int8_t)byte : byte;
}

static inline uint32_t dot4(uint32_t a, uint32_t b, uint32_t c, bool a_signed, bool b_signed) {
    int64_t sum = 0;
    for (int i = 0; i < 4; i++) sum += byte_of(a, i, a_signed) * byte_of(b, i, b_signed);
    return c + (uint32_t)sum;
}

static inline uint32_t dot2(uint32_t a, uint32_t b, uint32_t c, bool a_signed, bool b_signed, int from) {
    int64_t low = a_signed ? lower_s(a) : (int64_t)(a & 0xffff), high = a_signed ? upper_s(a) : (int64_t)(a >> 16);
    return c + (uint32_t)(low * byte_of(b, from, b_signed) + high * byte_of(b, from + 1, b_signed));
}

LANES_3(dp4a_any, uint32_t, uint32_t, uint32_t, uint32_t, dot4(a, b, c, op->type == PTX_s32, op->type2 == PTX_s32))
LANES_3(dp2a_any, uint32_t, uint32_t, uint32_t, uint32_t, dot2(a, b, c, op->type == PTX_s32, op->type2 == PTX_s32, sim_has(&op->mods, SIM_MOD_hi) ? 2 : 0))

sim_handler select_dp4a(sim_decoding *d) {
    (void)d;
    return dp4a_any;
}

sim_handler select_dp2a(sim_decoding *d) {
    (void)d;
    return dp2a_any;
}

/* ---- extended precision: the carry is a predicate of its own ---- */

typedef struct carried { uint64_t value; bool carry; } carried;

static carried sum(uint64_t a, uint64_t b, bool carry, int bits) {
    u128 all = (u128)a + b + carry;
    return (carried){(uint64_t)all, (bool)(all >> bits & 1)};
}

static carried difference(uint64_t a, uint64_t b, bool borrow, int bits) {
    u128 all = (u128)a - b - borrow;
    return (carried){(uint64_t)all, (bool)(all >> bits & 1)};
}

/* mods: .cc leaves the carry; small 1: it is added; type2: 'a', 's' or 'm' (target of the product's half: .lo or .hi). */
static sim_flow do_carry(sim_warp *w, const sim_op *op, uint32_t mask) {
    int bits = ptx_types[op->type].bits;
    bool leaves = sim_has(&op->mods, SIM_MOD_cc), high = sim_has(&op->mods, SIM_MOD_hi), is_signed = ptx_types[op->type].class == PTX_SIGNED;
    uint32_t carries = *(uint32_t *)sim_row(w, op->arg[7]), left = carries;
    for (int i = 0; i < LANES; i++) {
        if ((mask >> i & 1) == 0) continue;
        uint64_t v[3] = {0};
        for (int k = 0; k < 3; k++) {
            if (op->arg[k + 1] != SIM_NO_ROW) v[k] = bits == 32 ? ROW(uint32_t, k + 1)[i] : ROW(uint64_t, k + 1)[i];
        }
        bool in = op->small != 0 && (carries >> i & 1) != 0;
        carried r;
        if (op->type2 == 's') {
            r = difference(v[0], v[1], in, bits);
        } else if (op->type2 == 'a') {
            r = sum(v[0], v[1], in, bits);
        } else {
            uint64_t product = v[0] * v[1];
            if (high && bits == 32) product = is_signed ? (uint32_t)((uint64_t)((int64_t)(int32_t)v[0] * (int32_t)v[1]) >> 32) : product >> 32;
            else if (high) product = is_signed ? high_s64((int64_t)v[0], (int64_t)v[1]) : high_u64(v[0], v[1]);
            else if (bits == 32) product = (uint32_t)product;
            r = sum(product, v[2], in, bits);
        }
        left = (left & ~(1u << i)) | (uint32_t)r.carry << i;
        if (bits == 32) ROW(uint32_t, 0)[i] = (uint32_t)r.value;
        else ROW(uint64_t, 0)[i] = r.value;
    }
    if (leaves) sim_store_mask(w, op->arg[7], left, mask);
    return SIM_NEXT;
}

static sim_handler select_carry(sim_decoding *d, char kind, bool takes) {
    d->op->arg[7] = sim_decode_carry(d);
    d->op->small = takes;
    d->op->type2 = (uint8_t)kind;
    return do_carry;
}

sim_handler select_add_cc(sim_decoding *d) { return select_carry(d, 'a', false); }
sim_handler select_addc(sim_decoding *d) { return select_carry(d, 'a', true); }
sim_handler select_sub_cc(sim_decoding *d) { return select_carry(d, 's', false); }
sim_handler select_subc(sim_decoding *d) { return select_carry(d, 's', true); }
sim_handler select_mad_cc(sim_decoding *d) { return select_carry(d, 'm', false); }
sim_handler select_madc(sim_decoding *d) { return select_carry(d, 'm', true); }
