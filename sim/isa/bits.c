/* Bits: counts, fields, shifts, logic, bytes (PTX ISA 9.7.1.14 to 9.7.1.22, 9.7.8, prmt). */
#include "decode.h"
#include "sim/machine/lanes.h"

/* ---- counts and positions ---- */

static inline uint32_t leading_zeros(uint64_t a) { return a == 0 ? 64 : (uint32_t)__builtin_clzll(a); }

LANES_1(popc_32, uint32_t, uint32_t, __builtin_popcount(a))
LANES_1(popc_64, uint32_t, uint64_t, __builtin_popcountll(a))
LANES_1(clz_32, uint32_t, uint32_t, leading_zeros(a) - 32)
LANES_1(clz_64, uint32_t, uint64_t, leading_zeros(a))
LANES_1(bfind_u32, uint32_t, uint32_t, a == 0 ? UINT32_MAX : 63 - leading_zeros(a))
LANES_1(bfind_u64, uint32_t, uint64_t, a == 0 ? UINT32_MAX : 63 - leading_zeros(a))
LANES_1(shift_u32, uint32_t, uint32_t, a == 0 ? UINT32_MAX : leading_zeros(a) - 32)
LANES_1(shift_u64, uint32_t, uint64_t, a == 0 ? UINT32_MAX : leading_zeros(a))
SELECT_BITS(popc, NULL, popc_32, popc_64)
SELECT_BITS(clz, NULL, clz_32, clz_64)

static inline uint32_t magnitude32(int32_t a) { return (uint32_t)(a < 0 ? ~a : a); }
static inline uint64_t magnitude64(int64_t a) { return (uint64_t)(a < 0 ? ~a : a); }

LANES_1(bfind_s32, uint32_t, int32_t, magnitude32(a) == 0 ? UINT32_MAX : 63 - leading_zeros(magnitude32(a)))
LANES_1(bfind_s64, uint32_t, int64_t, magnitude64(a) == 0 ? UINT32_MAX : 63 - leading_zeros(magnitude64(a)))
LANES_1(shift_s32, uint32_t, int32_t, magnitude32(a) == 0 ? UINT32_MAX : leading_zeros(magnitude32(a)) - 32)
LANES_1(shift_s64, uint32_t, int64_t, magnitude64(a) == 0 ? UINT32_MAX : leading_zeros(magnitude64(a)))

sim_handler select_bfind(sim_decoding *d) {
    bool shift = sim_mod(d, SIM_MOD_shiftamt);
    switch (d->type) {
    case PTX_u32: return shift ? shift_u32 : bfind_u32;
    case PTX_u64: return shift ? shift_u64 : bfind_u64;
    case PTX_s32: return shift ? shift_s32 : bfind_s32;
    default: return shift ? shift_s64 : bfind_s64;
    }
}

/* The offset-th set bit of mask, counted from base upwards (offset > 0) or downwards; offset 0 asks for base itself. */
static inline uint32_t find_nth(uint32_t mask, uint32_t base, int32_t offset) {
    if (base > 31) return UINT32_MAX;
    int step = offset < 0 ? -1 : 1, left = offset < 0 ? -offset : offset;
    if (offset == 0) return mask >> base & 1 ? base : UINT32_MAX;
    for (int at = (int)base; at >= 0 && at < 32; at += step) {
        if (mask >> at & 1 && --left == 0) return (uint32_t)at;
    }
    return UINT32_MAX;
}

LANES_3(fns_32, uint32_t, uint32_t, uint32_t, int32_t, find_nth(a, b, c))

sim_handler select_fns(sim_decoding *d) {
    (void)d;
    return fns_32;
}

static inline uint32_t reversed(uint32_t a) {
    a = (a >> 1 & 0x55555555) | (a & 0x55555555) << 1;
    a = (a >> 2 & 0x33333333) | (a & 0x33333333) << 2;
    a = (a >> 4 & 0x0f0f0f0f) | (a & 0x0f0f0f0f) << 4;
    a = (a >> 8 & 0x00ff00ff) | (a & 0x00ff00ff) << 8;
    return a >> 16 | a << 16;
}

LANES_1(brev_32, uint32_t, uint32_t, reversed(a))
LANES_1(brev_64, uint64_t, uint64_t, (uint64_t)reversed((uint32_t)a) << 32 | reversed((uint32_t)(a >> 32)))
SELECT_BITS(brev, NULL, brev_32, brev_64)

