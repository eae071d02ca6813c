/* tcgen05.mma (PTX ISA 9.7.16.10): products of matrices in shared and tensor memory, onto tensor memory. What a descriptor says wrongly is found when the
 * product is issued; the values are read and written when the tensor core comes to it. */
#include "tmem.h"
#include "umma_place.h"
#include "umma_product.h"

typedef struct mma_op {
    sim_address d, a_tmem, scale_a, scale_b, metadata;
    bool sparse, a_in_tmem, scaled, negate_accumulate;
    umma_kind kind;
    bool weight_stationary, shifts_a;
    int scales;
    uint32_t a, b, idesc, accumulate, zero_columns, disabled[8];
    int disabled_count, scale_d;
} mma_op;

/* ---- where things lie ---- */

static tmem_area area_of(const umma_product *p, uint32_t address, int columns) {
    tmem_area area = tmem_columns(tmem_column(address), columns);
    if (!umma_is_half(p)) return area;
    area.lanes[0] = area.lanes[1] = 0x0000ffff0000ffffull << (tmem_lane(address) & 16);
    return area;
}

/* ---- operands ---- */

/* Bits of an element in shared memory, and elements in 16 bytes of it: small ones are packed, or 16 of them fill 16 bytes, the last of which are unused. */
static int per_chunk(const umma_product *p, umma_type type) {
    int bits = umma_type_bits(type);
    return umma_is_packed(p->kind) ? 32 : bits < 8 ? 16 : 128 / bits;
}

static uint32_t element(const uint8_t *chunk, int bits, int i) {
    uint32_t code = 0;
    if (bits >= 8) {
        memcpy(&code, chunk + i * (bits / 8), (size_t)bits / 8);
        return code;
    }
    int bit = i * bits;
    code = chunk[bit / 8] | (bit / 8 + 1 < 16 ? (uint32_t)chunk[bit / 8 + 1] << 8 : 0);
    return code >> (bit % 8) & ((1u << bits) - 1);
}

/* The elements of a whole chunk, of 8, 16 or 32 bits. */
static void spread_chunk(const uint8_t *chunk, int bits, uint32_t *codes) {
    uint16_t halves[8];
    memcpy(halves, chunk, sizeof halves);
    if (bits == 32) memcpy(codes, chunk, 16);
    for (int i = 0; i < 8 && bits == 16; i++) codes[i] = halves[i];
    for (int i = 0; i < 16 && bits == 8; i++) codes[i] = chunk[i];
}

/* Rows from first on; depth: elements of a row that are stored. */
typedef struct operand { uint64_t descriptor; umma_type type; bool mn_major; int first, rows, depth; } operand;

static int depth_of_a(const umma_product *p) { return p->sparse ? p->k / 2 : p->k; }

static operand operand_of(const tensor_task *t, bool b) {
    const umma_product *p = &t->product;
    if (b) return (operand){t->b, p->b, p->mn_major_b, t->mask.shift, umma_columns(p), p->k};
    return (operand){t->a, p->a, p->mn_major_a, 0, umma_rows(p), depth_of_a(p)};
}

/* How many outer positions and chunks of each there are. */
static void extent(const umma_product *p, const operand *o, int *outer, int *chunks) {
    int each = per_chunk(p, o->type);
    *outer = o->mn_major ? o->depth : o->rows;
    *chunks = ((o->mn_major ? o->first % each + o->rows : o->depth) + each - 1) / each;
}

/* Where 16 bytes of the operand lie, which counts from its first row on. */
static uint32_t chunk_of(const umma_product *p, const operand *o, const umma_matrix *m, int outer, int chunk) {
    return o->mn_major ? umma_chunk(m, true, outer, chunk + o->first / per_chunk(p, o->type)) : umma_chunk(m, false, outer + o->first, chunk);
}

