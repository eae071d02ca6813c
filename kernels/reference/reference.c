/* The last resort: an op's plain meaning run as a kernel. One thread, any strides, no workspace; slow, and said to be. */
#include "kernels/kernels.h"

#define SLOWDOWN 200.0   /* beside the chip's rates, so that estimates do not flatter */

const char *reference_reject(const kernel_problem *problem, text *why) {
    (void)why;
    if (op_has(problem->op->id, OP_TRAIT_COLLECTIVE)) return "other ranks are reached by the kernels of collectives alone";
    return problem->op->reference != NULL ? NULL : "the op has no reference implementation";
}

double reference_cost(const kernel_problem *problem) {
    return kernel_roofline(problem, DW_FORMAT_f32, 1 / SLOWDOWN, 1 / SLOWDOWN);
}

size_t reference_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

dw_status reference_run(const kernel_run *run) { return run->call.op->reference(&run->call); }
