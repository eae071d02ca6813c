/* Norms on a GPU: the host half of norm.cu. A result in a block format is first normalised to x's format in the workspace, then quantised from there. */
#include "kernels/norm/norm_cuda.h"

#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"
#include "kernels/norm/norm_rows.h"
#include "kernels/quantize/quantize_host.h"

const char *norm_cuda_reject(const kernel_problem *problem, text *why) {
    for (int i = 0; i < problem->n_in; i++) {
        if (problem->in[i] == NULL || cuda_is_plain(problem->in[i]->format)) continue;
        text_printf(why, "operand %d is %s", i, dw_format_name(problem->in[i]->format));
        return text_string(why);
    }
    bool quantises = dw_format_is_block(problem->out[0]->format);
    return quantises && problem->in[0]->format == DW_FORMAT_f64 ? "x is f64; block formats are made from fp32" : NULL;
}

double norm_cuda_cost(const kernel_problem *problem) { return NORM_MOMENTS_S + cuda_cost(problem) + quantize_plain_search_seconds(problem); }

static size_t plain_bytes(const kernel_run *run) {
    const dw_tensor *x = run->call.in[0];
    return base_align_up((size_t)op_tensor_count(x) * (size_t)dw_format_bits(x->format) / 8, 64);
}

size_t norm_cuda_workspace(const kernel_run *run) {
    return dw_format_is_block(run->call.out[0]->format) ? plain_bytes(run) + quantize_scratch_bytes(run->call.out[0]) : 0;
}

static int64_t step_of(const dw_tensor *tensor) { return tensor->rank > 0 ? tensor->strides[tensor->rank - 1] : 0; }

static dw_status shape_rows(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    norm_arguments *arguments = cuda_launch(&launch, "norm", "norm_rows", sizeof *arguments);
    bool is_layer = run->call.op->id == OP_layer_norm, quantises = dw_format_is_block(run->call.out[0]->format);
    int residual = is_layer ? 3 : 2;
    const dw_tensor *x = run->call.in[0], *r = kernel_operand(run, residual);
    dw_tensor plain;
    op_tensor_init(&plain, x->format, DW_SCALE_plain, x->rank, x->dims, NULL);
    const dw_tensor *out = quantises ? &plain : run->call.out[0], *sum = r ? run->call.out[1] : x;
    const dw_tensor *tensors[] = {out, x, sum, r ? r : x};
    int64_t steps[4];
    cuda_nest_lines(&arguments->nest, x->rank - 1, 4, tensors, steps);
    arguments->cols = x->dims[x->rank - 1];
    arguments->out_step = step_of(out);
    arguments->x_step = step_of(x);
    arguments->sum_step = step_of(sum);
    arguments->residual_step = steps[3];
    arguments->has_residual = r != NULL;
    arguments->has_weight = kernel_operand(run, 1) != NULL;
    arguments->has_bias = is_layer && kernel_operand(run, 2) != NULL;
    arguments->centred = is_layer;
    arguments->eps = op_attr_real(run->call.attrs, OP_ATTR_eps);
    if (quantises) cuda_take_scratch(&launch, x->format, 0, &arguments->out);
    else cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->out);
    cuda_take_array(&launch, run, 0, &arguments->x);
    if (r != NULL) {
        cuda_take_array(&launch, run, KERNEL_RESULT + 1, &arguments->sum);
        cuda_take_array(&launch, run, residual, &arguments->residual);
    }
    if (arguments->has_weight) {
        arguments->weight_step = run->call.in[1]->strides[0];
        cuda_take_array(&launch, run, 1, &arguments->weight);
    }
    if (arguments->has_bias) {
        arguments->bias_step = run->call.in[2]->strides[0];
        cuda_take_array(&launch, run, 2, &arguments->bias);
    }
    cuda_grid_items(&launch, arguments->nest.count * CUDA_THREADS);
    if (arguments->nest.count > 0 && arguments->cols > 0) TRY(launcher->add(launcher, &launch));
    if (!quantises) return DW_OK;
    return quantize_scratch_shape(run, launcher, x->format, 0, (int64_t)plain_bytes(run));
}

static dw_status shape_group(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    group_norm_arguments *arguments = cuda_launch(&launch, "norm", "norm_group", sizeof *arguments);
    const dw_tensor *x = run->call.in[0], *out = run->call.out[0], *weight = kernel_operand(run, 1), *bias = kernel_operand(run, 2);
    int64_t groups = op_attr_int(run->call.attrs, OP_ATTR_groups), dims[CUDA_RANK], strides[2][CUDA_RANK];
    if (x->dims[1] % groups != 0)
        return base_fail(run->call.context, DW_MISMATCH, "group_norm: x has %lld channels, groups is %lld, which does not divide them", (long long)x->dims[1], (long long)groups);
    arguments->batches = x->dims[0];
    arguments->groups = groups;
    arguments->channels = x->dims[1] / groups;
    arguments->per_channel = 1;
    for (int i = 1; i < x->rank; i++) {
        dims[i - 1] = i == 1 ? arguments->channels : x->dims[i];
        strides[0][i - 1] = out->strides[i];
        strides[1][i - 1] = x->strides[i];
        if (i > 1) arguments->per_channel *= x->dims[i];
    }
    cuda_nest_build(&arguments->group, x->rank - 1, dims, 2, (const int64_t(*)[CUDA_RANK])strides);
    if (arguments->group.count == 0 || arguments->batches == 0) return DW_OK;
    arguments->out_batch = out->strides[0];
    arguments->out_channel = out->strides[1];
    arguments->x_batch = x->strides[0];
    arguments->x_channel = x->strides[1];
    arguments->eps = op_attr_real(run->call.attrs, OP_ATTR_eps);
    arguments->has_weight = weight != NULL;
    arguments->has_bias = bias != NULL;
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->out);
    cuda_take_array(&launch, run, 0, &arguments->x);
    if (weight != NULL) cuda_take_array(&launch, run, 1, &arguments->weight);
    if (bias != NULL) cuda_take_array(&launch, run, 2, &arguments->bias);
    arguments->weight_step = weight ? weight->strides[0] : 0;
    arguments->bias_step = bias ? bias->strides[0] : 0;
    cuda_grid_items(&launch, arguments->batches * groups * CUDA_THREADS);
    return launcher->add(launcher, &launch);
}

dw_status norm_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    return run->call.op->id == OP_group_norm ? shape_group(run, launcher) : shape_rows(run, launcher);
}
