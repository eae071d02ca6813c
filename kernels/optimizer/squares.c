/* sum_squares on the CPU: parts of operands, each summed in fp32 lanes by blocks whose sums are added in double, and the parts in order. The same bits at any number of threads. */
#include "kernels/optimizer/squares.h"

#include "kernels/cpu/rows.h"
#include "kernels/kernels.h"

const char *squares_reject(const kernel_problem *problem, text *why) {
    for (int i = 0; i < problem->n_in; i++) {
        if (problem->in[i]->format != DW_FORMAT_f64) continue;
        text_printf(why, "operand %d is f64, which is computed in double", i);
        return text_string(why);
    }
    return NULL;
}

double squares_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 0.3, 0.7); }

static int64_t parts_of(const dw_tensor *x) { return base_ceil_div(op_tensor_count(x), SQUARES_PART); }

static int64_t all_parts(const op_call *call) {
    int64_t parts = 0;
    for (int i = 0; i < call->n_in; i++) parts += parts_of(call->in[i]);
    return parts;
}

size_t squares_workspace(const kernel_run *run) { return (size_t)all_parts(&run->call) * sizeof(double); }

typedef struct squares_job { const op_call *call; const cpu_rows *rows; double *sums; } squares_job;

static void run_part(void *argument, int64_t part, int worker) {
    const squares_job *job = argument;
    float buffer[CPU_BLOCK];
    int operand = 0;
    int64_t own = part;
    double sum = 0;
    (void)worker;
    for (; own >= parts_of(job->call->in[operand]); operand++) own -= parts_of(job->call->in[operand]);
    const dw_tensor *x = job->call->in[operand];
    const int64_t count = op_tensor_count(x), end = (own + 1) * SQUARES_PART < count ? (own + 1) * SQUARES_PART : count;
    for (int64_t at = own * SQUARES_PART; at < end; at += CPU_BLOCK) {
        const int64_t length = end - at < CPU_BLOCK ? end - at : CPU_BLOCK;
        sum += job->rows->sum_squares(cpu_load(job->rows, x, at, 1, length, buffer), 0, length);
    }
    job->sums[part] = sum;
}

dw_status squares_run(const kernel_run *run) {
    squares_job job = {&run->call, cpu_rows_of(run->chip), run->workspace};
    const int64_t parts = all_parts(&run->call);
    double sum = 0;
    pool_run(run->pool, parts, run_part, &job);
    for (int64_t i = 0; i < parts; i++) sum += job.sums[i];
    op_tensor_store(run->call.out[0], NULL, sum);
    return DW_OK;
}
