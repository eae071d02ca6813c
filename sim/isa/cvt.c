/* cvt: between integers and floats of every size, small formats included (PTX ISA 9.7.9.21). A value is read exactly, as an integer or a double, and
 * rounded once, in the mode that is asked for. Codes of 8 bits and less are src/num's. */
#include "decode.h"
#include "sim/machine/lanes.h"
#include "num/num.h"
#include "sim/math/real.h"

typedef struct small_type { ptx_type pair; dw_format format; int bits; } small_type;

static const small_type small_types[] = {
    {PTX_e4m3x2, DW_FORMAT_e4m3, 8}, {PTX_e5m2x2, DW_FORMAT_e5m2, 8}, {PTX_e2m3x2, DW_FORMAT_e2m3, 8},
    {PTX_e3m2x2, DW_FORMAT_e3m2, 8}, {PTX_e2m1x2, DW_FORMAT_e2m1, 4}, {PTX_ue8m0x2, DW_FORMAT_e8m0, 8},
};

static const small_type *find_small(int type) {
    for (size_t i = 0; i < COUNT_OF(small_types); i++) {
        if ((int)small_types[i].pair == type) return &small_types[i];
    }
    return NULL;
}

static bool is_integer(int type) { return ptx_types[type].class == PTX_UNSIGNED || ptx_types[type].class == PTX_SIGNED; }

typedef enum mode { TO_NEAREST, TO_ZERO, DOWN, UP, AWAY } mode;

static mode mode_of(const sim_modifiers *m) {
    if (sim_has(m, SIM_MOD_rz) || sim_has(m, SIM_MOD_rzi)) return TO_ZERO;
    if (sim_has(m, SIM_MOD_rm) || sim_has(m, SIM_MOD_rmi)) return DOWN;
    if (sim_has(m, SIM_MOD_rp) || sim_has(m, SIM_MOD_rpi)) return UP;
    return sim_has(m, SIM_MOD_rna) ? AWAY : TO_NEAREST;
}

/* A magnitude that is whole + fraction, to a whole one. */
static double round_magnitude(double magnitude, bool negative, mode how) {
    double whole = floor(magnitude), fraction = magnitude - whole;
    bool up;
    switch (how) {
    case TO_ZERO: up = false; break;
    case DOWN: up = negative && fraction > 0; break;
    case UP: up = !negative && fraction > 0; break;
    case AWAY: up = fraction >= 0.5; break;
    default: up = fraction > 0.5 || (fraction == 0.5 && fmod(whole, 2.0) != 0); break;
    }
    return up ? whole + 1 : whole;
}

/* The code of a finite or infinite number in a format with infinity of so many exponent and mantissa bits; NaN is the caller's. */
static uint32_t encode(double value, int exponent_bits, int mantissa, mode how, bool finite_only) {
    int bias = (1 << (exponent_bits - 1)) - 1, least = 1 - bias - mantissa, exponent;
    bool negative = signbit(value) != 0;
    uint32_t infinity = ((1u << exponent_bits) - 1) << mantissa, code, sign = (uint32_t)negative << (exponent_bits + mantissa);
    double magnitude = fabs(value);
    if (isinf(magnitude)) return sign | (finite_only ? infinity - 1 : infinity);
    if (magnitude == 0) return sign;
    frexp(magnitude, &exponent);   /* in [2^(exponent-1), 2^exponent) */
    int unit = exponent - 1 - mantissa > least ? exponent - 1 - mantissa : least;
    uint64_t steps = (uint64_t)round_magnitude(ldexp(magnitude, -unit), negative, how);
    uint64_t wide = unit == least ? steps : ((uint64_t)(unit - least + 1) << mantissa) + (steps - (1ull << mantissa));
    code = wide >= infinity ? infinity : (uint32_t)wide;
    bool overflows_to_largest = how == TO_ZERO || (how == DOWN && !negative) || (how == UP && negative);
    if (code == infinity && (finite_only || overflows_to_largest)) code = infinity - 1;
    return sign | code;
}

/* ---- reading ---- */

