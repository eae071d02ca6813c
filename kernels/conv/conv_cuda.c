/* conv on a GPU: the host half of conv.cu. */
#include "kernels/conv/conv_cuda.h"

#include "kernels/common/cuda/host.h"
#include "kernels/kernels.h"

const char *conv_cuda_reject(const kernel_problem *problem, text *why) { return cuda_reject_packed(problem, why); }

double conv_cuda_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 0.02, 0.25); }

size_t conv_cuda_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

/* Dims and strides with two spatial axes. */
static void widen(const dw_tensor *tensor, int64_t *dims, int64_t *strides) {
    bool one = tensor->rank == 3;
    for (int i = 0; i < 4; i++) {
        int axis = i < 2 ? i : one ? (i == 3 ? 2 : -1) : i;
        dims[i] = axis < 0 ? 1 : tensor->dims[axis];
        strides[i] = axis < 0 ? 0 : tensor->strides[axis];
    }
}

dw_status conv_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    conv_arguments *arguments = cuda_launch(&launch, "conv", "conv_direct", sizeof *arguments);
    const dw_tensor *bias = cuda_operand(run, 2);
    const int64_t *stride, *padding, *dilation;
    int64_t out[4], x[4], weight[4], groups = op_attr_int(run->call.attrs, OP_ATTR_groups);
    int axes = run->call.in[0]->rank - 2;
    op_attr_ints(run->call.attrs, OP_ATTR_stride, &stride);
    op_attr_ints(run->call.attrs, OP_ATTR_padding, &padding);
    op_attr_ints(run->call.attrs, OP_ATTR_dilation, &dilation);
    widen(run->call.out[0], out, arguments->out_strides);
    widen(run->call.in[0], x, arguments->x_strides);
    widen(run->call.in[1], weight, arguments->weight_strides);
    if (weight[0] % groups != 0)
        return base_fail(run->call.context, DW_MISMATCH, "conv: w has %lld outputs, which groups does not divide", (long long)weight[0]);
    arguments->batches = out[0];
    arguments->outputs = out[1];
    arguments->rows = out[2];
    arguments->cols = out[3];
    arguments->channels = weight[1];
    arguments->height = x[2];
    arguments->width = x[3];
    arguments->taps_y = weight[2];
    arguments->taps_x = weight[3];
    arguments->stride_y = axes == 2 ? stride[0] : 1;
    arguments->padding_y = axes == 2 ? padding[0] : 0;
    arguments->dilation_y = axes == 2 ? dilation[0] : 1;
    arguments->stride_x = stride[axes - 1];
    arguments->padding_x = padding[axes - 1];
    arguments->dilation_x = dilation[axes - 1];
    arguments->outputs_per_group = weight[0] / groups > 0 ? weight[0] / groups : 1;
    arguments->has_bias = bias != NULL;
    arguments->bias_step = bias ? bias->strides[0] : 0;
    int64_t count = op_tensor_count(run->call.out[0]);
    if (count == 0) return DW_OK;
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->out);
    cuda_take_array(&launch, run, 0, &arguments->x);
    cuda_take_array(&launch, run, 1, &arguments->weight);
    if (bias != NULL) cuda_take_array(&launch, run, 2, &arguments->bias);
    cuda_grid_items(&launch, count);
    return launcher->add(launcher, &launch);
}
