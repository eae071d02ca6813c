/* Reductions over any axes. Problem: out[j] = op over i of x[j, i], where the kept axes j and the reduced axes i lie anyhow. Results are shared over
 * threads. Two ways through memory: row by row, a result at a time, where a result's elements lie side by side; column by column, many results at a
 * time, where those of neighbouring results do. A reduction to few results runs on as few threads. Measured speed: README.md. */
#include "kernels/reduce/reduce.h"

#include "kernels/kernels.h"
#include "num/num.h"

enum { GRAIN = 32768, LEAST_COLUMNS = 1024 };     /* elements of a task; and results, column by column */

const char *reduce_reject(const kernel_problem *problem, text *why) {
    (void)why;
    return problem->in[0]->format == DW_FORMAT_f64 ? "x is f64, which is computed in double" : NULL;
}

double reduce_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 0.1, 0.5); }

size_t reduce_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

/* Joins neighbouring axes without changing their order. */
static void join_axes(cpu_nest *nest) {
    int rank = 0;
    for (int i = 0; i < nest->rank; i++) {
        if (nest->dims[i] == 1) continue;
        bool joins = rank > 0 && nest->strides[0][rank - 1] == nest->strides[0][i] * nest->dims[i];
        int to = joins ? rank - 1 : rank++;
        nest->dims[to] = joins ? nest->dims[to] * nest->dims[i] : nest->dims[i];
        nest->strides[0][to] = nest->strides[0][i];
    }
    nest->rank = rank > 0 ? rank : 1;
    if (rank > 0) return;
    nest->dims[0] = 1;
    nest->strides[0][0] = 1;
}

static void split_axes(const op_call *call, reduce_job *job) {
    const dw_tensor *x = job->x, *out = job->out;
    const int64_t one = op_attr_int(call->attrs, OP_ATTR_axis), *axes = &one;
    int count = reduce_finds_index(call->op->id) ? 1 : op_attr_ints(call->attrs, OP_ATTR_axes, &axes), kept = 0, reduced = 0, of_out = 0;
    bool keep = op_attr_bool(call->attrs, OP_ATTR_keep);
    int64_t outer_dims[DW_MAX_RANK], out_strides[DW_MAX_RANK], x_strides[DW_MAX_RANK], inner_dims[DW_MAX_RANK], inner_strides[DW_MAX_RANK];
    job->count = 1;
    for (int i = 0; i < x->rank; i++) {
        if (reduced < count && axes[reduced] == i) {
            inner_dims[reduced] = x->dims[i];
            inner_strides[reduced++] = x->strides[i];
            job->count *= x->dims[i];
            if (keep) of_out++;
        } else {
            outer_dims[kept] = x->dims[i];
            x_strides[kept] = x->strides[i];
            out_strides[kept++] = out->strides[of_out++];
        }
    }
    cpu_nest_start(&job->outer, kept, outer_dims);
    cpu_nest_add_strides(&job->outer, out_strides);
    cpu_nest_add_strides(&job->outer, x_strides);
    cpu_nest_merge(&job->outer);
    cpu_nest_start(&job->inner, reduced, inner_dims);
    cpu_nest_add_strides(&job->inner, inner_strides);
    if (job->count > 0) join_axes(&job->inner);
}

dw_status reduce_run(const kernel_run *run) {
    const op_call *call = &run->call;
    reduce_job job = {.rows = cpu_rows_of(run->chip), .op = call->op->id, .finite = op_attr_bool(call->attrs, OP_ATTR_finite), .x = call->in[0], .out = call->out[0]};
    split_axes(call, &job);
    bool needs_elements = job.op == OP_amax || job.op == OP_amin || reduce_finds_index(job.op);
    if (job.count == 0 && needs_elements) return call->op->reference(call);   /* an error, unless there is no result */
    bool is_real = num_info(job.x->format)->class == NUM_FLOAT;
    bool by_columns = is_real && !reduce_finds_index(job.op) && job.count > 1 && cpu_nest_step(&job.outer, 1) == 1 &&
                      job.outer.dims[job.outer.rank - 1] > 1 && cpu_nest_step(&job.inner, 0) != 1;
    int64_t grain = GRAIN / (job.count > 0 ? job.count : 1);
    if (by_columns && grain < LEAST_COLUMNS) grain = LEAST_COLUMNS;
    cpu_nest_run(&job.outer, run->pool, grain, by_columns ? reduce_columns : is_real ? reduce_reals : reduce_integers, &job);
    return DW_OK;
}
