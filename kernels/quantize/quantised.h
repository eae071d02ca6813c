/* Results in block formats, for kernels of products and attention that write plain ones: the plain result goes into the workspace, in the format that is quantised, and a
 * quantiser of rows makes the result from there. Each function of a row hands itself over, and is called again for the plain result. */
#ifndef KERNELS_QUANTIZE_QUANTISED_H
#define KERNELS_QUANTIZE_QUANTISED_H

#include "kernel/kernel.h"

/* The format that a result of that format is rounded to before it is quantised; its own where it is in no blocks. */
dw_format quantised_from(const op_attrs *attrs, dw_format result);
/* Bytes of the workspace with that plain result behind what the kernel needs itself. */
size_t quantised_bytes(size_t own, const dw_tensor *plain);
/* The seconds that a quantiser takes to make a result of a plain one of so many bytes. */
double quantised_seconds(const chip_caps *chip, double bytes);

const char *quantised_reject(const kernel_problem *problem, text *why, const char *(*reject)(const kernel_problem *problem, text *why));
double quantised_cost(const kernel_problem *problem, double (*cost)(const kernel_problem *problem));
size_t quantised_workspace(const kernel_run *run, size_t (*workspace)(const kernel_run *run));
/* On CPUs, and on GPUs. */
dw_status quantised_run(const kernel_run *run, size_t (*workspace)(const kernel_run *run), dw_status (*first)(const kernel_run *run));
dw_status quantised_shape(const kernel_run *run, kernel_launcher *launcher, size_t (*workspace)(const kernel_run *run),
                          dw_status (*first)(const kernel_run *run, kernel_launcher *launcher));

#endif
