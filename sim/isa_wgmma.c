/* wgmma (PTX ISA 9.7.15): products of a warpgroup, whose four warps each compute 16 of the 64 rows. A product is noted when it is issued and computed when it
 * is waited for, as late as hardware may: who reads the result, or overwrites an operand, without waiting gets what that deserves. */
#include "decode.h"
#include "product.h"

#include "num/num.h"

#include <stdlib.h>

typedef struct product_op {
    uint32_t a_registers[4];       /* or SIM_NO_ROW */
    uint32_t a_descriptor, b_descriptor, scale_d;
    uint32_t *d;                   /* n / 2 rows */
    bool negate_a, negate_b;
} product_op;

/* Issued, with what was in the descriptors. */
struct sim_product {
    const sim_op *op;
    uint8_t *registers, *constants;
    uint64_t a, b;
    bool accumulate;
    uint32_t group;
};

enum { ROWS = 16, MAX_K = 32, MAX_N = 256 };

/* ---- operands ---- */

typedef struct format { int type, bytes, exponent_bits, mantissa, bias; bool ieee; } format;
static const format formats[] = {
    {PTX_f16, 2, 5, 10, 15, true}, {PTX_bf16, 2, 8, 7, 127, true}, {PTX_e4m3, 1, 4, 3, 7, false}, {PTX_e5m2, 1, 5, 2, 15, true},
};

static const format *find_format(int type) {
    for (size_t i = 0; i < COUNT_OF(formats); i++) {
        if (formats[i].type == type) return &formats[i];
    }
    return NULL;
}

static product_number read_number(const format *f, uint32_t code, bool negate) {
    uint32_t mantissa = code & ((1u << f->mantissa) - 1), exponent = code >> f->mantissa & ((1u << f->exponent_bits) - 1), top = (1u << f->exponent_bits) - 1;
    bool negative = ((code >> (f->mantissa + f->exponent_bits) & 1) != 0) != negate;
    product_number n = {.negative = negative};
    if (exponent == top && f->ieee) {
        n.kind = mantissa == 0 ? 1 : 2;
        return n;
    }
    if (!f->ieee && exponent == top && mantissa == (1u << f->mantissa) - 1) {
        n.kind = 2;
        return n;
    }
    n.significand = (int32_t)(exponent == 0 ? mantissa : mantissa | 1u << f->mantissa);
    n.exponent = (int16_t)((exponent == 0 ? 1 : (int)exponent) - f->bias);
    if (negative) n.significand = -n.significand;
    return n;
}

/* Address of byte k of row r of a K-major operand: start, and the distances between core matrices, in the descriptor's 16-byte units (PTX ISA 9.7.15.5.1). */
static uint64_t operand_address(uint64_t descriptor, int row, int k) {
    uint64_t start = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
    uint64_t r = (uint64_t)row, byte = (uint64_t)k;
    switch (descriptor >> 62) {
    case 0: return start + r / 8 * stride + byte / 16 * leading + r % 8 * 16 + byte % 16;
    case 1: start += r / 8 * stride + r % 8 * 128 + byte; return start ^ (start >> 3 & 0x70);
    case 2: start += r / 8 * stride + r % 8 * 64 + byte; return start ^ (start >> 3 & 0x30);
    default: start += r / 8 * stride + r % 8 * 32 + byte; return start ^ (start >> 3 & 0x10);
    }
}

/* rows x k numbers from shared memory; false: a finding. What nobody ever wrote is NaN: kernels compute rows that they do not store, and a result that is
 * stored shows it. */
static bool read_operand(sim_warp *w, const sim_op *op, const format *f, uint64_t descriptor, int first, int rows, int k, bool negate, product_number *numbers) {
    sim_cta *cta = w->cta;
    for (int r = 0; r < rows; r++) {
        for (int i = 0; i < k; i++) {
            uint64_t at = operand_address(descriptor, first + r, i * f->bytes);
            if (at < SIM_SHARED_RESERVED || at + (uint64_t)f->bytes > cta->shared_bytes) {
                sim_find(w, op, -1, "an operand's row %d lies at 0x%llx of shared memory, and the CTA has 0x%x to 0x%zx: check the descriptor 0x%016llx", first + r,
                         (unsigned long long)at, SIM_SHARED_RESERVED, cta->shared_bytes, (unsigned long long)descriptor);
                return false;
            }
            uint8_t s = cta->shared_shadow[at];
            const char *what = (s & SHADOW_FLIGHT) != 0 ? "an asynchronous copy still writes: wait for its mbarrier first"
                               : (s & SHADOW_GENERIC) != 0 ? "ordinary stores wrote, with no fence.proxy.async behind them" : NULL;
            if (what != NULL) {
                sim_find(w, op, -1, "row %d, element %d of an operand lies at 0x%llx of shared memory, which %s", first + r, i, (unsigned long long)at, what);
                return false;
            }
            uint32_t code = cta->shared[at];
            if (f->bytes == 2) code |= (uint32_t)cta->shared[at + 1] << 8;
            numbers[r * k + i] = read_number(f, code, negate);
            if ((s & SHADOW_WRITTEN) == 0) numbers[r * k + i].kind = 2;
        }
    }
    return true;
}