static uint64_t raw(const uint8_t *row, int lane, int bytes) {
    uint64_t bits = 0;
    memcpy(&bits, row + (size_t)lane * (size_t)bytes, (size_t)bytes);
    return bits;
}

static double read_real(int type, uint64_t bits, bool ftz) {
    switch (type) {
    case PTX_f16: return (bits & 0x7fff) > 0x7c00 ? f64_from((bits & 0x8000) << 48 | 0x7ff8000000000000ull | (bits & 0x3ff) << 42) : (double)num_f16_to_f32((uint16_t)bits);
    case PTX_bf16: return (double)num_bf16_to_f32((uint16_t)bits);
    case PTX_f32: case PTX_tf32: return (double)(ftz ? flush(f32_from((uint32_t)bits)) : f32_from((uint32_t)bits));
    default: return f64_from(bits);
    }
}

static int64_t read_integer(int type, uint64_t bits) {
    int unused = 64 - ptx_types[type].bits;
    return ptx_types[type].class == PTX_SIGNED ? (int64_t)(bits << unused) >> unused : (int64_t)(bits << unused >> unused);
}

/* ---- writing ---- */

/* Results that are NaN, as an H200 gives them: one pattern, but where either side is .f64 the payload stays, as far as there is room. */
static uint64_t nan_of(const sim_op *op, int type, double value) {
    bool wide = op->type2 == PTX_f64, ftz = sim_has(&op->mods, SIM_MOD_ftz);
    uint64_t bits = f64_bits(value) | 0x0008000000000000ull;
    switch (type) {
    case PTX_f64: return ftz ? 0x7fffffffe0000000ull : bits;
    case PTX_f32: return wide ? (uint32_t)(bits >> 32 & 0x80000000) | 0x7f800000 | (uint32_t)(bits >> 29 & 0x7fffff) : F32_NAN;
    case PTX_tf32: return 0x7fffe000;
    case PTX_f16: return wide ? (bits >> 48 & 0x8000) | 0x7c00 | (bits >> 42 & 0x3ff) : 0x7fff;
    default: return wide ? (bits >> 48 & 0x8000) | 0x7f80 | (bits >> 45 & 0x7f) : 0x7fff;
    }
}

static uint64_t write_real(const sim_op *op, int type, double value, bool integral) {
    const sim_modifiers *m = &op->mods;
    mode how = mode_of(m);
    bool finite = sim_has(m, SIM_MOD_satfinite), ftz = sim_has(m, SIM_MOD_ftz);
    if (integral && isfinite(value)) value = copysign(round_magnitude(fabs(value), signbit(value) != 0, how), value);
    if (integral) how = TO_NEAREST;
    if (sim_has(m, SIM_MOD_relu) && !isnan(value) && !(value > 0)) value = 0;
    if (sim_has(m, SIM_MOD_sat)) value = value > 0 ? (value < 1 ? value : 1) : 0;
    if (isnan(value)) return nan_of(op, type, value);
    switch (type) {
    case PTX_f16: return encode(value, 5, 10, how, finite);
    case PTX_bf16: return encode(value, 8, 7, how, finite);
    case PTX_tf32: return (uint64_t)encode(value, 8, 10, how, finite) << 13;
    case PTX_f32: {
        /* What is flushed is rounded to 24 bits as if exponents had no end, as in isa/float.c. */
        if (ftz && fabs(value) < 0x1p-126 && (encode(value * 0x1p64, 8, 23, how, finite) & 0x7fffffff) < (1u + 64) << 23) return signbit(value) ? 0x80000000 : 0;
        return encode(value, 8, 23, how, finite);
    }
    default: return f64_bits(value);
    }
}

/* An integer's magnitude with 53 bits. The host's rounding modes are of no use here: compilers convert by tricks that round twice. */
static double to_53_bits(uint64_t magnitude, bool negative, mode how) {
    int shift = 0;
    while (magnitude >> shift >> 53 != 0) shift++;
    if (shift == 0) return (double)(int64_t)magnitude;
    uint64_t top = magnitude >> shift, rest = magnitude & ((1ull << shift) - 1), half = 1ull << (shift - 1);
    bool up = how == DOWN ? negative && rest != 0 : how == UP ? !negative && rest != 0 : how == TO_ZERO ? false : rest > half || (rest == half && (top & 1) != 0);
    return ldexp((double)(int64_t)(top + up), shift);
}

