/* mma.sync (PTX ISA 9.7.14.5): products of small matrices whose fragments lie in the registers of a warp.
 *
 * In units of 32-bit registers of E elements, with g = lane / 4 and t = lane % 4: register r of A holds row g + 8 (r % 2) (of 8 rows: g), columns
 * E t + 4 E (r / 2) and those behind; of B rows E t + 4 E r and those behind, column g; of the result row g + 8 (r / 2), column 2 t + r % 2 (of halves both
 * columns in one register). Doubles are as 32-bit elements, in registers of their own size. */
#include "decode.h"
#include "sim/math/panel.h"
#include "sim/math/real.h"

#include "num/num.h"

/* STEP: products at a time, as Hopper's unit for halves takes them. */
enum { MAX_M = 16, MMA_N = 8, MAX_K = 64, MAX_REGISTERS = 8, STEP = 16, SPARSE_STEP = 32, FRACTION = 25 };

typedef struct mma_op {
    uint32_t d[4], a[MAX_REGISTERS], b[4], c[4];
    int a_count, b_count, c_count;
    uint32_t metadata;             /* of a sparse A; else SIM_NO_ROW */
    int selector;
} mma_op;

/* Codes of up to 32 bits: rows of A side by side, as a panel (panel.h), and columns of B one behind another, k codes each. there: which columns of a row A has. */
typedef struct fragments { uint32_t a[MAX_K][PANEL_COLUMNS], b[MMA_N * MAX_K]; uint64_t there[MAX_M]; } fragments;

static int element_bits(int type) { return ptx_types[type].bits; }

/* A register of A, or of B, that has `each` elements of so many bits: to those lines of its panel, or codes of its columns. */
static inline void spread_a(const uint32_t *words, int bits, int each, uint32_t (*lines)[PANEL_COLUMNS]) {
    const uint32_t mask = bits == 32 ? UINT32_MAX : (1u << bits) - 1;
    for (int t = 0; t < 4; t++) {
        for (int e = 0; e < each; e++) {
            for (int g = 0; g < 8; g++) lines[each * t + e][g] = words[4 * g + t] >> (e * bits) & mask;
        }
    }
}

static inline void spread_b(const uint32_t *words, int bits, int each, int k, uint32_t *codes) {
    const uint32_t mask = bits == 32 ? UINT32_MAX : (1u << bits) - 1;
    for (int g = 0; g < MMA_N; g++) {
        for (int t = 0; t < 4; t++) {
            for (int e = 0; e < each; e++) codes[g * k + each * t + e] = words[4 * g + t] >> (e * bits) & mask;
        }
    }
}

static void gather(sim_warp *w, const sim_op *op, const mma_op *p, fragments *f) {
    const int bits = element_bits(op->type), tall = op->shape[0] == 16 ? 2 : 1;
    for (int r = 0; r < p->a_count; r++) {
        uint32_t (*lines)[PANEL_COLUMNS] = (uint32_t (*)[PANEL_COLUMNS])&f->a[128 / bits * (r / tall)][8 * (r % tall)];
        const uint32_t *words = sim_row(w, p->a[r]);
        if (bits == 32) spread_a(words, 32, 1, lines);
        else if (bits == 16) spread_a(words, 16, 2, lines);
        else spread_a(words, 8, 4, lines);
    }
    for (int r = 0; r < p->b_count; r++) {
        const uint32_t *words = sim_row(w, p->b[r]);
        uint32_t *codes = &f->b[128 / bits * r];
        if (bits == 32) spread_b(words, 32, 1, op->shape[2], codes);
        else if (bits == 16) spread_b(words, 16, 2, op->shape[2], codes);
        else spread_b(words, 8, 4, op->shape[2], codes);
    }
}

/* ---- a sparse A (PTX ISA 9.7.14.5.14) ---- */

/* Four bits are the places of two elements of four columns (of 32-bit elements, of the halves of one of two). Rows g and g + 8 have theirs in the halves of a word, of 8-bit
 * elements in words of neighbouring lanes; where a row takes more than one word, upper columns are one lane on, of 8-bit ones two. */
static uint32_t metadata_of(const sim_op *op, const mma_op *p, const uint32_t *words, int row, int group, int groups) {
    const int bits = element_bits(op->type), second = row / 8, quad = row % 8 * 4;
    const bool whole = op->shape[2] * bits == 512;   /* all the lanes that can be named */
    const int upper = whole && group >= groups / 2, at = group % (whole ? groups / 2 : groups) * 4;
    if (bits == 8) return words[quad + second + 2 * (whole ? upper : p->selector)] >> at & 15;
    return words[quad + (whole ? 2 * p->selector + upper : p->selector)] >> (16 * second + at) & 15;
}

