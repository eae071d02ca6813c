/* The numbers of wgmma (PTX ISA 9.7.15): sums of operands' products by Hopper's rule 16 columns side by side (panel.h), results to registers. */
#include "wgmma_operand.h"

#include "sim/machine/order.h"
#include "sim/math/panel.h"
#include "sim/math/real.h"

#include "num/num.h"

/* A's rows one behind another, MAX_K apart, and B's columns in panels (panel.h): of floats values and places, of integers themselves. base: of each row, or
 * panel; finite, nan: of each line, whether all of it is, and whether some. */
typedef struct numbers { float value[WGMMA_MAX_N * MAX_K]; int32_t whole[WGMMA_MAX_N * MAX_K]; int16_t place[WGMMA_MAX_N * MAX_K]; int base[WGMMA_MAX_N]; bool finite[WGMMA_MAX_N], nan[WGMMA_MAX_N], all_finite; } numbers;
typedef struct cells { uint32_t c[ROWS][WGMMA_MAX_N]; } cells;

/* The result's cells and the registers that hold them: register i of a lane has row lane / 4 + 8 (i / 2 % 2) and column 2 (lane % 4) + i % 2 + 8 (i / 4); of halves,
 * which lie by twos, register i has what 2 i and 2 i + 1 would have. */
static void gather(const struct sim_product *issued, cells *t) {
    const product_op *p = issued->op->extra;
    if (!issued->accumulate) {
        for (int row = 0; row < ROWS; row++) memset(t->c[row], 0, (size_t)issued->op->shape[1] * sizeof *t->c[row]);
        return;
    }
    for (int i = 0; i < p->count && p->result == PTX_f16; i++) {
        const uint32_t *d = (const uint32_t *)(const void *)(issued->registers + p->d[i]);
        uint32_t *first = &t->c[8 * (i % 2)][8 * (i / 2)];
        for (int g = 0; g < 8; g++, d += 4, first += WGMMA_MAX_N) {
            for (int of = 0; of < 4; of++) first[2 * of] = d[of] & 0xffff, first[2 * of + 1] = d[of] >> 16;
        }
    }
    for (int i = 0; i < p->count && p->result != PTX_f16; i += 2) {
        const uint32_t *even = (const uint32_t *)(const void *)(issued->registers + p->d[i]), *odd = (const uint32_t *)(const void *)(issued->registers + p->d[i + 1]);
        uint32_t *first = &t->c[8 * (i / 2 % 2)][8 * (i / 4)];
        for (int g = 0; g < 8; g++, even += 4, odd += 4, first += WGMMA_MAX_N) {
            for (int of = 0; of < 4; of++) first[2 * of] = even[of], first[2 * of + 1] = odd[of];
        }
    }
}

static void scatter(const struct sim_product *issued, const cells *t) {
    const product_op *p = issued->op->extra;
    for (int i = 0; i < p->count && p->result == PTX_f16; i++) {
        uint32_t *d = (uint32_t *)(void *)(issued->registers + p->d[i]);
        const uint32_t *first = &t->c[8 * (i % 2)][8 * (i / 2)];
        for (int g = 0; g < 8; g++, d += 4, first += WGMMA_MAX_N) {
            for (int of = 0; of < 4; of++) d[of] = first[2 * of] | first[2 * of + 1] << 16;
        }
    }
    for (int i = 0; i < p->count && p->result != PTX_f16; i += 2) {
        uint32_t *even = (uint32_t *)(void *)(issued->registers + p->d[i]), *odd = (uint32_t *)(void *)(issued->registers + p->d[i + 1]);
        const uint32_t *first = &t->c[8 * (i / 2 % 2)][8 * (i / 4)];
        for (int g = 0; g < 8; g++, even += 4, odd += 4, first += WGMMA_MAX_N) {
            for (int of = 0; of < 4; of++) even[of] = first[2 * of], odd[of] = first[2 * of + 1];
        }
    }
}

static void set_finite(numbers *n, const operand *o, const product_format *f, int k, int lines) {
    n->all_finite = true;
    for (int i = 0; i < lines; i++) {
        n->nan[i] = !n->finite[i] && product_has_nan(f, o->code[i], k);
        n->all_finite &= n->finite[i] &= !o->lost[i];
    }
}

static void rows_to_floats(const operand *o, int k, const product_format *f, bool negate, numbers *n) {
    for (int row = 0; row < ROWS; row++) n->finite[row] = panel_decode_row(f, o->code[row], k, negate, &n->value[row * MAX_K], &n->place[row * MAX_K], &n->base[row]);
    set_finite(n, o, f, k, ROWS);
}

