/* Moves, choices and comparisons; addresses of other spaces (PTX ISA 9.7.6, 9.7.9.3, 9.7.9.19 to 24). */
#include "decode.h"
#include "sim/machine/lanes.h"
#include "num/num.h"
#include "sim/math/real.h"

typedef struct wide { uint64_t low, high; } wide;   /* .b128 */

/* ---- mov ---- */

LANES_1(copy_16, uint16_t, uint16_t, a)
LANES_1(copy_32, uint32_t, uint32_t, a)
LANES_1(copy_64, uint64_t, uint64_t, a)

static sim_flow copy_128(sim_warp *w, const sim_op *op, uint32_t mask) {
    wide values[LANES];
    memcpy(values, ROW(wide, 1), sizeof values);
    STORE_ROW(wide, 0, values, mask);
    return SIM_NEXT;
}

static sim_flow copy_pred(sim_warp *w, const sim_op *op, uint32_t mask) {
    sim_store_mask(w, op->arg[0], *ROW(uint32_t, 1), mask);
    return SIM_NEXT;
}

/* rows: count pieces of bytes each; small: bytes of a piece in memory (1 for .b8, whose row has 2). */
static sim_flow do_pack(sim_warp *w, const sim_op *op, uint32_t mask) {
    size_t piece = op->small, room = piece < 2 ? 2 : piece, whole = op->bytes;
    uint8_t out[LANES * 16];
    for (int k = 0; k < op->count; k++) {
        const uint8_t *from = sim_row(w, op->rows[k]);
        for (int i = 0; i < LANES; i++) memcpy(out + (size_t)i * whole + (size_t)k * piece, from + (size_t)i * room, piece);
    }
    uint8_t *to = ROW(uint8_t, 0);
    for (int i = 0; i < LANES; i++) {
        if (mask >> i & 1) memcpy(to + (size_t)i * whole, out + (size_t)i * whole, whole);
    }
    return SIM_NEXT;
}

static sim_flow do_unpack(sim_warp *w, const sim_op *op, uint32_t mask) {
    size_t piece = op->small, room = piece < 2 ? 2 : piece, whole = op->bytes;
    uint8_t in[LANES * 16];
    memcpy(in, ROW(uint8_t, 0), LANES * whole);
    for (int k = 0; k < op->count; k++) {
        uint8_t *to = sim_row(w, op->rows[k]);
        for (int i = 0; i < LANES; i++) {
            if ((mask >> i & 1) == 0) continue;
            memset(to + (size_t)i * room, 0, room);
            memcpy(to + (size_t)i * room, in + (size_t)i * whole + (size_t)k * piece, piece);
        }
    }
    return SIM_NEXT;
}

static ptx_type bits_type(int bits) { return bits == 8 ? PTX_b8 : bits == 16 ? PTX_b16 : bits == 32 ? PTX_b32 : PTX_b64; }

static sim_handler select_vector_move(sim_decoding *d, const ptx_operand *vector, const ptx_operand *scalar, bool pack) {
    int bits = ptx_types[d->type].bits, piece = vector->count > 0 ? bits / vector->count : 0;
    if ((vector->count != 2 && vector->count != 4) || piece < 8 || piece > 64) {
        d->why = "a vector of 2 or 4 members that fill the other operand";
        return NULL;
    }
    uint32_t *rows = sim_decode_new(d, sizeof *rows * (size_t)vector->count);
    if (rows == NULL) return NULL;
    for (int i = 0; i < vector->count; i++) {
        dw_status status = pack ? sim_decode_source(d, &vector->items[i], bits_type(piece), &rows[i]) : sim_decode_target(d, &vector->items[i], bits_type(piece), &rows[i]);
        if (status != DW_OK) return NULL;
    }
    if ((pack ? sim_decode_target(d, scalar, d->type, &d->op->arg[0]) : sim_decode_source(d, scalar, d->type, &d->op->arg[0])) != DW_OK) return NULL;
    d->op->rows = rows;
    d->op->count = (uint8_t)vector->count;
    d->op->small = (uint8_t)(piece / 8);
    return pack ? do_pack : do_unpack;
}

