/* The host half of the products of ring_codes.cuh, for skinny.c. Pure: knows no driver. */
#ifndef KERNELS_GEMM_SKINNY_RING_CODES_HOST_H
#define KERNELS_GEMM_SKINNY_RING_CODES_HOST_H

#include "kernel/kernel.h"

/* Is a call that the skinny products take one of these? */
bool ring_codes_takes(const kernel_run *run);
/* Of one that is. */
double ring_codes_us(const kernel_run *run);
dw_status ring_codes_launch(const kernel_run *run, kernel_launcher *launcher);

#endif
