/* conv on a GPU, an element of the result a thread: the host half of conv.cu. */
#include "kernels/conv/conv_cuda.h"

#include "kernels/gpu/host/host.h"
#include "kernels/conv/conv.h"
#include "kernels/kernels.h"

const char *conv_cuda_reject(const kernel_problem *problem, text *why) { return cuda_reject_packed(problem, why); }

/* One H200 multiplied 19.7 GFLOP in 33.6 ms: 0.009 of its fp32 rate. */
double conv_cuda_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 0.009, 0.267); }

size_t conv_cuda_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

void conv_take_windows(const conv_shape *shape, conv_arguments *arguments) {
    arguments->batches = shape->batches;
    arguments->outputs = shape->outputs * shape->groups;
    arguments->rows = shape->places[0];
    arguments->cols = shape->places[1];
    arguments->channels = shape->channels;
    arguments->height = shape->size[0];
    arguments->width = shape->size[1];
    arguments->taps_y = shape->taps[0];
    arguments->taps_x = shape->taps[1];
    arguments->stride_y = shape->stride[0];
    arguments->padding_y = shape->padding[0];
    arguments->dilation_y = shape->dilation[0];
    arguments->stride_x = shape->stride[1];
    arguments->padding_x = shape->padding[1];
    arguments->dilation_x = shape->dilation[1];
    arguments->outputs_per_group = shape->outputs > 0 ? shape->outputs : 1;
    for (int i = 0; i < 4; i++) {
        arguments->x_strides[i] = shape->x_strides[i];
        arguments->out_strides[i] = shape->out_strides[i];
    }
}

void conv_take_bias(kernel_launch *launch, const kernel_run *run, conv_arguments *arguments) {
    const dw_tensor *bias = kernel_operand(run, 2);
    arguments->has_bias = bias != NULL;
    if (bias == NULL) return;
    arguments->bias_step = bias->strides[0];
    cuda_take_array(launch, run, 2, &arguments->bias);
}

dw_status conv_check_groups(const kernel_run *run) {
    const int64_t outputs = run->call.in[1]->dims[0];
    if (outputs % op_attr_int(run->call.attrs, OP_ATTR_groups) == 0) return DW_OK;
    return base_fail(run->call.context, DW_MISMATCH, "conv: w has %lld outputs, which groups does not divide", (long long)outputs);
}

dw_status conv_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    conv_arguments *arguments = cuda_launch(&launch, "conv", "conv_direct", sizeof *arguments);
    const dw_tensor *weight = run->call.in[1];
    const int axes = weight->rank - 2;
    conv_shape shape;
    TRY(conv_check_groups(run));
    conv_shape_of(&run->call, &shape);
    conv_take_windows(&shape, arguments);
    arguments->weight_strides[0] = weight->strides[0];
    arguments->weight_strides[1] = weight->strides[1];
    arguments->weight_strides[2] = axes == 2 ? weight->strides[2] : 0;
    arguments->weight_strides[3] = weight->strides[1 + axes];
    int64_t count = op_tensor_count(run->call.out[0]);
    if (count == 0) return DW_OK;
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->out);
    cuda_take_array(&launch, run, 0, &arguments->x);
    cuda_take_array(&launch, run, 1, &arguments->weight);
    conv_take_bias(&launch, run, arguments);
    cuda_grid_items(&launch, count);
    return launcher->add(launcher, &launch);
}