sim_handler select_mov(sim_decoding *d) {
    const ptx_instruction *in = d->instruction;
    if (in->count != 2) {
        d->why = "mov has two operands";
        return NULL;
    }
    if (in->operands[1].kind == PTX_OPERAND_VECTOR) return select_vector_move(d, &in->operands[1], &in->operands[0], true);
    if (in->operands[0].kind == PTX_OPERAND_VECTOR) return select_vector_move(d, &in->operands[0], &in->operands[1], false);
    if (in->operands[1].kind == PTX_OPERAND_SPECIAL && strncmp(in->operands[1].name, "%clock", 6) == 0) d->op->extra = in->operands[1].name;
    if (sim_decode_target(d, &in->operands[0], d->type, &d->op->arg[0]) != DW_OK || sim_decode_source(d, &in->operands[1], d->type, &d->op->arg[1]) != DW_OK) return NULL;
    switch (ptx_types[d->type].bits) {
    case 1: return copy_pred;
    case 16: return copy_16;
    case 32: return copy_32;
    case 64: return copy_64;
    default: return copy_128;
    }
}

/* ---- selp, slct: the condition of selp is a mask ---- */

/* A table, as vectors have no shifts by lanes everywhere. */
static const uint32_t lane_bit[LANES] = {1u << 0,  1u << 1,  1u << 2,  1u << 3,  1u << 4,  1u << 5,  1u << 6,  1u << 7,  1u << 8,  1u << 9,  1u << 10,
                                         1u << 11, 1u << 12, 1u << 13, 1u << 14, 1u << 15, 1u << 16, 1u << 17, 1u << 18, 1u << 19, 1u << 20, 1u << 21,
                                         1u << 22, 1u << 23, 1u << 24, 1u << 25, 1u << 26, 1u << 27, 1u << 28, 1u << 29, 1u << 30, 1u << 31};

#define SELECT_LANES(name, type)                                                   \
    static sim_flow name(sim_warp *w, const sim_op *op, uint32_t mask) {           \
        const type *a = ROW(type, 1), *b = ROW(type, 2);                           \
        uint32_t p = *ROW(uint32_t, 3);                                            \
        type out[LANES];                                                           \
        for (int i = 0; i < LANES; i++) out[i] = (p & lane_bit[i]) != 0 ? a[i] : b[i]; \
        STORE_ROW(type, 0, out, mask);                                             \
        return SIM_NEXT;                                                           \
    }
SELECT_LANES(selp_16, uint16_t)
SELECT_LANES(selp_32, uint32_t)
SELECT_LANES(selp_64, uint64_t)
SELECT_BITS(selp, selp_16, selp_32, selp_64)

/* a where c >= 0; NaN and negative zero: -0 is not below 0, NaN is not at least 0. */
static bool at_least_zero(const sim_op *op, uint32_t c) {
    if (op->small == 0) return (int32_t)c >= 0;
    if (sim_has(&op->mods, SIM_MOD_ftz)) c = flush_bits(c);
    return f32_from(c) >= 0.0f;
}

LANES_3(slct_16, uint16_t, uint16_t, uint16_t, uint32_t, at_least_zero(op, c) ? a : b)
LANES_3(slct_32, uint32_t, uint32_t, uint32_t, uint32_t, at_least_zero(op, c) ? a : b)
LANES_3(slct_64, uint64_t, uint64_t, uint64_t, uint32_t, at_least_zero(op, c) ? a : b)

sim_handler select_slct(sim_decoding *d) {
    size_t length = strlen(d->instruction->opcode);
    d->op->small = strcmp(d->instruction->opcode + length - 3, "f32") == 0;
    int bits = ptx_types[d->type].bits;
    return bits == 16 ? slct_16 : bits == 32 ? slct_32 : slct_64;
}

/* ---- comparisons ---- */

