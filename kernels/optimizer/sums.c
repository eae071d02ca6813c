/* accumulate on the CPU, in fp32: sums one after another; each and its gradient are read once, and it is written once, in place where the plan has it so. Elements do not depend on each other, so the
 * bits are the same at any number of threads. */
#include "kernels/cpu/nest.h"
#include "kernels/cpu/rows.h"
#include "kernels/kernels.h"
#include "kernels/optimizer/optimizer.h"
#include "op/op.h"

enum { GRAIN = 32768 };   /* elements of a task */

const char *sums_reject(const kernel_problem *problem, text *why) {
    for (int i = 0; i < problem->n_in; i++) {
        if (i == SUMS_FACTOR || problem->in[i]->format != DW_FORMAT_f64) continue;
        text_printf(why, "operand %d is f64, which is computed in double", i);
        return text_string(why);
    }
    return NULL;
}

/* Bandwidth bound. Not measured. */
double sums_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 0.3, 0.7); }

size_t sums_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

typedef struct sums_job {
    const dw_tensor *sum, *g, *next;
    const cpu_rows *rows;
    sums_loop loop;
    float factor;
    cpu_nest nest;               /* next, sum, g */
} sums_job;

static sums_loop loop_of(const chip_caps *chip) {
#if defined(__x86_64__)
    if (chip_has(chip, CHIP_avx512)) return sums_avx512;
    if (chip_has(chip, CHIP_avx2)) return sums_avx2;
#endif
    (void)chip;
    return sums_portable;
}

static void run_line(void *argument, const int64_t *offset, int64_t count) {
    const sums_job *job = argument;
    const int64_t to = cpu_nest_step(&job->nest, 0), sum = cpu_nest_step(&job->nest, 1), g = cpu_nest_step(&job->nest, 2);
    float made[CPU_BLOCK], held[2][CPU_BLOCK];
    for (int64_t at = 0; at < count; at += CPU_BLOCK) {
        const int64_t part = count - at < CPU_BLOCK ? count - at : CPU_BLOCK;
        job->loop(job->factor, cpu_load(job->rows, job->sum, offset[1] + at * sum, sum, part, held[0]), cpu_load(job->rows, job->g, offset[2] + at * g, g, part, held[1]), made, part);
        cpu_store(job->rows, made, job->next, offset[0] + at * to, to, part);
    }
}

static bool is_in_place(const op_call *call) {
    for (int i = 0; i < call->n_out; i++)
        if (call->out[i]->data != call->in[op_updated(call->op->id, i)]->data) return false;
    return true;
}

dw_status sums_run(const kernel_run *run) {
    const op_call *call = &run->call;
    sums_job job = {.rows = cpu_rows_of(run->chip), .loop = loop_of(run->chip), .factor = (float)op_tensor_load(call->in[SUMS_FACTOR], NULL)};
    if (job.factor == 0) return is_in_place(call) ? DW_OK : call->op->reference(call);
    for (int group = 0; group < call->n_out; group++) {
        job.sum = call->in[op_update_operand(OP_accumulate, group, SUMS_SUM)];
        job.g = call->in[op_update_operand(OP_accumulate, group, SUMS_G)];
        job.next = call->out[group];
        if (op_tensor_count(job.sum) == 0) continue;
        cpu_nest_start(&job.nest, job.sum->rank, job.sum->dims);
        cpu_nest_add(&job.nest, job.next);
        cpu_nest_add(&job.nest, job.sum);
        cpu_nest_add(&job.nest, job.g);
        cpu_nest_merge(&job.nest);
        cpu_nest_run(&job.nest, run->pool, GRAIN, run_line, &job);
    }
    return DW_OK;
}
