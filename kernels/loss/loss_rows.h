/* The launch of loss_rows.cu, whose arguments are those of loss.cu. */
#ifndef KERNELS_LOSS_ROWS_H
#define KERNELS_LOSS_ROWS_H

#include "kernels/loss/loss_cuda.h"

/* Threads of a block, of the loss and of its gradient; pieces that a thread has of a row at a time are PIECES_MOST. */
enum { LOSS_ROW_THREADS = 256, LOSS_THREADS = 512 };

#endif