static uint64_t real_of_integer(const sim_op *op, int to, int from, int64_t value) {
    bool negative = ptx_types[from].class == PTX_SIGNED && value < 0;
    uint64_t magnitude = negative ? 0 - (uint64_t)value : (uint64_t)value;
    if (to == PTX_f64) {
        double real = to_53_bits(magnitude, negative, mode_of(&op->mods));
        if (sim_has(&op->mods, SIM_MOD_sat)) real = negative || real == 0 ? 0 : 1;
        return f64_bits(negative && real != 0 ? -real : real);
    }
    /* For smaller targets: rounded to odd, the 53 bits hold all that decides the rounding to come. */
    double real = to_53_bits(magnitude, false, TO_ZERO);
    if (magnitude >> 53 != 0 && (uint64_t)real != magnitude) real = f64_from(f64_bits(real) | 1);
    return write_real(op, to, negative ? -real : real, false);
}

/* Clamped to the target; NaN is 0, or the sign bit alone where either side has 64 bits. */
static uint64_t integer_of_real(int to, int from, double value, mode how) {
    int bits = ptx_types[to].bits;
    bool is_signed = ptx_types[to].class == PTX_SIGNED;
    if (isnan(value)) return bits == 64 || from == PTX_f64 ? 1ull << (bits - 1) : 0;
    double rounded = isinf(value) ? value : copysign(round_magnitude(fabs(value), signbit(value) != 0, how), value);
    double limit = ldexp(1.0, is_signed ? bits - 1 : bits), least = is_signed ? -limit : 0.0;
    if (rounded >= limit) return is_signed ? (1ull << (bits - 1)) - 1 : UINT64_MAX >> (64 - bits);
    if (rounded <= least) return is_signed ? 1ull << (bits - 1) : 0;
    return is_signed ? (uint64_t)(int64_t)rounded : (uint64_t)rounded;
}

static uint64_t integer_of_integer(const sim_op *op, int to, int from, int64_t value) {
    if (!sim_has(&op->mods, SIM_MOD_sat)) return (uint64_t)value;
    int bits = ptx_types[to].bits;
    bool negative = ptx_types[from].class == PTX_SIGNED && value < 0, is_signed = ptx_types[to].class == PTX_SIGNED;
    uint64_t largest = is_signed ? (1ull << (bits - 1)) - 1 : UINT64_MAX >> (64 - bits);
    if (!negative) return (uint64_t)value > largest ? largest : (uint64_t)value;
    if (!is_signed) return 0;
    int64_t smallest = bits == 64 ? INT64_MIN : -(int64_t)(1ull << (bits - 1));
    return (uint64_t)(value < smallest ? smallest : value);
}

static uint64_t convert_one(const sim_op *op, uint64_t bits) {
    int to = op->type, from = op->type2;
    bool ftz = sim_has(&op->mods, SIM_MOD_ftz);
    uint64_t result;
    if (to == PTX_tf32 && mode_of(&op->mods) == AWAY && (bits & 0x7fffffff) > 0x7f800000) {   /* a NaN is cut, and .satfinite takes one off, as of infinity (an H200's) */
        return (bits & 0xffffe000) - (sim_has(&op->mods, SIM_MOD_satfinite) ? 0x2000 : 0);
    }
    if (is_integer(from)) {
        int64_t value = read_integer(from, bits);
        result = is_integer(to) ? integer_of_integer(op, to, from, value) : real_of_integer(op, to, from, value);
    } else {
        const bool directed = mode_of(&op->mods) == DOWN || mode_of(&op->mods) == UP;
        double value = read_real(from, bits, ftz && !(to == PTX_f16 && directed));   /* to f16 these modes flush nothing (an H200's) */
        bool integral = sim_has(&op->mods, SIM_MOD_rni) || sim_has(&op->mods, SIM_MOD_rzi) || sim_has(&op->mods, SIM_MOD_rmi) || sim_has(&op->mods, SIM_MOD_rpi);
        result = is_integer(to) ? integer_of_real(to, from, value, mode_of(&op->mods)) : write_real(op, to, value, integral);
    }
    return is_integer(to) ? (uint64_t)read_integer(to, result) : result;   /* a wider register gets it extended */
}