/* Lays the elements of a sparse A out at the places that the metadata says. false: a finding. */
static bool place_sparse(sim_warp *w, const sim_op *op, const mma_op *p, fragments *f) {
    const uint32_t *words = sim_row(w, p->metadata);
    const int each = element_bits(op->type) == 32 ? 2 : 4, groups = op->shape[2] / each;
    for (int row = 0; row < MAX_M; row++) {
        uint32_t packed[MAX_K / 2];
        for (int i = 0; i < op->shape[2]; i++) {
            if (i < op->shape[2] / 2) packed[i] = f->a[i][row];
            f->a[i][row] = 0;
        }
        f->there[row] = 0;
        for (int group = 0; group < groups; group++) {
            const uint32_t bits = metadata_of(op, p, words, row, group, groups), first = bits & 3, second = bits >> 2;
            if (each == 2 ? bits != 4 && bits != 14 : !product_names_places(bits, packed[group * 2], packed[group * 2 + 1])) {
                sim_find(w, op, -1, "the metadata of row %d, columns %d to %d, is %u, which names no places", row, group * each, group * each + each - 1, bits);
                return false;
            }
            for (int i = 0; i < each / 2; i++) {
                const int column = group * each + (each == 2 ? bits == 14 : (int)(i == 0 ? first : second));
                f->a[column][row] = packed[group * each / 2 + i];
                f->there[row] |= 1ull << column;
            }
        }
    }
    return true;
}

/* ---- sums ---- */

/* The result's columns, of 16 rows each. */
typedef struct cells { uint32_t c[MMA_N][PANEL_COLUMNS]; } cells;

static void sum_integers(const sim_op *op, const fragments *f, cells *t) {
    const int k = op->shape[2];
    int32_t rows[MAX_K * PANEL_COLUMNS], column[MAX_K];
    for (int i = 0; i < k; i++) {
        for (int row = 0; row < PANEL_COLUMNS; row++) rows[i * PANEL_COLUMNS + row] = op->type == PTX_s8 ? (int8_t)f->a[i][row] : (int32_t)f->a[i][row];
    }
    for (int n = 0; n < MMA_N; n++) {
        for (int i = 0; i < k; i++) column[i] = op->type2 == PTX_s8 ? (int8_t)f->b[n * k + i] : (int32_t)f->b[n * k + i];
        const panel_sum sum = {.k = k, .columns = PANEL_COLUMNS, .whole_row = column, .whole_panels = rows, .saturate = sim_has(&op->mods, SIM_MOD_satfinite), .c = t->c[n]};
        panel_isa_now()->integers(&sum);
    }
}

/* count products of one cell from begin on, where a factor is not finite. */
static uint32_t sum_special(const sim_op *op, const fragments *f, int row, int column, int begin, int count, uint32_t c) {
    const product_format *fa = product_format_of(op->type), *fb = product_format_of(op->type2);
    const int bits = fa->mantissa > fb->mantissa ? fa->mantissa : fb->mantissa;
    product_number x[SPARSE_STEP], y[SPARSE_STEP];
    int terms = 0;
    if (op->small != PTX_f16 && is_f32_nan(c)) return F32_NAN;
    for (int i = begin; i < begin + count; i++) {
        if ((f->there[row] >> i & 1) == 0) continue;
        x[terms] = product_read(fa, f->a[i][row], false);
        y[terms] = product_read(fb, f->b[column * op->shape[2] + i], false);
        x[terms].significand *= 1 << (bits - fa->mantissa);
        y[terms++].significand *= 1 << (bits - fb->mantissa);
    }
    if (op->small != PTX_f16) return product_sum(x, y, terms, c, bits, FRACTION, 23);
    const double sum = product_sum_exact(x, y, terms, f32_bits(num_f16_to_f32((uint16_t)c)), bits, FRACTION);
    return isnan(sum) ? F16_NAN : (uint32_t)num_encode(DW_FORMAT_f16, sum, false);
}

