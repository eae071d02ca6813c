/* wgmma (PTX ISA 9.7.15): products of a warpgroup, whose four warps each compute 16 of the 64 rows. A product is noted when it is issued and computed when it
 * is waited for, as late as hardware may: who reads the result, or overwrites an operand, without waiting gets what that deserves. It begins when all four warps have
 * issued it, so what each of them did before comes before it; and the first one that waits for it waits for all of it, so CUTLASS's pipelines may have one thread
 * of the warpgroup tell that an operand's place is free. */
#include "decode.h"
#include "order.h"
#include "panel.h"
#include "real.h"

#include "num/num.h"

#include <stdlib.h>

enum { WARPGROUP = 4 };

typedef struct product_op {
    uint32_t a_registers[4];       /* or SIM_NO_ROW */
    uint32_t a_descriptor, b_descriptor, scale_d;
    uint32_t metadata;             /* of a sparse A; else SIM_NO_ROW */
    int selector;                  /* which lanes of four have the metadata */
    uint32_t *d;                   /* count rows */
    int *d_watch, a_watch[4];      /* their numbers among the watched; -1: none */
    int count;                     /* of d */
    ptx_type result;
    bool negate_a, negate_b, transposed_a, transposed_b;
} product_op;

/* Issued, with what was in the descriptors. */
struct sim_product {
    const sim_op *op;
    sim_frame *frame;
    uint8_t *registers, *constants;
    uint64_t a, b;
    bool accumulate;
    uint32_t group;
    uint64_t number;               /* of the warp's products; it has the same in the other warps of the warpgroup */
    bool computed;                 /* another warp has waited for it */
    uint32_t clock[SIM_MAX_WARPS]; /* what came before its issue: in this warp, in all four once they have issued it, and in whoever has computed it (order.h) */
    uint32_t metadata[LANES];      /* of a sparse A */
};

enum { ROWS = 16, MAX_K = 64, MAX_N = 256, CHUNK = 16 };

/* ---- operands ---- */

/* Lines along m or n, of k codes each; lost: some of the line's bytes were never written. */
typedef struct operand { uint32_t code[MAX_N][MAX_K]; bool lost[MAX_N]; uint64_t digest; } operand;

/* Which columns of a sparse row there are, as bits. */
typedef struct pattern { uint64_t row[ROWS]; } pattern;

/* Address of an element of an operand in shared memory (PTX ISA 9.7.15.5.1): start, and the distances between core matrices, in the descriptor's 16-byte units.
 * row: along m or n. K-major: rows of 16 bytes of k, in groups of 8. MN-major: rows of 8 elements along m or n, one for each k. */
static uint64_t operand_address(uint64_t descriptor, bool transposed, int row, int k, int bytes) {
    static const uint64_t flips[] = {0, 0x70, 0x30, 0x10};
    static const int width_bits[] = {4, 7, 6, 5};
    uint64_t start = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
    int mode = (int)(descriptor >> 62);
    uint64_t along = (uint64_t)(transposed ? row : k) * (uint64_t)bytes, across = (uint64_t)(transposed ? k : row), far = along >> width_bits[mode] << width_bits[mode];
    uint64_t at = start + (across % 8 << width_bits[mode]);
    if (mode == 0) at += transposed ? along / 16 * stride + across / 8 * leading + along % 16 : across / 8 * stride + along / 16 * leading + along % 16;
    else at += across / 8 * stride + along - far + (transposed ? (far >> width_bits[mode]) * leading : far);
    return at ^ (at >> 3 & flips[mode]);
}

/* May these 16 bytes, of an operand's row and those behind it, be read? *written: all of them were. false: a finding. */
static bool check_chunk(sim_warp *w, const sim_op *op, uint64_t descriptor, int row, uint64_t at, bool *written) {
    const sim_cta *cta = w->cta;
    if (at < SIM_SHARED_RESERVED || at + CHUNK > cta->shared_bytes) {
        sim_find(w, op, -1, "an operand's row %d lies at 0x%llx of shared memory, and the CTA has 0x%x to 0x%zx: check the descriptor 0x%016llx", row, (unsigned long long)at,
                 SIM_SHARED_RESERVED, cta->shared_bytes, (unsigned long long)descriptor);
        return false;
    }
    sim_shadows s = sim_shadows_of(&cta->shared_shadow[at], CHUNK);
    const char *what = (s.any & SHADOW_FLIGHT) != 0 ? "an asynchronous copy still writes: wait for its mbarrier first"
                       : (s.any & SHADOW_GENERIC) != 0 && !w->launch->options->proxies_one ? "ordinary stores wrote, with no fence.proxy.async behind them" : NULL;
    *written = (s.all & SHADOW_WRITTEN) != 0;
    if (what != NULL) sim_find(w, op, -1, "row %d of an operand lies at 0x%llx of shared memory, which %s", row, (unsigned long long)at, what);
    return what == NULL;
}

