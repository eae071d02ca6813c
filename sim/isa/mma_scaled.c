/* mma.sync of floats of 8, 6 and 4 bits with .kind, with and without block scales (PTX ISA 9.7.14.3 and 9.7.14.5), which targets like sm_120a have. Fragments are those of 8-bit, and
 * of packed 4-bit, elements (isa/mma.c); sums are those of tcgen05.mma of the same kind, as the units of sm_120 are published to add, too. Row g of A has its scales in the first lane
 * of a pair of lane 4 g's quad, row g + 8 in the second; column g of B in one lane of the quad. The metadata of a sparse A lies as that of 8-bit integers does (PTX ISA 9.7.14.6). */
#include "decode.h"
#include "sim/math/product.h"
#include "umma_product.h"

enum { ROWS = 16, COLUMNS = 8, A_REGISTERS = 4, B_REGISTERS = 4 };

typedef struct scaled_op {
    umma_product product;
    uint32_t d[4], a[A_REGISTERS], b[B_REGISTERS], c[4];
    int b_count, c_count;
    uint32_t metadata;             /* of a sparse A */
    uint32_t scale_a, scale_b, byte_a, byte_b, thread_a, thread_b;   /* rows; of products with scales */
} scaled_op;

/* An element of a register: 4 bits stand in the middle of their bytes, 6 at the bottom, unless they are packed. */
static uint32_t element(const umma_product *p, umma_type type, uint32_t word, int i) {
    if (umma_is_packed(p->kind)) return word >> (4 * i) & 15;
    const uint32_t byte = word >> (8 * i) & 0xff;
    const int bits = umma_type_bits(type);
    return bits == 4 ? byte >> 2 & 15 : byte & ((1u << bits) - 1);
}

static void gather(sim_warp *w, const scaled_op *s, umma_numbers *a, umma_numbers *b) {
    const umma_product *p = &s->product;
    const int each = umma_is_packed(p->kind) ? 8 : 4;   /* elements of a register */
    for (int lane = 0; lane < LANES; lane++) {
        const int g = lane / 4, t = lane % 4;
        for (int r = 0; r < A_REGISTERS; r++) {
            const uint32_t word = ((const uint32_t *)sim_row(w, s->a[r]))[lane];
            for (int i = 0; i < each; i++) a->code[g + 8 * (r % 2)][each * t + 4 * each * (r / 2) + i] = element(p, p->a, word, i);
        }
        for (int r = 0; r < s->b_count; r++) {
            const uint32_t word = ((const uint32_t *)sim_row(w, s->b[r]))[lane];
            for (int i = 0; i < each; i++) b->code[g][each * t + 4 * each * r + i] = element(p, p->b, word, i);
        }
    }
}

/* Lays a sparse A out: four bits say which two of four elements, or of four pairs of packed ones, are there; 16 times in a row, the lower ones of rows g and g + 8 in the first and
 * second lane of a quad, the upper ones two lanes on. false: a finding. */
static bool spread(sim_warp *w, const sim_op *op, umma_numbers *a) {
    const scaled_op *s = op->extra;
    const umma_product *p = &s->product;
    const uint32_t *metadata = sim_row(w, s->metadata);
    const int width = p->k / 16, unit = width / 4;
    for (int row = 0; row < ROWS; row++) {
        uint32_t stored[UMMA_MAX_K / 2], *code = a->code[row];
        uint64_t *there = a->there[row];
        memcpy(stored, code, (size_t)p->k / 2 * sizeof *stored);
        memset(code, 0, (size_t)p->k * sizeof *code);
        there[0] = there[1] = 0;
        for (int chunk = 0; chunk < 16; chunk++) {
            const uint32_t bits = metadata[row % 8 * 4 + row / 8 + chunk / 8 * 2] >> (chunk % 8 * 4) & 15, first = bits & 3, second = bits >> 2;
            const uint32_t *pair = &stored[chunk * width / 2];   /* of unit 2, two pairs */
            if (!product_names_places(bits, unit == 2 ? pair[0] | pair[1] : pair[0], unit == 2 ? pair[2] | pair[3] : pair[1])) {
                sim_find(w, op, -1, "the metadata of row %d, columns %d to %d, is %u, which names no places", row, chunk * width, chunk * width + width - 1, bits);
                return false;
            }
            for (int i = 0; i < width / 2; i++) {
                const int at = chunk * width + (int)(i < unit ? first : second) * unit + i % unit;
                code[at] = stored[chunk * width / 2 + i];
                there[at / 64] |= 1ull << (at % 64);
            }
        }
    }
    return true;
}

