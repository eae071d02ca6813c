/* layer_norm and rms_norm on a GPU in one pass: the host half of norm_rows.cu. */
#include "kernels/norm/norm_rows.h"

#include "kernels/common/cuda/host.h"
#include "kernels/kernels.h"

const char *norm_rows_cuda_reject(const kernel_problem *problem, text *why) {
    const op_type *x = problem->in[0];
    for (int i = 0; i < problem->n_in; i++) {
        if (problem->in[i] == NULL || row_parts_reads(problem->in[i]->format)) continue;
        text_printf(why, "operand %d is %s", i, dw_format_name(problem->in[i]->format));
        return text_string(why);
    }
    const char *reason = row_parts_reject_result(problem->out[0], why);
    return reason != NULL ? reason : row_parts_reject_width(x->dims[x->rank - 1], why);
}

double norm_rows_cuda_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 0.5, 0.8); }

size_t norm_rows_cuda_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

/* weight and bias: vectors. */
static bool take_column(kernel_launch *launch, const kernel_run *run, int operand, cuda_array *array, int64_t *step) {
    const dw_tensor *column = cuda_operand(run, operand);
    if (column == NULL) return false;
    *step = column->strides[0];
    cuda_take_array(launch, run, operand, array);
    return true;
}

dw_status norm_rows_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    static row_entries entries = ROW_ENTRIES("norm_rows", ""), search_entries = ROW_ENTRIES("norm_rows", "_search");
    kernel_launch launch;
    norm_rows_arguments *arguments = cuda_launch(&launch, "norm_rows", NULL, sizeof *arguments);
    bool is_layer = run->call.op->id == OP_layer_norm;
    int residual = is_layer ? 3 : 2;
    const dw_tensor *x = run->call.in[0], *out = run->call.out[0], *r = cuda_operand(run, residual), *sum = r != NULL ? run->call.out[1] : x;
    const dw_tensor *tensors[] = {out, x, sum, r != NULL ? r : x};
    int64_t steps[4];
    cuda_nest_lines(&arguments->division.nest, x->rank - 1, 4, tensors, steps);
    if (arguments->division.nest.count == 0) return DW_OK;
    TRY(row_parts_clear(run, launcher));
    bool searches = op_quantize_round(run->call.attrs) == NUM_ROUND_SEARCH;
    row_parts_divide(&launch, run->chip, x->format, out, true, searches ? search_entries : entries, &arguments->division);
    row_parts_take_target(&launch, run, &arguments->out);
    cuda_take_array(&launch, run, 0, &arguments->x);
    arguments->x_step = steps[1];
    if (r != NULL) {
        cuda_take_array(&launch, run, KERNEL_RESULT + 1, &arguments->sum);
        cuda_take_array(&launch, run, residual, &arguments->residual);
        arguments->sum_step = steps[2];
        arguments->residual_step = steps[3];
        arguments->has_residual = true;
    }
    arguments->has_weight = take_column(&launch, run, 1, &arguments->weight, &arguments->weight_step);
    arguments->has_bias = is_layer && take_column(&launch, run, 2, &arguments->bias, &arguments->bias_step);
    arguments->centred = is_layer;
    arguments->by_count = (float)(1.0 / arguments->division.cols);
    arguments->eps = (float)op_attr_real(run->call.attrs, OP_ATTR_eps);
    return launcher->add(launcher, &launch);
}