/* 16 bytes as codes of one, two or four bytes. */
static void spread_codes(const uint8_t *from, int bytes, uint32_t *codes) {
    if (bytes == 1) {
        for (int i = 0; i < CHUNK; i++) codes[i] = from[i];
    } else if (bytes == 2) {
        uint16_t halves[CHUNK / 2];
        memcpy(halves, from, sizeof halves);
        for (int i = 0; i < CHUNK / 2; i++) codes[i] = halves[i];
    } else {
        memcpy(codes, from, CHUNK);
    }
}

/* rows x k codes from shared memory; false: a finding. What nobody ever wrote is NaN: kernels compute rows that they do not store, and a result that is
 * stored shows it. */
static bool read_operand(sim_warp *w, const sim_op *op, int bytes, uint64_t descriptor, bool transposed, int first, int rows, int k, operand *o) {
    int each = CHUNK / bytes, outer = transposed ? k : rows, inner = (transposed ? rows : k) / each;
    memset(o->lost, 0, (size_t)rows * sizeof *o->lost);
    o->digest = 0;
    const order_reader reader = order_reader_of(w);
    for (int i = 0; i < outer; i++) {
        for (int j = 0; j < inner; j++) {
            int row = transposed ? j * each : i, column = transposed ? i : j * each;
            uint64_t at = operand_address(descriptor, transposed, first + row, column, bytes);
            bool written;
            if (!check_chunk(w, op, descriptor, first + row, at, &written)) return false;
            if (w->launch->digests) o->digest = sim_mix(o->digest, at);
            if (!order_read_chunk(w, op, at, &reader)) return false;
            uint32_t spread[CHUNK], *codes = transposed ? spread : &o->code[row][column];
            spread_codes(&w->cta->shared[at], bytes, codes);
            for (int e = 0; e < each && transposed; e++) o->code[row + e][column] = spread[e];
            for (int e = 0; e < (transposed ? each : 1) && !written; e++) o->lost[row + e] = true;
        }
    }
    return true;
}

/* A's fragment: register i of a lane has row lane / 4 + 8 (i % 2), and 4 bytes of columns from 4 (lane % 4) + 16 (i / 2) bytes on. */
static void read_registers(const product_op *p, const struct sim_product *issued, int bytes, operand *o) {
    memset(o->lost, 0, ROWS * sizeof *o->lost);
    o->digest = 0;
    for (int i = 0; i < 4; i++) {
        const uint8_t *row = ((p->a_registers[i] & SIM_CONSTANT_ROW) != 0 ? issued->constants : issued->registers) + (p->a_registers[i] & ~SIM_CONSTANT_ROW);
        for (int lane = 0; lane < LANES; lane++) {
            for (int e = 0; e < 4 / bytes; e++) {
                uint32_t *code = &o->code[lane / 4 + 8 * (i % 2)][(4 * (lane % 4) + 16 * (i / 2)) / bytes + e];
                *code = 0;
                memcpy(code, row + lane * 4 + e * bytes, (size_t)bytes);
            }
        }
    }
}

/* Four bits of metadata for each four columns (of 32-bit elements, two): the places of its two elements (of 32-bit ones, of the two halves of one). Lanes of a
 * group of four have rows lane / 4 and that plus 8; of 16 and 32-bit elements the two lanes that the selector names have the lower and upper columns, and the second
 * row in their upper halves; of 8-bit ones lane % 2 is the second row, and lane / 2 % 2 the upper columns (PTX ISA 9.7.15.6.1). */
