/* The loop of adamw for any processor. */
#define ADAMW_LOOP adamw_portable
#include "kernels/optimizer/optimizer_loops.h"
