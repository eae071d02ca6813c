/* How long work takes at least: the larger of arithmetic and memory traffic, plus the start of a kernel; and what estimates ask of a call: its tensors at the typical sizes, the rows of its
 * result. No measurement. */
#include "kernel/kernel.h"

dw_status kernel_problem_call(const kernel_problem *problem, dw_tensor *in, dw_tensor *out, const dw_tensor **in_pointers,
                              const dw_tensor **out_pointers, op_call *call) {
    for (int i = 0; i < problem->n_in; i++) {
        in_pointers[i] = NULL;
        if (problem->in[i] == NULL) continue;
        TRY(op_tensor_bind(problem->context, problem->in[i], problem->symbols, NULL, &in[i]));
        in_pointers[i] = &in[i];
    }
    for (int i = 0; i < problem->n_out; i++) {
        TRY(op_tensor_bind(problem->context, problem->out[i], problem->symbols, NULL, &out[i]));
        out_pointers[i] = &out[i];
    }
    *call = (op_call){
        .context = problem->context,
        .op = problem->op,
        .attrs = problem->attrs,
        .symbols = problem->symbols,
        .n_in = problem->n_in,
        .in = in_pointers,
        .n_out = problem->n_out,
        .out = out_pointers,
    };
    return DW_OK;
}

double kernel_run_roofline(const kernel_run *run, dw_format multiplies, double compute_efficiency, double memory_efficiency) {
    const chip_caps *chip = run->chip;
    op_work work = {0};
    run->call.op->work(&run->call, &work);
    double compute_s = work.flops / (chip_flops(chip, multiplies) * compute_efficiency);
    double memory_s = (work.bytes_read + work.bytes_written) / (chip_bytes_per_s(chip) * memory_efficiency);
    return (compute_s > memory_s ? compute_s : memory_s) + chip->launch_s;
}

int64_t kernel_result_rows(const op_call *call) {
    const dw_tensor *out = call->out[0];
    int64_t rows = 1;
    for (int i = 0; i < out->rank - 1; i++) rows *= out->dims[i];
    return rows;
}

double kernel_roofline(const kernel_problem *problem, dw_format multiplies, double compute_efficiency, double memory_efficiency) {
    kernel_typical typical;
    if (!kernel_at_typical(problem, 0, &typical)) return problem->chip->launch_s;
    return kernel_run_roofline(&typical.run, multiplies, compute_efficiency, memory_efficiency);
}

bool kernel_at_typical(const kernel_problem *problem, uint32_t ways, kernel_typical *typical) {
    typical->run = (kernel_run){.post = problem->post, .constant_in = problem->constant_in, .chip = problem->chip, .user = problem->user, .ways = ways, .invariant = problem->invariant};
    if (problem->symbols == NULL || problem->n_in > KERNEL_MAX_OPERANDS || problem->n_out > KERNEL_MAX_RESULTS) return false;
    return kernel_problem_call(problem, typical->in, typical->out, typical->in_pointers, typical->out_pointers, &typical->run.call) == DW_OK;
}
