/* sum_squares in parts: of so many elements of one operand each, whose sums are added in order. Plain C that nvcc takes, too. */
#ifndef KERNELS_OPTIMIZER_SQUARES_H
#define KERNELS_OPTIMIZER_SQUARES_H

#include "kernels/gpu/arguments.h"

enum { SQUARES_PART = 16384, SQUARES_OPERANDS = 32 };   /* elements; operands of a launch */

typedef struct squares_arguments {
    cuda_array x[SQUARES_OPERANDS], out;
    int64_t counts[SQUARES_OPERANDS];      /* elements, which lie dense */
    int64_t first[SQUARES_OPERANDS + 1];   /* part of each operand, in this launch */
    int64_t all;                  /* parts of all launches */
    uint64_t parts;               /* double [all] gmem: from this launch's first one on; for the total from the very first one on */
} squares_arguments;

#endif