/* The operand's rows become lines from first on. */
static void read_shared(const tensor_task *t, const sim_cta *cta, const operand *o, int first, umma_numbers *numbers) {
    const umma_product *p = &t->product;
    umma_matrix m;
    int outer, chunks, each = per_chunk(p, o->type), bits = umma_type_bits(o->type);
    uint32_t used = (uint32_t)(each * bits / 8);   /* bytes: what pads small elements counts for nothing */
    (void)umma_read_matrix(o->descriptor, &m);
    extent(p, o, &outer, &chunks);
    uint32_t (*code)[UMMA_MAX_K] = &numbers->code[first];
    bool *lost = &numbers->nan[first];
    memset(lost, 0, sizeof *lost * (size_t)o->rows);
    for (int i = 0; i < outer; i++) {
        for (int k = 0; k < chunks; k++) {
            uint32_t at = chunk_of(p, o, &m, i, k);
            uint8_t written = sim_shadows_of(&cta->shared_shadow[at], used).all & SHADOW_WRITTEN;
            if (!o->mn_major && bits >= 8 && (k + 1) * each <= o->depth) {   /* most of what there is */
                spread_chunk(cta->shared + at, bits, &code[i][k * each]);
                lost[i] |= written == 0;
                continue;
            }
            for (int e = 0; e < each; e++) {
                int row = o->mn_major ? k * each + e - o->first % each : i, column = o->mn_major ? i : k * each + e;
                if (row < 0 || row >= o->rows || column >= o->depth) continue;
                code[row][column] = element(cta->shared + at, bits, e);
                lost[row] |= written == 0;
            }
        }
    }
}

/* A lane's row of A: elements of 4 bits stand in bits 2 to 5 of their bytes, where they have bytes (figures 199 to 201). */
static bool read_lane(const tensor_task *t, const sim_cta *cta, int lane, uint32_t *code) {
    const umma_product *p = &t->product;
    int bits = umma_is_packed(p->kind) ? 4 : umma_type_bits(p->a) < 8 ? 8 : umma_type_bits(p->a), each = 32 / bits, first = tmem_column(t->a_tmem);
    for (int k = 0; k < depth_of_a(p); k++) {
        if (!cta->tmem->written[lane][first + k / each] && t->warp->launch->options->uninitialised) {
            sim_find(t->warp, t->op, t->lane, "A is read from lane %d, column %d of CTA %d's tensor memory, which nobody ever wrote", lane, first + k / each, cta->rank);
            return false;
        }
        code[k] = cta->tmem->cells[lane][first + k / each] >> (k % each * bits);
        if (bits == 8 && umma_type_bits(p->a) == 4) code[k] >>= 2;
        if (umma_type_bits(p->a) < 32) code[k] &= (1u << umma_type_bits(p->a)) - 1;
    }
    return true;
}

/* The scales of row r of A or B, which all partitions in the mask hold alike: at lane r % 32 of each, column r / 32. */
static bool read_scales(const tensor_task *t, const sim_cta *cta, uint32_t address, int id, int row, uint32_t partitions, char name, uint8_t *scales) {
    int column = tmem_column(address) + row / TMEM_PARTITION, first = __builtin_ctz(partitions);
    uint32_t mask = t->product.scales == 4 ? UINT32_MAX : ((1u << t->product.scales * 8) - 1) << (id * 8), word = 0;
    for (int i = 0; i < 4; i++) {
        int lane = i * TMEM_PARTITION + row % TMEM_PARTITION;
        if ((partitions >> i & 1) == 0) continue;
        uint32_t cell = cta->tmem->cells[lane][column] & mask;
        if (!cta->tmem->written[lane][column] && t->warp->launch->options->uninitialised) {
            sim_find(t->warp, t->op, t->lane, "the scales of %c's row %d lie in lane %d, column %d of CTA %d's tensor memory, which nobody ever wrote", name, row, lane, column, cta->rank);
            return false;
        }
        if (i == first) word = cell;
        if (cell == word) continue;
        sim_find(t->warp, t->op, t->lane, "the scales of %c's row %d are 0x%x in lane %d and 0x%x in lane %d (column %d): all partitions of 32 lanes hold the same (tcgen05.cp with .warpx4)", name,
                 row, word, first * TMEM_PARTITION + row % TMEM_PARTITION, cell, lane, column);
        return false;
    }
    for (int i = 0; i < t->product.scales; i++) scales[i] = (uint8_t)(word >> (8 * (id + i)));
    return true;
}

/* ---- computing ---- */