/* A's fragment: register i of a lane has row lane / 4 + 8 (i % 2), and 4 bytes of columns from 4 (lane % 4) + 16 (i / 2) bytes on. */
static void read_registers(const product_op *p, const struct sim_product *issued, const format *f, int k, bool negate, product_number *numbers) {
    for (int i = 0; i < 4; i++) {
        const uint8_t *row = ((p->a_registers[i] & SIM_CONSTANT_ROW) != 0 ? issued->constants : issued->registers) + (p->a_registers[i] & ~SIM_CONSTANT_ROW);
        for (int lane = 0; lane < LANES; lane++) {
            for (int e = 0; e < 4 / f->bytes; e++) {
                uint32_t code = 0;
                memcpy(&code, row + lane * 4 + e * f->bytes, (size_t)f->bytes);
                int r = lane / 4 + 8 * (i % 2), column = (4 * (lane % 4) + 16 * (i / 2)) / f->bytes + e;
                numbers[r * k + column] = read_number(f, code, negate);
            }
        }
    }
}

/* ---- computing ---- */

/* The numbers as columns, for the fast sum; false: some are not finite. */
typedef struct columns { int32_t significand[MAX_N * MAX_K], exponent[MAX_N * MAX_K], negative[MAX_N * MAX_K]; } columns;

static bool to_columns(const product_number *numbers, int count, columns *c) {
    bool finite = true;
    for (int i = 0; i < count; i++) {
        bool negative = numbers[i].significand < 0;
        finite &= numbers[i].kind == 0;
        c->significand[i] = negative ? -numbers[i].significand : numbers[i].significand;
        c->exponent[i] = numbers[i].significand == 0 ? -16384 : numbers[i].exponent;
        c->negative[i] = -(int32_t)negative;
    }
    return finite;
}

static product_factors row_of(const columns *c, int row, int k) { return (product_factors){c->significand + row * k, c->exponent + row * k, c->negative + row * k}; }


/* Products of 8-bit floats keep 13 bits behind the largest exponent, and as many in the result; of 16-bit ones 25, and 23. */
static bool compute(sim_warp *w, const struct sim_product *issued) {
    static _Thread_local product_number a[ROWS * MAX_K], b[MAX_N * MAX_K];
    const sim_op *op = issued->op;
    const product_op *p = op->extra;
    const format *fa = find_format(op->type), *fb = find_format(op->type2);
    int n = op->shape[1], k = op->shape[2], significand = fa->mantissa;
    bool narrow = fa->bytes == 1;
    if (p->a_registers[0] != SIM_NO_ROW) read_registers(p, issued, fa, k, p->negate_a, a);
    else if (!read_operand(w, op, fa, issued->a, w->index % 4 * ROWS, ROWS, k, p->negate_a, a)) return false;
    if (!read_operand(w, op, fb, issued->b, 0, n, k, p->negate_b, b)) return false;
    if (fb->mantissa != fa->mantissa) {   /* e4m3 with e5m2: one length of significands */
        int longer = fa->mantissa > fb->mantissa ? fa->mantissa : fb->mantissa;
        for (int i = 0; i < ROWS * k; i++) a[i].significand *= 1 << (longer - fa->mantissa);
        for (int i = 0; i < n * k; i++) b[i].significand *= 1 << (longer - fb->mantissa);
        significand = longer;
    }
    static _Thread_local columns a_columns, b_columns;
    bool finite = to_columns(a, ROWS * k, &a_columns);
    finite &= to_columns(b, n * k, &b_columns);
    int fraction = narrow ? 13 : 25, result = narrow ? 13 : 23;
    for (int i = 0; i < n / 2; i++) {
        uint32_t *d = (uint32_t *)(void *)(issued->registers + p->d[i]);
        for (int lane = 0; lane < LANES; lane++) {
            int row = lane / 4 + 8 * (i / 2 % 2), column = lane % 4 * 2 + i % 2 + 8 * (i / 4);
            uint32_t c = issued->accumulate ? d[lane] : 0;
            d[lane] = finite ? product_sum_finite(row_of(&a_columns, row, k), row_of(&b_columns, column, k), k, c, significand, fraction, result)
                             : product_sum(&a[row * k], &b[column * k], k, c, significand, fraction, result);
        }
    }
    return true;
}

