/* Passes: functions that rewrite a graph and keep what it means. One row of pass.def and one file each. Nothing here chooses kernels. */
#ifndef PASS_PASS_H
#define PASS_PASS_H

#include "ir/ir.h"

/* When a pass runs: the stages one after another, in each its rows in the order of pass.def, again and again until none changes anything. */
typedef enum pass_stage {
    PASS_STAGE_CLEAN = 1,           /* what capture left: constants, copies, dead code */
    PASS_STAGE_FUSE = 2,            /* structure: norms, rotary, attention, experts, linear with its post steps */
    PASS_STAGE_INCREMENTAL = 4,     /* the step with cached keys and values; asked for by generation alone */
    PASS_STAGE_PRECISION = 8,       /* quantisation by policy */
    PASS_STAGE_MERGE = 16,          /* projections of one precision, quantisers */
    PASS_STAGE_ALL = 31
} pass_stage;

/* Zero-initialise, then set what matters; zero means the default. */
typedef struct pass_options {
    bool check;                     /* ir_check after every pass */
    size_t fold_bytes;              /* the largest constant that folding makes or reads; default 64 KiB */
    const char *dump;               /* a pass's name, or "all": after it show gets the graph's text */
    void (*show)(void *user, const char *pass, const char *graph);
    void *user;
} pass_options;

/* *changed: was anything rewritten? A pass that runs again on its own result changes nothing. Nodes are left in an order where operands
 * come first; ids need not be dense. */
typedef dw_status (*pass_function)(ir_graph *graph, const pass_options *options, bool *changed);

#define PASS(name, stages, meaning) dw_status pass_##name(ir_graph *graph, const pass_options *options, bool *changed);
#include "pass/pass.def"
#undef PASS

typedef struct pass_row {
    const char *name, *meaning;
    unsigned stages;
    pass_function run;
} pass_row;

const pass_row *pass_get(int index);           /* NULL beyond the last */
const pass_row *pass_find(const char *name);   /* NULL when there is none */

/* One pass; then the graph is renumbered, checked if options say so, and shown if it is the one to dump. The message of a failure names the pass. */
dw_status pass_run_one(ir_graph *graph, const pass_row *row, const pass_options *options, bool *changed);
/* All passes of the stages (a union of pass_stage). INTERNAL when the passes of a stage go on changing the graph. */
dw_status pass_run(ir_graph *graph, unsigned stages, const pass_options *options);

#endif
