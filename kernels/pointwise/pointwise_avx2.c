/* The pointwise loops for AVX2 and FMA. */
#define POINTWISE_TABLE pointwise_avx2
#include "kernels/pointwise/pointwise_loops.h"
