/* tally on the CPU: counts of tokens follow what was made. One thread: there are as many additions as texts. */
#include <string.h>

#include "kernels/cpu/integers.h"
#include "kernels/kernels.h"

const char *tally_reject(const kernel_problem *problem, text *why) {
    (void)problem;
    (void)why;
    return NULL;
}

double tally_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 1, 0.3); }

size_t tally_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

dw_status tally_run(const kernel_run *run) {
    const dw_tensor *x = run->call.in[TALLY_X], *ids = run->call.in[TALLY_IDS], *rows = run->call.in[TALLY_ROW], *out = run->call.out[0];
    uint32_t *counts = out->data;
    if (out->data != x->data && op_tensor_count(x) > 0) memcpy(out->data, x->data, (size_t)op_tensor_count(x) * sizeof *counts);
    for (int64_t i = 0; i < ids->dims[0]; i++) {
        const int64_t id = cpu_load_integer(ids, i), row = cpu_load_integer(rows, i);
        if (row >= 0 && row < out->dims[0] && id >= 0 && id < out->dims[1]) counts[row * out->dims[1] + id]++;
    }
    return DW_OK;
}
