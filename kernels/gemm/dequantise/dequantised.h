/* Operands of a product as rows of bf16, for kernels that multiply bf16: launches in front write them to the workspace, exactly (dequantise.cu). Ways do not call this: which operands they want so
 * is a fact about them, which src/kernel/compose.c reads. */
#ifndef KERNELS_GEMM_DEQUANTISE_DEQUANTISED_H
#define KERNELS_GEMM_DEQUANTISE_DEQUANTISED_H

#include "kernel/kernel.h"

/* Which operands of a product of such formats, in rows of so many elements, are made rows of bf16 for a kernel that multiplies those, each row whole 16 bytes: bit i, operand i; 0: none has to be, or there is no kernel
 * for it. */
unsigned dequantised_operands(const dw_format formats[2], const int64_t rows[2]);
/* Elements of the rows that are made of rows of so many. Beside a in bf16 b with fp32 block scales comes in two planes, and both operands are twice as long. */
int64_t dequantised_row(const dw_format formats[2], int64_t row);

/* A run of a product, and the same with operands in rows of bf16. Of a grouped product the matrices of b are dequantised in parts, each multiplied before the next one takes its place. */
typedef struct dequantised_runs {
    const kernel_run *asked;
    unsigned operands;            /* bit i: operand i is dequantised; of the first two */
    int64_t groups, at_a_time;    /* matrices of b: all, and those of a part */
    dw_format formats[2];         /* as they come */
    dw_tensor tensors[2];
    const dw_tensor *in[KERNEL_MAX_OPERANDS];
    kernel_run product;           /* with all matrices of b */
} dequantised_runs;
/* runs stays where it is. */
void dequantised_split(const kernel_run *run, unsigned operands, dequantised_runs *runs);
/* Bytes of rows of bf16 in the workspace. */
size_t dequantised_workspace(const dequantised_runs *runs);
/* Seconds of the launches in front. */
double dequantised_seconds(const dequantised_runs *runs);
/* The launches of each part, and behind them those of its product, with own bytes of the workspace for the product itself. */
dw_status dequantised_shape(const dequantised_runs *runs, size_t own, kernel_launcher *launcher, dw_status (*product)(const kernel_run *run, kernel_launcher *launcher));

#endif