/* ---- fields. Positions and lengths count by their low 8 bits; of 64-bit ones by all of them, which the ISA restricts to 0..255 (an H200's). ---- */

static inline uint64_t low_mask(uint32_t bits) { return bits >= 64 ? UINT64_MAX : (1ull << bits) - 1; }

static inline uint32_t clamped(uint32_t bits) { return bits < 255 ? bits : 255; }

static inline uint64_t field(uint64_t a, uint32_t b, uint32_t c, uint32_t width, bool is_signed) {
    uint32_t from = width == 64 ? clamped(b) : b & 255, length = width == 64 ? clamped(c) : c & 255, top = from + length - 1 < width - 1 ? from + length - 1 : width - 1;
    bool sign = is_signed && length != 0 && (a >> top & 1) != 0;
    uint64_t taken = from >= width ? 0 : a >> from;
    uint64_t bits = taken & low_mask(length);
    uint32_t held = from >= width ? 0 : length < width - from ? length : width - from;
    return sign ? bits | ~low_mask(held) : bits;
}

static inline uint64_t inserted(uint64_t a, uint64_t b, uint32_t c, uint32_t d, uint32_t width) {
    uint32_t from = width == 64 ? clamped(c) : c & 255, length = width == 64 ? clamped(d) : d & 255;
    if (from >= width || length == 0) return b;
    uint64_t mask = low_mask(length) << from;
    return (b & ~mask) | (a << from & mask);
}

LANES_3(bfe_u32, uint32_t, uint32_t, uint32_t, uint32_t, field(a, b, c, 32, false))
LANES_3(bfe_s32, uint32_t, uint32_t, uint32_t, uint32_t, field(a, b, c, 32, true))
LANES_3(bfe_u64, uint64_t, uint64_t, uint32_t, uint32_t, field(a, b, c, 64, false))
LANES_3(bfe_s64, uint64_t, uint64_t, uint32_t, uint32_t, field(a, b, c, 64, true))
SELECT_INTEGER(bfe, NULL, bfe_u32, bfe_u64, NULL, bfe_s32, bfe_s64)
LANES_3(bfi_32, uint32_t, uint32_t, uint32_t, uint32_t, inserted(a, b, c, ROW(uint32_t, 4)[i], 32))
LANES_3(bfi_64, uint64_t, uint64_t, uint64_t, uint32_t, inserted(a, b, c, ROW(uint32_t, 4)[i], 64))
SELECT_BITS(bfi, NULL, bfi_32, bfi_64)

static inline uint32_t extended(uint32_t a, uint32_t b, bool wrap, bool is_signed) {
    uint32_t bits = wrap ? b & 31 : b;
    if (bits > 31) return a;
    if (bits == 0) return 0;
    uint32_t kept = a & (uint32_t)low_mask(bits);
    return is_signed && (kept >> (bits - 1) & 1) != 0 ? kept | ~(uint32_t)low_mask(bits) : kept;
}

LANES_2(szext_32, uint32_t, uint32_t, uint32_t, extended(a, b, sim_has(&op->mods, SIM_MOD_wrap), op->type == PTX_s32))

sim_handler select_szext(sim_decoding *d) {
    (void)d;
    return szext_32;
}

static inline uint32_t bit_mask(uint32_t a, uint32_t b, bool wrap) {
    uint32_t from = wrap ? a & 31 : a, length = wrap ? b & 31 : b;
    if (from > 31 || length == 0) return 0;
    return (uint32_t)(low_mask(length > 32 ? 32 : length) << from);
}

LANES_2(bmsk_32, uint32_t, uint32_t, uint32_t, bit_mask(a, b, sim_has(&op->mods, SIM_MOD_wrap)))

sim_handler select_bmsk(sim_decoding *d) {
    (void)d;
    return bmsk_32;
}

/* ---- logic ---- */