typedef enum comparison { EQ, NE, LT, LE, GT, GE, EQU, NEU, LTU, LEU, GTU, GEU, NUM, NAN_, COMPARISONS } comparison;

#define FOR_LANES(condition)                                                       \
    for (int i = 0; i < LANES; i++) m |= (uint32_t)(condition) << i;               \
    return m;

/* Unordered operands: an ordered comparison is false, but != is spelled so that it is false too; the ..u forms are true. */
#define COMPARE(name, type)                                                        \
    static uint32_t name(comparison how, const type *a, const type *b) {           \
        uint32_t m = 0;                                                            \
        switch (how) {                                                             \
        case EQ: FOR_LANES(a[i] == b[i])                                           \
        case NE: FOR_LANES(a[i] < b[i] || a[i] > b[i])                             \
        case LT: FOR_LANES(a[i] < b[i])                                            \
        case LE: FOR_LANES(a[i] <= b[i])                                           \
        case GT: FOR_LANES(a[i] > b[i])                                            \
        case GE: FOR_LANES(a[i] >= b[i])                                           \
        case EQU: FOR_LANES(!(a[i] < b[i] || a[i] > b[i]))                         \
        case NEU: FOR_LANES(a[i] != b[i])                                          \
        case LTU: FOR_LANES(!(a[i] >= b[i]))                                       \
        case LEU: FOR_LANES(!(a[i] > b[i]))                                        \
        case GTU: FOR_LANES(!(a[i] <= b[i]))                                       \
        case GEU: FOR_LANES(!(a[i] < b[i]))                                        \
        case NUM: FOR_LANES(a[i] == a[i] && b[i] == b[i])                          \
        default: FOR_LANES(a[i] != a[i] || b[i] != b[i])                           \
        }                                                                          \
    }
COMPARE(compare_u16, uint16_t)
COMPARE(compare_u32, uint32_t)
COMPARE(compare_u64, uint64_t)
COMPARE(compare_s16, int16_t)
COMPARE(compare_s32, int32_t)
COMPARE(compare_s64, int64_t)
COMPARE(compare_f32, float)
COMPARE(compare_f64, double)

/* Halves as floats; half: which of a pair, stride 2. */
static uint32_t compare_half(const sim_op *op, const uint16_t *a, const uint16_t *b, int half, int stride) {
    float x[LANES], y[LANES];
    bool bf16 = op->type2 == PTX_bf16 || op->type2 == PTX_bf16x2, ftz = sim_has(&op->mods, SIM_MOD_ftz);
    for (int i = 0; i < LANES; i++) {
        uint16_t p = a[i * stride + half], q = b[i * stride + half];
        if (ftz && !bf16) {
            p = (p & 0x7c00) == 0 ? p & 0x8000 : p;
            q = (q & 0x7c00) == 0 ? q & 0x8000 : q;
        }
        x[i] = bf16 ? num_bf16_to_f32(p) : num_f16_to_f32(p);
        y[i] = bf16 ? num_bf16_to_f32(q) : num_f16_to_f32(q);
    }
    return compare_f32((comparison)op->small, x, y);
}

static uint32_t compare(sim_warp *w, const sim_op *op, uint32_t a, uint32_t b, int half) {
    const void *x = sim_row(w, a), *y = sim_row(w, b);
    float fx[LANES], fy[LANES];
    comparison how = (comparison)op->small;
    switch (op->type2) {
    case PTX_u16: case PTX_b16: return compare_u16(how, x, y);
    case PTX_u32: case PTX_b32: return compare_u32(how, x, y);
    case PTX_u64: case PTX_b64: return compare_u64(how, x, y);
    case PTX_s16: return compare_s16(how, x, y);
    case PTX_s32: return compare_s32(how, x, y);
    case PTX_s64: return compare_s64(how, x, y);
    case PTX_f64: return compare_f64(how, x, y);
    case PTX_f32:
        if (!sim_has(&op->mods, SIM_MOD_ftz)) return compare_f32(how, x, y);
        for (int i = 0; i < LANES; i++) {
            fx[i] = flush(((const float *)x)[i]);
            fy[i] = flush(((const float *)y)[i]);
        }
        return compare_f32(how, fx, fy);
    default: return compare_half(op, x, y, half, ptx_types[op->type2].bits / 16);
    }
}

