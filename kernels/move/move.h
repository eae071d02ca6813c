/* Copies between tensors of one unpacked format, under any strides, over threads. What all ops that move elements are made of. */
#ifndef MOVE_H
#define MOVE_H

#include "kernel/kernel.h"

enum { MOVE_TASK_BYTES = 1 << 17, MOVE_TILE = 64 };

/* from, broadcast to the shape of to, goes into to. They do not overlap, or are the same elements at the same places. */
void move_copy(pool *pool, const dw_tensor *to, const dw_tensor *from);
/* Every element of to becomes value, rounded to its format. */
void move_fill(pool *pool, const dw_tensor *to, double value);

#endif