static sim_flow do_cvt(sim_warp *w, const sim_op *op, uint32_t mask) {
    int to_bytes = op->count, from_bytes = op->small;
    const uint8_t *from = ROW(uint8_t, 1);
    uint64_t out[LANES];
    for (int i = 0; i < LANES; i++) {
        if (mask >> i & 1) out[i] = convert_one(op, raw(from, i, from_bytes));
    }
    uint8_t *to = ROW(uint8_t, 0);
    for (int i = 0; i < LANES; i++) {
        if (mask >> i & 1) memcpy(to + (size_t)i * (size_t)to_bytes, &out[i], (size_t)to_bytes);
    }
    return SIM_NEXT;
}

/* ---- pairs ---- */

static uint32_t scale_code(double value, mode how) {
    if (isnan(value)) return 0xff;
    if (how != TO_ZERO) return (uint32_t)num_encode(DW_FORMAT_e8m0, value, true);
    int exponent;
    double magnitude = fabs(value);
    if (isinf(magnitude)) return 0xfe;
    if (magnitude < 0x1p-127) return 0;
    frexp(magnitude, &exponent);
    int code = exponent - 1 + 127;
    return (uint32_t)(code > 0xfe ? 0xfe : code);
}

static uint32_t half_of_pair(const sim_op *op, double value) {
    const small_type *small = find_small(op->type);
    if (small == NULL) return (uint32_t)write_real(op, op->type == PTX_f16x2 ? PTX_f16 : PTX_bf16, value, false);
    if (small->format == DW_FORMAT_e8m0) return scale_code(value, mode_of(&op->mods));
    if (sim_has(&op->mods, SIM_MOD_relu) && !isnan(value) && !(value > 0)) value = 0;
    return (uint32_t)num_encode(small->format, value, true);
}

/* The first operand goes to the upper half. From one operand that is a pair, or from two numbers. */
static sim_flow do_cvt_pair(sim_warp *w, const sim_op *op, uint32_t mask) {
    const small_type *to = find_small(op->type), *from = find_small(op->type2);
    int shift = to != NULL ? to->bits : 16;
    bool ftz = sim_has(&op->mods, SIM_MOD_ftz);
    for (int i = 0; i < LANES; i++) {
        if ((mask >> i & 1) == 0) continue;
        double high, low;
        if (from != NULL) {
            uint32_t pair = ROW(uint16_t, 1)[i];
            high = num_decode(from->format, pair >> from->bits & ((1u << from->bits) - 1));
            low = num_decode(from->format, pair & ((1u << from->bits) - 1));
        } else if (op->arg[2] == SIM_NO_ROW) {
            uint32_t pair = ROW(uint32_t, 1)[i];
            int each = op->type2 == PTX_f16x2 ? PTX_f16 : PTX_bf16;
            high = read_real(each, pair >> 16, ftz);
            low = read_real(each, pair & 0xffff, ftz);
        } else {
            high = read_real(PTX_f32, f32_bits(ROW(float, 1)[i]), ftz);
            low = read_real(PTX_f32, f32_bits(ROW(float, 2)[i]), ftz);
        }
        uint32_t result = half_of_pair(op, high) << shift | half_of_pair(op, low);
        if (op->count == 2) ROW(uint16_t, 0)[i] = (uint16_t)result;
        else ROW(uint32_t, 0)[i] = result;
    }
    return SIM_NEXT;
}

/* ---- the common ones, as loops for the vectoriser ---- */