/* Columns that the mask names are zeros, whatever lies in shared memory. */
static void clear_columns(const tensor_task *t, umma_numbers *numbers) {
    for (int i = 0; i < t->product.n; i++) {
        if ((t->mask.zero[i / 64] >> (i % 64) & 1) == 0) continue;
        memset(numbers->code[i], 0, (size_t)t->product.k * sizeof *numbers->code[i]);
        numbers->nan[i] = false;
    }
}

static bool load_b(const tensor_task *t, umma_numbers *numbers) {
    const umma_product *p = &t->product;
    const operand o = operand_of(t, true);
    for (int half = 0; half < (p->pair ? 2 : 1); half++) {
        read_shared(t, t->ctas[half], &o, half * o.rows, numbers);
        for (int i = 0; i < o.rows && p->scales > 0; i++) {
            uint8_t scales[UMMA_MAX_SCALES] = {0};
            int row = half * o.rows + i;
            /* Layout B has the first half of the columns in partitions 0 and 1. */
            bool parted = umma_parts(p) == 2;
            uint32_t partitions = !parted ? 0xf : half == 0 ? 0x3 : 0xc;
            for (int k = 0; k < 2 && t->ctas[k] != NULL; k++) {
                if (!read_scales(t, t->ctas[k], t->scale_b, p->scale_b_id, parted ? i : row, partitions, 'B', scales)) return false;
            }
            umma_set_scales(numbers, p, row, scales);
        }
    }
    clear_columns(t, numbers);
    umma_set_columns(numbers, p);
    return true;
}

/* Rows by their number, or, from tensor memory, by their lane. */
static bool load_a(const tensor_task *t, const sim_cta *cta, umma_numbers *numbers) {
    const mma_op *o = t->op->extra;
    const umma_product *p = &t->product;
    const operand from = operand_of(t, false);
    if (!o->a_in_tmem) read_shared(t, cta, &from, 0, numbers);
    for (int part = 0; part < (o->a_in_tmem ? umma_parts(p) : 1); part++) {
        for (int row = 0; row < from.rows; row++) {
            uint8_t scales[UMMA_MAX_SCALES] = {0};
            const int line = o->a_in_tmem ? umma_lane(p, row, part, tmem_lane(t->d)) : row;
            if (p->scales > 0 && !read_scales(t, cta, t->scale_a, p->scale_a_id, row, 0xf, 'A', scales)) return false;
            if (o->a_in_tmem) numbers->nan[line] = false;
            if (o->a_in_tmem && !read_lane(t, cta, line, numbers->code[line])) return false;
            if (p->sparse) {
                uint32_t stored[UMMA_MAX_K];
                memcpy(stored, numbers->code[line], sizeof *stored * (size_t)from.depth);
                if (!tensor_place_sparse(t, cta, row, stored, numbers->code[line], numbers->there[line])) return false;
            }
            umma_set_scales(numbers, p, line, scales);
            umma_set_row(numbers, p, line);
        }
    }
    return true;
}

static bool compute(const tensor_task *t, int which, const umma_numbers *a, const umma_numbers *b) {
    const mma_op *o = t->op->extra;
    const umma_product *p = &t->product;
    sim_tmem *memory = t->ctas[which]->tmem;
    int part_columns = p->n / umma_parts(p), first = tmem_column(t->d);
    for (int part = 0; part < umma_parts(p); part++) {
        for (int row = 0; row < umma_rows(p); row++) {
            int lane = umma_lane(p, row, part, tmem_lane(t->d));
            if ((t->disabled[which * 4 + lane / 32] >> (lane % 32) & 1) != 0) continue;
            uint32_t *cells = &memory->cells[lane][first];
            bool *written = &memory->written[lane][first];
            const bool *unwritten = t->accumulate && t->warp->launch->options->uninitialised ? memchr(written, false, (size_t)part_columns) : NULL;
            if (unwritten != NULL) {
                sim_find(t->warp, t->op, t->lane, "accumulates onto lane %d, column %d of CTA %d's tensor memory, which nobody ever wrote: the first product of a sum has enable-input-d false",
                         lane, first + (int)(unwritten - written), t->ctas[which]->rank);
                return false;
            }
            if (!t->accumulate) memset(cells, 0, (size_t)part_columns * sizeof *cells);
            for (int i = 0; i < part_columns && t->accumulate && t->scale_d != 0; i++) cells[i] = umma_scaled(p, cells[i], t->scale_d);
            memset(written, true, (size_t)part_columns);
            umma_sum_row(p, a, o->a_in_tmem ? lane : row, b, part * part_columns, cells, part_columns);
        }
    }
    return true;
}