/* A's rows lie side by side in a panel, and each column of B goes through them, `step` products at a time. */
static void sum_floats(const sim_op *op, const fragments *f, int step, cells *t) {
    const product_format *fa = product_format_of(op->type), *fb = product_format_of(op->type2);
    const panel_isa *isa = panel_isa_now();
    const int k = op->shape[2], bits = fa->mantissa > fb->mantissa ? fa->mantissa : fb->mantissa;
    float a[MAX_K * PANEL_COLUMNS], b[MMA_N * MAX_K];
    int16_t a_place[MAX_K * PANEL_COLUMNS], b_place[MMA_N * MAX_K];
    uint16_t a_special[MAX_K], b_special[MMA_N * MAX_K / PANEL_COLUMNS];
    isa->decode(fa, f->a[0], k, false, a, a_place, a_special);
    isa->decode(fb, f->b, MMA_N * k / PANEL_COLUMNS, false, b, b_place, b_special);
    const int base = isa->center(a, a_place, k), b_base = isa->center(b, b_place, MMA_N * k / PANEL_COLUMNS);
    uint32_t any_special = 0;
    for (int i = 0; i < k; i++) any_special |= a_special[i];
    for (int i = 0; i < MMA_N * k / PANEL_COLUMNS; i++) any_special |= b_special[i];
    for (int column = 0; column < MMA_N; column++) {
        for (int begin = 0; begin < k; begin += step) {
            const int count = k - begin < step ? k - begin : step, at = column * k + begin;
            uint32_t before[PANEL_COLUMNS], special = 0;
            for (int i = 0; i < count && any_special != 0; i++) special |= (b_special[(at + i) / PANEL_COLUMNS] >> ((at + i) % PANEL_COLUMNS) & 1) != 0 ? UINT32_MAX : a_special[begin + i];
            if (special != 0) memcpy(before, t->c[column], sizeof before);
            const panel_sum sum = {.k = count, .columns = PANEL_COLUMNS, .row = {b + at, b_place + at}, .panels = {a + begin * PANEL_COLUMNS, a_place + begin * PANEL_COLUMNS},
                                   .row_base = b_base, .bases = &base, .significand_bits = bits, .fraction = FRACTION, .result_bits = 23, .half = op->small == PTX_f16, .c = t->c[column]};
            isa->floats(&sum);
            for (int row = 0; row < op->shape[0] && special != 0; row++) {
                if ((special >> row & 1) != 0) t->c[column][row] = sum_special(op, f, row, column, begin, count, before[row]);
            }
        }
    }
}

/* sm_90 and sm_100 have no unit for 8-bit floats that mma.sync uses; sm_89 and sm_120 do. */
static bool bytes_become_halves(const sim_warp *w) { return w->launch->options->arch >= 90 && w->launch->options->arch < 120; }

/* Of e4m3 by way of fp32, whose exponent of subnormal numbers the multiplication makes. */
static inline uint32_t half_of_byte(bool wide_exponent, uint32_t code) {
    const uint32_t magnitude = code & 0x7f, bits = f32_bits(f32_from(magnitude << 20) * 0x1p120f);
    const uint32_t half = magnitude == 0x7f ? F16_NAN : magnitude == 0 ? 0 : (bits >> 13) - (112u << 10);
    return wide_exponent ? code << 8 : half | (code & 0x80) << 8;
}

/* 8-bit floats become halves and go through their unit in two steps, as ptxas 13.0 has it (and an H200's results are): the first takes the lower two of every four elements of a row (of a sparse A the
 * even ones of its groups of four), beginning with zero, the second the others; c is added at the end, by an ordinary addition. */
static void split_bytes(const sim_op *op, bool sparse, fragments *f) {
    const int k = op->shape[2], bit = sparse ? 4 : 2;
    const bool wide_a = op->type == PTX_e5m2, wide_b = op->type2 == PTX_e5m2;
    uint32_t a[MAX_K][PANEL_COLUMNS], b[MMA_N * MAX_K];
    uint64_t there[MAX_M];
    int from[MAX_K];
    for (int i = 0, low = 0, high = k / 2; i < k; i++) from[(i & bit) == 0 ? low++ : high++] = i;
    memcpy(a, f->a, (size_t)k * sizeof a[0]);
    memcpy(b, f->b, MMA_N * (size_t)k * sizeof b[0]);
    memcpy(there, f->there, sizeof there);
    for (int i = 0; i < k; i++) {
        for (int row = 0; row < PANEL_COLUMNS; row++) f->a[i][row] = half_of_byte(wide_a, a[from[i]][row]);
    }
    for (int n = 0; n < MMA_N; n++) {
        for (int i = 0; i < k; i++) f->b[n * k + i] = half_of_byte(wide_b, b[n * k + from[i]]);
    }
    for (int row = 0; row < MAX_M && sparse; row++) {
        f->there[row] = 0;
        for (int i = 0; i < k; i++) f->there[row] |= (there[row] >> from[i] & 1) << i;
    }
}

