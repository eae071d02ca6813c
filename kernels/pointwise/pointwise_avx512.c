/* The pointwise loops for AVX-512. */
#define POINTWISE_TABLE pointwise_avx512
#include "kernels/pointwise/pointwise_loops.h"
