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

/* Rows of operand 0 or 1 and the places of their block scales. */
void matmul_take_rows(kernel_launch *launch, const kernel_run *run, int operand, matmul_rows *rows);

/* Operands to rows of bf16 in the workspace, in front of a product of bf16 (dequantise/dequantise.c). An operand is dequantised exactly: */
bool matmul_dequantises(dw_format format);
/* bytes that its rows take there, a multiple of 128; */
size_t matmul_dequantised_bytes(int64_t rows, int64_t k);
/* the microseconds of a launch that writes so many; */
double matmul_dequantise_us(const chip_caps *chip, double bytes);
/* and the launch: of operand i to at[i] bytes behind the workspace's beginning, where at[i] is not negative. end > 0: of b matrices first to end - 1, and of these
 * those whose group has rows. */
dw_status matmul_dequantise_shape(const kernel_run *run, kernel_launcher *launcher, const int64_t at[2], int64_t first, int64_t end);

/* The microseconds of a skinny product (skinny/skinny.c); less than 0: there is none of these formats and rows. */
double matmul_skinny_us(const chip_caps *chip, dw_format a, dw_format b, int64_t m, int64_t n, int64_t k);
/* What other products of few rows take longer between the launches of a step than by themselves, as their code, maps and arguments come from memory again each time: of a block of one token on
 * an H200, fp8 by block, tiles whose estimates are 16.5, 19.0 and 34.4 (two products) took 21.3, 30.0 and 38.2 us; in bf16 the block took 125 us with the products that are cuBLASLt's alone,
 * and 110 with all of them as streams. Streams let what they read once give way, and were measured in a step (README.md). */
enum { MATMUL_IN_STEP_US = 4 };

#endif
