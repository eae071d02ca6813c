/* What other host halves call of the GPU quantisers. */
#ifndef KERNELS_QUANTIZE_HOST_H
#define KERNELS_QUANTIZE_HOST_H

#include "kernel/kernel.h"
#include "kernels/quantize/quantize_cuda.h"

/* A result in a block format out of a contiguous x in the workspace, at offset, with scratch of these bytes at another. */
size_t quantize_scratch_bytes(const dw_tensor *out);
dw_status quantize_scratch_shape(const kernel_run *run, kernel_launcher *launcher, dw_format x, int64_t x_at, int64_t scratch_at);
/* How much longer a step takes that searches for scales: its rows lie side by side, so that is one row's time, which was measured on an H200 with 2048 and 8192 elements. */
double quantize_search_seconds(const kernel_problem *problem);
/* And by the plain kernels. */
double quantize_plain_search_seconds(const kernel_problem *problem);
/* Zeroes the padding of tiled scales, where there is any: a launch before the one that writes the others. */
dw_status quantize_clear_padding(const kernel_run *run, kernel_launcher *launcher);

#endif
