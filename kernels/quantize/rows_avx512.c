/* The loops over block-format rows for AVX-512. */
#define QUANTIZE_ROW quantize_row_avx512
#include "kernels/quantize/rows_loops.h"
