/* What the host halves of mqa_logits on GPUs share. */
#ifndef KERNELS_MQA_LOGITS_HOST_H
#define KERNELS_MQA_LOGITS_HOST_H

#include "kernel/kernel.h"
#include "kernels/mqa_logits/arguments.h"

void mqa_take(kernel_launch *launch, const kernel_run *run, mqa_arguments *arguments);

#endif
