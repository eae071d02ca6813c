/* Products by wgmma of few rows in 16 bits, of one format: the entries, by the constants of the image's row: ENTRIES: their names are matmul_few_<ENTRIES>_m<rows>; KIND: one of few.h. */
#include "kernels/gemm/wgmma/half.cuh"

#define JOIN(entries, rows) matmul_few_##entries##_m##rows
#define NAMED(entries, rows) JOIN(entries, rows)

MATMUL_HALF_ENTRY(NAMED(ENTRIES, 16), KIND, 16)
MATMUL_HALF_ENTRY(NAMED(ENTRIES, 32), KIND, 32)
MATMUL_HALF_ENTRY(NAMED(ENTRIES, 64), KIND, 64)
