/* wmma (PTX ISA 9.7.14.4): matrices between memory and fragments, whose layout the ISA leaves open, and their products. Elements of 4 bits and bits are isa/mma_bits.c's.
 *
 * The layout here: lane l holds elements l n to l n + n - 1, counted along the rows of A, of the accumulators, and along the columns of B; halves of A and B that have more
 * room than elements stand there again. Sums are made as those of mma.sync are: 16 products at a time, 25 bits behind the largest exponent. */
#include "decode.h"
#include "sim/machine/order.h"
#include "sim/math/panel.h"
#include "sim/math/real.h"

#include "num/num.h"

enum { WMMA_MAX_LINES = 32, WMMA_MAX_DEPTH = 32, WMMA_MAX_REGISTERS = 8, STEP = 16, FRACTION = 25 };

/* lines: rows of A and of accumulators, columns of B; depth: elements of each; unique: elements of a lane. Of elements below 8 bits the words that hold them count. */
typedef struct fragment { int lines, depth, bits, unique, registers; uint32_t rows[WMMA_MAX_REGISTERS]; } fragment;

typedef enum which { MATRIX_A, MATRIX_B, ACCUMULATOR } which;

typedef struct move_op { fragment f; sim_address at; uint32_t stride; int per_word; bool along; } move_op;   /* along: lines lie in one piece; per_word: elements that count as one */
typedef struct product_op { fragment a, b, c, d; int c_type; } product_op;

static void place_of(const fragment *f, int lane, int element, int *line, int *at) {
    const int index = lane * f->unique + element;
    *line = index / f->depth;
    *at = index % f->depth;
}

/* The place of a lane's element in its registers, which one or more bytes hold. */
static uint8_t *cell_of(sim_warp *w, const fragment *f, int lane, int element) {
    const int bytes = f->bits / 8, held = f->bits == 64 ? 8 : 4, each = held / bytes;
    return (uint8_t *)sim_row(w, f->rows[element / each]) + lane * held + element % each * bytes;
}

/* ---- loads and stores ---- */

static bool check_place(sim_warp *w, const sim_op *op, int lane, uint64_t address, size_t bytes, const uint8_t *value, sim_place *place) {
    const bool store = value != NULL;
    if (!sim_reach(w, op, lane, (ptx_space)op->space, address, bytes, bytes, store ? SIM_WRITE : SIM_READ, place)) return false;
    if (!store && !sim_check_written(w, op, lane, place, bytes, address)) return false;
    const bool same = store && (place->shadow[0] & SHADOW_WRITTEN) != 0 && memcmp(place->bytes, value, bytes) == 0;
    if (place->space == PTX_GLOBAL) return sim_check_race(w, op, lane, place, bytes, address, store ? SIM_WRITE : SIM_READ, same);
    if (place->space != PTX_SHARED) return true;
    for (size_t i = 0; i < bytes && store; i++) {
        if ((place->shadow[i] & (SHADOW_FLIGHT | SHADOW_SOURCE | SHADOW_TENSOR)) == 0) continue;
        sim_find(w, op, lane, "writes shared memory at 0x%llx, which an asynchronous copy still uses: wait for it first", (unsigned long long)address);
        return false;
    }
    if (place->cta != w->cta || same) return true;
    return (store ? order_write : order_read)(w, op, lane, place->offset, bytes, false);
}

/* small: stores, not loads. */
static sim_flow do_move(sim_warp *w, const sim_op *op, uint32_t mask) {
    const move_op *m = op->extra;
    const fragment *f = &m->f;
    const bool store = op->small != 0;
    const size_t bytes = (size_t)f->bits / 8, whole = (size_t)f->registers * (f->bits == 64 ? 8 : 4), align = whole < 16 ? whole : 16;
    if (!sim_together(w, w->live, mask)) return SIM_WAIT;
    if (mask != SIM_ALL_LANES) return sim_find(w, op, -1, "all 32 lanes execute this together, and only 0x%08x do", mask);
    for (int lane = 0; lane < LANES; lane++) {
        const uint64_t base = sim_address_of(w, &m->at, lane);
        const uint32_t given = m->stride != SIM_NO_ROW ? ((const uint32_t *)sim_row(w, m->stride))[lane] : (uint32_t)((m->along ? f->depth : f->lines) * m->per_word);
        const uint64_t stride = given / (uint32_t)m->per_word;
        if (base % align != 0 || given % (uint32_t)m->per_word != 0 || stride * bytes % align != 0) {
            return sim_find(w, op, lane, "a line of the matrix begins at no multiple of %zu bytes: base 0x%llx, stride %u elements", align, (unsigned long long)base, given);
        }
        for (int i = 0; i < f->unique; i++) {
            int line, at;
            place_of(f, lane, i, &line, &at);
            const uint64_t address = base + (m->along ? (uint64_t)line * stride + (uint64_t)at : (uint64_t)at * stride + (uint64_t)line) * bytes;
            uint8_t *cell = cell_of(w, f, lane, i);
            sim_place place;
            if (!check_place(w, op, lane, address, bytes, store ? cell : NULL, &place)) return SIM_STOP;
            if (!store) {
                for (int copy = i; copy * f->bits < f->registers * (f->bits == 64 ? 64 : 32); copy += f->unique) memcpy(cell_of(w, f, lane, copy), place.bytes, bytes);
                continue;
            }
            memcpy(place.bytes, cell, bytes);
            memset(place.shadow, SHADOW_WRITTEN | (place.space == PTX_SHARED ? SHADOW_GENERIC : 0), bytes);
        }
    }
    if (store) sim_changed(w);
    return SIM_NEXT;
}

