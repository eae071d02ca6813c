/* The pointwise loops for any processor. */
#define POINTWISE_TABLE pointwise_portable
#include "kernels/pointwise/pointwise_loops.h"
