/* The loops of sample for AVX2. */
#define SAMPLE_LOOPS sample_loops_avx2
#include "kernels/sample/loops_body.h"