/* ---- products ---- */

typedef struct matrix { uint32_t code[WMMA_MAX_LINES][WMMA_MAX_DEPTH]; } matrix;

static void gather(sim_warp *w, const fragment *f, matrix *m) {
    for (int lane = 0; lane < LANES; lane++) {
        for (int i = 0; i < f->unique; i++) {
            int line, at;
            place_of(f, lane, i, &line, &at);
            m->code[line][at] = 0;
            memcpy(&m->code[line][at], cell_of(w, f, lane, i), (size_t)f->bits / 8);
        }
    }
}

static void scatter(sim_warp *w, const fragment *f, const matrix *m) {
    for (int lane = 0; lane < LANES; lane++) {
        for (int i = 0; i < f->unique; i++) {
            int line, at;
            place_of(f, lane, i, &line, &at);
            memcpy(cell_of(w, f, lane, i), &m->code[line][at], (size_t)f->bits / 8);
        }
    }
}

static uint32_t sum_special(const product_format *format, const uint32_t *a, const uint32_t *b, int count, bool half, uint32_t c) {
    product_number x[STEP], y[STEP];
    for (int i = 0; i < count; i++) {
        x[i] = product_read(format, a[i], false);
        y[i] = product_read(format, b[i], false);
    }
    if (!half) return product_sum(x, y, count, c, format->mantissa, FRACTION, 23);
    const double sum = product_sum_exact(x, y, count, c, format->mantissa, FRACTION);
    return isnan(sum) ? F16_NAN : (uint32_t)num_encode(DW_FORMAT_f16, sum, false);
}

static void sum_floats(const sim_op *op, const product_op *p, const matrix *a, const matrix *b, matrix *c) {
    const product_format *format = product_format_of(op->type);
    const int m = p->a.lines, n = p->b.lines, k = p->a.depth;
    const bool half = op->small == PTX_f16, mixed = half && p->c_type != PTX_f16;   /* halves of fp32 are rounded once: one at a time */
    float panels[STEP * WMMA_MAX_LINES], row[STEP];
    int16_t panels_place[STEP * WMMA_MAX_LINES], row_place[STEP];
    uint32_t special[WMMA_MAX_LINES / PANEL_COLUMNS];
    int bases[WMMA_MAX_LINES / PANEL_COLUMNS], row_base;
    for (int j = 0; j < n; j += PANEL_COLUMNS) {
        const int at = panel_at(j, k), there = n - j < PANEL_COLUMNS ? n - j : PANEL_COLUMNS;
        special[j / PANEL_COLUMNS] = panel_decode_columns(format, b->code[j], WMMA_MAX_DEPTH, there, k, false, panels + at, panels_place + at, &bases[j / PANEL_COLUMNS]);
    }
    for (int i = 0; i < m; i++) {
        uint32_t line[STEP] = {0}, sums[WMMA_MAX_LINES] = {0}, before[WMMA_MAX_LINES];
        memcpy(line, a->code[i], sizeof *line * (size_t)k);
        const bool row_finite = panel_decode_row(format, line, k, false, row, row_place, &row_base);
        for (int j = 0; j < n; j++) {
            before[j] = p->c_type == PTX_f16 ? f32_bits(num_f16_to_f32((uint16_t)c->code[i][j])) : c->code[i][j];
            sums[j] = half ? c->code[i][j] : before[j];
        }
        const panel_sum sum = {.k = k, .columns = panel_padded(n), .row = {row, row_place}, .panels = {panels, panels_place}, .row_base = row_base, .bases = bases,
                               .significand_bits = format->mantissa, .fraction = FRACTION, .result_bits = 23, .half = half, .c = sums};
        if (!mixed) panel_isa_now()->floats(&sum);
        for (int j = 0; j < n; j++) {
            const bool one_by_one = mixed || !row_finite || (special[j / PANEL_COLUMNS] >> (j % PANEL_COLUMNS) & 1) != 0;
            c->code[i][j] = one_by_one ? sum_special(format, a->code[i], b->code[j], k, half, before[j]) : sums[j];
        }
    }
}

