/* The row loops for AVX-512. */
#define CPU_ROWS cpu_rows_avx512
#include "kernels/cpu/rows_loops.h"
