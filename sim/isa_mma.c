/* mma.sync (PTX ISA 9.7.14.5): products of small matrices whose fragments lie in the registers of a warp.
 *
 * In units of 32-bit registers of E elements, with g = lane / 4 and t = lane % 4: register r of A holds row g + 8 (r % 2) (of 8 rows: g), columns
 * E t + 4 E (r / 2) and those behind; of B rows E t + 4 E r and those behind, column g; of the result row g + 8 (r / 2), column 2 t + r % 2 (of halves both
 * columns in one register). Doubles are as 32-bit elements, in registers of their own size. */
#include "decode.h"
#include "panel.h"
#include "real.h"

#include "num/num.h"

/* STEP: products at a time, as Hopper's unit for halves takes them, and 8-bit floats as halves, too. */
enum { MAX_M = 16, MMA_N = 8, MAX_K = 64, MAX_REGISTERS = 8, STEP = 16, SPARSE_STEP = 32, FRACTION = 25 };

typedef struct mma_op {
    uint32_t d[4], a[MAX_REGISTERS], b[4], c[4];
    int a_count, b_count, c_count;
    uint32_t metadata;             /* of a sparse A; else SIM_NO_ROW */
    int selector;
} mma_op;

/* Bits of elements; of B its columns; there: which columns of a row A has. */
typedef struct fragments { uint64_t a[MAX_M][MAX_K], b[MMA_N][MAX_K], there[MAX_M]; } fragments;

static int element_bits(int type) { return ptx_types[type].bits; }

/* The elements of a lane's register. */
static inline void spread(sim_warp *w, uint32_t row, int lane, int bits, int each, uint64_t *to) {
    if (bits == 64) {
        to[0] = ((const uint64_t *)sim_row(w, row))[lane];
        return;
    }
    uint32_t word = ((const uint32_t *)sim_row(w, row))[lane];
    for (int e = 0; e < each; e++) to[e] = bits == 32 ? word : word >> (e * bits) & ((1u << bits) - 1);
}

static void gather(sim_warp *w, const sim_op *op, const mma_op *p, fragments *f) {
    int a_bits = element_bits(op->type), each = a_bits >= 32 ? 1 : 32 / a_bits, tall = op->shape[0] == 16 ? 2 : 1;
    for (int lane = 0; lane < LANES; lane++) {
        int g = lane / 4, t = lane % 4;
        for (int r = 0; r < p->a_count; r++) spread(w, p->a[r], lane, a_bits, each, &f->a[g + 8 * (r % tall)][each * t + 4 * each * (r / tall)]);
        for (int r = 0; r < p->b_count; r++) spread(w, p->b[r], lane, a_bits, each, &f->b[g][each * t + 4 * each * r]);
    }
}

/* ---- a sparse A (PTX ISA 9.7.14.5.14) ---- */

/* Four bits tell the places of two elements of four columns (of 32-bit elements, of the halves of one of two). Rows g and g + 8 have theirs in the halves of a word, of 8-bit
 * elements in words of neighbouring lanes; where a row takes more than one word, upper columns are one lane on, of 8-bit ones two. */
static uint32_t metadata_of(const sim_op *op, const mma_op *p, const uint32_t *words, int row, int group, int groups) {
    const int bits = element_bits(op->type), second = row / 8, quad = row % 8 * 4;
    const bool whole = op->shape[2] * bits == 512;   /* all the lanes that can be named */
    const int upper = whole && group >= groups / 2, at = group % (whole ? groups / 2 : groups) * 4;
    if (bits == 8) return words[quad + second + 2 * (whole ? upper : p->selector)] >> at & 15;
    return words[quad + (whole ? 2 * p->selector + upper : p->selector)] >> (16 * second + at) & 15;
}