static void sum_integers(const sim_op *op, const product_op *p, const matrix *a, const matrix *b, matrix *c) {
    const bool is_signed = op->type == PTX_s8;
    for (int i = 0; i < p->a.lines; i++) {
        for (int j = 0; j < p->b.lines; j++) {
            int64_t sum = (int32_t)c->code[i][j];
            for (int k = 0; k < p->a.depth; k++)
                sum += is_signed ? (int8_t)a->code[i][k] * (int8_t)b->code[j][k] : (int32_t)(a->code[i][k] * b->code[j][k]);
            if (sim_has(&op->mods, SIM_MOD_satfinite)) sum = sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum;
            c->code[i][j] = (uint32_t)sum;
        }
    }
}

static sim_flow do_product(sim_warp *w, const sim_op *op, uint32_t mask) {
    const product_op *p = op->extra;
    matrix a, b, c;
    if (!sim_together(w, w->live, mask)) return SIM_WAIT;
    if (mask != SIM_ALL_LANES) return sim_find(w, op, -1, "all 32 lanes execute this together, and only 0x%08x do", mask);
    gather(w, &p->a, &a);
    gather(w, &p->b, &b);
    gather(w, &p->c, &c);
    if (op->small == PTX_s32) sum_integers(op, p, &a, &b, &c);
    else sum_floats(op, p, &a, &b, &c);
    scatter(w, &p->d, &c);
    return SIM_NEXT;
}

/* One lane holds an element of A and of B, and two of the accumulator. */
static sim_flow do_doubles(sim_warp *w, const sim_op *op, uint32_t mask) {
    const product_op *p = op->extra;
    double results[2][LANES];
    if (!sim_together(w, w->live, mask)) return SIM_WAIT;
    if (mask != SIM_ALL_LANES) return sim_find(w, op, -1, "all 32 lanes execute this together, and only 0x%08x do", mask);
    const double *a = sim_row(w, p->a.rows[0]), *b = sim_row(w, p->b.rows[0]);
    for (int i = 0; i < 2; i++) {
        for (int lane = 0; lane < LANES; lane++) {
            int line, at;
            place_of(&p->c, lane, i, &line, &at);
            double sum = ((const double *)sim_row(w, p->c.rows[i]))[lane];
            for (int k = 0; k < p->a.depth; k++) sum = fma(a[line * p->a.depth + k], b[at * p->a.depth + k], sum);
            results[i][lane] = sum;
        }
    }
    for (int i = 0; i < 2; i++) memcpy(sim_row(w, p->d.rows[i]), results[i], sizeof results[i]);
    return SIM_NEXT;
}

/* ---- decoding ---- */

static bool is_shape(const sim_op *op, int bits) {
    const int m = op->shape[0], n = op->shape[1], k = op->shape[2];
    const bool square = m == 16 && n == 16;
    switch (bits) {
    case 64: return m == 8 && n == 8 && k == 4;
    case 32: return square && k == 8;
    case 4: return m == 8 && n == 8 && k == 32;
    case 1: return m == 8 && n == 8 && k == 128;
    default: return k == 16 && (square || (m == 8 && n == 32) || (m == 32 && n == 8));
    }
}

/* Of a matrix of elements with so many bits; below 8 bits words of 32. */
static fragment fragment_of(const sim_op *op, which matrix, int bits) {
    const int m = op->shape[0], n = op->shape[1], k = op->shape[2];
    const int per_word = bits < 8 ? 32 / bits : 1;
    fragment f = {.lines = matrix == MATRIX_B ? n : m, .depth = (matrix == ACCUMULATOR ? n : k) / per_word, .bits = bits < 8 ? 32 : bits};
    f.unique = f.lines * f.depth / LANES;
    f.registers = f.bits == 64 ? f.unique : (f.unique * f.bits + 31) / 32;
    return f;
}

static bool decode_fragment(sim_decoding *d, const ptx_operand *o, bool target, fragment *f) {
    const bool vector = o->kind == PTX_OPERAND_VECTOR;
    const ptx_type held = f->bits == 64 ? PTX_f64 : PTX_b32;
    if ((vector ? o->count : 1) != f->registers) {
        d->why = "a fragment with another number of registers than the shape and type have";
        return false;
    }
    for (int i = 0; i < f->registers; i++) {
        const ptx_operand *item = vector ? &o->items[i] : o;
        if ((target ? sim_decode_target(d, item, held, &f->rows[i]) : sim_decode_source(d, item, held, &f->rows[i])) != DW_OK) return false;
    }
    return true;
}

