/* softmax and log_softmax on a GPU in one pass over rows: the host half of softmax_rows.cu and softmax_long.cu. */
#include "kernels/softmax/softmax_rows.h"

#include "kernels/gpu/host/host.h"
#include "kernels/gpu/rows/host.h"
#include "kernels/kernels.h"

const char *softmax_rows_reject(const kernel_problem *problem, text *why) {
    const op_type *x = problem->in[0], *out = problem->out[0];
    int64_t axis = op_attr_int(problem->attrs, OP_ATTR_axis);
    if (!row_parts_reads(x->format)) {
        text_printf(why, "x is %s", dw_format_name(x->format));
        return text_string(why);
    }
    if (axis != x->rank - 1) {
        text_printf(why, "axis is %lld; only rows along the last axis, %d, are computed", (long long)axis, x->rank - 1);
        return text_string(why);
    }
    return row_parts_reject_result(out, why);
}

/* Shares of the bandwidth as an H200 has them: of long rows in 16 bits and in 32. */
double softmax_rows_cost(const kernel_problem *problem) {
    const op_type *x = problem->in[0];
    int64_t cols;
    const bool is_long = dim_is_constant(x->dims[x->rank - 1], &cols) && row_is_long(cols);
    return kernel_roofline(problem, DW_FORMAT_f32, 0.5, !is_long ? 0.853 : x->format == DW_FORMAT_f32 ? 0.661 : 0.533);
}

size_t softmax_rows_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

static dw_status shape_long(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    softmax_long_arguments *arguments = cuda_launch(&launch, "softmax_long", NULL, sizeof *arguments);
    launch.overlaps = true;
    const dw_tensor *x = run->call.in[0], *out = run->call.out[0], *tensors[] = {out, x};
    int64_t steps[2];
    cuda_nest_lines(&arguments->chunks.nest, x->rank - 1, 2, tensors, steps);
    if (arguments->chunks.nest.count == 0) return DW_OK;
    TRY(row_chunks_divide(&launch, run, x, &arguments->chunks));
    launch.entry = x->format == DW_FORMAT_f32 ? "softmax_long_f32" : x->format == DW_FORMAT_bf16 ? "softmax_long_bf16" : "softmax_long_f16";
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->out);
    cuda_take_array(&launch, run, 0, &arguments->x);
    arguments->out_step = steps[0];
    arguments->x_step = steps[1];
    arguments->is_log = run->call.op->id == OP_log_softmax;
    return launcher->add(launcher, &launch);
}

dw_status softmax_rows_shape(const kernel_run *run, kernel_launcher *launcher) {
    static row_entries entries = ROW_ENTRIES("softmax_rows", "");
    kernel_launch launch;
    softmax_rows_arguments *arguments = cuda_launch(&launch, "softmax_rows", NULL, sizeof *arguments);
    const dw_tensor *x = run->call.in[0], *out = run->call.out[0], *tensors[] = {out, x};
    int64_t steps[2];
    if (row_is_long(x->dims[x->rank - 1])) return shape_long(run, launcher);
    if (x->dims[x->rank - 1] == 0) return DW_OK;
    cuda_nest_lines(&arguments->division.nest, x->rank - 1, 2, tensors, steps);
    if (arguments->division.nest.count == 0) return DW_OK;
    row_parts_divide(&launch, run, x->format, out, true, entries, &arguments->division);
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->out);
    cuda_take_array(&launch, run, 0, &arguments->x);
    launch.overlaps = true;
    arguments->out_step = steps[0];
    arguments->x_step = steps[1];
    arguments->is_log = run->call.op->id == OP_log_softmax;
    return launcher->add(launcher, &launch);
}
