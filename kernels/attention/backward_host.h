/* What the host halves of the gradients of attention on GPUs share. */
#ifndef KERNELS_ATTENTION_BACKWARD_HOST_H
#define KERNELS_ATTENTION_BACKWARD_HOST_H

#include "kernel/kernel.h"
#include "kernels/attention/backward.h"

/* Operands, results, attributes and slots of a call, with the rows at the beginning of the workspace. MISMATCH when the heads of k do not divide those of q. */
dw_status attention_backward_take(kernel_launch *launch, const kernel_run *run, attention_backward_arguments *arguments);
/* Bytes of the rows, a multiple of 128. */
size_t attention_backward_row_bytes(const kernel_run *run);
/* The launches of the bias's gradient alone, where it is asked for, with the rows at the beginning of the workspace (plain/backward.c). */
dw_status attention_backward_bias_shape(const kernel_run *run, kernel_launcher *launcher);

#endif
