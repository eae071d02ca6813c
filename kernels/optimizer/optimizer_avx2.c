/* The loop of adamw for AVX2. */
#define ADAMW_LOOP adamw_avx2
#include "kernels/optimizer/optimizer_loops.h"