/* Lays the elements of a sparse A out at the places that the metadata tells. false: a finding. */
static bool place_sparse(sim_warp *w, const sim_op *op, const mma_op *p, fragments *f) {
    const uint32_t *words = sim_row(w, p->metadata);
    const int each = element_bits(op->type) == 32 ? 2 : 4, groups = op->shape[2] / each;
    for (int row = 0; row < MAX_M; row++) {
        uint64_t packed[MAX_K / 2];
        memcpy(packed, f->a[row], sizeof packed);
        memset(f->a[row], 0, sizeof f->a[row]);
        f->there[row] = 0;
        for (int group = 0; group < groups; group++) {
            const uint32_t bits = metadata_of(op, p, words, row, group, groups), first = bits & 3, second = bits >> 2;
            if (each == 2 ? bits != 4 && bits != 14 : first >= second) {
                sim_find(w, op, -1, "the metadata of row %d, columns %d to %d, is %u, which names no places", row, group * each, group * each + each - 1, bits);
                return false;
            }
            for (int i = 0; i < each / 2; i++) {
                const int column = group * each + (each == 2 ? bits == 14 : (int)(i == 0 ? first : second));
                f->a[row][column] = packed[group * each / 2 + i];
                f->there[row] |= 1ull << column;
            }
        }
    }
    return true;
}

/* ---- sums ---- */

/* Rows of A lie side by side in panels, and each column of B goes through them. */
typedef struct panels { int32_t significand[MAX_M * MAX_K], exponent[MAX_M * MAX_K], column[MMA_N][MAX_K], column_exponent[MMA_N][MAX_K]; } panels;
typedef struct cells { uint32_t c[MMA_N][PANEL_COLUMNS]; } cells;

static void sum_integers(const sim_op *op, const fragments *f, int k, cells *t) {
    panels p = {0};
    for (int i = 0; i < k; i++) {
        for (int row = 0; row < op->shape[0]; row++) p.significand[i * PANEL_COLUMNS + row] = op->type == PTX_s8 ? (int8_t)f->a[row][i] : (int32_t)f->a[row][i];
        for (int column = 0; column < MMA_N; column++) p.column[column][i] = op->type2 == PTX_s8 ? (int8_t)f->b[column][i] : (int32_t)f->b[column][i];
    }
    for (int column = 0; column < MMA_N; column++) {
        const panel_sum sum = {.k = k, .columns = PANEL_COLUMNS, .row = {p.column[column], NULL}, .panels = {p.significand, NULL},
                               .saturate = sim_has(&op->mods, SIM_MOD_satfinite), .c = t->c[column]};
        panel_isa_now()->integers(&sum);
    }
}

/* One cell where a factor is not finite; as sum_step. */
static uint32_t sum_special(const product_format *fa, const product_format *fb, const uint32_t *a, const uint32_t *b, uint64_t there, int count, int bits, bool half, uint32_t c) {
    product_number x[SPARSE_STEP], y[SPARSE_STEP];
    int terms = 0;
    for (int i = 0; i < count; i++) {
        if ((there >> i & 1) == 0) continue;
        x[terms] = product_read(fa, a[i], false);
        y[terms] = product_read(fb, b[i], false);
        x[terms].significand *= 1 << (bits - fa->mantissa);
        y[terms++].significand *= 1 << (bits - fb->mantissa);
    }
    if (!half) return product_sum(x, y, terms, c, bits, FRACTION, 23);
    double sum = product_sum_exact(x, y, terms, c, bits, FRACTION);
    return isnan(sum) ? 0x7fff : (uint32_t)num_encode(DW_FORMAT_f16, sum, false);
}