/* All that defines the product: its kind and shape, where it reads, what is in its scales' cells, where it writes. */
static uint64_t digest_of(const tensor_task *t) {
    const mma_op *o = t->op->extra;
    const umma_product *p = &t->product;
    uint64_t number = sim_mix((uint64_t)p->kind << 32 | (uint64_t)p->a << 24 | (uint64_t)p->b << 16 | (uint64_t)p->d << 8 | (uint64_t)p->scales_e8m0, (uint64_t)p->m << 32 | (uint64_t)p->n);
    number = sim_mix(number, (uint64_t)p->negate_a | (uint64_t)p->negate_b << 1 | (uint64_t)p->saturate << 2 | (uint64_t)t->accumulate << 3 | (uint64_t)t->scale_d << 8 | (uint64_t)t->d << 32);
    for (int which = o->a_in_tmem; which < 2; which++) {
        const operand from = operand_of(t, which == 1);
        umma_matrix m;
        int outer, chunks;
        (void)umma_read_matrix(from.descriptor, &m);
        extent(p, &from, &outer, &chunks);
        number = sim_mix(number, (uint64_t)from.mn_major);
        for (int i = 0; i < outer * chunks; i++) number = sim_mix(number, chunk_of(p, &from, &m, i / chunks, i % chunks));
    }
    for (int i = 0; i < 4 && o->zero_columns != SIM_NO_ROW; i++) number = sim_mix(number, t->mask.zero[i]);
    if (o->a_in_tmem) number = sim_mix(number, t->a_tmem);
    if (p->sparse) number = sim_mix(number, (uint64_t)t->metadata << 8 | (uint64_t)p->selector);
    if (p->scales > 0) number = sim_mix(sim_mix(number, (uint64_t)t->scale_a << 32 | t->scale_b), (uint64_t)p->scale_a_id << 8 | (uint64_t)p->scale_b_id);
    return sim_mix(number, (uint64_t)sim_line(t->warp, t->op) + (t->ctas[0]->linear << 40));
}

/* .ashift: behind the product A's rows move to the lane before, the last one of each partition stays (as CUTLASS's Python interface describes it; the ISA says neither when nor which way). */
static void shift_a(const tensor_task *t) {
    for (int i = 0; i < 2 && t->ctas[i] != NULL; i++) tmem_shift(t->ctas[i]->tmem, 0, tmem_column(t->a_tmem));
}

static bool run_mma(tensor_task *t) {
    const mma_op *o = t->op->extra;
    if (t->warp->launch->digests) sim_digest(t->warp->launch, digest_of(t));
    umma_numbers *b = umma_numbers_of(1);
    if (!load_b(t, b)) return false;
    for (int i = 0; i < 2 && t->ctas[i] != NULL; i++) {
        umma_numbers *a = umma_numbers_of(0);
        if (!load_a(t, t->ctas[i], a) || !compute(t, i, a, b)) return false;
    }
    if (o->shifts_a) shift_a(t);
    return true;
}

/* ---- issuing ---- */

/* Every 16 bytes that it reads from shared memory: check them (change 0), count or discount them. */
static bool visit(tensor_task *t, int change) {
    const mma_op *o = t->op->extra;
    for (int which = o->a_in_tmem; which < 2; which++) {
        const operand from = operand_of(t, which == 1);
        umma_matrix m;
        int outer, chunks;
        (void)umma_read_matrix(from.descriptor, &m);
        extent(&t->product, &from, &outer, &chunks);
        for (int i = 0; i < outer * chunks; i++) {
            uint32_t at = chunk_of(&t->product, &from, &m, i / chunks, i % chunks);
            for (int k = 0; k < 2 && t->ctas[k] != NULL; k++) {
                if (change != 0) tensor_hold_chunk(t->ctas[k], at, change);
                else if (!tensor_check_chunk(t, t->ctas[k], at, which == 1 ? "B" : "A")) return false;
            }
        }
    }
    return true;
}

static void hold_mma(tensor_task *t, int change) { (void)visit(t, change); }

