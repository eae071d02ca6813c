/* See umma_descriptor.h. Layouts: PTX ISA 9.7.16.3.3 and 9.7.16.10.6. */
#include "umma_descriptor.h"

/* ---- a matrix in shared memory ---- */

static uint32_t field(uint64_t descriptor, int bit) { return (uint32_t)(descriptor >> bit & 0x3fff) << 4; }

const char *umma_read_matrix(uint64_t descriptor, umma_matrix *m) {
    unsigned swizzle = (unsigned)(descriptor >> 61);
    *m = (umma_matrix){field(descriptor, 0), field(descriptor, 16), field(descriptor, 32), (uint32_t)(descriptor >> 49 & 7), (umma_swizzle)swizzle};
    if ((descriptor >> 46 & 7) != 1) return "bits 46 to 48 are not 0b001, as descriptors of this generation have them";
    if (swizzle == 3 || swizzle == 5 || swizzle == 7) return "the swizzle (bits 61 to 63) is 3, 5 or 7, which mean nothing";
    if ((descriptor >> 52 & 1) != 0) return "the leading distance is an absolute address (bit 52), which only sm_103 has and is not modelled";
    return NULL;
}

/* ---- a product ---- */

static uint32_t bits(uint32_t descriptor, int first, int count) { return descriptor >> first & ((1u << count) - 1); }

/* Codes of types, which mean something else in each kind. */
static bool type_of(umma_kind kind, uint32_t code, umma_type *type) {
    static const umma_type small[] = {UMMA_e4m3, UMMA_e5m2, UMMA_TYPE_COUNT, UMMA_e2m3, UMMA_e3m2, UMMA_e2m1, UMMA_TYPE_COUNT, UMMA_TYPE_COUNT};
    *type = UMMA_TYPE_COUNT;
    switch (kind) {
    case UMMA_F16: *type = code == 0 ? UMMA_f16 : code == 1 ? UMMA_bf16 : UMMA_TYPE_COUNT; break;
    case UMMA_TF32: *type = code == 2 ? UMMA_tf32 : UMMA_TYPE_COUNT; break;
    case UMMA_I8: *type = code == 0 ? UMMA_u8 : code == 1 ? UMMA_s8 : UMMA_TYPE_COUNT; break;
    case UMMA_F8F6F4: case UMMA_MXF8F6F4: *type = small[code]; break;
    case UMMA_MXF4: case UMMA_MXF4NVF4: *type = code == 1 ? UMMA_e2m1 : UMMA_TYPE_COUNT; break;
    }
    return *type != UMMA_TYPE_COUNT;
}

/* Table 39 of PTX ISA 9.7.16.2.1. */
static const char *check_shape(const umma_product *p) {
    int step = p->pair ? 16 : 8;
    if (p->weight_stationary) {
        if (p->m != 32 && p->m != 64 && p->m != 128) return "M is 32, 64 or 128 with .ws";
        return p->n == 64 || p->n == 128 || (p->n == 256 && !p->sparse) ? NULL : "N is 64, 128 or 256 with .ws, of a sparse A 64 or 128";
    }
    if (p->sparse && p->m != (p->pair ? 256 : 128)) return "M is 128, or 256 with .cta_group::2, of a sparse A without .ws: the metadata of others lie in figures, so they are not modelled";
    if (p->pair ? p->m != 128 && p->m != 256 : p->m != 128 && (p->m != 64 || umma_is_scaled(p->kind))) {
        return p->pair ? "M is 128 or 256 with .cta_group::2" : umma_is_scaled(p->kind) ? "M is 128 with .cta_group::1 and block scales" : "M is 64 or 128 with .cta_group::1";
    }
    if (p->kind == UMMA_I8) step = p->pair ? 32 : p->n > 32 ? 16 : 8;
    if (p->n < step || p->n > 256 || p->n % step != 0) return "N is at most 256 and a multiple of 8 (with .cta_group::2 of 16; of integers 16, and 32)";
    return NULL;
}