LANES_2(and_16, uint16_t, uint16_t, uint16_t, a & b)
LANES_2(and_32, uint32_t, uint32_t, uint32_t, a & b)
LANES_2(and_64, uint64_t, uint64_t, uint64_t, a & b)
LANES_2(or_16, uint16_t, uint16_t, uint16_t, a | b)
LANES_2(or_32, uint32_t, uint32_t, uint32_t, a | b)
LANES_2(or_64, uint64_t, uint64_t, uint64_t, a | b)
LANES_2(xor_16, uint16_t, uint16_t, uint16_t, a ^ b)
LANES_2(xor_32, uint32_t, uint32_t, uint32_t, a ^ b)
LANES_2(xor_64, uint64_t, uint64_t, uint64_t, a ^ b)
LANES_1(not_16, uint16_t, uint16_t, ~a)
LANES_1(not_32, uint32_t, uint32_t, ~a)
LANES_1(not_64, uint64_t, uint64_t, ~a)
LANES_1(cnot_16, uint16_t, uint16_t, a == 0)
LANES_1(cnot_32, uint32_t, uint32_t, a == 0)
LANES_1(cnot_64, uint64_t, uint64_t, a == 0)

#define PREDICATE_LOGIC(name, expression)                                     \
    static sim_flow name(sim_warp *w, const sim_op *op, uint32_t mask) {      \
        uint32_t a = *ROW(uint32_t, 1), b = op->arg[2] != SIM_NO_ROW ? *ROW(uint32_t, 2) : 0; \
        (void)b;                                                              \
        sim_store_mask(w, op->arg[0], expression, mask);                      \
        return SIM_NEXT;                                                      \
    }
PREDICATE_LOGIC(and_pred, a & b)
PREDICATE_LOGIC(or_pred, a | b)
PREDICATE_LOGIC(xor_pred, a ^ b)
PREDICATE_LOGIC(not_pred, ~a)

static sim_handler by_bits(const sim_decoding *d, sim_handler of1, sim_handler of16, sim_handler of32, sim_handler of64) {
    int bits = ptx_types[d->type].bits;
    return bits == 1 ? of1 : bits == 16 ? of16 : bits == 32 ? of32 : of64;
}

sim_handler select_and(sim_decoding *d) { return by_bits(d, and_pred, and_16, and_32, and_64); }
sim_handler select_or(sim_decoding *d) { return by_bits(d, or_pred, or_16, or_32, or_64); }
sim_handler select_xor(sim_decoding *d) { return by_bits(d, xor_pred, xor_16, xor_32, xor_64); }
sim_handler select_not(sim_decoding *d) { return by_bits(d, not_pred, not_16, not_32, not_64); }
SELECT_BITS(cnot, cnot_16, cnot_32, cnot_64)

static inline uint32_t any_of_three(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
    uint32_t result = 0;
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t here = ((i & 4) != 0 ? a : ~a) & ((i & 2) != 0 ? b : ~b) & ((i & 1) != 0 ? c : ~c);
        result |= here & (0u - (table >> i & 1));
    }
    return result;
}

LANES_3(lop3_32, uint32_t, uint32_t, uint32_t, uint32_t, any_of_three(a, b, c, ROW(uint32_t, 4)[i]))

sim_handler select_lop3(sim_decoding *d) {
    (void)d;
    return lop3_32;
}

/* The result's word, and p: (word != 0) or, and q. */
static sim_flow do_lop3_pred(sim_warp *w, const sim_op *op, uint32_t mask) {
    const uint32_t *a = ROW(uint32_t, 2), *b = ROW(uint32_t, 3), *c = ROW(uint32_t, 4), *table = ROW(uint32_t, 5), q = *ROW(uint32_t, 6);
    uint32_t values[LANES], ones = 0;
    for (int i = 0; i < LANES; i++) {
        values[i] = any_of_three(a[i], b[i], c[i], table[i]);
        ones |= (uint32_t)(values[i] != 0) << i;
    }
    STORE_ROW(uint32_t, 0, values, mask);
    if (op->arg[1] != SIM_NO_ROW) sim_store_mask(w, op->arg[1], sim_has(&op->mods, SIM_MOD_or) ? ones | q : ones & q, mask);
    return SIM_NEXT;
}

sim_handler select_lop3_pred(sim_decoding *d) {
    (void)d;
    return do_lop3_pred;
}

/* ---- shifts: amounts beyond the width shift everything out ---- */

