/* Video instructions (PTX ISA 9.7.18): arithmetic on bytes, half-words or words that operands name by their parts (r1.h0, r2.b3210); of one value, of pairs and of quads. */
#include "decode.h"

#include <stdlib.h>

__extension__ typedef __int128 i128;   /* of gcc and clang on 64-bit machines */

typedef enum video_operation { VADD, VSUB, VAVRG, VABSDIFF, VMIN, VMAX, VSHL, VSHR, VSET, VMAD } video_operation;

/* parts: which part of the pair (a, b), least significant first, of `bits` bits each; a scalar has one. */
typedef struct selection { int parts[4]; } selection;

typedef struct video_op {
    video_operation what;
    int lanes, bits;                     /* 1, 2 or 4 values; of SIMD bits of each */
    bool a_signed, b_signed, d_signed;
    selection a, b;
    int a_bits, b_bits;                  /* of a scalar's operands */
    int merge_bits, merge_at;            /* of a scalar that is merged into c: bits, and where they go; 0: it is not */
    uint32_t mask;                       /* of SIMD: values that go to the result */
    int shift;                           /* of vmad; and whether its product, or its c, is negated */
    bool plus_one, negate_product, negate_c;
} video_op;

/* Bits [part bits, part bits + bits) of the value, extended. */
static int64_t extract(uint64_t value, int part, int bits, bool is_signed) {
    const uint64_t field = value >> (part * bits) & (UINT64_MAX >> (64 - bits));
    return is_signed ? (int64_t)(field << (64 - bits)) >> (64 - bits) : (int64_t)field;
}

static bool compares(const sim_modifiers *m, int64_t a, int64_t b) {
    if (sim_has(m, SIM_MOD_eq)) return a == b;
    if (sim_has(m, SIM_MOD_ne)) return a != b;
    if (sim_has(m, SIM_MOD_lt)) return a < b;
    if (sim_has(m, SIM_MOD_le)) return a <= b;
    return sim_has(m, SIM_MOD_gt) ? a > b : a >= b;
}

static int64_t combine(const sim_op *op, const video_op *v, int64_t a, int64_t b) {
    const bool wraps = sim_has(&op->mods, SIM_MOD_wrap);
    const int by = (int)(wraps ? b & 31 : b > 32 ? 32 : b);
    switch (v->what) {
    case VADD: return a + b;
    case VSUB: return a - b;
    case VAVRG: return (a + b + (a + b >= 0)) >> 1;
    case VABSDIFF: return a > b ? a - b : b - a;
    case VMIN: return a < b ? a : b;
    case VMAX: return a > b ? a : b;
    case VSHL: return (int64_t)((uint64_t)a << by);
    case VSHR: return a >> by;
    default: return compares(&op->mods, a, b);
    }
}

static int64_t clamped(int64_t value, int bits, bool is_signed) {
    const int64_t most = (int64_t)(UINT64_MAX >> (64 - bits)) >> is_signed, least = is_signed ? -most - 1 : 0;
    return value < least ? least : value > most ? most : value;
}

/* The range of a part of d that saturates, as an H200 has it: what is negative becomes the largest number too. */
static int64_t saturated_part(int64_t value, int bits, bool is_signed) {
    const int64_t most = clamped(INT64_MAX, bits, is_signed);
    return value < 0 || value > most ? most : value;
}

/* Three rules are an H200's, where the ISA's pseudocode has others: parts of d saturate as above, but shifts to the range of 32 bits; d.h1 takes the upper half of the value; and what is
 * compared with c is cut to 32 bits before, c's sign being d's (of vset, a's). */
static uint32_t scalar(const sim_op *op, const video_op *v, uint32_t a, uint32_t b, uint32_t c) {
    const bool c_signed = v->what == VSET ? v->a_signed : v->d_signed;
    const int64_t third = c_signed ? (int64_t)(int32_t)c : (int64_t)c;
    int64_t value = combine(op, v, extract(a, v->a.parts[0], v->a_bits, v->a_signed), extract(b, v->b.parts[0], v->b_bits, v->b_signed));
    if (sim_has(&op->mods, SIM_MOD_sat)) value = v->merge_bits > 0 && v->what != VSHR ? saturated_part(value, v->merge_bits, v->d_signed) : clamped(value, 32, v->d_signed);
    if (sim_has(&op->mods, SIM_MOD_min) || sim_has(&op->mods, SIM_MOD_max)) value = v->d_signed ? (int64_t)(int32_t)value : (int64_t)(uint32_t)value;
    if (sim_has(&op->mods, SIM_MOD_add)) value += third;
    if (sim_has(&op->mods, SIM_MOD_min)) value = value < third ? value : third;
    if (sim_has(&op->mods, SIM_MOD_max)) value = value > third ? value : third;
    if (v->merge_bits == 0) return (uint32_t)value;
    if (v->merge_bits == 16 && v->merge_at == 16) value >>= 16;
    const uint32_t mask = ((1u << v->merge_bits) - 1) << v->merge_at;
    return (c & ~mask) | ((uint32_t)value << v->merge_at & mask);
}