static bool fail(const tensor_task *t, const char *what, unsigned long long value, const char *wrong) {
    sim_find(t->warp, t->op, t->lane, "%s 0x%llx: %s", what, value, wrong);
    return false;
}

/* What the types and layouts of a product allow beside the descriptors' own rules (PTX ISA 9.7.16.10.1, .3 and .5). */
static bool check_operands(const tensor_task *t) {
    const mma_op *o = t->op->extra;
    const umma_product *p = &t->product;
    for (int which = o->a_in_tmem; which < 2; which++) {
        const operand from = operand_of(t, which == 1);
        umma_matrix m;
        const char *wrong = umma_read_matrix(from.descriptor, &m);
        bool atom_32 = m.swizzle == UMMA_SWIZZLE_128_ATOM_32;
        if (wrong == NULL && from.mn_major && (p->kind == UMMA_TF32) != atom_32) wrong = "an MN-major operand has the swizzle of 128 bytes in atoms of 32 if it is tf32, and else another";
        if (wrong == NULL && atom_32 && !from.mn_major) wrong = "a K-major operand with the swizzle in atoms of 32 bytes is not modelled";
        if (wrong != NULL) return fail(t, which == 1 ? "the descriptor of B," : "the descriptor of A,", (unsigned long long)from.descriptor, wrong);
    }
    if (p->sparse && (tmem_lane(t->metadata) != 0 || tmem_column(t->metadata) % 2 != 0)) return fail(t, "the address of the metadata,", t->metadata, "its lane is 0 and its column even");
    int lane = tmem_lane(t->d);
    if (lane != 0 && !(umma_is_half(p) && lane == 16)) return fail(t, "the address of D,", t->d, umma_is_half(p) ? "its lane is 0 or 16 with M = 64" : "its lane is 0");
    if (o->shifts_a && p->m != (p->pair ? 256 : 128)) return fail(t, "M =", (unsigned long long)p->m, ".ashift is for M = 128, and 256 with .cta_group::2");
    if (o->a_in_tmem && tmem_lane(t->a_tmem) != lane) return fail(t, "the address of A,", t->a_tmem, "its lane is D's");
    return true;
}

static void note_uses(tensor_task *t) {
    const mma_op *o = t->op->extra;
    const umma_product *p = &t->product;
    int parts = umma_parts(p), b_columns = p->scales > 0 && parts == 2 ? p->n / 2 : p->n;
    t->uses[t->use_count++] = (tensor_use){area_of(p, t->d, p->n / parts), true};
    if (o->a_in_tmem) t->uses[t->use_count++] = (tensor_use){area_of(p, t->a_tmem, 8), o->shifts_a};
    if (p->sparse) t->uses[t->use_count++] = (tensor_use){tensor_metadata_area(t), false};
    if (p->scales == 0) return;
    t->uses[t->use_count++] = (tensor_use){tmem_columns(tmem_column(t->scale_a), (umma_rows(p) + 31) / 32), false};
    t->uses[t->use_count++] = (tensor_use){tmem_columns(tmem_column(t->scale_b), (b_columns + 31) / 32), false};
}

static bool read_registers(sim_warp *w, const mma_op *o, int lane, tensor_task *t) {
    t->d = (uint32_t)sim_address_of(w, &o->d, lane);
    if (o->a_in_tmem) t->a_tmem = (uint32_t)sim_address_of(w, &o->a_tmem, lane);
    else t->a = ((const uint64_t *)sim_row(w, o->a))[lane];
    if (o->sparse) t->metadata = (uint32_t)sim_address_of(w, &o->metadata, lane);
    t->b = ((const uint64_t *)sim_row(w, o->b))[lane];
    t->accumulate = ((*(const uint32_t *)sim_row(w, o->accumulate) >> lane & 1) != 0) != o->negate_accumulate;
    t->scale_d = o->scale_d;
    for (int i = 0; i < o->disabled_count; i++) t->disabled[i] = ((const uint32_t *)sim_row(w, o->disabled[i]))[lane];
    if (o->scaled) {   /* some carry the scales' ids in the upper bits too */
        t->scale_a = (uint32_t)sim_address_of(w, &o->scale_a, lane) & 0x3fffffff;
        t->scale_b = (uint32_t)sim_address_of(w, &o->scale_b, lane) & 0x3fffffff;
    }
    return true;
}

