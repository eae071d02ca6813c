/* The loops over block-format rows for AVX2 and FMA. */
#define QUANTIZE_ROW quantize_row_avx2
#include "kernels/quantize/rows_loops.h"
