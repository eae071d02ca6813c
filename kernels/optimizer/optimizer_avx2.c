/* The loops of adamw and accumulate for AVX2. */
#define ADAMW_LOOP adamw_avx2
#define SUMS_LOOP sums_avx2
#include "kernels/optimizer/optimizer_loops.h"