static bool read_column_mask(sim_warp *w, const mma_op *o, int lane, tensor_task *t) {
    if (o->zero_columns == SIM_NO_ROW) return true;
    const uint64_t mask = ((const uint64_t *)sim_row(w, o->zero_columns))[lane];
    const char *wrong = umma_read_column_mask(mask, &t->product, &t->mask);
    return wrong == NULL || fail(t, "the zero-column mask", (unsigned long long)mask, wrong);
}

static sim_flow do_mma(sim_warp *w, const sim_op *op, uint32_t mask) {
    const mma_op *o = op->extra;
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        int lane = __builtin_ctz(left);
        tensor_task t = {.run = run_mma, .hold = hold_mma, .product = {.kind = o->kind, .weight_stationary = o->weight_stationary, .sparse = o->sparse, .scales = o->scales}};
        if (!tensor_begin(w, op, lane, &t) || !read_registers(w, o, lane, &t)) return SIM_STOP;
        uint32_t idesc = ((const uint32_t *)sim_row(w, o->idesc))[lane];
        t.product.pair = t.ctas[1] != NULL;
        const char *wrong = umma_read_product(idesc, &t.product);
        if (wrong != NULL) return fail(&t, "the instruction descriptor", idesc, wrong), SIM_STOP;
        if (!read_column_mask(w, o, lane, &t) || !check_operands(&t)) return SIM_STOP;
        note_uses(&t);
        if (!tensor_check_uses(&t) || !visit(&t, 0) || !tensor_issue(&t)) return SIM_STOP;
    }
    return SIM_NEXT;
}

/* ---- decoding ---- */

static bool decode_kind(const sim_decoding *d, mma_op *o) {
    static const struct { sim_modifier word; umma_kind kind; } kinds[] = {
        {SIM_MOD_kind_f16, UMMA_F16}, {SIM_MOD_kind_tf32, UMMA_TF32}, {SIM_MOD_kind_f8f6f4, UMMA_F8F6F4}, {SIM_MOD_kind_i8, UMMA_I8},
        {SIM_MOD_kind_mxf8f6f4, UMMA_MXF8F6F4}, {SIM_MOD_kind_mxf4, UMMA_MXF4}, {SIM_MOD_kind_mxf4nvf4, UMMA_MXF4NVF4},
    };
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        if (sim_mod(d, kinds[i].word)) o->kind = kinds[i].kind;
    }
    if (!umma_is_scaled(o->kind)) return true;
    bool one = sim_mod(d, SIM_MOD_scale_vec_1X), two = sim_mod(d, SIM_MOD_scale_vec_2X), four = sim_mod(d, SIM_MOD_scale_vec_4X) || sim_mod(d, SIM_MOD_block16);
    bool block32 = sim_mod(d, SIM_MOD_block32), said = one || two || four || block32;
    o->scaled = true;
    o->scales = o->kind == UMMA_MXF8F6F4 ? 1 : four ? 4 : 2;
    if (o->kind == UMMA_MXF8F6F4) return !two && !four;
    if (o->kind == UMMA_MXF4) return !one && !four;
    return said && !one;
}

static bool decode_disabled(sim_decoding *d, const ptx_operand *o, mma_op *m) {
    int count = sim_mod(d, SIM_MOD_cta_group_2) ? 8 : 4;
    if (o->count != count) {
        d->why = "the lanes to leave alone are four registers, with .cta_group::2 eight";
        return false;
    }
    m->disabled_count = count;
    for (int i = 0; i < count; i++) {
        if (sim_decode_source(d, &o->items[i], PTX_b32, &m->disabled[i]) != DW_OK) return false;
    }
    return true;
}