static uint32_t metadata_of(const struct sim_product *issued, int bytes, int row, int group, int groups) {
    const int quad = row % 8 * 4, second = row / 8, upper = group >= groups / 2, at = group % (groups / 2) * 4;
    if (bytes == 1) return issued->metadata[quad + second + 2 * upper] >> at & 15;
    const product_op *p = issued->op->extra;
    return issued->metadata[quad + 2 * p->selector + upper] >> (16 * second + at) & 15;
}

/* Lays the k / 2 elements of each row of a sparse A out at the places that the metadata tells. false: a finding. */
static bool spread(sim_warp *w, const struct sim_product *issued, int bytes, int k, operand *a, pattern *there) {
    const int each = bytes == 4 ? 2 : 4, groups = k / each;
    for (int row = 0; row < ROWS; row++) {
        uint32_t packed[MAX_K / 2];
        memcpy(packed, a->code[row], sizeof *packed * (size_t)k / 2);
        memset(a->code[row], 0, sizeof *packed * (size_t)k);
        there->row[row] = 0;
        for (int group = 0; group < groups; group++) {
            const uint32_t bits = metadata_of(issued, bytes, row, group, groups), first = bits & 3, second = bits >> 2;
            const bool valid = bytes == 4 ? bits == 4 || bits == 14 : first < second;
            if (!valid) {
                sim_find(w, issued->op, -1, "the metadata of row %d, columns %d to %d, is %u, which names no places", row, group * each, group * each + each - 1, bits);
                return false;
            }
            for (int i = 0; i < each / 2; i++) {
                const int column = group * each + (bytes == 4 ? bits == 14 : (int)(i == 0 ? first : second));
                a->code[row][column] = packed[group * each / 2 + i];
                there->row[row] |= 1ull << column;
            }
        }
    }
    return true;
}

/* ---- computing ---- */

/* A's rows one behind another, MAX_K apart, and B's columns in panels (panel.h): of floats values and places, of integers themselves. base: of each row, or
 * panel; finite: of each line. */
typedef struct numbers { float value[MAX_N * MAX_K]; int32_t whole[MAX_N * MAX_K]; int16_t place[MAX_N * MAX_K]; int base[MAX_N]; bool finite[MAX_N], all_finite; } numbers;
typedef struct cells { uint32_t c[ROWS][MAX_N]; } cells;

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
        for (int g = 0; g < 8; g++, d += 4, first += MAX_N) {
            for (int of = 0; of < 4; of++) first[2 * of] = d[of] & 0xffff, first[2 * of + 1] = d[of] >> 16;
        }
    }
    for (int i = 0; i < p->count && p->result != PTX_f16; i += 2) {
        const uint32_t *even = (const uint32_t *)(const void *)(issued->registers + p->d[i]), *odd = (const uint32_t *)(const void *)(issued->registers + p->d[i + 1]);
        uint32_t *first = &t->c[8 * (i / 2 % 2)][8 * (i / 4)];
        for (int g = 0; g < 8; g++, even += 4, odd += 4, first += MAX_N) {
            for (int of = 0; of < 4; of++) first[2 * of] = even[of], first[2 * of + 1] = odd[of];
        }
    }
}

static void scatter(const struct sim_product *issued, const cells *t) {
    const product_op *p = issued->op->extra;
    for (int i = 0; i < p->count && p->result == PTX_f16; i++) {
        uint32_t *d = (uint32_t *)(void *)(issued->registers + p->d[i]);
        const uint32_t *first = &t->c[8 * (i % 2)][8 * (i / 2)];
        for (int g = 0; g < 8; g++, d += 4, first += MAX_N) {
            for (int of = 0; of < 4; of++) d[of] = first[2 * of] | first[2 * of + 1] << 16;
        }
    }
    for (int i = 0; i < p->count && p->result != PTX_f16; i += 2) {
        uint32_t *even = (uint32_t *)(void *)(issued->registers + p->d[i]), *odd = (uint32_t *)(void *)(issued->registers + p->d[i + 1]);
        const uint32_t *first = &t->c[8 * (i / 2 % 2)][8 * (i / 4)];
        for (int g = 0; g < 8; g++, even += 4, odd += 4, first += MAX_N) {
            for (int of = 0; of < 4; of++) even[of] = first[2 * of], odd[of] = first[2 * of + 1];
        }
    }
}

