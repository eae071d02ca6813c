/* adamw on the CPU, in fp32: parameters one after another; each, its moments and its gradient are read once and written once, in place where the plan has them so. Elements do not depend on each
 * other, so the bits are the same at any number of threads. */
#include "kernels/cpu/nest.h"
#include "kernels/cpu/rows.h"
#include "kernels/kernels.h"
#include "kernels/optimizer/optimizer.h"
#include "op/op.h"

enum { GRAIN = 16384 };   /* elements of a task */

const char *optimizer_reject(const kernel_problem *problem, text *why) {
    for (int i = 0; i < problem->n_in; i++) {
        if (problem->in[i] == NULL || (i >= ADAMW_RATE && i <= ADAMW_SCALE) || problem->in[i]->format != DW_FORMAT_f64) continue;
        text_printf(why, "operand %d is f64, which is computed in double", i);
        return text_string(why);
    }
    return NULL;
}

/* bandwidth bound: the quotient and the root of a vector take less than its seven streams. Not measured. */
double optimizer_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 0.3, 0.7); }

size_t optimizer_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

typedef struct optimizer_job {
    const dw_tensor *const *before, *const *after;   /* of one parameter */
    const cpu_rows *rows;
    adamw_loop loop;
    adamw_step step;
    cpu_nest nest;               /* the results, then what they are made of */
} optimizer_job;

static adamw_loop loop_of(const chip_caps *chip) {
#if defined(__x86_64__)
    if (chip_has(chip, CHIP_avx512)) return adamw_avx512;
    if (chip_has(chip, CHIP_avx2)) return adamw_avx2;
#endif
    (void)chip;
    return adamw_portable;
}

/* The old values of a part are read before its new ones are written, so these may lie in the same place. */
static void run_line(void *argument, const int64_t *offset, int64_t count) {
    const optimizer_job *job = argument;
    float before[4][CPU_BLOCK], after[3][CPU_BLOCK];
    float *const next[3] = {after[0], after[1], after[2]};
    for (int64_t at = 0; at < count; at += CPU_BLOCK) {
        const int64_t part = count - at < CPU_BLOCK ? count - at : CPU_BLOCK;
        const float *value[4];
        for (int i = 0; i < 4; i++) {
            const int64_t step = cpu_nest_step(&job->nest, 3 + i);
            value[i] = cpu_load(job->rows, job->before[i], offset[3 + i] + at * step, step, part, before[i]);
        }
        job->loop(&job->step, value[0], value[1], value[2], value[3], next, part);
        for (int i = 0; i < 3; i++) {
            const int64_t step = cpu_nest_step(&job->nest, i);
            cpu_store(job->rows, after[i], job->after[i], offset[i] + at * step, step, part);
        }
    }
}

static bool is_in_place(const op_call *call) {
    for (int i = 0; i < call->n_out; i++)
        if (call->out[i]->data != call->in[op_updated(call->op->id, i)]->data) return false;
    return true;
}

static void run_parameter(optimizer_job *job, pool *pool) {
    const dw_tensor *p = job->before[0];
    if (op_tensor_count(p) == 0) return;
    cpu_nest_start(&job->nest, p->rank, p->dims);
    for (int i = 0; i < 3; i++) cpu_nest_add(&job->nest, job->after[i]);
    for (int i = 0; i < 4; i++) cpu_nest_add(&job->nest, job->before[i]);
    cpu_nest_merge(&job->nest);
    cpu_nest_run(&job->nest, pool, GRAIN, run_line, job);
}

dw_status optimizer_run(const kernel_run *run) {
    const op_call *call = &run->call;
    const dw_tensor *scale = op_operand(call, ADAMW_SCALE);
    const op_attrs *attrs = call->attrs;
    optimizer_job job = {.rows = cpu_rows_of(run->chip), .loop = loop_of(run->chip)};
    job.step = adamw_step_of(op_attr_real(attrs, OP_ATTR_beta1), op_attr_real(attrs, OP_ATTR_beta2), op_attr_real(attrs, OP_ATTR_eps), op_attr_real(attrs, OP_ATTR_decay),
                             op_tensor_load(call->in[ADAMW_RATE], NULL), (double)op_tensor_load_int(call->in[ADAMW_STEP], NULL), scale != NULL ? op_tensor_load(scale, NULL) : 1);
    if (job.step.stays) return is_in_place(call) ? DW_OK : call->op->reference(call);
    for (int group = 0; group < op_update_groups(OP_adamw, call->n_in); group++) {
        job.before = &call->in[op_update_operand(OP_adamw, group, ADAMW_P)];
        job.after = &call->out[3 * group];
        run_parameter(&job, run->pool);
    }
    return DW_OK;
}
