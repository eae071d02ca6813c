/* The loops of the gradients of norms for any processor. */
#define NORM_BACKWARD norm_backward_portable
#include "kernels/norm/backward_loops.h"