static sim_handler select_move(sim_decoding *d, bool store) {
    const ptx_instruction *in = d->instruction;
    const which matrix = sim_mod(d, SIM_MOD_matrix_a) ? MATRIX_A : sim_mod(d, SIM_MOD_matrix_b) ? MATRIX_B : ACCUMULATOR;
    const bool row = sim_mod(d, SIM_MOD_row), small = d->type == PTX_NO_TYPE, single = sim_mod(d, SIM_MOD_b1);
    const int bits = small ? (single ? 1 : 4) : ptx_types[d->type].bits;
    const bool along = matrix == MATRIX_B ? !row : row;
    move_op *m = sim_decode_new(d, sizeof *m);
    if (m == NULL) return NULL;
    bool known = matrix != ACCUMULATOR ? is_shape(d->op, bits) && (d->type != PTX_f32 && d->type != PTX_s32)
                 : bits == 64          ? is_shape(d->op, 64)
                 : d->type == PTX_f16  ? is_shape(d->op, 16)
                 : d->type == PTX_f32  ? is_shape(d->op, 16) || is_shape(d->op, 32)
                                       : d->type == PTX_s32 && (is_shape(d->op, 8) || is_shape(d->op, 4) || is_shape(d->op, 1));
    if (!known || (bits < 8 && !along) || (in->count != 2 && in->count != 3)) {
        d->why = "a shape that wmma does not have for this type; elements below 8 bits lie along rows of a and columns of b; [an address], a fragment, and perhaps a stride";
        return NULL;
    }
    m->f = fragment_of(d->op, matrix, bits);
    if (d->type == PTX_f16 && matrix != ACCUMULATOR) m->f.registers = WMMA_MAX_REGISTERS;
    m->per_word = bits < 8 ? 32 / bits : 1;
    m->along = along;
    m->stride = SIM_NO_ROW;
    if (!decode_fragment(d, &in->operands[store ? 1 : 0], !store, &m->f) || sim_decode_place(d, &in->operands[store ? 0 : 1], (ptx_space)d->op->space, &m->at) != DW_OK) return NULL;
    if (in->count == 3 && sim_decode_source(d, &in->operands[2], PTX_u32, &m->stride) != DW_OK) return NULL;
    d->op->space = m->at.space;
    d->op->of_cluster = m->at.of_cluster;
    d->op->extra = m;
    d->op->small = store;
    return do_move;
}

sim_handler select_wmma_load(sim_decoding *d) { return select_move(d, false); }
sim_handler select_wmma_store(sim_decoding *d) { return select_move(d, true); }

static sim_handler select_product(sim_decoding *d, ptx_type of, ptx_type to, ptx_type from, ptx_type second) {
    const ptx_instruction *in = d->instruction;
    const int bits = ptx_types[of].bits;
    product_op *p = sim_decode_new(d, sizeof *p);
    if (p == NULL) return NULL;
    if (!is_shape(d->op, bits) || of != second || in->count != 4) {
        d->why = "a shape or types that wmma.mma does not have; d, a, b and c";
        return NULL;
    }
    p->a = fragment_of(d->op, MATRIX_A, bits);
    p->b = fragment_of(d->op, MATRIX_B, bits);
    p->c = fragment_of(d->op, ACCUMULATOR, ptx_types[from].bits);
    p->d = fragment_of(d->op, ACCUMULATOR, ptx_types[to].bits);
    if (of == PTX_f16) p->a.registers = p->b.registers = WMMA_MAX_REGISTERS;
    p->c_type = from;
    if (!decode_fragment(d, &in->operands[0], true, &p->d) || !decode_fragment(d, &in->operands[1], false, &p->a) || !decode_fragment(d, &in->operands[2], false, &p->b) ||
        !decode_fragment(d, &in->operands[3], false, &p->c)) {
        return NULL;
    }
    d->op->type = (uint8_t)of;
    d->op->small = (uint8_t)to;
    d->op->extra = p;
    return of == PTX_f64 ? do_doubles : do_product;
}

sim_handler select_wmma_f16(sim_decoding *d) { return select_product(d, PTX_f16, d->type, d->type2, PTX_f16); }
sim_handler select_wmma_f32(sim_decoding *d) { return select_product(d, d->type, PTX_f32, PTX_f32, d->type2); }
sim_handler select_wmma_s32(sim_decoding *d) { return select_product(d, d->type, PTX_s32, PTX_s32, d->type2); }
sim_handler select_wmma_f64(sim_decoding *d) { return select_product(d, PTX_f64, PTX_f64, PTX_f64, PTX_f64); }
