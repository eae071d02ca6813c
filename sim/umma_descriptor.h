/* The descriptors that tcgen05 instructions take in registers: of a matrix in shared memory (PTX ISA 9.7.16.4.1), and of a product (9.7.16.4.2). */
#ifndef SIM_UMMA_DESCRIPTOR_H
#define SIM_UMMA_DESCRIPTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- a matrix in shared memory ---- */

typedef enum umma_swizzle { UMMA_SWIZZLE_NONE = 0, UMMA_SWIZZLE_128_ATOM_32 = 1, UMMA_SWIZZLE_128 = 2, UMMA_SWIZZLE_64 = 4, UMMA_SWIZZLE_32 = 6 } umma_swizzle;

/* Bytes; leading and stride are the two distances that major-ness and swizzle give a meaning. */
typedef struct umma_matrix { uint32_t start, leading, stride, base_offset; umma_swizzle swizzle; } umma_matrix;

/* NULL, or what is wrong with it. */
const char *umma_read_matrix(uint64_t descriptor, umma_matrix *matrix);

/* Where 16 bytes of the matrix lie. Of a K-major one: those of row `outer`, number `chunk` along K. Of an MN-major one: those of position `outer` along K,
 * number `chunk` along M or N. */
uint32_t umma_chunk(const umma_matrix *m, bool mn_major, int outer, int chunk);

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
    bool sparse;                      /* .sp: A has half of its columns, and metadata that tell which */
    int selector;                     /* of sparse f16 and tf32: which column of a pair holds the metadata */
    bool scales_e8m0;                 /* else ue4m3 */
    int scales;                       /* of a row: 1, 2 or 4; 0: not block-scaled */
    int scale_a_id, scale_b_id;
} umma_product;

/* Fills in what the 32 bits say; kind, weight_stationary, pair, sparse and scales are given. NULL, or what is wrong with it. */
const char *umma_read_product(uint32_t descriptor, umma_product *product);

static inline bool umma_is_scaled(umma_kind kind) { return kind >= UMMA_MXF8F6F4; }
static inline bool umma_is_packed(umma_kind kind) { return kind >= UMMA_MXF4; }   /* two elements of 4 bits in a byte; else small ones have bytes of their own */

#endif
