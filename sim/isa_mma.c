/* mma.sync (PTX ISA 9.7.14.5): products of small matrices whose fragments lie in the registers of a warp.
 *
 * In units of 32-bit registers of E elements, with g = lane / 4 and t = lane % 4: register r of A holds row g + 8 (r % 2) (of 8 rows: g), columns
 * E t + 4 E (r / 2) and those behind; of B rows E t + 4 E r and those behind, column g; of the result row g + 8 (r / 2), column 2 t + r % 2 (of halves both
 * columns in one register). Doubles are as 32-bit elements, in registers of their own size. */
#include "decode.h"
#include "product.h"
#include "real.h"

#include "num/num.h"

enum { MAX_M = 16, MMA_N = 8, MAX_K = 32, MAX_REGISTERS = 8 };

typedef struct mma_op {
    uint32_t d[4], a[MAX_REGISTERS], b[4], c[4];
    int a_count, b_count, c_count;
} mma_op;

typedef struct fragments { uint64_t a[MAX_M][MAX_K], b[MAX_K][MMA_N]; } fragments;   /* bits of elements */

static int element_bits(int type) { return ptx_types[type].bits; }

static uint64_t element_of(sim_warp *w, uint32_t row, int lane, int index, int bits) {
    if (bits == 64) return ((const uint64_t *)sim_row(w, row))[lane];
    uint32_t word = ((const uint32_t *)sim_row(w, row))[lane];
    return bits == 32 ? word : word >> (index * bits) & ((1u << bits) - 1);
}

static void gather(sim_warp *w, const sim_op *op, const mma_op *p, fragments *f) {
    int a_bits = element_bits(op->type), each = a_bits >= 32 ? 1 : 32 / a_bits, tall = op->shape[0] == 16 ? 2 : 1;
    for (int lane = 0; lane < LANES; lane++) {
        int g = lane / 4, t = lane % 4;
        for (int r = 0; r < p->a_count; r++) {
            for (int e = 0; e < each; e++) f->a[g + 8 * (r % tall)][each * t + e + 4 * each * (r / tall)] = element_of(w, p->a[r], lane, e, a_bits);
        }
        for (int r = 0; r < p->b_count; r++) {
            for (int e = 0; e < each; e++) f->b[each * t + e + 4 * each * r][g] = element_of(w, p->b[r], lane, e, a_bits);
        }
    }
}

/* ---- sums ---- */

static uint64_t sum_f64(const fragments *f, int row, int column, int k, uint64_t c) {
    double sum = f64_from(c);
    for (int i = 0; i < k; i++) sum = fma(f64_from(f->a[row][i]), f64_from(f->b[i][column]), sum);
    return f64_bits(sum);
}

static uint32_t sum_integer(const sim_op *op, const fragments *f, int row, int column, int k, uint32_t c) {
    bool a_signed = op->type == PTX_s8, b_signed = op->type2 == PTX_s8;
    int64_t sum = (int32_t)c;
    for (int i = 0; i < k; i++) {
        int32_t a = a_signed ? (int8_t)f->a[row][i] : (int32_t)f->a[row][i], b = b_signed ? (int8_t)f->b[i][column] : (int32_t)f->b[i][column];
        sum += a * b;
    }
    if (sim_has(&op->mods, SIM_MOD_satfinite)) sum = sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum;
    return (uint32_t)sum;
}

/* Sixteen products at a time, as Hopper's unit for halves takes them; it takes 8-bit floats as halves, too. */
static uint32_t sum_floats(const sim_op *op, const fragments *f, int row, int column, int k, uint32_t c) {
    const product_format *fa = product_format_of(op->type), *fb = product_format_of(op->type2);
    int longer = fa->mantissa > fb->mantissa ? fa->mantissa : fb->mantissa;
    bool half = op->small == PTX_f16;
    for (int begin = 0; begin < k; begin += 16) {
        product_number a[16], b[16];
        int count = k - begin < 16 ? k - begin : 16;
        for (int i = 0; i < count; i++) {
            a[i] = product_read(fa, (uint32_t)f->a[row][begin + i], false);
            b[i] = product_read(fb, (uint32_t)f->b[begin + i][column], false);
            a[i].significand *= 1 << (longer - fa->mantissa);
            b[i].significand *= 1 << (longer - fb->mantissa);
        }
        if (half) {
            double sum = product_sum_exact(a, b, count, f32_bits(num_f16_to_f32((uint16_t)c)), longer, 25);
            c = isnan(sum) ? 0x7fff : (uint32_t)num_encode(DW_FORMAT_f16, sum, false);
        } else {
            c = product_sum(a, b, count, c, longer, 25, 23);
        }
    }
    return c;
}

static sim_flow do_mma(sim_warp *w, const sim_op *op, uint32_t mask) {
    const mma_op *p = op->extra;
    if (!sim_together(w, w->live, mask)) return SIM_WAIT;
    if (mask != SIM_ALL_LANES) return sim_find(w, op, -1, "all 32 lanes execute this together, and only 0x%08x do", mask);
    fragments f;
    uint64_t results[4][LANES];
    int k = op->shape[2], kind = op->small;
    gather(w, op, p, &f);
    for (int r = 0; r < p->c_count; r++) {
        for (int lane = 0; lane < LANES; lane++) {
            int row = lane / 4 + 8 * (kind == PTX_f16 ? r : r / 2), column = lane % 4 * 2 + (kind == PTX_f16 ? 0 : r % 2);
            if (kind == PTX_f64) {
                results[r][lane] = sum_f64(&f, row, column, k, ((const uint64_t *)sim_row(w, p->c[r]))[lane]);
                continue;
            }
            uint32_t c = ((const uint32_t *)sim_row(w, p->c[r]))[lane];
            if (kind == PTX_f16) results[r][lane] = sum_floats(op, &f, row, column, k, c & 0xffff) | (uint64_t)sum_floats(op, &f, row, column + 1, k, c >> 16) << 16;
            else results[r][lane] = kind == PTX_s32 ? sum_integer(op, &f, row, column, k, c) : sum_floats(op, &f, row, column, k, c);
        }
    }
    for (int r = 0; r < p->c_count; r++) {
        for (int lane = 0; lane < LANES; lane++) {
            if (kind == PTX_f64) ((uint64_t *)sim_row(w, p->d[r]))[lane] = results[r][lane];
            else ((uint32_t *)sim_row(w, p->d[r]))[lane] = (uint32_t)results[r][lane];
        }
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

static sim_handler select_kind(sim_decoding *d, ptx_type result) {
    const ptx_instruction *in = d->instruction;
    if (d->type == PTX_NO_TYPE) d->type = d->type2 = PTX_f64;
    int bits = element_bits(d->type), rows = d->op->shape[0] / 8;
    d->op->type = (uint8_t)d->type;
    d->op->type2 = (uint8_t)d->type2;
    d->op->small = (uint8_t)result;
    if (!is_shape(d->op, bits) || element_bits(d->type2) != bits || (bits > 8 && d->type != d->type2)) {
        d->why = "a shape or types that mma.sync does not have, or that are not modelled";
        return NULL;
    }
    if (in->count != 4) {
        d->why = "d, a, b and c";
        return NULL;
    }
    mma_op *p = sim_decode_new(d, sizeof *p);
    if (p == NULL) return NULL;
    int each = bits >= 32 ? 1 : 32 / bits;
    p->b_count = d->op->shape[2] / (4 * each);
    p->a_count = rows * p->b_count;
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