LANES_2(shl_16, uint16_t, uint16_t, uint32_t, b > 15 ? 0 : (uint32_t)a << b)
LANES_2(shl_32, uint32_t, uint32_t, uint32_t, b > 31 ? 0 : a << b)
LANES_2(shl_64, uint64_t, uint64_t, uint32_t, b > 63 ? 0 : a << b)
LANES_2(shr_u16, uint16_t, uint16_t, uint32_t, b > 15 ? 0 : a >> b)
LANES_2(shr_u32, uint32_t, uint32_t, uint32_t, b > 31 ? 0 : a >> b)
LANES_2(shr_u64, uint64_t, uint64_t, uint32_t, b > 63 ? 0 : a >> b)
LANES_2(shr_s16, int16_t, int16_t, uint32_t, a >> (b > 15 ? 15 : b))
LANES_2(shr_s32, int32_t, int32_t, uint32_t, a >> (b > 31 ? 31 : b))
LANES_2(shr_s64, int64_t, int64_t, uint32_t, a >> (b > 63 ? 63 : b))
SELECT_BITS(shl, shl_16, shl_32, shl_64)
SELECT_INTEGER(shr, shr_u16, shr_u32, shr_u64, shr_s16, shr_s32, shr_s64)

/* b is the upper, a the lower word of the pair. */
static inline uint32_t funnel(uint32_t a, uint32_t b, uint32_t c, bool left, bool wrap) {
    uint32_t by = wrap ? c & 31 : c < 32 ? c : 32;
    uint64_t pair = (uint64_t)b << 32 | a;
    return left ? (uint32_t)(pair << by >> 32) : (uint32_t)(pair >> by);
}

LANES_3(shf_l_clamp, uint32_t, uint32_t, uint32_t, uint32_t, funnel(a, b, c, true, false))
LANES_3(shf_l_wrap, uint32_t, uint32_t, uint32_t, uint32_t, funnel(a, b, c, true, true))
LANES_3(shf_r_clamp, uint32_t, uint32_t, uint32_t, uint32_t, funnel(a, b, c, false, false))
LANES_3(shf_r_wrap, uint32_t, uint32_t, uint32_t, uint32_t, funnel(a, b, c, false, true))

sim_handler select_shf(sim_decoding *d) {
    bool wrap = sim_mod(d, SIM_MOD_wrap);
    if (sim_mod(d, SIM_MOD_l)) return wrap ? shf_l_wrap : shf_l_clamp;
    return wrap ? shf_r_wrap : shf_r_clamp;
}

/* ---- prmt ---- */

/* Byte n of the pair; with bit 3 of the selector its sign, eight times. */
static inline uint32_t chosen_byte(uint64_t pair, uint32_t selector) {
    uint32_t byte = (uint32_t)(pair >> (8 * (selector & 7)) & 0xff);
    return (selector & 8) != 0 ? ((byte & 0x80) != 0 ? 0xffu : 0u) : byte;
}

static inline uint32_t permuted(uint32_t a, uint32_t b, uint32_t c) {
    uint64_t pair = (uint64_t)b << 32 | a;
    return chosen_byte(pair, c) | chosen_byte(pair, c >> 4) << 8 | chosen_byte(pair, c >> 8) << 16 | chosen_byte(pair, c >> 12) << 24;
}

/* The other modes are tables from the low two bits to selectors (PTX ISA 9.7.9.7). */
static inline uint32_t permuted_by(uint32_t a, uint32_t b, uint32_t c, const uint16_t table[4]) { return permuted(a, b, table[c & 3]); }

LANES_3(prmt_any, uint32_t, uint32_t, uint32_t, uint32_t, permuted(a, b, c))
LANES_3(prmt_table, uint32_t, uint32_t, uint32_t, uint32_t, permuted_by(a, b, c, op->extra))

sim_handler select_prmt(sim_decoding *d) {
    static const uint16_t f4e[4] = {0x3210, 0x4321, 0x5432, 0x6543}, b4e[4] = {0x5670, 0x6701, 0x7012, 0x0123}, rc8[4] = {0x0000, 0x1111, 0x2222, 0x3333},
                          ecl[4] = {0x3210, 0x3211, 0x3222, 0x3333}, ecr[4] = {0x0000, 0x1110, 0x2210, 0x3210}, rc16[4] = {0x1010, 0x3232, 0x1010, 0x3232};
    d->op->extra = sim_mod(d, SIM_MOD_f4e) ? f4e : sim_mod(d, SIM_MOD_b4e) ? b4e : sim_mod(d, SIM_MOD_rc8) ? rc8 : sim_mod(d, SIM_MOD_ecl) ? ecl
                   : sim_mod(d, SIM_MOD_ecr) ? ecr : sim_mod(d, SIM_MOD_rc16) ? rc16 : NULL;
    return d->op->extra != NULL ? prmt_table : prmt_any;
}