static void columns_to_floats(const operand *o, int columns, int k, const product_format *f, bool negate, numbers *n) {
    for (int first = 0; first < columns; first += PANEL_COLUMNS) {
        const int at = panel_at(first, k), there = columns - first < PANEL_COLUMNS ? columns - first : PANEL_COLUMNS;
        const uint32_t special = panel_decode_columns(f, o->code[first], MAX_K, there, k, negate, &n->value[at], &n->place[at], &n->base[first / PANEL_COLUMNS]);
        for (int i = 0; i < there; i++) n->finite[first + i] = (special >> i & 1) == 0;
    }
    set_finite(n, o, f, k, columns);
}

/* Products of 8-bit floats keep 13 bits behind the largest exponent, and as many in the result; of wider ones 25, and 23. Results in halves are rounded to the
 * nearest. */
static int fraction_of(const product_format *f) { return f->bits == 8 ? 13 : 25; }
static int result_bits_of(const product_format *f) { return f->bits == 8 ? 13 : 23; }
static int significand_bits_of(const product_format *fa, const product_format *fb) { return fa->mantissa > fb->mantissa ? fa->mantissa : fb->mantissa; }

/* One cell, where a factor is an infinity or NaN. What a sparse row has not is not multiplied. */
static uint32_t sum_special(const struct sim_product *issued, const uint32_t *row, const uint32_t *column, uint64_t there, uint32_t c) {
    const sim_op *op = issued->op;
    const product_op *p = op->extra;
    const product_format *fa = product_format_of(op->type), *fb = product_format_of(op->type2);
    const int bits = significand_bits_of(fa, fb), fraction = fraction_of(fa);
    product_number x[MAX_K], y[MAX_K];
    int terms = 0;
    if (p->result != PTX_f16 && is_f32_nan(c)) return F32_NAN;
    for (int i = 0; i < op->shape[2]; i++) {
        if ((there >> i & 1) == 0) continue;
        x[terms] = product_read(fa, row[i], p->negate_a);
        y[terms] = product_read(fb, column[i], p->negate_b);
        x[terms].significand *= 1 << (bits - fa->mantissa);
        y[terms++].significand *= 1 << (bits - fb->mantissa);
    }
    if (p->result != PTX_f16) return product_sum(x, y, terms, c, bits, fraction, result_bits_of(fa));
    const double exact = product_sum_exact(x, y, terms, f32_bits(num_f16_to_f32((uint16_t)c)), bits, fraction);
    return isnan(exact) ? F16_NAN : (uint32_t)num_encode(DW_FORMAT_f16, exact, false);
}

static void compute_floats(const struct sim_product *issued, const operand *a, const operand *b, const numbers *columns, const pattern *there, cells *t) {
    static _Thread_local numbers rows;
    const sim_op *op = issued->op;
    const product_op *p = op->extra;
    const product_format *fa = product_format_of(op->type), *fb = product_format_of(op->type2);
    const int n = op->shape[1], k = op->shape[2];
    const bool half = p->result == PTX_f16, sparse = p->metadata != SIM_NO_ROW;
    numbers *of_a = &rows;
    rows_to_floats(a, k, fa, p->negate_a, of_a);
    for (int row = 0; row < ROWS; row++) {
        uint32_t before[WGMMA_MAX_N];
        bool special = !(of_a->finite[row] && columns->all_finite);
        if (special) memcpy(before, t->c[row], sizeof before);
        const panel_sum sum = {.k = k, .columns = panel_padded(n), .row = {&of_a->value[row * MAX_K], &of_a->place[row * MAX_K]}, .panels = {columns->value, columns->place},
                               .row_base = of_a->base[row], .bases = columns->base, .significand_bits = significand_bits_of(fa, fb), .fraction = fraction_of(fa), .result_bits = result_bits_of(fa), .half = half, .c = t->c[row]};
        if (!a->lost[row]) panel_isa_now()->floats(&sum);
        for (int column = 0; column < n && special; column++) {
            if (of_a->finite[row] && columns->finite[column]) continue;
            const bool nan = !sparse && (of_a->nan[row] || columns->nan[column]);   /* of a sparse row only what is there counts */
            if (a->lost[row] || b->lost[column] || nan) t->c[row][column] = half ? F16_NAN : F32_NAN;
            else t->c[row][column] = sum_special(issued, a->code[row], b->code[column], there->row[row], before[column]);
        }
    }
}

static bool check_written(sim_warp *w, const sim_op *op, const operand *o, int lines, char name) {
    const bool *lost = memchr(o->lost, true, (size_t)lines);
    if (lost != NULL) sim_find(w, op, -1, "row %d of %c, whose product is computed, was never written: integers have no NaN to tell with", (int)(lost - o->lost), name);
    return lost == NULL;
}

