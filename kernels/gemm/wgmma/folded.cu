/* Products by wgmma of few rows of e4m3, multiplied as they are, of one kind of scales: the entries, by the constants of the image's row: ENTRIES: their names are matmul_folded_<ENTRIES>_m<rows>; KIND: one of few.h. */
#include "kernels/gemm/wgmma/folded.cuh"

#define JOIN(entries, rows) matmul_folded_##entries##_m##rows
#define NAMED(entries, rows) JOIN(entries, rows)

MATMUL_FOLDED_ENTRY(NAMED(ENTRIES, 16), KIND, 16)
MATMUL_FOLDED_ENTRY(NAMED(ENTRIES, 32), KIND, 32)
MATMUL_FOLDED_ENTRY(NAMED(ENTRIES, 64), KIND, 64)
