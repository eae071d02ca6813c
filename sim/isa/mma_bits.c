/* mma.sync and wmma.mma of 4-bit integers, of a sparse A too, and of single bits (PTX ISA 9.7.14.4.5, 9.7.14.5.14 and 9.7.14.6). Fragments are those of the other types in units of 32-bit words (isa/mma.c):
 * word r of A holds row g + 8 (r % 2) (of 8 rows: g), word t + 4 (r / 2) of the row; of B column g, word t + 4 r; of the result row g + 8 (r / 2), column 2 t + r % 2. */
#include "decode.h"

enum { MAX_ROWS = 16, MAX_WORDS = 16, COLUMNS = 8 };

/* metadata: of a sparse A, and which pair of four lanes has it; else SIM_NO_ROW. */
typedef struct bits_op { uint32_t d[4], a[4], b[4], c[4], metadata; int a_count, b_count, c_count, selector; bool a_signed, b_signed, single, conjunction; } bits_op;

static int32_t nibble(uint32_t word, int i, bool is_signed) {
    const int32_t value = (int32_t)(word >> (4 * i) & 15);
    return is_signed && value > 7 ? value - 16 : value;
}

static int64_t product_of(const bits_op *p, uint32_t a, uint32_t b) {
    if (p->single) return __builtin_popcount(p->conjunction ? a & b : a ^ b);
    int64_t sum = 0;
    for (int i = 0; i < 8; i++) sum += nibble(a, i, p->a_signed) * nibble(b, i, p->b_signed);
    return sum;
}

/* Lays a sparse A out: of each 8 elements, a word of the whole row, half a word is there, in two pairs whose places four bits tell. Metadata lies as that of 8-bit elements does
 * (isa/mma.c): of rows g and g + 8 in neighbouring lanes, where a row has 16 words the upper 8 two lanes on. false: a finding. */
static bool spread(sim_warp *w, const sim_op *op, const bits_op *p, int words, uint32_t (*a)[MAX_WORDS]) {
    const uint32_t *metadata = sim_row(w, p->metadata);
    for (int row = 0; row < MAX_ROWS; row++) {
        uint32_t stored[MAX_WORDS];
        memcpy(stored, a[row], sizeof stored);
        for (int word = 0; word < words; word++) {
            const int lane = row % 8 * 4 + row / 8 + 2 * (words == 16 ? word / 8 : p->selector);
            const uint32_t bits = metadata[lane] >> (word % 8 * 4) & 15, first = bits & 3, second = bits >> 2, pairs = stored[word / 2] >> (word % 2 * 16);
            if (first >= second) {
                sim_find(w, op, -1, "the metadata of row %d, columns %d to %d, is %u, which names no places", row, word * 8, word * 8 + 7, bits);
                return false;
            }
            a[row][word] = (pairs & 0xff) << (8 * first) | (pairs >> 8 & 0xff) << (8 * second);
        }
    }
    return true;
}

static sim_flow do_bits(sim_warp *w, const sim_op *op, uint32_t mask) {
    const bits_op *p = op->extra;
    const int tall = op->shape[0] == 16 ? 2 : 1;
    uint32_t a[MAX_ROWS][MAX_WORDS], b[COLUMNS][MAX_WORDS], results[4][LANES];
    if (!sim_together(w, w->live, mask)) return SIM_WAIT;
    if (mask != SIM_ALL_LANES) return sim_find(w, op, -1, "all 32 lanes execute this together, and only 0x%08x do", mask);
    for (int lane = 0; lane < LANES; lane++) {
        for (int r = 0; r < p->a_count; r++) a[lane / 4 + 8 * (r % tall)][lane % 4 + 4 * (r / tall)] = ((const uint32_t *)sim_row(w, p->a[r]))[lane];
        for (int r = 0; r < p->b_count; r++) b[lane / 4][lane % 4 + 4 * r] = ((const uint32_t *)sim_row(w, p->b[r]))[lane];
    }
    if (p->metadata != SIM_NO_ROW && !spread(w, op, p, 4 * p->b_count, a)) return SIM_STOP;
    for (int r = 0; r < p->c_count; r++) {
        for (int lane = 0; lane < LANES; lane++) {
            int64_t sum = ((const int32_t *)sim_row(w, p->c[r]))[lane];
            for (int i = 0; i < 4 * p->b_count; i++) sum += product_of(p, a[lane / 4 + 8 * (r / 2)][i], b[lane % 4 * 2 + r % 2][i]);
            if (sim_has(&op->mods, SIM_MOD_satfinite)) sum = sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum;
            results[r][lane] = (uint32_t)sum;
        }
    }
    for (int r = 0; r < p->c_count; r++) memcpy(sim_row(w, p->d[r]), results[r], sizeof results[r]);
    return SIM_NEXT;
}