static void columns_to_integers(const operand *o, int columns, int k, ptx_type type, numbers *n) {
    uint32_t *codes = (uint32_t *)n->whole;
    panel_codes(o->code[0], MAX_K, columns, k, codes);
    for (int i = 0; i < panel_padded(columns) * k; i++) n->whole[i] = type == PTX_s8 ? (int8_t)codes[i] : (int32_t)codes[i];
}

static void compute_integers(const sim_op *op, const operand *a, const numbers *columns, cells *t) {
    for (int row = 0; row < ROWS; row++) {
        int32_t line[MAX_K];
        for (int i = 0; i < op->shape[2]; i++) line[i] = op->type == PTX_s8 ? (int8_t)a->code[row][i] : (int32_t)a->code[row][i];
        const panel_sum sum = {.k = op->shape[2], .columns = panel_padded(op->shape[1]), .whole_row = line, .whole_panels = columns->whole, .saturate = sim_has(&op->mods, SIM_MOD_satfinite),
                               .c = t->c[row]};
        panel_isa_now()->integers(&sum);
    }
}

/* Words of 32 bits: the ones of their conjunction are counted, and sums wrap. */
static void compute_bits(const sim_op *op, const operand *a, const operand *b, cells *t) {
    const product_op *p = op->extra;
    for (int row = 0; row < ROWS; row++) {
        for (int column = 0; column < op->shape[1]; column++) {
            uint32_t ones = 0;
            for (int i = 0; i < p->k; i += 2) {
                const uint64_t both = (uint64_t)(a->code[row][i] & b->code[column][i]) << 32 | (a->code[row][i + 1] & b->code[column][i + 1]);
                ones += (uint32_t)__builtin_popcountll(both);
            }
            t->c[row][column] += ones;
        }
    }
}

/* The rows of one warp of the warpgroup, which `waiting` is one of and waits for. false: a finding. */
static bool compute_rows(sim_warp *waiting, const sim_warp *w, const struct sim_product *issued, const operand *b, const numbers *columns) {
    static _Thread_local operand rows;
    static _Thread_local cells all;
    operand *a = &rows;
    cells *t = &all;
    const sim_op *op = issued->op;
    const product_op *p = op->extra;
    const bool sparse = p->metadata != SIM_NO_ROW;
    pattern there;
    memset(&there, 0xff, sizeof there);
    if (p->a_registers[0] != SIM_NO_ROW) wgmma_read_registers(p, issued, a);
    else if (!wgmma_read_operand(waiting, op, p->code_bytes, issued->a, p->transposed_a, w->index % WARPGROUP * ROWS, ROWS, sparse ? p->k / 2 : p->k, a)) return false;
    if (sparse && !wgmma_spread(waiting, issued, a, &there)) return false;
    if (p->result == PTX_s32 && !check_written(waiting, op, a, ROWS, 'a')) return false;
    if (w->launch->digests) {
        int signs = issued->accumulate | p->negate_a << 1 | p->negate_b << 2;
        sim_digest(w->launch, sim_mix(sim_mix(a->digest, b->digest), ((uint64_t)sim_line(w, op) << 8 | (uint64_t)signs) + (w->cta->linear << 40) + ((uint64_t)w->index << 32)));
    }
    gather(issued, t);
    if (p->single_bits) compute_bits(op, a, b, t);
    else if (p->result != PTX_s32) compute_floats(issued, a, b, columns, &there, t);
    else compute_integers(op, a, columns, t);
    scatter(issued, t);
    return true;
}

bool wgmma_compute(sim_warp *w, const struct sim_product *issued) {
    static _Thread_local operand columns;
    static _Thread_local numbers numbers_of_b;
    operand *b = &columns;
    numbers *n = &numbers_of_b;
    const sim_op *op = issued->op;
    const product_op *p = op->extra;
    sim_warp *group = &w->cta->warps[w->index / WARPGROUP * WARPGROUP];
    if (!wgmma_read_operand(w, op, p->code_bytes, issued->b, p->transposed_b, 0, op->shape[1], p->k, b)) return false;
    if (p->result == PTX_s32 && !check_written(w, op, b, op->shape[1], 'b')) return false;
    if (p->result == PTX_s32 && !p->single_bits) columns_to_integers(b, op->shape[1], p->k, op->type2, n);
    else if (p->result != PTX_s32) columns_to_floats(b, op->shape[1], p->k, product_format_of(op->type2), p->negate_b, n);
    for (int i = 0; i < WARPGROUP; i++) {
        if (!compute_rows(w, &group[i], wgmma_same_product(&group[i], issued->number), b, n)) return false;
    }
    uint32_t clock[ORDER_CLOCKS] = {0};
    order_release(w, clock);
    for (int i = 0; i < WARPGROUP; i++) {
        struct sim_product *theirs = wgmma_same_product(&group[i], issued->number);
        theirs->computed = true;
        memcpy(theirs->clock, clock, sizeof clock);
    }
    return true;
}
