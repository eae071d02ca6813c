/* The loops of adamw and accumulate for AVX-512. */
#define ADAMW_LOOP adamw_avx512
#define SUMS_LOOP sums_avx512
#include "kernels/optimizer/optimizer_loops.h"