LANES_1(cvt_u64_u32, uint64_t, uint32_t, a)
LANES_1(cvt_s64_s32, int64_t, int32_t, a)
LANES_1(cvt_32_64, uint32_t, uint64_t, a)
LANES_1(cvt_16_32, uint16_t, uint32_t, a)
LANES_1(cvt_u32_u16, uint32_t, uint16_t, a)
LANES_1(cvt_s32_s16, int32_t, int16_t, a)
LANES_1(cvt_f32_s32, float, int32_t, (float)a)
LANES_1(cvt_f32_u32, float, uint32_t, (float)a)
LANES_1(cvt_f32_f16, float, uint16_t, canonical(num_f16_to_f32(a)))
LANES_1(cvt_f32_bf16, uint32_t, uint16_t, (uint32_t)a << 16)
LANES_1(cvt_f16_f32, uint16_t, float, num_f32_to_f16(a))
LANES_1(cvt_bf16_f32, uint16_t, float, num_f32_to_bf16(a))
LANES_1(cvt_f64_f32, double, float, (double)a)

static const struct { ptx_type to, from; bool nearest; sim_handler handler; } common[] = {
    {PTX_u64, PTX_u32, false, cvt_u64_u32}, {PTX_s64, PTX_u32, false, cvt_u64_u32}, {PTX_s64, PTX_s32, false, cvt_s64_s32}, {PTX_u64, PTX_s32, false, cvt_s64_s32},
    {PTX_u32, PTX_u64, false, cvt_32_64}, {PTX_s32, PTX_s64, false, cvt_32_64}, {PTX_u32, PTX_s64, false, cvt_32_64}, {PTX_s32, PTX_u64, false, cvt_32_64},
    {PTX_u16, PTX_u32, false, cvt_16_32}, {PTX_s16, PTX_s32, false, cvt_16_32}, {PTX_u16, PTX_s32, false, cvt_16_32}, {PTX_s16, PTX_u32, false, cvt_16_32},
    {PTX_u32, PTX_u16, false, cvt_u32_u16}, {PTX_s32, PTX_u16, false, cvt_u32_u16}, {PTX_s32, PTX_s16, false, cvt_s32_s16}, {PTX_u32, PTX_s16, false, cvt_s32_s16},
    {PTX_f32, PTX_s32, true, cvt_f32_s32}, {PTX_f32, PTX_u32, true, cvt_f32_u32}, {PTX_f32, PTX_f16, false, cvt_f32_f16}, {PTX_f32, PTX_bf16, false, cvt_f32_bf16},
    {PTX_f16, PTX_f32, true, cvt_f16_f32}, {PTX_bf16, PTX_f32, true, cvt_bf16_f32}, {PTX_f64, PTX_f32, false, cvt_f64_f32},
};

static sim_handler find_common(const sim_decoding *d) {
    sim_modifiers nearest = {0}, none = {0};
    nearest.bits[SIM_MOD_rn / 64] = 1ull << (SIM_MOD_rn % 64);
    for (size_t i = 0; i < COUNT_OF(common); i++) {
        const sim_modifiers *wanted = common[i].nearest ? &nearest : &none;
        if (common[i].to == d->type && common[i].from == d->type2 && memcmp(&d->mods, wanted, sizeof none) == 0) return common[i].handler;
    }
    return NULL;
}

/* ---- decoding ---- */

static int row_bytes(ptx_type type) { return ptx_types[type].bits <= 16 ? 2 : ptx_types[type].bits / 8; }

/* A register may be wider than the type says. */
static dw_status wide_operand(sim_decoding *d, const ptx_operand *o, ptx_type type, bool target, uint32_t *row, uint8_t *bytes) {
    ptx_type held = sim_decode_register_type(d, o), use = type;
    if (held != PTX_NO_TYPE && held != PTX_pred && ptx_types[held].bits > ptx_types[type].bits && is_integer(type)) use = held;
    *bytes = (uint8_t)row_bytes(use);
    return target ? sim_decode_target(d, o, use, row) : sim_decode_source(d, o, use, row);
}

