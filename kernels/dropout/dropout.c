/* dropout on the CPU: four words of Philox for four elements (op/dropping.h), of tensors that lie side by side. An element's bits depend on nothing but its number, so threads share them as they
 * come. Measured speed: README.md. */
#include "op/dropping.h"

#include "kernels/cpu/rows.h"
#include "kernels/kernels.h"

enum { GRAIN = 8 * CPU_BLOCK };   /* elements of a task */

const char *dropout_reject(const kernel_problem *problem, text *why) {
    (void)why;
    return problem->in[0]->format == DW_FORMAT_f64 ? "x is f64, which is computed in double" : NULL;
}

/* bound by the rounds of Philox: about 25 integer operations an element */
double dropout_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 0.2, 0.5); }

size_t dropout_workspace(const kernel_run *run) { return kernel_no_workspace(run); }

typedef struct job {
    const dw_tensor *x, *out;
    const cpu_rows *rows;
    uint64_t seed, step, threshold;
    uint32_t site;
    float factor;
    int64_t count;
} job;

static void run_task(void *argument, int64_t task, int worker) {
    (void)worker;
    const job *j = argument;
    const int64_t end = j->count - task * GRAIN < GRAIN ? j->count : (task + 1) * GRAIN;
    float buffer[CPU_BLOCK], factors[CPU_BLOCK + DROPPING_GROUP], y[CPU_BLOCK];
    for (int64_t begin = task * GRAIN; begin < end; begin += CPU_BLOCK) {
        const int64_t count = end - begin < CPU_BLOCK ? end - begin : CPU_BLOCK;
        const float *x = cpu_load(j->rows, j->x, begin, 1, count, buffer);
        for (int64_t i = 0; i < count; i += DROPPING_GROUP) {
            const philox_words words = dropping_words(j->seed, j->step, j->site, (uint64_t)(begin + i) / DROPPING_GROUP);
            for (int w = 0; w < DROPPING_GROUP; w++) factors[i + w] = words.word[w] >= j->threshold ? j->factor : 0;
        }
        for (int64_t i = 0; i < count; i++) y[i] = x[i] * factors[i];
        cpu_store(j->rows, y, j->out, begin, 1, count);
    }
}

dw_status dropout_run(const kernel_run *run) {
    const op_call *call = &run->call;
    const double probability = op_attr_real(call->attrs, OP_ATTR_probability);
    const int64_t first[] = {0}, second[] = {1};
    const job j = {
        .x = call->in[0], .out = call->out[0], .rows = cpu_rows_of(run->chip), .seed = (uint64_t)op_tensor_load_int(call->in[1], first), .step = (uint64_t)op_tensor_load_int(call->in[1], second),
        .threshold = dropping_threshold(probability), .site = (uint32_t)op_attr_int(call->attrs, OP_ATTR_site), .factor = (float)dropping_factor(probability), .count = op_tensor_count(call->in[0]),
    };
    pool_run(run->pool, base_ceil_div(j.count, GRAIN), run_task, (void *)&j);
    return DW_OK;
}
