/* How a call passes its arguments: what the decoder notes and the machine follows. */
#ifndef SIM_MACHINE_CALL_H
#define SIM_MACHINE_CALL_H

#include "machine.h"

/* Bytes of local memory at offsets in the two frames, or, where bytes is 0, rows of registers. */
typedef struct sim_pass { size_t caller, callee, bytes; uint32_t caller_row, callee_row; int row_bits; } sim_pass;

typedef struct sim_call {
    sim_code *callee;                       /* NULL: a function of the simulator's own */
    sim_flow (*builtin)(sim_warp *w, const sim_op *op, uint32_t mask);
    const char *name;
    sim_pass *arguments, *results;
    int argument_count, result_count;
} sim_call;

/* Whatever a pointer may lead to: the functions whose address somebody takes, and whose parameters and results are those of the call. */
typedef struct sim_targets { sim_call *calls; int count; } sim_targets;

#endif