static sim_handler select_pair(sim_decoding *d) {
    const ptx_instruction *in = d->instruction;
    bool from_pair = ptx_types[d->type2].class == PTX_PACKED;
    const small_type *to = find_small(d->type), *from = find_small(d->type2);
    bool two = !from_pair;
    if (ptx_types[d->type].class != PTX_PACKED || (two && d->type2 != PTX_f32) || (to != NULL && from != NULL)) {
        d->why = "a conversion that does not exist";
        return NULL;
    }
    if (to != NULL && !sim_mod(d, SIM_MOD_satfinite)) {
        d->why = "conversions to these formats are .satfinite";
        return NULL;
    }
    if (in->count != (two ? 3 : 2)) {
        d->why = two ? "two numbers make a pair: three operands" : "two operands";
        return NULL;
    }
    /* Pairs of 4 bits are .b8 registers, whose rows hold 16 bits. */
    ptx_type target = ptx_types[d->type].bits <= 8 ? PTX_b8 : d->type;
    if (sim_decode_target(d, &in->operands[0], target, &d->op->arg[0]) != DW_OK) return NULL;
    if (sim_decode_source(d, &in->operands[1], ptx_types[d->type2].bits <= 8 ? PTX_b8 : d->type2, &d->op->arg[1]) != DW_OK) return NULL;
    if (two && sim_decode_source(d, &in->operands[2], PTX_f32, &d->op->arg[2]) != DW_OK) return NULL;
    d->op->count = (uint8_t)row_bytes(d->type);
    return do_cvt_pair;
}

sim_handler select_cvt(sim_decoding *d) {
    const ptx_instruction *in = d->instruction;
    if (ptx_types[d->type].class == PTX_PACKED || ptx_types[d->type2].class == PTX_PACKED) return select_pair(d);
    if (in->count != 2) {
        d->why = "two operands";
        return NULL;
    }
    if (wide_operand(d, &in->operands[0], d->type, true, &d->op->arg[0], &d->op->count) != DW_OK ||
        wide_operand(d, &in->operands[1], d->type2, false, &d->op->arg[1], &d->op->small) != DW_OK) {
        return NULL;
    }
    bool to_real = !is_integer(d->type), from_real = !is_integer(d->type2);
    bool integral = sim_mod(d, SIM_MOD_rni) || sim_mod(d, SIM_MOD_rzi) || sim_mod(d, SIM_MOD_rmi) || sim_mod(d, SIM_MOD_rpi);
    bool real_mode = sim_mod(d, SIM_MOD_rn) || sim_mod(d, SIM_MOD_rz) || sim_mod(d, SIM_MOD_rm) || sim_mod(d, SIM_MOD_rp) || sim_mod(d, SIM_MOD_rna);
    bool narrows = to_real && (!from_real || ptx_types[d->type].bits < ptx_types[d->type2].bits || d->type == PTX_tf32 ||
                               (ptx_types[d->type].bits == 16 && d->type != d->type2));
    if ((from_real && !to_real && !integral) || (narrows && !real_mode)) {
        d->why = "this conversion needs a rounding mode";
        return NULL;
    }
    sim_handler handler = find_common(d);
    if (handler != NULL && d->op->count == row_bytes(d->type) && d->op->small == row_bytes(d->type2)) return handler;
    return do_cvt;
}

/* ---- cvt.rs: random bits are added to those that are cut off, and what they carry rounds away from zero ---- */

