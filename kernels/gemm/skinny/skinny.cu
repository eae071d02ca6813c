/* Skinny products of one format of weights, by the constants of the image's row: ENTRIES: their names are matmul_stream_<ENTRIES>_..; WEIGHTS: one of skinny.cuh; NARROW: there is an entry
 * whose products are in f16; VECTOR: there are three for one row; CODES: the same of codes; GROUPS: there are entries for rows in groups. SMALL instead of these: the entries of all formats for chips with 99 KB of shared memory for a block. */
#include "kernels/gemm/skinny/skinny.cuh"

#define ENTRY(entries, size, weights, tiles, groups, narrow, small) SKINNY_ENTRY(matmul_stream_##entries##_##size, weights, tiles, groups, narrow, small)

#if defined(SMALL)
#define SMALL_ENTRIES(entries, weights)          \
    ENTRY(entries, m16_small, weights, 2, 0, 0, 1) \
    ENTRY(entries, m64_small, weights, 8, 0, 0, 1)
SMALL_ENTRIES(bf16, SKINNY_BF16)
SMALL_ENTRIES(f16, SKINNY_F16)
SMALL_ENTRIES(e4m3, SKINNY_E4M3)
SMALL_ENTRIES(e4m3_block, SKINNY_E4M3_BLOCK)
SMALL_ENTRIES(mxfp8, SKINNY_MXFP8)
SMALL_ENTRIES(mxfp8_e5m2, SKINNY_MXFP8_E5M2)
SMALL_ENTRIES(mxfp4, SKINNY_MXFP4)
SMALL_ENTRIES(nvfp4, SKINNY_NVFP4)
ENTRY(e4m3, m16_groups_small, SKINNY_E4M3, 2, 1, 0, 1)
ENTRY(mxfp8, m16_groups_small, SKINNY_MXFP8, 2, 1, 0, 1)
ENTRY(mxfp8_e5m2, m16_groups_small, SKINNY_MXFP8_E5M2, 2, 1, 0, 1)
ENTRY(mxfp4, m16_groups_small, SKINNY_MXFP4, 2, 1, 0, 1)
ENTRY(nvfp4, m16_groups_small, SKINNY_NVFP4, 2, 1, 0, 1)
#else
#define OF_WEIGHTS(entries, size, tiles, groups, narrow) ENTRY(entries, size, WEIGHTS, tiles, groups, narrow, 0)
#if defined(VECTOR)
#define VECTOR_ENTRY(entries, size, weights, rows) SKINNY_VECTOR_ENTRY(matmul_stream_##entries##_##size, weights, rows)
#define PERSISTENT_ENTRY(entries, weights) SKINNY_PERSISTENT_ENTRY(matmul_stream_##entries##_m1_persistent, weights)
#define VECTOR_OF_WEIGHTS(entries) VECTOR_ENTRY(entries, m1, WEIGHTS, 2) VECTOR_ENTRY(entries, m1_wide, WEIGHTS, 4) PERSISTENT_ENTRY(entries, WEIGHTS)
VECTOR_OF_WEIGHTS(ENTRIES)
#endif
#if defined(CODES)
#define CODES_ENTRY(entries, size, rows) SKINNY_CODES_ENTRY(matmul_stream_##entries##_##size, rows)
#define CODES_OF_WEIGHTS(entries) CODES_ENTRY(entries, m1, 2) CODES_ENTRY(entries, m1_wide, 4)
CODES_OF_WEIGHTS(ENTRIES)
#endif
OF_WEIGHTS(ENTRIES, m8, 1, 0, 0)
OF_WEIGHTS(ENTRIES, m16, 2, 0, 0)
OF_WEIGHTS(ENTRIES, m32, 4, 0, 0)
OF_WEIGHTS(ENTRIES, m64, 8, 0, 0)
#if defined(NARROW)
OF_WEIGHTS(ENTRIES, m8_f16, 1, 0, 1)
#endif
#if defined(GROUPS)
OF_WEIGHTS(ENTRIES, m8_groups, 1, 1, 0)
OF_WEIGHTS(ENTRIES, m16_groups, 2, 1, 0)
#endif
#endif