static void sum_bytes(const sim_op *op, bool sparse, fragments *f, cells *t) {
    const cells c = *t;
    sim_op of_halves = *op;
    of_halves.type = of_halves.type2 = PTX_f16;
    memset(t, 0, sizeof *t);
    split_bytes(op, sparse, f);
    sum_floats(&of_halves, f, op->shape[2] / 2, t);
    for (int n = 0; n < MMA_N; n++) {
        for (int row = 0; row < op->shape[0]; row++) {
            const uint32_t a = c.c[n][row], b = t->c[n][row];
            const double half = op->small == PTX_f16 ? (double)num_f16_to_f32((uint16_t)a) + (double)num_f16_to_f32((uint16_t)b) : 0;
            t->c[n][row] = op->small != PTX_f16 ? f32_bits(canonical(f32_from(a) + f32_from(b))) : isnan(half) ? F16_NAN : (uint32_t)num_encode(DW_FORMAT_f16, half, false);
        }
    }
}

/* ---- doubles ---- */

static double element_of(sim_warp *w, const uint32_t *registers, int tall, int line, int i) {
    const uint32_t row = registers[line / 8 + i / 4 * tall];
    return ((const double *)sim_row(w, row))[line % 8 * 4 + i % 4];
}

static void compute_f64(sim_warp *w, const sim_op *op, const mma_op *p) {
    double results[4][LANES];
    const int tall = op->shape[0] / 8;
    for (int r = 0; r < p->c_count; r++) {
        for (int lane = 0; lane < LANES; lane++) {
            double sum = ((const double *)sim_row(w, p->c[r]))[lane];
            for (int i = 0; i < op->shape[2]; i++) sum = fma(element_of(w, p->a, tall, lane / 4 + 8 * (r / 2), i), element_of(w, p->b, 1, lane % 4 * 2 + r % 2, i), sum);
            results[r][lane] = sum;
        }
    }
    for (int r = 0; r < p->c_count; r++) memcpy(sim_row(w, p->d[r]), results[r], sizeof results[r]);
}

/* ---- the instruction ---- */

/* The result's registers and its cells, whose columns take 16 words. */
static void gather_cells(sim_warp *w, const mma_op *p, bool half, cells *t) {
    for (int r = 0; r < p->c_count; r++) {
        const uint32_t *words = sim_row(w, p->c[r]);
        for (int of = 0; of < 4; of++) {
            for (int g = 0; g < 8 && half; g++) t->c[2 * of][8 * r + g] = words[4 * g + of] & 0xffff, t->c[2 * of + 1][8 * r + g] = words[4 * g + of] >> 16;
            for (int g = 0; g < 8 && !half; g++) t->c[2 * of + r % 2][8 * (r / 2) + g] = words[4 * g + of];
        }
    }
}

static void scatter_cells(sim_warp *w, const mma_op *p, bool half, const cells *t) {
    for (int r = 0; r < p->c_count; r++) {
        uint32_t *words = sim_row(w, p->d[r]);
        for (int of = 0; of < 4; of++) {
            for (int g = 0; g < 8 && half; g++) words[4 * g + of] = t->c[2 * of][8 * r + g] | t->c[2 * of + 1][8 * r + g] << 16;
            for (int g = 0; g < 8 && !half; g++) words[4 * g + of] = t->c[2 * of + r % 2][8 * (r / 2) + g];
        }
    }
}

static sim_flow do_mma(sim_warp *w, const sim_op *op, uint32_t mask) {
    const mma_op *p = op->extra;
    if (!sim_together(w, w->live, mask)) return SIM_WAIT;
    if (mask != SIM_ALL_LANES) return sim_find(w, op, -1, "all 32 lanes execute this together, and only 0x%08x do", mask);
    const bool sparse = p->metadata != SIM_NO_ROW, half = op->small == PTX_f16;
    fragments f;
    cells t;
    if (op->small == PTX_f64) {
        compute_f64(w, op, p);
        return SIM_NEXT;
    }
    if (op->shape[0] < PANEL_COLUMNS) memset(&f, 0, sizeof f), memset(&t, 0, sizeof t);   /* what fills up the panel */
    memset(f.there, 0xff, sizeof f.there);
    gather(w, op, p, &f);
    if (sparse && !place_sparse(w, op, p, &f)) return SIM_STOP;
    gather_cells(w, p, half, &t);
    if (op->small == PTX_s32) sum_integers(op, &f, &t);
    else if (ptx_types[op->type].bits == 8 && bytes_become_halves(w)) sum_bytes(op, sparse, &f, &t);
    else sum_floats(op, &f, sparse ? SPARSE_STEP : STEP, &t);
    scatter_cells(w, p, half, &t);
    return SIM_NEXT;
}

/* ---- decoding ---- */

