/* What host halves of skinny products, and of others that do the norm in front of them, share. Pure: knows no driver. */
#ifndef KERNELS_GEMM_SKINNY_HOST_H
#define KERNELS_GEMM_SKINNY_HOST_H

#include "kernel/kernel.h"
#include "kernels/gemm/skinny/skinny.h"

/* Of weight and bias; f32 where there is neither. */
dw_format skinny_column_format(const kernel_norm *norm);
/* Why weight and bias are not read: NULL, they are. */
const char *skinny_columns_refusal(const kernel_run *run, text *why);
/* at: where rows lie in shared memory. */
void skinny_take_norm(kernel_launch *launch, const kernel_run *run, int64_t at, skinny_norm *norm);

/* Of one row and 16 bits: k that a block's threads have a piece of 8 of each. */
enum { SKINNY_VECTOR_PIECES = SKINNY_VECTOR_WARPS * 32 * 8 };
/* Do the rows lie in whole units of 16 bytes? */
bool skinny_is_in_units(const dw_tensor *x);
/* What all entries are told alike. */
void skinny_take_product(kernel_launch *launch, const kernel_run *run, int64_t m, skinny_arguments *g);

/* Of one row by weights of 4 bits (ring_nibbles.c), of one by such of 8 (ring_codes.c), and of 2 to 16 in 16 bits without a norm (panel.c): is a call that skinny products take one for the kernel, what it takes, the launch. */
bool ring_nibbles_takes(const kernel_run *run);
double ring_nibbles_seconds(const kernel_run *run);
dw_status ring_nibbles_launch(const kernel_run *run, kernel_launcher *launcher);
bool ring_codes_takes(const kernel_run *run);
double ring_codes_seconds(const kernel_run *run);
dw_status ring_codes_launch(const kernel_run *run, kernel_launcher *launcher);
bool panel_takes(const kernel_run *run);
double panel_seconds(const kernel_run *run);
dw_status panel_launch(const kernel_run *run, kernel_launcher *launcher);

#endif