/* ---- issuing and waiting ---- */

static sim_flow do_wgmma(sim_warp *w, const sim_op *op, uint32_t mask) {
    const product_op *p = op->extra;
    if (!sim_together(w, w->live, mask)) return SIM_WAIT;
    if (mask != SIM_ALL_LANES) return sim_find(w, op, -1, "all 32 lanes execute this together, and only 0x%08x do", mask);
    struct sim_product issued = {.op = op, .registers = w->base[0], .constants = w->base[1], .group = w->product_group};
    issued.b = *(const uint64_t *)sim_row(w, p->b_descriptor);
    if (p->a_descriptor != SIM_NO_ROW) issued.a = *(const uint64_t *)sim_row(w, p->a_descriptor);
    issued.accumulate = (*(const uint32_t *)sim_row(w, p->scale_d) & 1) != 0;
    if (w->product_count == w->product_capacity) {
        size_t capacity = w->product_capacity == 0 ? 64 : w->product_capacity * 2;
        struct sim_product *larger = realloc(w->products, capacity * sizeof *larger);
        if (larger == NULL) return sim_find(w, op, -1, "no memory for the list of products");
        w->products = larger;
        w->product_capacity = capacity;
    }
    w->products[w->product_count++] = issued;
    return SIM_NEXT;
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
    while (done < w->product_count && w->products[done].group + pending < w->product_group) {
        if (!compute(w, &w->products[done++])) return SIM_STOP;
    }
    memmove(w->products, w->products + done, (w->product_count -= done) * sizeof *w->products);
    return SIM_NEXT;
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

/* {d}, a or {a}, b, p, scale-a, scale-b, and of 16-bit types transposes, which are 0 here. */
sim_handler select_wgmma(sim_decoding *d) {
    const ptx_instruction *in = d->instruction;
    const format *fa = find_format(d->type), *fb = find_format(d->type2);
    int n = d->op->shape[1];
    int64_t scale_a, scale_b, transpose = 0;
    if (fa == NULL || fb == NULL || fa->bytes != fb->bytes || (fa->bytes == 2 && fa != fb) || d->op->shape[0] != 64 || d->op->shape[2] != 32 / fa->bytes || n < 8 || n > MAX_N || n % 8 != 0) {
        d->why = "a shape or types that wgmma does not have";
        return NULL;
    }
    if (in->count < 6 || in->operands[0].kind != PTX_OPERAND_VECTOR || in->operands[0].count != n / 2) {
        d->why = "the accumulator has n / 2 registers, and six operands at least follow";
        return NULL;
    }
    for (int i = 6; i < in->count; i++) {
        int64_t one;
        if (!is_constant(&in->operands[i], &one)) transpose = 1;
        transpose |= one;
    }
    if (!is_constant(&in->operands[4], &scale_a) || !is_constant(&in->operands[5], &scale_b) || transpose != 0) {
        d->why = "operands that are not K-major (transposed) are not modelled";
        return NULL;
    }
    product_op *p = sim_decode_new(d, sizeof *p);
    if (p == NULL || (p->d = sim_decode_new(d, sizeof *p->d * (size_t)n / 2)) == NULL) return NULL;
    p->negate_a = scale_a < 0;
    p->negate_b = scale_b < 0;
    p->a_descriptor = SIM_NO_ROW;
    for (int i = 0; i < 4; i++) p->a_registers[i] = SIM_NO_ROW;
    for (int i = 0; i < n / 2; i++) {
        if (sim_decode_target(d, &in->operands[0].items[i], PTX_f32, &p->d[i]) != DW_OK) return NULL;
    }
    const ptx_operand *a = &in->operands[1];
    if (a->kind == PTX_OPERAND_VECTOR) {
        if (a->count != 4) {
            d->why = "A in registers has four of them";
            return NULL;
        }
        for (int i = 0; i < 4; i++) {
            if (sim_decode_source(d, &a->items[i], PTX_b32, &p->a_registers[i]) != DW_OK) return NULL;
        }
    } else if (sim_decode_source(d, a, PTX_b64, &p->a_descriptor) != DW_OK) {
        return NULL;
    }
    if (sim_decode_source(d, &in->operands[2], PTX_b64, &p->b_descriptor) != DW_OK || sim_decode_source(d, &in->operands[3], PTX_pred, &p->scale_d) != DW_OK) return NULL;
    d->op->extra = p;
    return do_wgmma;
}
