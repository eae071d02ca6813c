/* The row loops for any processor. */
#define CPU_ROWS cpu_rows_portable
#include "kernels/cpu/rows_loops.h"
