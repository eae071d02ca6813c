/* Results in block formats, for kernels of products and attention that write plain ones: the plain result goes into the workspace, in the format that is quantised, and a
 * quantiser of rows makes the result from there. Rows and ways do not call this: that a result is made so is a fact about them, which src/kernel/compose.c reads. */
#ifndef KERNELS_QUANTIZE_QUANTISED_H
#define KERNELS_QUANTIZE_QUANTISED_H

#include "kernel/kernel.h"

/* The format that a result of that format is rounded to before it is quantised; its own where it is in no blocks. */
dw_format quantised_from(const op_attrs *attrs, dw_format result);
/* The problem of the plain result; type and out are its result's, of the caller. */
kernel_problem quantised_plain(const kernel_problem *problem, op_type *type, const op_type **out);
/* The seconds that a quantiser takes to make a result of a plain one of so many bytes. */
double quantised_seconds(const chip_caps *chip, double bytes);

/* A run as two: the kernel's, of the plain result, and the quantiser's. */
typedef struct quantised_runs {
    dw_tensor plain;
    const dw_tensor *tensor;      /* plain: the result of the first, the operand of the second */
    op_attr to[2];                /* and level, where there is one */
    op_attrs attrs;
    kernel_run first, quantise;
} quantised_runs;
/* The second one's operand has no address yet. runs stays where it is. */
void quantised_split(const kernel_run *run, quantised_runs *runs);
double quantised_plain_bytes(const quantised_runs *runs);
/* Bytes of the workspace: what the kernel needs itself, and behind it the plain result, of so many rows at most. */
size_t quantised_workspace(const quantised_runs *runs, size_t own, int64_t most_rows);
/* Both, one after the other, with own bytes of the workspace for the kernel; on CPUs, and on GPUs, where first hands over the kernel's launches. */
dw_status quantised_run(quantised_runs *runs, size_t own, dw_status (*first)(const kernel_run *run));
dw_status quantised_shape(const quantised_runs *runs, size_t own, kernel_launcher *launcher, dw_status (*first)(const void *kernel, kernel_launcher *launcher), const void *kernel);

#endif
