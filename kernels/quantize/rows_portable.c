/* The loops over block-format rows for any processor. */
#define QUANTIZE_ROW quantize_row_portable
#include "kernels/quantize/rows_loops.h"