static uint32_t combine(const sim_op *op, uint32_t value, uint32_t with) {
    if (sim_has(&op->mods, SIM_MOD_and)) return value & with;
    if (sim_has(&op->mods, SIM_MOD_or)) return value | with;
    if (sim_has(&op->mods, SIM_MOD_xor)) return value ^ with;
    return value;
}

static bool note_comparison(sim_decoding *d, ptx_type type) {
    static const struct { sim_modifier modifier; comparison how; bool of_floats; } words[] = {
        {SIM_MOD_eq, EQ, false}, {SIM_MOD_ne, NE, false}, {SIM_MOD_lt, LT, false}, {SIM_MOD_le, LE, false}, {SIM_MOD_gt, GT, false}, {SIM_MOD_ge, GE, false},
        {SIM_MOD_lo, LT, false}, {SIM_MOD_ls, LE, false}, {SIM_MOD_hi, GT, false}, {SIM_MOD_hs, GE, false}, {SIM_MOD_equ, EQU, true}, {SIM_MOD_neu, NEU, true},
        {SIM_MOD_ltu, LTU, true}, {SIM_MOD_leu, LEU, true}, {SIM_MOD_gtu, GTU, true}, {SIM_MOD_geu, GEU, true}, {SIM_MOD_num, NUM, true}, {SIM_MOD_nan, NAN_, true},
    };
    bool real = ptx_types[type].class == PTX_FLOAT || ptx_types[type].class == PTX_PACKED;
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        if (!sim_mod(d, words[i].modifier)) continue;
        if (words[i].of_floats && !real) break;
        if (ptx_types[type].class == PTX_BITS && words[i].how > NE) break;
        d->op->small = (uint8_t)words[i].how;
        d->op->type2 = (uint8_t)type;
        return true;
    }
    d->why = "a comparison that this type does not have";
    return false;
}

static sim_flow do_setp(sim_warp *w, const sim_op *op, uint32_t mask) {
    bool pair = ptx_types[op->type2].class == PTX_PACKED;
    uint32_t value = compare(w, op, op->arg[2], op->arg[3], 0), with = op->arg[4] != SIM_NO_ROW ? *ROW(uint32_t, 4) : 0;
    uint32_t other = pair ? compare(w, op, op->arg[2], op->arg[3], 1) : ~value;
    sim_store_mask(w, op->arg[0], combine(op, value, with), mask);
    if (op->arg[1] != SIM_NO_ROW) sim_store_mask(w, op->arg[1], combine(op, other, with), mask);
    return SIM_NEXT;
}

sim_handler select_setp(sim_decoding *d) { return note_comparison(d, d->type) ? do_setp : NULL; }

/* True is all ones of an integer, 1.0 of a float; of a pair in each half. */
static sim_flow do_set(sim_warp *w, const sim_op *op, uint32_t mask) {
    uint32_t with = op->arg[3] != SIM_NO_ROW ? *ROW(uint32_t, 3) : 0;
    uint32_t low = combine(op, compare(w, op, op->arg[1], op->arg[2], 0), with);
    bool pair = ptx_types[op->type2].class == PTX_PACKED;
    uint32_t high = pair ? combine(op, compare(w, op, op->arg[1], op->arg[2], 1), with) : 0;
    uint32_t one = op->type == PTX_f32 ? 0x3f800000 : op->type == PTX_f16 || op->type == PTX_f16x2 ? 0x3c00 : op->type == PTX_bf16 || op->type == PTX_bf16x2 ? 0x3f80 : UINT32_MAX;
    for (int i = 0; i < LANES; i++) {
        if ((mask >> i & 1) == 0) continue;
        uint32_t value = low >> i & 1 ? one : 0;
        if (pair) value = (value & 0xffff) | (high >> i & 1 ? one : 0) << 16;
        if (ptx_types[op->type].bits == 16) ROW(uint16_t, 0)[i] = (uint16_t)value;
        else ROW(uint32_t, 0)[i] = value;
    }
    return SIM_NEXT;
}