/* Negation is by complement and 1, as the ISA's pseudocode has it. */
static uint32_t product(const sim_op *op, const video_op *v, uint32_t a, uint32_t b, uint32_t c) {
    const bool is_signed = v->a_signed || v->b_signed || v->negate_product || v->negate_c;
    i128 sum = (i128)extract(a, v->a.parts[0], v->a_bits, v->a_signed) * extract(b, v->b.parts[0], v->b_bits, v->b_signed);
    if (v->negate_product) sum = ~sum;
    if (v->negate_c) c = ~c;
    sum += is_signed ? (i128)(int32_t)c : (i128)c;
    sum = (sum + (v->plus_one || v->negate_product || v->negate_c)) >> v->shift;
    if (!sim_has(&op->mods, SIM_MOD_sat)) return (uint32_t)sum;
    const i128 most = is_signed ? INT32_MAX : UINT32_MAX, least = is_signed ? INT32_MIN : 0;
    return (uint32_t)(sum < least ? least : sum > most ? most : sum);
}

static uint32_t several(const sim_op *op, const video_op *v, uint32_t a, uint32_t b, uint32_t c) {
    const uint64_t pair = (uint64_t)b << 32 | a;
    const bool adds = sim_has(&op->mods, SIM_MOD_add);
    uint32_t result = c;
    for (int i = 0; i < v->lanes; i++) {
        if ((v->mask >> i & 1) == 0) continue;
        int64_t value = combine(op, v, extract(pair, v->a.parts[i], v->bits, v->a_signed), extract(pair, v->b.parts[i], v->bits, v->b_signed));
        if (sim_has(&op->mods, SIM_MOD_sat)) value = clamped(value, v->bits, v->d_signed);
        const uint32_t field = ((1u << v->bits) - 1) << (i * v->bits);
        result = adds ? result + (uint32_t)value : (result & ~field) | ((uint32_t)value << (i * v->bits) & field);
    }
    return result;
}

static sim_flow do_video(sim_warp *w, const sim_op *op, uint32_t mask) {
    const video_op *v = op->extra;
    const uint32_t *a = ROW(uint32_t, 1), *b = ROW(uint32_t, 2), *c = op->arg[3] != SIM_NO_ROW ? ROW(uint32_t, 3) : NULL;
    uint32_t values[LANES];
    for (int i = 0; i < LANES; i++) {
        const uint32_t third = c != NULL ? c[i] : 0;
        values[i] = v->lanes > 1 ? several(op, v, a[i], b[i], third) : v->what == VMAD ? product(op, v, a[i], b[i], third) : scalar(op, v, a[i], b[i], third);
    }
    STORE_ROW(uint32_t, 0, values, mask);
    return SIM_NEXT;
}

/* ---- decoding ---- */

/* ".h1", ".b2" of a scalar's operand: which part, and its bits. */
static bool read_part(const char *select, int *part, int *bits) {
    *part = 0;
    *bits = 32;
    if (select == NULL) return true;
    if (strlen(select) != 3 || (select[1] != 'b' && select[1] != 'h')) return false;
    *bits = select[1] == 'b' ? 8 : 16;
    *part = select[2] - '0';
    return *part >= 0 && *part < 32 / *bits;
}

/* ".h32", ".b7654": a part for each value, the last one's first. */
static bool read_parts(const char *select, const video_op *v, int first, selection *s) {
    for (int i = 0; i < v->lanes; i++) s->parts[i] = first + i;
    if (select == NULL) return true;
    if (strlen(select) != (size_t)v->lanes + 2 || select[1] != (v->lanes == 2 ? 'h' : 'b')) return false;
    for (int i = 0; i < v->lanes; i++) {
        s->parts[i] = select[v->lanes + 1 - i] - '0';
        if (s->parts[i] < 0 || s->parts[i] >= 2 * v->lanes) return false;
    }
    return true;
}

static bool read_mask(const char *select, video_op *v) {
    v->mask = (1u << v->lanes) - 1;
    if (select == NULL) return true;
    if (select[1] != (v->lanes == 2 ? 'h' : 'b') || select[2] == '\0') return false;
    v->mask = 0;
    for (const char *at = select + 2; *at != '\0'; at++) {
        if (*at < '0' || *at - '0' >= v->lanes) return false;
        v->mask |= 1u << (*at - '0');
    }
    return true;
}

static bool read_selections(const ptx_instruction *in, video_op *v) {
    const char *d = in->operands[0].select, *a = in->operands[1].select, *b = in->operands[2].select;
    if (v->lanes > 1) return read_parts(a, v, 0, &v->a) && read_parts(b, v, v->lanes, &v->b) && read_mask(d, v);
    int part, bits;
    if (!read_part(a, &v->a.parts[0], &v->a_bits) || !read_part(b, &v->b.parts[0], &v->b_bits) || !read_part(d, &part, &bits)) return false;
    v->merge_bits = d != NULL ? bits : 0;
    v->merge_at = part * bits;
    return true;
}

