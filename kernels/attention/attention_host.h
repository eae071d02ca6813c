/* What the host halves of the GPU attentions share. */
#ifndef KERNELS_ATTENTION_HOST_H
#define KERNELS_ATTENTION_HOST_H

#include "kernel/kernel.h"
#include "kernels/attention/attention_cuda.h"

/* Operands, attributes and slots of a call; arguments lie in the launch's. MISMATCH when the heads of k do not divide those of q. */
dw_status attention_take(kernel_launch *launch, const kernel_run *run, attention_arguments *arguments);

/* The streaming attention: how long it takes, and its launch; k and v have rows of whole pieces of 16 bytes. */
double attention_stream_seconds(const chip_caps *chip, const dw_tensor *q, const dw_tensor *k, const dw_tensor *v);
dw_status attention_stream_launch(const kernel_run *run, kernel_launcher *launcher);

#endif
