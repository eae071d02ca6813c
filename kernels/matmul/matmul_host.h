/* What the host halves of the fast GPU matmul kernels share: what their epilogue takes, and filling it in. */
#ifndef KERNELS_MATMUL_HOST_H
#define KERNELS_MATMUL_HOST_H

#include "kernel/kernel.h"
#include "kernels/matmul/matmul_sm90.h"

/* Why the result, its post list or batches of b are not taken; NULL: they are. */
const char *matmul_reject_result(const kernel_problem *problem, text *why);
bool matmul_halves_columns(const op_post_list *post);
/* MATMUL_bf16 for bf16 and so on, of element formats. */
int matmul_format(dw_format format);
/* The post list, the result and the factors of whole rows, columns and tensors: fp8_row, fp8_tensor, NVFP4's second level. */
void matmul_take_epilogue(kernel_launch *launch, const kernel_run *run, matmul_epilogue *epilogue);

/* Few rows (stream_sm90.c): does it take a call, in how many microseconds would it (less than 0: it does not), and its launch. */
bool matmul_stream_takes(const kernel_run *run);
double matmul_stream_us(const chip_caps *chip, dw_format a, dw_format b, int64_t m, int64_t n, int64_t k);

#endif
