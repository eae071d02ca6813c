/* One op, written as a line of conformance (kernel.h), on a device: its operands in the device's memory, and kernels that run on them. */
#ifndef LAB_OP_CASE_H
#define LAB_OP_CASE_H

#include "device/device.h"
#include "lab/lab.h"

typedef struct op_case {
    dw_context *context;
    arena arena;
    device *device;
    dim_table *dims;
    pool *pool;                      /* that packs */
    kernel_case c;
    kernel_problem problem;
    kernel_choice choice;
    dw_tensor in[KERNEL_CASE_OPERANDS], out[KERNEL_CASE_RESULTS];     /* on the device */
    dw_tensor host[KERNEL_CASE_OPERANDS];                             /* the same operands here */
    const dw_tensor *ins[KERNEL_CASE_OPERANDS], *outs[KERNEL_CASE_RESULTS];
    struct op_memory { void *at; size_t bytes; } *memory;             /* of the device */
    size_t memory_count, memory_capacity;
} op_case;

/* Opens the device (NULL: the CPU), chooses among its kernels (only: OP=KERNEL,.. as dw_model_options.kernels, or NULL) and draws random operands; block formats are
 * quantised from normal numbers, so that codes and scales are those of real tensors. Close it also on failure. */
dw_status op_case_open(op_case *o, dw_context *context, const char *line, const char *device, const char *only);
void op_case_close(op_case *o);
/* A run of the row, by one of these ways where it has ways, with the packed operand and the workspace that it needs. */
dw_status op_case_prepare(op_case *o, const kernel_row *row, uint32_t ways, kernel_run *run);
/* Starts it once and waits for its end. */
dw_status op_case_run(op_case *o, const kernel_row *row, kernel_run *run);

#endif
