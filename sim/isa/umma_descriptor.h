/* The descriptors that tcgen05 instructions take in registers: of a matrix in shared memory (PTX ISA 9.7.16.4.1), and of a product (9.7.16.4.2). */
#ifndef SIM_ISA_UMMA_DESCRIPTOR_H
#define SIM_ISA_UMMA_DESCRIPTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- a matrix in shared memory ---- */

typedef enum umma_swizzle { UMMA_SWIZZLE_NONE = 0, UMMA_SWIZZLE_128_ATOM_32 = 1, UMMA_SWIZZLE_128 = 2, UMMA_SWIZZLE_64 = 4, UMMA_SWIZZLE_32 = 6 } umma_swizzle;

/* Bytes; leading and stride are the two distances that major-ness and swizzle give a meaning. */
typedef struct umma_matrix { uint32_t start, leading, stride, base_offset; umma_swizzle swizzle; } umma_matrix;

/* NULL, or what is wrong with it. */
const char *umma_read_matrix(uint64_t descriptor, umma_matrix *matrix);

/* 16-byte columns of a swizzle's pattern. */
static inline uint32_t umma_swizzle_width(umma_swizzle swizzle) {
    switch (swizzle) {
    case UMMA_SWIZZLE_32: return 2;
    case UMMA_SWIZZLE_64: return 4;
    case UMMA_SWIZZLE_NONE: return 1;
    default: return 8;
    }
}

/* The exclusive or acts on bits of the address itself; base_offset moves where patterns begin, in rows of 128 bytes. */
static inline uint32_t umma_swizzled(uint32_t address, umma_swizzle swizzle, uint32_t base_offset) {
    uint32_t row = (address >> 7) - base_offset;
    switch (swizzle) {
    case UMMA_SWIZZLE_32: return address ^ (row & 1) << 4;
    case UMMA_SWIZZLE_64: return address ^ (row & 3) << 4;
    case UMMA_SWIZZLE_128: return address ^ (row & 7) << 4;
    case UMMA_SWIZZLE_128_ATOM_32: return address ^ (row & 3) << 5;
    default: return address;
    }
}

/* Where 16 bytes of the matrix lie. Of a K-major one: those of row `outer`, number `chunk` along K. Of an MN-major one: those of position `outer` along K,
 * number `chunk` along M or N. */
static inline uint32_t umma_chunk(const umma_matrix *m, bool mn_major, int outer, int chunk) {
    uint32_t o = (uint32_t)outer, c = (uint32_t)chunk, width = umma_swizzle_width(m->swizzle), group = m->swizzle == UMMA_SWIZZLE_128_ATOM_32 && mn_major ? 4 : 8, address;
    if (m->swizzle == UMMA_SWIZZLE_NONE) {
        uint32_t of_group = mn_major ? m->leading : m->stride, of_chunk = mn_major ? m->stride : m->leading;
        address = m->start + o / 8 * of_group + o % 8 * 16 + c * of_chunk;
    } else {
        address = m->start + o / group * m->stride + o % group * width * 16;
        address += mn_major ? c / width * m->leading + c % width * 16 : c * 16;
    }
    return umma_swizzled(address & 0x3ffff, m->swizzle, m->base_offset);
}

/* ---- a product ---- */

typedef enum umma_kind { UMMA_F16, UMMA_TF32, UMMA_F8F6F4, UMMA_I8, UMMA_MXF8F6F4, UMMA_MXF4, UMMA_MXF4NVF4 } umma_kind;
typedef enum umma_type { UMMA_f16, UMMA_bf16, UMMA_tf32, UMMA_e4m3, UMMA_e5m2, UMMA_e2m3, UMMA_e3m2, UMMA_e2m1, UMMA_u8, UMMA_s8, UMMA_TYPE_COUNT } umma_type;
typedef enum umma_result { UMMA_RESULT_F16, UMMA_RESULT_F32, UMMA_RESULT_S32 } umma_result;

typedef struct umma_product {
    umma_kind kind;
    umma_type a, b;
    umma_result d;
    int m, n, k;
    bool negate_a, negate_b, mn_major_a, mn_major_b, saturate;
    bool weight_stationary, pair;     /* .ws; .cta_group::2 */
    bool sparse;                      /* .sp: A has half of its columns, and metadata that say which */
    int selector;                     /* of sparse f16 and tf32: which column of a pair holds the metadata */
    bool scales_e8m0;                 /* else ue4m3 */
    int scales;                       /* of a row: 1, 2 or 4; 0: not block-scaled */
    int scale_a_id, scale_b_id;
    int most_shift;                   /* of .ws: by so many columns B may be shifted */
} umma_product;

/* Fills in what the 32 bits say; kind, weight_stationary, pair, sparse and scales are given. NULL, or what is wrong with it. */
const char *umma_read_product(uint32_t descriptor, umma_product *product);

/* Which columns of B count as zeros, 64 in each word, and which column of the matrix is the first (PTX ISA 9.7.16.4.3). */
typedef struct umma_column_mask { uint64_t zero[4]; int shift; } umma_column_mask;
/* A zero-column mask, of .ws. The ISA's table names its two spans the other way round than its examples and CuTe (make_column_zero_mask), which agree: skip is where zeros
 * are used. NULL, or what is wrong with it. */
const char *umma_read_column_mask(uint64_t descriptor, const umma_product *product, umma_column_mask *mask);

static inline bool umma_is_scaled(umma_kind kind) { return kind >= UMMA_MXF8F6F4; }
static inline bool umma_is_packed(umma_kind kind) { return kind >= UMMA_MXF4; }   /* two elements of 4 bits in a byte; else small ones have bytes of their own */

#endif
