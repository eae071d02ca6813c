/* The loops of the gradients of norms for AVX2. */
#define NORM_BACKWARD norm_backward_avx2
#include "kernels/norm/backward_loops.h"