static bool decode_words(sim_decoding *d, const ptx_operand *o, int count, bool target, uint32_t *rows) {
    const bool vector = o->kind == PTX_OPERAND_VECTOR;
    if ((vector ? o->count : 1) != count) {
        d->why = "a fragment with another number of registers than the shape and types have";
        return false;
    }
    for (int i = 0; i < count; i++) {
        const ptx_operand *item = vector ? &o->items[i] : o;
        if ((target ? sim_decode_target(d, item, PTX_b32, &rows[i]) : sim_decode_source(d, item, PTX_b32, &rows[i])) != DW_OK) return false;
    }
    return true;
}

/* The types of A and B stand one behind the other: is the one that begins at *at, or behind, signed? *at moves past it. */
static bool next_signed(const char **at) {
    while (strncmp(*at, ".s4.", 4) != 0 && strncmp(*at, ".u4.", 4) != 0) ++*at;
    *at += 3;
    return (*at)[-2] == 's';
}

static bool decode_metadata(sim_decoding *d, bits_op *p) {
    const ptx_operand *selector = &d->instruction->operands[5];
    if (selector->kind != PTX_OPERAND_INTEGER || selector->value < 0 || selector->value > (d->op->shape[2] == 128 ? 0 : 1)) {
        d->why = "the selector of metadata is the constant 0, with k = 64 0 or 1";
        return false;
    }
    p->selector = (int)selector->value;
    return sim_decode_source(d, &d->instruction->operands[4], PTX_b32, &p->metadata) == DW_OK;
}

sim_handler select_mma_bits(sim_decoding *d) {
    const ptx_instruction *in = d->instruction;
    bits_op *p = sim_decode_new(d, sizeof *p);
    if (p == NULL) return NULL;
    p->single = sim_mod(d, SIM_MOD_b1);
    p->conjunction = sim_mod(d, SIM_MOD_and);
    const int m = d->op->shape[0], n = d->op->shape[1], words = d->op->shape[2] * (p->single ? 1 : 4) / 32;
    const bool wmma = strncmp(in->opcode, "wmma", 4) == 0, sparse = sim_mod(d, SIM_MOD_sp) || sim_mod(d, SIM_MOD_sp_ordered), small = m == 8 && words == 4 && !sparse;
    const int least = sparse ? 8 : 4;   /* words of a row */
    if (n != 8 || (!small && (wmma || m != 16 || (words != least && words != 2 * least))) || d->op->shape[2] * (p->single ? 1 : 4) % 128 != 0 || in->count != (sparse ? 6 : 4)) {
        d->why = "a shape that products of 4-bit integers or of bits do not have; d, a, b and c, and of a sparse a metadata and selector";
        return NULL;
    }
    p->metadata = SIM_NO_ROW;
    if (sparse && !decode_metadata(d, p)) return NULL;
    if (!p->single) {
        const char *at = in->opcode;
        p->a_signed = next_signed(&at);
        p->b_signed = next_signed(&at);
        if (wmma && p->a_signed != p->b_signed) {
            d->why = "operands of one type";
            return NULL;
        }
    }
    p->b_count = words / 4;
    p->a_count = m / 8 * p->b_count / (sparse ? 2 : 1);
    p->c_count = m / 4;
    if (!decode_words(d, &in->operands[0], p->c_count, true, p->d) || !decode_words(d, &in->operands[1], p->a_count, false, p->a) ||
        !decode_words(d, &in->operands[2], p->b_count, false, p->b) || !decode_words(d, &in->operands[3], p->c_count, false, p->c)) {
        return NULL;
    }
    d->op->extra = p;
    return do_bits;
}
