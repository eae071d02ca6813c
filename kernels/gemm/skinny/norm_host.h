/* What host halves of products that do the norm in front of them share. Pure: knows no driver. */
#ifndef KERNELS_GEMM_SKINNY_NORM_HOST_H
#define KERNELS_GEMM_SKINNY_NORM_HOST_H

#include "kernel/kernel.h"
#include "kernels/gemm/skinny/skinny.h"

/* Of weight and bias; f32 where there is neither. */
dw_format skinny_column_format(const kernel_norm *norm);
/* Why weight and bias are not read: NULL, they are. */
const char *skinny_columns_refusal(const kernel_run *run, text *why);
/* at: where rows lie in shared memory. */
void skinny_take_norm(kernel_launch *launch, const kernel_run *run, int64_t at, skinny_norm *norm);

#endif
