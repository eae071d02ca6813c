/* A trace: the instructions that one warp of one launch executes, with the values that they make, as text. */
#ifndef SIM_MACHINE_TRACE_H
#define SIM_MACHINE_TRACE_H

#include "machine.h"

/* What is asked for, by the options trace=, trace_cta=, trace_warp=, trace_lines=, trace_file=. */
typedef struct sim_trace {
    bool wanted, lists;           /* lists: every launch in a line, and no instruction */
    char kernel[128];             /* the traced launch is one of a kernel whose name contains this; "": of any */
    uint64_t number;              /* it is the n-th of those, from 1 */
    uint32_t cta[3];
    int warp;
    uint64_t most;                /* instructions that are printed */
    char path[512];               /* "": standard output */
    FILE *to;
    uint64_t seen, printed;       /* launches of that kernel; instructions */
    /* of the line that is being made: */
    char *line;
    size_t length, room;
    const sim_op *op, *waits;     /* waits: the instruction whose waiting was printed last */
    const sim_frame *frame;
    uint32_t waits_mask;
} sim_trace;

/* Takes an option whose name begins with "trace"; NULL, or what is wrong with its value. */
const char *sim_trace_option(sim_trace *trace, const char *name, const char *value);
/* Opens the file; false: it cannot be written. */
bool sim_trace_open(sim_trace *trace);
/* Writes what is left and closes the file; warns where the launch never came. */
void sim_trace_close(sim_trace *trace);
/* A launch begins: true when it is the one, whose head is then written. NOT_FOUND: it has no such CTA or warp. */
dw_status sim_trace_launch(sim_trace *trace, const sim_launch *launch, bool *is_it);
/* A launch has ended. */
void sim_trace_launched(sim_trace *trace, const sim_launch *launch);
/* The traced warp is about to execute an instruction, or has done so. mask: the lanes whose guard holds, perhaps none. */
void sim_trace_before(sim_warp *w, const sim_op *op, uint32_t mask);
void sim_trace_after(sim_warp *w, const sim_op *op, uint32_t mask, sim_flow flow);

#endif