/* The scales in a lane's word, from a byte on. */
static void set_scales(sim_warp *w, const umma_product *p, uint32_t row, int lane, int byte, umma_numbers *numbers, int line) {
    const uint32_t word = ((const uint32_t *)sim_row(w, row))[lane];
    uint8_t scales[UMMA_MAX_SCALES];
    for (int i = 0; i < p->scales; i++) scales[i] = (uint8_t)(word >> (8 * (byte + i)));
    umma_set_scales(numbers, p, line, scales);
}

static bool gather_scales(sim_warp *w, const sim_op *op, umma_numbers *a, umma_numbers *b) {
    const scaled_op *s = op->extra;
    const umma_product *p = &s->product;
    const uint32_t rows[] = {s->byte_a, s->thread_a, s->byte_b, s->thread_b};
    const int limits[] = {3, 1, 3, 3}, steps[] = {p->scales, 1, p->scales, 1};
    int chosen[4];
    for (int i = 0; i < 4; i++) {
        const uint16_t *values = sim_row(w, rows[i]);
        chosen[i] = values[0];
        for (int lane = 0; lane < LANES; lane++) {
            if (values[lane] == values[0] && values[lane] <= limits[i] && values[lane] % steps[i] == 0) continue;
            sim_find(w, op, lane,
                     "the selector {byte, thread} of %c's scales has a %s of %u: bytes are 0 to 3 (of two scales 0 or 2, of four 0), threads of a 0 or 1, of b 0 to 3, of all lanes the same",
                     i < 2 ? 'a' : 'b', i % 2 == 0 ? "byte" : "thread", values[lane]);
            return false;
        }
    }
    for (int row = 0; row < ROWS; row++) set_scales(w, p, s->scale_a, row % 8 * 4 + 2 * chosen[1] + row / 8, chosen[0], a, row);
    for (int column = 0; column < COLUMNS; column++) set_scales(w, p, s->scale_b, column * 4 + chosen[3], chosen[2], b, column);
    return true;
}

/* The cell of element e of a lane's register r of the result. */
static uint32_t *cell_of(uint32_t cells[ROWS][COLUMNS], bool half, int lane, int r, int e) { return &cells[lane / 4 + 8 * (half ? r : r / 2)][lane % 4 * 2 + (half ? e : r % 2)]; }

static sim_flow do_scaled(sim_warp *w, const sim_op *op, uint32_t mask) {
    const scaled_op *s = op->extra;
    const umma_product *p = &s->product;
    const bool half = p->d == UMMA_RESULT_F16;
    uint32_t cells[ROWS][COLUMNS];
    if (!sim_together(w, w->live, mask)) return SIM_WAIT;
    if (mask != SIM_ALL_LANES) return sim_find(w, op, -1, "all 32 lanes execute this together, and only 0x%08x do", mask);
    umma_numbers *a = umma_numbers_of(0), *b = umma_numbers_of(1);
    memset(a->nan, 0, sizeof a->nan);
    memset(b->nan, 0, sizeof b->nan);
    gather(w, s, a, b);
    if (p->sparse && !spread(w, op, a)) return SIM_STOP;
    if (p->scales > 0 && !gather_scales(w, op, a, b)) return SIM_STOP;
    umma_set_columns(b, p);
    for (int r = 0; r < s->c_count; r++) {
        const uint32_t *words = sim_row(w, s->c[r]);
        for (int lane = 0; lane < LANES; lane++) {
            *cell_of(cells, half, lane, r, 0) = half ? words[lane] & 0xffff : words[lane];
            if (half) *cell_of(cells, half, lane, r, 1) = words[lane] >> 16;
        }
    }
    for (int row = 0; row < ROWS; row++) {
        umma_set_row(a, p, row);
        umma_sum_row(p, a, row, b, 0, cells[row], COLUMNS);
    }
    for (int r = 0; r < s->c_count; r++) {
        uint32_t *words = sim_row(w, s->d[r]);
        for (int lane = 0; lane < LANES; lane++) words[lane] = *cell_of(cells, half, lane, r, 0) | (half ? *cell_of(cells, half, lane, r, 1) << 16 : 0);
    }
    return SIM_NEXT;
}

/* ---- decoding ---- */

static bool decode_words(sim_decoding *d, const ptx_operand *o, int count, bool target, ptx_type type, uint32_t *rows) {
    const bool vector = o->kind == PTX_OPERAND_VECTOR;
    if ((vector ? o->count : 1) != count) {
        d->why = "d and c of four registers (of fp16 two), a of four, b of two, with a sparse a of four; of block scales a's, {byte, thread}, b's, {byte, thread}";
        return false;
    }
    for (int i = 0; i < count; i++) {
        const ptx_operand *item = vector ? &o->items[i] : o;
        if ((target ? sim_decode_target(d, item, type, &rows[i]) : sim_decode_source(d, item, type, &rows[i])) != DW_OK) return false;
    }
    return true;
}

