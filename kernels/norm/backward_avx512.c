/* The loops of the gradients of norms for AVX-512. */
#define NORM_BACKWARD norm_backward_avx512
#include "kernels/norm/backward_loops.h"
