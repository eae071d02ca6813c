/* One case (kernel.h) on a GPU, and how long its kernels take. */
#ifndef LAB_TRIAL_H
#define LAB_TRIAL_H

#include "device/device.h"
#include "lab/lab.h"

enum { TRIAL_COPIES = 32 };

/* Copies of an operand that is known at load; kept while cases differ in other operands alone. All zeros at first. */
typedef struct trial_weights { dw_tensor copies[TRIAL_COPIES]; int count; size_t bytes; } trial_weights;

typedef struct trial {
    dw_context *context;
    arena arena;
    device *device;
    dim_table *dims;
    kernel_case c;
    kernel_problem problem;
    int weight;                   /* the operand that takes turns; -1: none */
    trial_weights *weights;
    dw_tensor in[KERNEL_CASE_OPERANDS], out[KERNEL_CASE_RESULTS];     /* on the device */
    const dw_tensor *ins[KERNEL_CASE_OPERANDS], *outs[KERNEL_CASE_RESULTS];
    size_t bytes[KERNEL_CASE_OPERANDS + KERNEL_CASE_RESULTS];
} trial;

/* The line's operands on the device. constant: operands known at load, besides those that the line names. weights is the caller's. Close it also on failure. */
dw_status trial_open(trial *trial, dw_context *context, device *device, const char *line, unsigned constant, trial_weights *weights);
void trial_close(trial *trial);
void trial_free_weights(device *device, trial_weights *weights);
/* Seconds of one call. ways, tuned: as of a run (kernel.h); tuned may be NULL. best_s: of the fastest so far, or infinity; one that is far slower is recognised by one call by itself, its start included. */
dw_status trial_measure(trial *trial, const kernel_row *row, uint32_t ways, const kernel_tuned *tuned, double best_s, double *seconds);

#endif