/* fp16 has room for 13 random bits, which lie below the last bit that is kept, of subnormal results too; bf16 for 16. */
static uint32_t stochastic(const sim_op *op, uint32_t bits, uint32_t random) {
    const bool wide = op->type == PTX_bf16x2;
    const int mantissa = wide ? 7 : 10, least = wide ? -126 : -14, fresh = wide ? 16 : 13;
    const uint32_t infinity = wide ? 0x7f80 : 0x7c00, sign = bits >> 16 & 0x8000;
    const double magnitude = fabs((double)f32_from(bits));
    int exponent;
    if (isnan(magnitude)) return 0x7fff;
    if (sim_has(&op->mods, SIM_MOD_relu) && (sign != 0 || magnitude == 0)) return 0;
    if (magnitude == 0) return sign;
    frexp(isinf(magnitude) ? 0x1p127 : magnitude, &exponent);
    const int place = exponent - 1 < least ? least : exponent - 1;
    uint32_t code = infinity;
    if (isfinite(magnitude) && place < 128) {
        const double steps = ldexp(magnitude, mantissa - place), whole = floor(steps);
        const uint32_t carried = ((uint32_t)ldexp(steps - whole, fresh) + (random & ((1u << fresh) - 1))) >> fresh;
        const uint64_t exact = (uint64_t)whole + carried + ((uint64_t)(place - least) << mantissa);
        code = exact >= infinity ? infinity : (uint32_t)exact;
    }
    if (code == infinity && sim_has(&op->mods, SIM_MOD_satfinite)) code = infinity - 1;
    return sign | code;
}

static sim_flow do_stochastic(sim_warp *w, const sim_op *op, uint32_t mask) {
    const uint32_t *a = ROW(uint32_t, 1), *b = ROW(uint32_t, 2), *random = ROW(uint32_t, 3);
    uint32_t values[LANES];
    for (int i = 0; i < LANES; i++) values[i] = stochastic(op, a[i], random[i] >> 16) << 16 | stochastic(op, b[i], random[i] & 0xffff);
    STORE_ROW(uint32_t, 0, values, mask);
    return SIM_NEXT;
}

sim_handler select_cvt_rs(sim_decoding *d) {
    (void)d;
    return do_stochastic;
}

/* ---- cvt.pack ---- */

/* small: bits of each; type2: signed. */
static sim_flow do_pack(sim_warp *w, const sim_op *op, uint32_t mask) {
    const int bits = op->small;
    const int64_t least = op->type2 != 0 ? -(1ll << (bits - 1)) : 0, most = op->type2 != 0 ? (1ll << (bits - 1)) - 1 : (1ll << bits) - 1;
    const int32_t *a = ROW(int32_t, 1), *b = ROW(int32_t, 2);
    const uint32_t *c = op->arg[3] != SIM_NO_ROW ? ROW(uint32_t, 3) : NULL;
    uint32_t values[LANES];
    for (int lane = 0; lane < LANES; lane++) {
        const int64_t x = a[lane] < least ? least : a[lane] > most ? most : a[lane], y = b[lane] < least ? least : b[lane] > most ? most : b[lane];
        const uint32_t low = (1u << bits) - 1, pair = ((uint32_t)x & low) << bits | ((uint32_t)y & low);
        values[lane] = c != NULL ? c[lane] << (2 * bits) | pair : pair;
    }
    STORE_ROW(uint32_t, 0, values, mask);
    return SIM_NEXT;
}

sim_handler select_cvt_pack(sim_decoding *d) {
    const ptx_instruction *in = d->instruction;
    const bool small = sim_mod(d, SIM_MOD_u4) || sim_mod(d, SIM_MOD_s4) || sim_mod(d, SIM_MOD_u2) || sim_mod(d, SIM_MOD_s2);
    d->op->small = (uint8_t)(!small ? ptx_types[d->type].bits : sim_mod(d, SIM_MOD_u4) || sim_mod(d, SIM_MOD_s4) ? 4 : 2);
    d->op->type2 = small ? sim_mod(d, SIM_MOD_s4) || sim_mod(d, SIM_MOD_s2) : ptx_types[d->type].class == PTX_SIGNED;
    if (in->count != (d->op->small == 16 ? 3 : 4)) {
        d->why = "a result, two integers, and for results of less than 16 bits what stands above them";
        return NULL;
    }
    if (sim_decode_target(d, &in->operands[0], PTX_b32, &d->op->arg[0]) != DW_OK) return NULL;
    for (int i = 1; i < in->count; i++)
        if (sim_decode_source(d, &in->operands[i], i < 3 ? PTX_s32 : PTX_b32, &d->op->arg[i]) != DW_OK) return NULL;
    return do_pack;
}
