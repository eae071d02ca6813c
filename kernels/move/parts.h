/* Copies and fills of parts of tensors as launches, for families that begin with one: implemented with the ops that move elements. */
#ifndef KERNELS_MOVE_PARTS_H
#define KERNELS_MOVE_PARTS_H

#include "kernel/kernel.h"

/* Elements of an operand (or a result) of the run from element first on, with the tensor's strides. */
typedef struct cuda_part { int operand; int64_t first; dw_tensor tensor; } cuda_part;

cuda_part cuda_whole(const kernel_run *run, int operand);
/* As many elements as from has; to has room for them along each axis. */
dw_status cuda_copy_part(const kernel_run *run, kernel_launcher *launcher, const cuda_part *to, const cuda_part *from);
/* Every element of an operand becomes one with these bits. */
dw_status cuda_fill_with(const kernel_run *run, kernel_launcher *launcher, int operand, uint64_t element);
/* Does the result lie in the memory of the operand of the same number? */
bool cuda_is_in_place(const kernel_run *run, int index);

#endif