sim_handler select_set(sim_decoding *d) {
    const bool pair = ptx_types[d->type2].class == PTX_PACKED;
    if (pair ? d->type != d->type2 && d->type != PTX_u32 && d->type != PTX_s32 : ptx_types[d->type].class == PTX_PACKED) {
        d->why = "pairs are compared into a pair of their type, .u32 or .s32, and nothing else into a pair";
        return NULL;
    }
    return note_comparison(d, d->type2) ? do_set : NULL;
}

/* ---- addresses ---- */

static uint64_t window_of(int space) {
    return space == PTX_SHARED ? SIM_SHARED_WINDOW : space == PTX_LOCAL ? SIM_LOCAL_WINDOW : space == PTX_PARAM ? SIM_PARAM_WINDOW : 0;
}

static sim_flow do_cvta(sim_warp *w, const sim_op *op, uint32_t mask) {
    const uint64_t *a = ROW(uint64_t, 1);
    uint64_t out[LANES], window = window_of(op->space);
    for (int i = 0; i < LANES; i++) out[i] = (op->space == PTX_SHARED ? (uint32_t)a[i] : a[i]) + window;
    STORE_ROW(uint64_t, 0, out, mask);
    return SIM_NEXT;
}

static sim_flow do_cvta_to(sim_warp *w, const sim_op *op, uint32_t mask) {
    const uint64_t *a = ROW(uint64_t, 1);
    uint64_t out[LANES], window = window_of(op->space);
    for (int i = 0; i < LANES; i++) out[i] = a[i] - window;
    STORE_ROW(uint64_t, 0, out, mask);
    return SIM_NEXT;
}

sim_handler select_cvta(sim_decoding *d) {
    /* Parameters of functions that are called lie in local memory. */
    if (d->op->space == PTX_PARAM && !d->function->entry) d->op->space = PTX_LOCAL;
    return do_cvta;
}

sim_handler select_cvta_to(sim_decoding *d) {
    if (d->op->space == PTX_PARAM && !d->function->entry) d->op->space = PTX_LOCAL;
    return do_cvta_to;
}

static bool lies_in(uint64_t address, int space) {
    uint64_t window = window_of(space);
    if (window != 0) return address >= window && address - window < SIM_WINDOW_BYTES;
    return address < SIM_SHARED_WINDOW;
}

static sim_flow do_isspacep(sim_warp *w, const sim_op *op, uint32_t mask) {
    const uint64_t *a = ROW(uint64_t, 1);
    uint32_t out = 0;
    for (int i = 0; i < LANES; i++) out |= (uint32_t)lies_in(a[i], op->space) << i;
    sim_store_mask(w, op->arg[0], out, mask);
    return SIM_NEXT;
}

sim_handler select_isspacep(sim_decoding *d) {
    (void)d;
    return do_isspacep;
}

/* mapa: the same offset in another CTA; of a generic address, in its window. */
LANES_2(mapa_32, uint32_t, uint32_t, uint32_t, (a & ((1u << SIM_RANK_SHIFT) - 1)) | b << SIM_RANK_SHIFT)
LANES_2(mapa_64, uint64_t, uint64_t, uint32_t, (a & ~0xff000000ull) | (uint64_t)b << SIM_RANK_SHIFT)
LANES_1(rank_32, uint32_t, uint32_t, a >> SIM_RANK_SHIFT)
LANES_1(rank_64, uint32_t, uint64_t, (a & 0xff000000ull) >> SIM_RANK_SHIFT)

sim_handler select_mapa(sim_decoding *d) { return d->type == PTX_u32 ? mapa_32 : mapa_64; }
sim_handler select_getctarank(sim_decoding *d) { return d->type == PTX_u32 ? rank_32 : rank_64; }
