/* Products by wgmma that decode their weights in registers, of one format of weights: the entries, by the constants of the image's row: ENTRIES: their names are matmul_decoded_<ENTRIES>_m<rows>; WEIGHTS: one of decoded.cuh. */
#include "kernels/gemm/wgmma/decoded.cuh"

#define JOIN(entries, rows) matmul_decoded_##entries##_m##rows
#define NAMED(entries, rows) JOIN(entries, rows)

MATMUL_DECODED_ENTRY(NAMED(ENTRIES, 16), WEIGHTS, 16)
MATMUL_DECODED_ENTRY(NAMED(ENTRIES, 32), WEIGHTS, 32)
MATMUL_DECODED_ENTRY(NAMED(ENTRIES, 64), WEIGHTS, 64)
MATMUL_DECODED_ENTRY(NAMED(ENTRIES, 128), WEIGHTS, 128)
