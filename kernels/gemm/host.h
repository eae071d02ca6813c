/* What the host halves of the fast GPU matmul kernels share: what their epilogue takes, and filling it in. */
#ifndef KERNELS_GEMM_HOST_H
#define KERNELS_GEMM_HOST_H

#include "kernel/kernel.h"
#include "kernels/gemm/arguments.h"
#include "kernels/gemm/rows.h"

/* Why the result or its post list is not taken, the operands of which are those of the call from number first on; NULL: they are. */
const char *matmul_reject_post(const kernel_problem *problem, int first, text *why);
/* The same of a matmul, or why batches of b are not. */
const char *matmul_reject_result(const kernel_problem *problem, text *why);
bool matmul_halves_columns(const op_post_list *post);
/* MATMUL_bf16 for bf16 and so on, of element formats. */
int matmul_format(dw_format format);
/* The post list, whose operands begin at number first, the result and the factors of whole rows, columns and tensors: fp8_row, fp8_tensor, NVFP4's second level. */
void matmul_take_epilogue(kernel_launch *launch, const kernel_run *run, int first, matmul_epilogue *epilogue);
/* Groups first to end - 1 of a grouped_matmul, whose offsets are operand 2; the last ones' launch clears what belongs to none. */
void matmul_take_groups(kernel_launch *launch, const kernel_run *run, int64_t first, int64_t end, matmul_groups *groups);

/* The places of the block scales of operand 0 or 1, which has some; and its rows with them. */
void matmul_take_scales(kernel_launch *launch, const kernel_run *run, int operand, matmul_scales *scales);
void matmul_take_rows(kernel_launch *launch, const kernel_run *run, int operand, matmul_rows *rows);

#endif
