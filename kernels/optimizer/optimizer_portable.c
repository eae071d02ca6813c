/* The loops of adamw and accumulate for any processor. */
#define ADAMW_LOOP adamw_portable
#define SUMS_LOOP sums_portable
#include "kernels/optimizer/optimizer_loops.h"