static bool decode_fragment(sim_decoding *d, const ptx_operand *o, ptx_type type, int count, bool target, uint32_t *rows) {
    bool vector = o->kind == PTX_OPERAND_VECTOR;
    if ((vector ? o->count : 1) != count) {
        d->why = "a fragment with another number of registers than the shape and types have";
        return false;
    }
    for (int i = 0; i < count; i++) {
        const ptx_operand *item = vector ? &o->items[i] : o;
        if ((target ? sim_decode_target(d, item, type, &rows[i]) : sim_decode_source(d, item, type, &rows[i])) != DW_OK) return false;
    }
    return true;
}

/* Shapes by bits of an element of a: m16n8 with k of 128 or 256 bits a row; m8n8 of integers and doubles. */
static bool is_shape(const sim_op *op, int bits) {
    int m = op->shape[0], n = op->shape[1], k = op->shape[2];
    if (n != 8) return false;
    if (bits == 64) return (m == 8 && k == 4) || (m == 16 && (k == 4 || k == 8 || k == 16));
    if (m == 8) return bits == 8 && k == 16;
    return m == 16 && (k * bits == 128 || k * bits == 256);
}

/* e, f: the metadata, and which of four lanes have it, where not all do. */
static bool decode_metadata(sim_decoding *d, mma_op *p, int bits) {
    const ptx_instruction *in = d->instruction;
    const bool whole = d->op->shape[2] * bits == 512;
    const int most = bits == 8 ? (whole ? 0 : 1) : whole ? 1 : 3;
    const ptx_operand *selector = &in->operands[5];
    if (selector->kind != PTX_OPERAND_INTEGER || selector->value < 0 || selector->value > most) {
        d->why = "the selector of metadata is a constant that names lanes: of all lanes 0, of pairs 0 or 1, of single ones 0 to 3";
        return false;
    }
    p->selector = (int)selector->value;
    return sim_decode_source(d, &in->operands[4], PTX_b32, &p->metadata) == DW_OK;
}

static sim_handler select_kind(sim_decoding *d, ptx_type result) {
    const ptx_instruction *in = d->instruction;
    const bool sparse = sim_mod(d, SIM_MOD_sp) || sim_mod(d, SIM_MOD_sp_ordered);
    if (d->type == PTX_NO_TYPE) d->type = d->type2 = PTX_f64;
    int bits = element_bits(d->type), rows = d->op->shape[0] / 8;
    d->op->type = (uint8_t)d->type;
    d->op->type2 = (uint8_t)d->type2;
    d->op->small = (uint8_t)result;
    const bool known = sparse ? d->op->shape[0] == 16 && d->op->shape[1] == 8 && (d->op->shape[2] * bits == 256 || d->op->shape[2] * bits == 512) : is_shape(d->op, bits);
    if (!known || element_bits(d->type2) != bits || (bits > 8 && d->type != d->type2)) {
        d->why = "a shape or types that mma.sync does not have, or that are not modelled";
        return NULL;
    }
    if (in->count != (sparse ? 6 : 4)) {
        d->why = "d, a, b and c, and of a sparse a metadata and selector";
        return NULL;
    }
    mma_op *p = sim_decode_new(d, sizeof *p);
    if (p == NULL) return NULL;
    int each = bits >= 32 ? 1 : 32 / bits;
    p->b_count = d->op->shape[2] / (4 * each);
    p->a_count = rows * p->b_count / (sparse ? 2 : 1);
    p->metadata = SIM_NO_ROW;
    if (sparse && !decode_metadata(d, p, bits)) return NULL;
    p->c_count = result == PTX_f16 ? rows : 2 * rows;
    ptx_type held = bits == 64 ? PTX_f64 : PTX_b32, sum = result == PTX_f64 ? PTX_f64 : PTX_b32;
    if (!decode_fragment(d, &in->operands[0], sum, p->c_count, true, p->d) || !decode_fragment(d, &in->operands[1], held, p->a_count, false, p->a) ||
        !decode_fragment(d, &in->operands[2], held, p->b_count, false, p->b) || !decode_fragment(d, &in->operands[3], sum, p->c_count, false, p->c)) {
        return NULL;
    }
    d->op->extra = p;
    return do_mma;
}

sim_handler select_mma_f32(sim_decoding *d) { return select_kind(d, PTX_f32); }
sim_handler select_mma_f16(sim_decoding *d) { return select_kind(d, PTX_f16); }
sim_handler select_mma_s32(sim_decoding *d) { return select_kind(d, PTX_s32); }
sim_handler select_mma_f64(sim_decoding *d) { return select_kind(d, PTX_f64); }
