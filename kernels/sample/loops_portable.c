/* The loops of sample for any processor. */
#define SAMPLE_LOOPS sample_loops_portable
#include "kernels/sample/loops_body.h"