static bool read_operation(const char *opcode, video_op *v) {
    static const struct { const char *name; video_operation what; } names[] = {
        {"vadd", VADD}, {"vsub", VSUB}, {"vavrg", VAVRG}, {"vabsdiff", VABSDIFF}, {"vmin", VMIN}, {"vmax", VMAX}, {"vshl", VSHL}, {"vshr", VSHR}, {"vset", VSET}, {"vmad", VMAD},
    };
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const size_t length = strlen(names[i].name);
        if (strncmp(opcode, names[i].name, length) != 0 || (opcode[length] != '.' && opcode[length] != '2' && opcode[length] != '4')) continue;
        v->what = names[i].what;
        v->lanes = opcode[length] == '.' ? 1 : opcode[length] - '0';
        v->bits = 32 / v->lanes;
        return true;
    }
    return false;
}

/* Scalar forms in which an H200 departs from the ISA's pseudocode by no rule that is known; vmad has its own. */
static bool departs(const sim_decoding *d, const video_op *v) {
    const bool compares_with_c = sim_mod(d, SIM_MOD_min) || sim_mod(d, SIM_MOD_max), any_signed = v->a_signed || v->b_signed;
    switch (v->what) {
    case VSHL: return compares_with_c || sim_mod(d, SIM_MOD_sat);
    case VADD:
        if (sim_mod(d, SIM_MOD_sat) && !v->d_signed && !any_signed && v->a_bits == 32 && v->b_bits == 32) return true;
        return compares_with_c && !v->d_signed && any_signed;
    case VSUB: return compares_with_c && !v->d_signed && any_signed;
    case VMAX: return compares_with_c && v->d_signed && !any_signed;
    default: return false;
    }
}

sim_handler select_video(sim_decoding *d) {
    const ptx_instruction *in = d->instruction;
    const bool second = sim_mod(d, SIM_MOD_add) || sim_mod(d, SIM_MOD_min) || sim_mod(d, SIM_MOD_max);
    video_op *v = sim_decode_new(d, sizeof *v);
    if (v == NULL || !read_operation(in->opcode, v)) return NULL;
    const bool compares = v->what == VSET, shifts = v->what == VSHL || v->what == VSHR;
    v->d_signed = !compares && d->type == PTX_s32;
    v->a_signed = (compares ? d->type : d->type2) == PTX_s32;
    v->b_signed = !shifts && (compares ? d->type2 : d->type3) == PTX_s32;
    v->shift = sim_mod(d, SIM_MOD_shr7) ? 7 : sim_mod(d, SIM_MOD_shr15) ? 15 : 0;
    v->plus_one = sim_mod(d, SIM_MOD_po);
    if (in->count < 3 || in->count > 4 || !read_selections(in, v) || (in->count == 4 && in->operands[3].select != NULL)) {
        d->why = "d, a, b and perhaps c, with parts .b0 to .b3, .h0, .h1; of pairs .hxy with x and y of 0 to 3, of quads .bxyzw with 0 to 7";
        return NULL;
    }
    if (in->count != (v->lanes > 1 || v->what == VMAD || second || v->merge_bits > 0 ? 4 : 3) || (second && (v->merge_bits > 0 || (v->lanes > 1 && sim_mod(d, SIM_MOD_sat)))) ||
        (v->what == VMAD && v->merge_bits > 0)) {
        d->why = "c goes with a second operation, a part of d, or several values; a second operation with neither a part of d nor, of several values, .sat";
        return NULL;
    }
    if (v->what == VMAD) {
        const bool minus_a = in->operands[1].minus, minus_b = in->operands[2].minus, saturates = sim_mod(d, SIM_MOD_sat);
        const bool whole_unsigned = (!v->a_signed && v->a_bits == 32) || (!v->b_signed && v->b_bits == 32);
        v->negate_product = minus_a != minus_b;
        v->negate_c = in->operands[3].minus;
        const bool negates = minus_a || minus_b || v->negate_c, is_unsigned = !v->a_signed && !v->b_signed && !negates;
        if ((v->negate_product && v->negate_c) || (v->plus_one && negates)) {
            d->why = "vmad negates its product or c, not both, and with .po neither";
            return NULL;
        }
        if ((minus_a && minus_b) || (whole_unsigned && (negates || saturates || v->shift > 0)) || (is_unsigned && (saturates || (v->d_signed && v->shift > 0)))) {
            d->why = "vmad with a and b negated; with a whole unsigned word and a negation, .sat, .shr7 or .shr15; unsigned with .sat, or with a signed d and a shift: an H200 has other results than the ISA tells";
            return NULL;
        }
    }
    if (v->lanes == 1 && departs(d, v)) {
        d->why = "vshl with .sat, .min or .max; .min or .max with vadd and vsub of a signed operand to .u32 and with vmax of unsigned ones to .s32; vadd.u32.u32.u32.sat of whole words: an H200 has other "
                 "results than the ISA tells";
        return NULL;
    }
    for (int i = 0; i < in->count; i++) {
        ptx_operand whole = in->operands[i];
        whole.select = NULL;
        if ((i == 0 ? sim_decode_target(d, &whole, PTX_b32, &d->op->arg[0]) : sim_decode_source(d, &whole, PTX_b32, &d->op->arg[i])) != DW_OK) return NULL;
    }
    d->op->extra = v;
    return do_video;
}
