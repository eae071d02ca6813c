/* The loop of adamw for AVX-512. */
#define ADAMW_LOOP adamw_avx512
#include "kernels/optimizer/optimizer_loops.h"