/* [d], a or [a], b, of a sparse A [metadata], idesc, then of block scales [scale a], [scale b], else perhaps {lanes}; enable-input-d, and perhaps scale-input-d or, of .ws, a mask. */
static bool decode_operands(sim_decoding *d, mma_op *o) {
    const ptx_instruction *in = d->instruction;
    int next = 3, least = (o->scaled ? 7 : 5) + o->sparse;
    d->why = "[d], a, b, of .sp [metadata], the instruction descriptor, [scales] twice or {lanes}, enable-input-d";
    if (in->count < least) return false;
    o->a_in_tmem = in->operands[1].kind == PTX_OPERAND_ADDRESS;
    const ptx_operand *metadata = o->sparse ? &in->operands[next++] : NULL, *idesc = &in->operands[next++];
    const ptx_operand *list = in->operands[next].kind == PTX_OPERAND_VECTOR && !o->scaled ? &in->operands[next++] : NULL;
    if (list != NULL && (in->count < ++least || o->weight_stationary)) return false;
    if (list != NULL && !decode_disabled(d, list, o)) return false;
    d->why = NULL;
    if (sim_decode_place(d, &in->operands[0], PTX_GENERIC, &o->d) != DW_OK) return false;
    if (o->a_in_tmem ? sim_decode_place(d, &in->operands[1], PTX_GENERIC, &o->a_tmem) != DW_OK : sim_decode_source(d, &in->operands[1], PTX_b64, &o->a) != DW_OK) return false;
    if (sim_decode_source(d, &in->operands[2], PTX_b64, &o->b) != DW_OK || sim_decode_source(d, idesc, PTX_b32, &o->idesc) != DW_OK) return false;
    if (o->sparse && sim_decode_place(d, metadata, PTX_GENERIC, &o->metadata) != DW_OK) return false;
    if (o->scaled && sim_decode_place(d, &in->operands[next++], PTX_GENERIC, &o->scale_a) != DW_OK) return false;
    if (o->scaled && sim_decode_place(d, &in->operands[next++], PTX_GENERIC, &o->scale_b) != DW_OK) return false;
    ptx_operand accumulate = in->operands[next++];
    o->negate_accumulate = accumulate.negated;
    accumulate.negated = false;
    if (sim_decode_source(d, &accumulate, PTX_pred, &o->accumulate) != DW_OK) return false;
    if (next == in->count) return true;
    const ptx_operand *last = &in->operands[next++];
    if (next == in->count && o->weight_stationary) return sim_decode_source(d, last, PTX_b64, &o->zero_columns) == DW_OK;
    bool scales_d = (o->kind == UMMA_F16 || o->kind == UMMA_TF32) && d->module->arch != 110 && last->kind == PTX_OPERAND_INTEGER && last->value >= 0 && last->value <= 15;
    if (next != in->count || !scales_d) d->why = "behind enable-input-d stands at most scale-input-d: 0 to 15, of .kind::f16 and .kind::tf32, and not for sm_110";
    o->scale_d = (int)(last->value & 15);
    return d->why == NULL;
}

sim_handler select_tcgen05_mma(sim_decoding *d) {
    mma_op *o = sim_decode_new(d, sizeof *o);
    if (o == NULL) return NULL;
    *o = (mma_op){.weight_stationary = sim_mod(d, SIM_MOD_ws), .shifts_a = sim_mod(d, SIM_MOD_ashift), .sparse = sim_mod(d, SIM_MOD_sp), .zero_columns = SIM_NO_ROW};
    bool spelled = sim_mod(d, SIM_MOD_scale_vec_1X) || sim_mod(d, SIM_MOD_scale_vec_2X) || sim_mod(d, SIM_MOD_scale_vec_4X);
    if (!tmem_has_target(d, spelled || sim_mod(d, SIM_MOD_kind_i8))) return NULL;
    if (sim_mod(d, SIM_MOD_kind_i8) && d->module->arch != 100 && d->module->arch != 110) {
        d->why = ".kind::i8 is for sm_100a and sm_110a alone";
        return NULL;
    }
    if (!decode_kind(d, o)) {
        d->why = "this kind has other block sizes: mxf8f6f4 block32, mxf4 block32, mxf4nvf4 block16 or block32";
        return NULL;
    }
    d->op->extra = o;
    if (!decode_operands(d, o)) return NULL;
    if (o->shifts_a && (!o->a_in_tmem || sim_mod(d, SIM_MOD_collector_a_use) || sim_mod(d, SIM_MOD_collector_a_fill))) {
        d->why = ".ashift is for an A in tensor memory, and with neither .collector::a::use nor ::fill";
        return NULL;
    }
    return do_mma;
}
