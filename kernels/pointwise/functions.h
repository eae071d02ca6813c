/* What the host halves of pointwise GPU kernels share. */
#ifndef POINTWISE_FUNCTIONS_H
#define POINTWISE_FUNCTIONS_H

#include "op/op.h"

/* The function of device code (pointwise_cuda.h) that the op is; POINTWISE_COUNT for cast and where. (pointwise_cuda.c) */
int pointwise_function_of(op_id id);

#endif