const char *umma_read_product(uint32_t descriptor, umma_product *p) {
    static const int depths[] = {[UMMA_F16] = 16, [UMMA_TF32] = 8, [UMMA_F8F6F4] = 32, [UMMA_I8] = 32, [UMMA_MXF8F6F4] = 32, [UMMA_MXF4] = 64, [UMMA_MXF4NVF4] = 64};
    bool scaled = umma_is_scaled(p->kind);
    if ((bits(descriptor, 2, 1) != 0) != p->sparse) return p->sparse ? "the sparsity bit (2) is not set, and the instruction is .sp" : "the sparsity bit (2) is set, and the instruction is not .sp";
    p->selector = (int)bits(descriptor, 0, 2);
    if (p->sparse && p->selector > (p->kind == UMMA_F16 || p->kind == UMMA_TF32)) return "a sparsity selector (bits 0 and 1) of more than 1 is not modelled, and of operands of 8 bits and less it is 0";
    if (!type_of(p->kind, bits(descriptor, 7, 3), &p->a)) return "the type of A (bits 7 to 9) is none of this kind";
    if (!type_of(p->kind, bits(descriptor, 10, p->kind >= UMMA_MXF4 ? 2 : 3), &p->b)) return "the type of B (bits 10 to 12) is none of this kind";
    p->k = depths[p->kind] * (p->sparse ? 2 : 1);
    p->negate_a = bits(descriptor, 13, 1) != 0;
    p->negate_b = bits(descriptor, 14, 1) != 0;
    p->mn_major_a = bits(descriptor, 15, 1) != 0;
    p->mn_major_b = bits(descriptor, 16, 1) != 0;
    p->n = (int)bits(descriptor, 17, 6) * 8;
    p->d = UMMA_RESULT_F32;
    if (scaled) {
        p->m = (int)bits(descriptor, 27, 2) * 128;
        p->scales_e8m0 = bits(descriptor, 23, 1) != 0;
        p->scale_b_id = (int)bits(descriptor, 4, 2);
        p->scale_a_id = (int)bits(descriptor, 29, 2);
        if (!p->scales_e8m0 && (p->kind != UMMA_MXF4NVF4 || p->scales != 4)) return "scales are ue8m0 (bit 23) but for .kind::mxf4nvf4 with a scale for 16 elements";
        if (p->scales > 1 && (p->scale_a_id % 2 != 0 || p->scale_b_id % 2 != 0)) return "a scale factor id is 0 or 2 where a row has two scales";
        if (p->scales == 4 && (p->scale_a_id != 0 || p->scale_b_id != 0)) return "the scale factor ids are 0 where a row has four scales";
        if (umma_is_packed(p->kind) && (bits(descriptor, 31, 1) != 0)) return "K is 96 (bit 31), which only sm_103 has and is not modelled";
        if (umma_is_packed(p->kind) && (p->mn_major_a || p->mn_major_b)) return "operands of 4 bits are K-major (bits 15 and 16) in this kind";
    } else {
        static const int shifts[] = {0, 8, 16, 32};
        uint32_t d = bits(descriptor, 4, 2);
        p->most_shift = shifts[bits(descriptor, 30, 2)];
        p->m = (int)bits(descriptor, 24, 5) * 16;
        p->saturate = bits(descriptor, 3, 1) != 0;
        p->d = (umma_result)d;
        if (p->kind == UMMA_I8 ? d != UMMA_RESULT_S32 : p->kind == UMMA_TF32 ? d != UMMA_RESULT_F32 : d > UMMA_RESULT_F32) return "the type of D (bits 4 and 5) is none of this kind";
        if (p->kind == UMMA_I8 && (p->negate_a || p->negate_b)) return "integers cannot be negated (bits 13 and 14)";
        if (p->kind != UMMA_I8 && p->saturate) return "only integers saturate (bit 3)";
    }
    return check_shape(p);
}

/* ---- a zero-column mask ---- */

const char *umma_read_column_mask(uint64_t descriptor, const umma_product *p, umma_column_mask *mask) {
    const int parts = 128 / p->m, each = p->n / parts, skip = (int)(descriptor >> 40 & 255) + 1, use = (int)(descriptor >> 48 & 255) + 1;
    *mask = (umma_column_mask){.shift = (int)(descriptor >> 56 & 63)};
    if ((descriptor >> 36 & 7) != 0 || descriptor >> 62 != 0) return "bits 36 to 38, 62 and 63 are reserved, and 0";
    if (mask->shift > (p->m == 32 ? 16 : 32)) return "columns are shifted (bits 56 to 61) by at most 32, with M = 32 by 16";
    if (mask->shift > p->most_shift) return "columns are shifted (bits 56 to 61) by more than the instruction descriptor allows (bits 30 and 31)";
    if ((descriptor >> 39 & 1) == 0) return NULL;
    for (int column = 0; column < p->n; column++) {
        const int part = column / each, start = (int)(descriptor >> (8 * part) & 255), at = (start + column % each) % (skip + use);
        const bool skips_first = (descriptor >> (32 + part) & 1) != 0;
        if (skips_first ? at < skip : at >= use) mask->zero[column / 64] |= 1ull << (column % 64);
    }
    return NULL;
}
