/* The loops of sample for AVX-512. */
#define SAMPLE_LOOPS sample_loops_avx512
#include "kernels/sample/loops_body.h"