static umma_type type_of(ptx_type type) {
    static const struct { ptx_type type; umma_type same; } types[] = {{PTX_e4m3, UMMA_e4m3}, {PTX_e5m2, UMMA_e5m2}, {PTX_e2m3, UMMA_e2m3}, {PTX_e3m2, UMMA_e3m2}, {PTX_e2m1, UMMA_e2m1}};
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        if (types[i].type == type) return types[i].same;
    }
    return UMMA_e2m1;   /* of kinds that have no other */
}

static bool decode_metadata(sim_decoding *d, scaled_op *s) {
    const ptx_operand *selector = &d->instruction->operands[5];
    if (selector->kind == PTX_OPERAND_INTEGER && selector->value == 0) return decode_words(d, &d->instruction->operands[4], 1, false, PTX_b32, &s->metadata);
    d->why = "the selector of metadata is the constant 0";
    return false;
}

static bool decode_scales(sim_decoding *d, scaled_op *s) {
    const ptx_operand *o = &d->instruction->operands[s->product.sparse ? 6 : 4];
    uint32_t a[2], b[2];
    if (!decode_words(d, &o[0], 1, false, PTX_b32, &s->scale_a) || !decode_words(d, &o[1], 2, false, PTX_u16, a) || !decode_words(d, &o[2], 1, false, PTX_b32, &s->scale_b) ||
        !decode_words(d, &o[3], 2, false, PTX_u16, b)) {
        return false;
    }
    s->byte_a = a[0], s->thread_a = a[1], s->byte_b = b[0], s->thread_b = b[1];
    return true;
}

static sim_handler select_scaled(sim_decoding *d, umma_result result) {
    const ptx_instruction *in = d->instruction;
    const bool mx8 = sim_mod(d, SIM_MOD_kind_mxf8f6f4), mx4 = sim_mod(d, SIM_MOD_kind_mxf4), nv4 = sim_mod(d, SIM_MOD_kind_mxf4nvf4), scaled = mx8 || mx4 || nv4;
    const bool sparse = sim_mod(d, SIM_MOD_sp_ordered), e8m0 = sim_mod(d, SIM_MOD_ue8m0), four = sim_mod(d, SIM_MOD_scale_vec_4X);
    scaled_op *s = sim_decode_new(d, sizeof *s);
    if (s == NULL) return NULL;
    if (d->module->arch < 120 || d->module->arch_suffix == 0) {
        d->why = "mma.sync with .kind is for targets like sm_120a and sm_120f";
        return NULL;
    }
    s->product = (umma_product){.kind = nv4 ? UMMA_MXF4NVF4 : mx4 ? UMMA_MXF4 : mx8 ? UMMA_MXF8F6F4 : UMMA_F8F6F4, .a = type_of(d->type), .b = type_of(d->type2), .d = result, .m = ROWS, .n = COLUMNS,
                                .k = (mx4 || nv4 ? 64 : 32) * (sparse ? 2 : 1), .sparse = sparse, .scales = !scaled ? 0 : mx8 ? 1 : four ? 4 : 2, .scales_e8m0 = e8m0};
    if (d->op->shape[0] != ROWS || d->op->shape[1] != COLUMNS || d->op->shape[2] != s->product.k || in->count != (scaled ? 8 : 4) + (sparse ? 2 : 0) || (nv4 && !e8m0 && !four)) {
        d->why = "m16n8k32, of packed 4-bit elements m16n8k64, of a sparse a twice that k; d, a, b, c, of a sparse a metadata and selector, of block scales a's, {byte, thread}, b's, {byte, thread}; ue4m3 with scale_vec::4X alone";
        return NULL;
    }
    s->b_count = sparse ? 4 : 2;
    s->c_count = result == UMMA_RESULT_F16 ? 2 : 4;
    if (!decode_words(d, &in->operands[0], s->c_count, true, PTX_b32, s->d) || !decode_words(d, &in->operands[1], A_REGISTERS, false, PTX_b32, s->a) ||
        !decode_words(d, &in->operands[2], s->b_count, false, PTX_b32, s->b) || !decode_words(d, &in->operands[3], s->c_count, false, PTX_b32, s->c) || (sparse && !decode_metadata(d, s)) ||
        (scaled && !decode_scales(d, s))) {
        return NULL;
    }
    d->op->extra = s;
    return do_scaled;
}

sim_handler select_mma_small_f32(sim_decoding *d) { return select_scaled(d, UMMA_RESULT_F32); }
sim_handler select_mma_small_f16(sim_decoding *d) { return select_scaled(d, UMMA_RESULT_F16); }
