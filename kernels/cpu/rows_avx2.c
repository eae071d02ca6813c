/* The row loops for AVX2 and FMA. */
#define CPU_ROWS cpu_rows_avx2
#include "kernels/cpu/rows_loops.h"
