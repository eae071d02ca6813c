/* What the launches of cross_entropy and its gradient on a GPU share. */
#ifndef KERNELS_LOSS_HOST_H
#define KERNELS_LOSS_HOST_H

#include "kernel/kernel.h"
#include "kernels/loss/loss_cuda.h"

/* A launch over the rows of the run, with its arguments and their slots; the grid and the entry are the caller's. */
loss_arguments *loss_launch(const kernel_run *run, const char *image, kernel_launch *launch);
bool loss_is_empty(const kernel_run *run, const loss_arguments *arguments);

#endif