static void set_finite(numbers *n, const operand *o, int lines) {
    n->all_finite = true;
    for (int i = 0; i < lines; i++) n->all_finite &= n->finite[i] &= !o->lost[i];
}

static void rows_to_floats(const operand *o, int k, const product_format *f, bool negate, numbers *n) {
    for (int row = 0; row < ROWS; row++) n->finite[row] = panel_decode_row(f, o->code[row], k, negate, &n->value[row * MAX_K], &n->place[row * MAX_K], &n->base[row]);
    set_finite(n, o, ROWS);
}

static void columns_to_floats(const operand *o, int columns, int k, const product_format *f, bool negate, numbers *n) {
    for (int first = 0; first < columns; first += PANEL_COLUMNS) {
        const int at = panel_at(first, k), there = columns - first < PANEL_COLUMNS ? columns - first : PANEL_COLUMNS;
        const uint32_t special = panel_decode_columns(f, o->code[first], MAX_K, there, k, negate, &n->value[at], &n->place[at], &n->base[first / PANEL_COLUMNS]);
        for (int i = 0; i < there; i++) n->finite[first + i] = (special >> i & 1) == 0;
    }
    set_finite(n, o, columns);
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
    const bool half = p->result == PTX_f16;
    numbers *of_a = &rows;
    rows_to_floats(a, k, fa, p->negate_a, of_a);
    for (int row = 0; row < ROWS; row++) {
        uint32_t before[MAX_N];
        bool special = !(of_a->finite[row] && columns->all_finite);
        if (special) memcpy(before, t->c[row], sizeof before);
        const panel_sum sum = {.k = k, .columns = panel_padded(n), .row = {&of_a->value[row * MAX_K], &of_a->place[row * MAX_K]}, .panels = {columns->value, columns->place},
                               .row_base = of_a->base[row], .bases = columns->base, .significand_bits = significand_bits_of(fa, fb), .fraction = fraction_of(fa), .result_bits = result_bits_of(fa), .half = half, .c = t->c[row]};
        if (!a->lost[row]) panel_isa_now()->floats(&sum);
        for (int column = 0; column < n && special; column++) {
            if (of_a->finite[row] && columns->finite[column]) continue;
            if (a->lost[row] || b->lost[column]) t->c[row][column] = half ? F16_NAN : F32_NAN;
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

/* The rows of one warp of the warpgroup, which `waiting` is one of and waits for. false: a finding. */
static bool compute_rows(sim_warp *waiting, const sim_warp *w, const struct sim_product *issued, const operand *b, const numbers *columns) {
    static _Thread_local operand rows;
    static _Thread_local cells all;
    operand *a = &rows;
    cells *t = &all;
    const sim_op *op = issued->op;
    const product_op *p = op->extra;
    const bool sparse = p->metadata != SIM_NO_ROW;
    const int k = op->shape[2], bytes = (sparse ? 64 : 32) / k;
    pattern there;
    memset(&there, 0xff, sizeof there);
    if (p->a_registers[0] != SIM_NO_ROW) read_registers(p, issued, bytes, a);
    else if (!read_operand(waiting, op, bytes, issued->a, p->transposed_a, w->index % WARPGROUP * ROWS, ROWS, sparse ? k / 2 : k, a)) return false;
    if (sparse && !spread(waiting, issued, bytes, k, a, &there)) return false;
    if (p->result == PTX_s32 && !check_written(waiting, op, a, ROWS, 'a')) return false;
    if (w->launch->digests) {
        int signs = issued->accumulate | p->negate_a << 1 | p->negate_b << 2;
        sim_digest(w->launch, sim_mix(sim_mix(a->digest, b->digest), ((uint64_t)sim_line(w, op) << 8 | (uint64_t)signs) + (w->cta->linear << 40) + ((uint64_t)w->index << 32)));
    }
    gather(issued, t);
    if (p->result != PTX_s32) compute_floats(issued, a, b, columns, &there, t);
    else compute_integers(op, a, columns, t);
    scatter(issued, t);
    return true;
}

/* The warpgroup's product of that number in one of its warps: all have issued it, or another has not, and this one not waited for it. */
static struct sim_product *same_product(const sim_warp *w, uint64_t number) { return &w->products[number - w->products[0].number]; }

/* All rows; and the other warps, whose results may be touched behind their own waits, know that this one has waited. false: a finding. */
static bool compute(sim_warp *w, const struct sim_product *issued) {
    static _Thread_local operand columns;
    static _Thread_local numbers numbers_of_b;
    operand *b = &columns;
    numbers *n = &numbers_of_b;
    const sim_op *op = issued->op;
    const product_op *p = op->extra;
    const int k = op->shape[2];
    sim_warp *group = &w->cta->warps[w->index / WARPGROUP * WARPGROUP];
    if (!read_operand(w, op, (p->metadata != SIM_NO_ROW ? 64 : 32) / k, issued->b, p->transposed_b, 0, op->shape[1], k, b)) return false;
    if (p->result == PTX_s32 && !check_written(w, op, b, op->shape[1], 'b')) return false;
    if (p->result == PTX_s32) columns_to_integers(b, op->shape[1], k, op->type2, n);
    else columns_to_floats(b, op->shape[1], k, product_format_of(op->type2), p->negate_b, n);
    for (int i = 0; i < WARPGROUP; i++) {
        if (!compute_rows(w, &group[i], same_product(&group[i], issued->number), b, n)) return false;
    }
    uint32_t clock[SIM_MAX_WARPS] = {0};
    order_release(w, clock);
    for (int i = 0; i < WARPGROUP; i++) {
        struct sim_product *theirs = same_product(&group[i], issued->number);
        theirs->computed = true;
        memcpy(theirs->clock, clock, sizeof clock);
    }
    return true;
}

/* ---- registers (PTX ISA 9.7.15.7.1): ordinary instructions may not touch results while products are under way, nor change A; and wgmma.fence comes between
 * whatever touched a register and the product that uses it ---- */

static const char *register_name(const sim_frame *frame, int number, char *text, size_t room) {
    snprintf(text, room, "?");
    uint32_t row = frame->code->watched[number];
    const ptx_function *f = frame->code->function;
    for (size_t i = 0; i < f->register_count; i++) {
        if (frame->code->rows[i] != row) continue;
        size_t first = i;
        while (first > 0 && strcmp(f->registers[first - 1].name, f->registers[i].name) == 0) first--;
        snprintf(text, room, "%s", f->registers[i].name);
        if (first < i || (i + 1 < f->register_count && strcmp(f->registers[i + 1].name, f->registers[i].name) == 0)) {
            snprintf(text, room, "%s%zu", f->registers[i].name, i - first);   /* one of %f<100> */
        }
        break;
    }
    return text;
}

sim_flow sim_touch(sim_warp *w, const sim_op *op, uint32_t mask) {
    sim_frame *frame = w->now->frame;
    sim_watch *watches = sim_watches(frame);
    const uint32_t *list = op->extra;
    char name[64];
    for (int64_t i = 0; i < op->offset; i++) {
        int number = (int)(list[i] >> 1);
        bool writes = (list[i] & 1) != 0;
        sim_watch *watch = &watches[number];
        if (watch->written > 0 || (writes && watch->read > 0)) {
            return sim_find(w, op, __builtin_ctz(mask), "%s register %s, which wgmma products under way still %s: wgmma.wait_group first", writes ? "writes" : "reads",
                            register_name(frame, number, name, sizeof name), watch->written > 0 ? "write" : "read");
        }
        if (op->small == 0) watch->fenced = false;   /* moves are the compiler's renaming: it puts them behind the fence, too */
    }
    return SIM_NEXT;
}

static void number_registers(product_op *p, const sim_code *code) {
    for (int i = 0; i < p->count; i++) p->d_watch[i] = sim_watched(code, p->d[i]);
    for (int i = 0; i < 4; i++) p->a_watch[i] = p->a_registers[i] != SIM_NO_ROW ? sim_watched(code, p->a_registers[i]) : -1;
}

static bool use_registers(sim_warp *w, const sim_op *op) {
    const product_op *p = op->extra;
    sim_frame *frame = w->now->frame;
    sim_watch *watches = sim_watches(frame);
    int unfenced = -1;
    for (int i = 0; i < p->count; i++) {
        sim_watch *watch = &watches[p->d_watch[i]];
        if (!watch->fenced) unfenced = p->d_watch[i];
        watch->written++;
    }
    for (int i = 0; i < 4; i++) {
        if (p->a_watch[i] < 0) continue;
        if (!watches[p->a_watch[i]].fenced) unfenced = p->a_watch[i];
        watches[p->a_watch[i]].read++;
    }
    char name[64];
    if (unfenced < 0) return true;
    sim_find(w, op, -1, "uses register %s, which ordinary instructions may have touched, with no wgmma.fence since: wgmma.fence.sync.aligned first", register_name(frame, unfenced, name, sizeof name));
    return false;
}

static void release_registers(const struct sim_product *issued) {
    const product_op *p = issued->op->extra;
    sim_watch *watches = sim_watches(issued->frame);
    for (int i = 0; i < p->count; i++) watches[p->d_watch[i]].written--;
    for (int i = 0; i < 4; i++) {
        if (p->a_watch[i] >= 0) watches[p->a_watch[i]].read--;
    }
}

static sim_flow do_fence(sim_warp *w, const sim_op *op, uint32_t mask) {
    (void)op;
    if (!sim_together(w, w->live, mask)) return SIM_WAIT;
    sim_watch *watches = sim_watches(w->now->frame);
    for (size_t i = 0; i < w->now->frame->code->watched_count; i++) watches[i].fenced = true;
    return SIM_NEXT;
}

sim_handler select_wgmma_fence(sim_decoding *d) {
    (void)d;
    return do_fence;
}

/* ---- issuing and waiting ---- */

/* The four warps execute the same instruction on the same operands. The last one that issues it tells all what came before. false: a finding. */
static bool join_warpgroup(sim_warp *w, const sim_op *op) {
    sim_cta *cta = w->cta;
    const int first = w->index & -WARPGROUP;
    const struct sim_product *mine = &w->products[w->product_count - 1];
    bool last = true;
    if (first + WARPGROUP > cta->warp_count) {
        sim_find(w, op, -1, "a warpgroup of four warps from warp %d on executes this together, and the CTA has %d warps", first, cta->warp_count);
        return false;
    }
    for (int i = first; i < first + WARPGROUP; i++) {
        const sim_warp *other = &cta->warps[i];
        if (other->products_issued <= mine->number) {
            last = false;
            continue;
        }
        const struct sim_product *theirs = same_product(other, mine->number);
        if (theirs->op == op && theirs->a == mine->a && theirs->b == mine->b) continue;
        if (theirs->op != op) sim_find(w, op, -1, "warp %d of the warpgroup executes line %d as its product %llu, and all four execute the same one", i, sim_line(other, theirs->op), (unsigned long long)mine->number + 1);
        else sim_find(w, op, -1, "the descriptors are 0x%016llx and 0x%016llx, in warp %d of the warpgroup 0x%016llx and 0x%016llx: they must be the same", (unsigned long long)mine->a, (unsigned long long)mine->b, i,
                      (unsigned long long)theirs->a, (unsigned long long)theirs->b);
        return false;
    }
    uint32_t clock[SIM_MAX_WARPS] = {0};
    for (int i = first; i < first + WARPGROUP && last; i++) order_join(clock, same_product(&cta->warps[i], mine->number)->clock);
    for (int i = first; i < first + WARPGROUP && last; i++) memcpy(same_product(&cta->warps[i], mine->number)->clock, clock, sizeof clock);
    return true;
}

/* Have all four warps issued it? */
static bool has_begun(const sim_warp *w, const struct sim_product *p) {
    for (int i = w->index & -WARPGROUP; i < (w->index & -WARPGROUP) + WARPGROUP; i++) {
        if (w->cta->warps[i].products_issued <= p->number) return false;
    }
    return true;
}

static sim_flow do_wgmma(sim_warp *w, const sim_op *op, uint32_t mask) {
    const product_op *p = op->extra;
    if (!sim_together(w, w->live, mask)) return SIM_WAIT;
    if (mask != SIM_ALL_LANES) return sim_find(w, op, -1, "all 32 lanes execute this together, and only 0x%08x do", mask);
    if (!use_registers(w, op)) return SIM_STOP;
    struct sim_product issued = {.op = op, .frame = w->now->frame, .registers = w->base[0], .constants = w->base[1], .group = w->product_group};
    issued.b = *(const uint64_t *)sim_row(w, p->b_descriptor);
    if (p->a_descriptor != SIM_NO_ROW) issued.a = *(const uint64_t *)sim_row(w, p->a_descriptor);
    issued.accumulate = (*(const uint32_t *)sim_row(w, p->scale_d) & 1) != 0;
    issued.number = w->products_issued;
    order_release(w, issued.clock);
    if (p->metadata != SIM_NO_ROW) memcpy(issued.metadata, sim_row(w, p->metadata), sizeof issued.metadata);
    if (w->product_count == w->product_capacity) {
        size_t capacity = w->product_capacity == 0 ? 64 : w->product_capacity * 2;
        struct sim_product *larger = realloc(w->products, capacity * sizeof *larger);
        if (larger == NULL) return sim_find(w, op, -1, "no memory for the list of products");
        w->products = larger;
        w->product_capacity = capacity;
    }
    w->products[w->product_count++] = issued;
    w->products_issued++;
    sim_changed(w);
    return join_warpgroup(w, op) ? SIM_NEXT : SIM_STOP;
}

static sim_flow do_commit(sim_warp *w, const sim_op *op, uint32_t mask) {
    (void)op;
    if (!sim_together(w, w->live, mask)) return SIM_WAIT;
    w->product_group++;
    return SIM_NEXT;
}

static sim_flow do_wait(sim_warp *w, const sim_op *op, uint32_t mask) {
    if (!sim_together(w, w->live, mask)) return SIM_WAIT;
    uint32_t pending = ROW(uint32_t, 0)[__builtin_ctz(mask)];
    size_t done = 0;
    bool begun = true;
    while (done < w->product_count && w->products[done].group + pending < w->product_group) {
        struct sim_product *p = &w->products[done];
        begun = has_begun(w, p);
        if (!begun) break;
        order_acquire(w, p->clock);
        if (!p->computed && !compute(w, p)) return SIM_STOP;
        release_registers(p);
        done++;
    }
    memmove(w->products, w->products + done, (w->product_count -= done) * sizeof *w->products);
    if (begun) return SIM_NEXT;
    w->now->wait = SIM_WAIT_POLL;   /* it comes back to this instruction */
    return SIM_WAIT;
}

void sim_number_products(sim_code *code) {
    for (size_t i = 0; i < code->op_count; i++) {
        if (code->ops[i].run == do_wgmma) number_registers((product_op *)(uintptr_t)code->ops[i].extra, code);
    }
}

sim_handler select_wgmma_commit(sim_decoding *d) {
    (void)d;
    return do_commit;
}

sim_handler select_wgmma_wait(sim_decoding *d) {
    (void)d;
    return do_wait;
}

static bool is_constant(const ptx_operand *o, int64_t *value) {
    *value = o->value;
    return o->kind == PTX_OPERAND_INTEGER;
}

/* {d}, a or {a}, b, (of a sparse A metadata and selector,) p; of floats scale-a, scale-b; of 16-bit ones transposes of what lies in shared memory. more: 2 of a sparse A. */
static bool decode_signs(sim_decoding *d, product_op *p, bool halves, int more) {
    const ptx_instruction *in = d->instruction;
    int64_t value[4] = {1, 1, 0, 0};
    int transposes = in->operands[1].kind == PTX_OPERAND_VECTOR ? 1 : 2;
    if (in->count != 6 + more && !(halves && in->count == 6 + more + transposes)) {
        d->why = "six operands, and of 16-bit floats perhaps the order of what lies in shared memory";
        return false;
    }
    for (int i = 4 + more; i < in->count; i++) {
        if (!is_constant(&in->operands[i], &value[i - more - 4 + (i - more >= 6 && transposes == 1)])) {
            d->why = "signs and orders are constants";
            return false;
        }
    }
    p->negate_a = value[0] < 0;
    p->negate_b = value[1] < 0;
    p->transposed_a = value[2] != 0;
    p->transposed_b = value[3] != 0;
    return true;
}

static bool is_type_pair(const sim_decoding *d, ptx_type result) {
    bool a8 = d->type == PTX_s8 || d->type == PTX_u8, b8 = d->type2 == PTX_s8 || d->type2 == PTX_u8;
    if (result == PTX_s32) return a8 && b8;
    const product_format *fa = product_format_of(d->type), *fb = product_format_of(d->type2);
    return fa != NULL && fb != NULL && fa->bits == fb->bits && (fa->bits == 8 || fa == fb) && (result == PTX_f32 || fa->bits == 8 || d->type == PTX_f16);
}

static sim_handler select_product(sim_decoding *d, ptx_type result) {
    const ptx_instruction *in = d->instruction;
    int n = d->op->shape[1], bytes = ptx_types[d->type].bits / 8, count = result == PTX_f16 ? n / 4 : n / 2;
    bool wide = result == PTX_s32 && n > 32 && n % 16 != 0;
    const bool sparse = sim_mod(d, SIM_MOD_sp);
    const int more = sparse ? 2 : 0;
    if (d->type == PTX_tf32) bytes = 4;
    if (!is_type_pair(d, result) || d->op->shape[0] != 64 || d->op->shape[2] != (sparse ? 64 : 32) / bytes || n < 8 || n > MAX_N || n % 8 != 0 || wide) {
        d->why = "a shape or types that wgmma does not have";
        return NULL;
    }
    if (in->count < (result == PTX_s32 ? 4 : 6) + more || in->operands[0].kind != PTX_OPERAND_VECTOR || in->operands[0].count != count) {
        d->why = "the accumulator has n / 2 registers (of halves n / 4), and three operands at least follow";
        return NULL;
    }
    product_op *p = sim_decode_new(d, sizeof *p);
    if (p == NULL || (p->d = sim_decode_new(d, sizeof *p->d * (size_t)count)) == NULL || (p->d_watch = sim_decode_new(d, sizeof *p->d_watch * (size_t)count)) == NULL) return NULL;
    p->count = count;
    p->result = result;
    p->a_descriptor = p->metadata = SIM_NO_ROW;
    for (int i = 0; i < 4; i++) p->a_registers[i] = SIM_NO_ROW;
    if (result == PTX_s32 && in->count != 4 + more) {
        d->why = "products of integers have four operands";
        return NULL;
    }
    if (result != PTX_s32 && !decode_signs(d, p, bytes == 2, more)) return NULL;
    if (sparse) {
        int64_t selector;
        if (!is_constant(&in->operands[4], &selector) || selector < 0 || selector > (bytes == 1 ? 0 : 1)) {
            d->why = "the selector of metadata is the constant 0, or of 16 and 32-bit elements 0 or 1";
            return NULL;
        }
        p->selector = (int)selector;
        if (sim_decode_source(d, &in->operands[3], PTX_b32, &p->metadata) != DW_OK) return NULL;
    }
    for (int i = 0; i < count; i++) {
        if (sim_decode_target(d, &in->operands[0].items[i], PTX_b32, &p->d[i]) != DW_OK || sim_decode_watch(d, p->d[i]) != DW_OK) return NULL;
    }
    const ptx_operand *a = &in->operands[1];
    if (a->kind == PTX_OPERAND_VECTOR) {
        if (a->count != 4) {
            d->why = "A in registers has four of them";
            return NULL;
        }
        for (int i = 0; i < 4; i++) {
            if (sim_decode_source(d, &a->items[i], PTX_b32, &p->a_registers[i]) != DW_OK) return NULL;
            if ((p->a_registers[i] & SIM_CONSTANT_ROW) == 0 && sim_decode_watch(d, p->a_registers[i]) != DW_OK) return NULL;
        }
    } else if (sim_decode_source(d, a, PTX_b64, &p->a_descriptor) != DW_OK) {
        return NULL;
    }
    if (sim_decode_source(d, &in->operands[2], PTX_b64, &p->b_descriptor) != DW_OK || sim_decode_source(d, &in->operands[3 + more], PTX_pred, &p->scale_d) != DW_OK) return NULL;
    d->op->extra = p;
    return do_wgmma;
}

sim_handler select_wgmma(sim_decoding *d) { return select_product(d, PTX_f32); }
sim_handler select_wgmma_f16(sim_decoding *d) { return select_product(d, PTX_f16); }
sim_handler select_wgmma_s32(sim_decoding *d) { return select_product(d, PTX_s32); }
