/* What the host halves of the gradients of attention by wgmma share. */
#ifndef KERNELS_ATTENTION_WGMMA_BACKWARD_HOST_H
#define KERNELS_ATTENTION_WGMMA_BACKWARD_HOST_H

#include "kernel/kernel.h"
#include "kernels/attention/wgmma/backward.h"

/* Why they cannot compute a problem whatever it has of masks and biases, as attention_backward_wgmma_refuses; NULL: they can. */
const char *attention_backward_wgmma_rejects(const kernel_problem *problem, text *why);
/* Operands, results, attributes, and who sees whom. */
dw_status attention_backward_wgmma_take(kernel_launch *launch, const kernel_run *run, attention_backward_wgmma_arguments *arguments);
/* Threads of the launch of statistics. */
int64_t attention_backward_wgmma_rows_threads(const op_call *call);

#endif