/* count products of each cell, from begin on. */
static void sum_step(const sim_op *op, const fragments *f, int begin, int count, cells *t) {
    const product_format *fa = product_format_of(op->type), *fb = product_format_of(op->type2);
    const panel_isa *isa = panel_isa_now();
    int bits = fa->mantissa > fb->mantissa ? fa->mantissa : fb->mantissa;
    bool half = op->small == PTX_f16, row_finite[MAX_M], column_finite[MMA_N];
    uint32_t a[MAX_M][SPARSE_STEP], b[MMA_N][SPARSE_STEP];
    panels p = {0};
    for (int row = 0; row < op->shape[0]; row++) {
        int32_t significand[SPARSE_STEP], exponent[SPARSE_STEP];
        for (int i = 0; i < count; i++) a[row][i] = (uint32_t)f->a[row][begin + i];
        row_finite[row] = isa->decode(fa, a[row], count, false, bits - fa->mantissa, significand, exponent);
        panel_put((panel_numbers){significand, exponent}, count, row, p.significand, p.exponent);
    }
    for (int column = 0; column < MMA_N; column++) {
        uint32_t before[PANEL_COLUMNS];
        for (int i = 0; i < count; i++) b[column][i] = (uint32_t)f->b[column][begin + i];
        column_finite[column] = isa->decode(fb, b[column], count, false, bits - fb->mantissa + panel_move(bits, FRACTION), p.column[column], p.column_exponent[column]);
        for (int row = 0; row < op->shape[0] && half; row++) t->c[column][row] = f32_bits(num_f16_to_f32((uint16_t)t->c[column][row]));
        memcpy(before, t->c[column], sizeof before);
        const panel_sum sum = {.k = count, .columns = PANEL_COLUMNS, .row = {p.column[column], p.column_exponent[column]}, .panels = {p.significand, p.exponent}, .fraction = FRACTION,
                               .result_bits = 23, .half = half, .c = t->c[column]};
        isa->floats(&sum);
        for (int row = 0; row < op->shape[0]; row++) {
            if (!row_finite[row] || !column_finite[column]) t->c[column][row] = sum_special(fa, fb, a[row], b[column], f->there[row] >> begin, count, bits, half, before[row]);
        }
    }
}

static double sum_f64(const fragments *f, int row, int column, int k, double sum) {
    for (int i = 0; i < k; i++) sum = fma(f64_from(f->a[row][i]), f64_from(f->b[column][i]), sum);
    return sum;
}

static void compute_f64(sim_warp *w, const mma_op *p, const fragments *f, int k) {
    double results[4][LANES];
    for (int r = 0; r < p->c_count; r++) {
        for (int lane = 0; lane < LANES; lane++) results[r][lane] = sum_f64(f, lane / 4 + 8 * (r / 2), lane % 4 * 2 + r % 2, k, ((const double *)sim_row(w, p->c[r]))[lane]);
    }
    for (int r = 0; r < p->c_count; r++) memcpy(sim_row(w, p->d[r]), results[r], sizeof results[r]);
}

/* The cell of element e of a lane's register r of the result. */
static uint32_t *cell_of(cells *t, bool half, int lane, int r, int e) { return &t->c[lane % 4 * 2 + (half ? e : r % 2)][lane / 4 + 8 * (half ? r : r / 2)]; }

static sim_flow do_mma(sim_warp *w, const sim_op *op, uint32_t mask) {
    const mma_op *p = op->extra;
    if (!sim_together(w, w->live, mask)) return SIM_WAIT;
    if (mask != SIM_ALL_LANES) return sim_find(w, op, -1, "all 32 lanes execute this together, and only 0x%08x do", mask);
    fragments f;
    cells t = {0};
    const bool sparse = p->metadata != SIM_NO_ROW, half = op->small == PTX_f16;
    const int k = op->shape[2], step = sparse ? SPARSE_STEP : STEP;
    memset(f.there, 0xff, sizeof f.there);
    gather(w, op, p, &f);
    if (sparse && !place_sparse(w, op, p, &f)) return SIM_STOP;
    if (op->small == PTX_f64) {
        compute_f64(w, p, &f, k);
        return SIM_NEXT;
    }
    for (int r = 0; r < p->c_count; r++) {
        const uint32_t *words = sim_row(w, p->c[r]);
        for (int lane = 0; lane < LANES; lane++) {
            *cell_of(&t, half, lane, r, 0) = half ? words[lane] & 0xffff : words[lane];
            if (half) *cell_of(&t, half, lane, r, 1) = words[lane] >> 16;
        }
    }
    if (op->small == PTX_s32) sum_integers(op, &f, k, &t);
    for (int begin = 0; begin < k && op->small != PTX_s32; begin += step) sum_step(op, &f, begin, k - begin < step ? k - begin : step, &t);
    for (int r = 0; r < p->c_count; r++) {
        for (int lane = 0; lane < LANES; lane++) ((uint32_t *)sim_row(w, p->d[r]))[lane] = *cell_of(&t, half, lane, r, 0) | (half ? *cell_of(&t, half, lane, r, 1) << 16 : 0);
    }
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
