/* softmax and log_softmax on a GPU: the host half of softmax.cu. */
#include "kernels/softmax/softmax_cuda.h"

#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"

const char *softmax_cuda_reject(const kernel_problem *problem, text *why) { return cuda_reject_packed(problem, why); }

double softmax_cuda_cost(const kernel_problem *problem) { return cuda_cost(problem); }

size_t softmax_cuda_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

dw_status softmax_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    softmax_arguments *arguments = cuda_launch(&launch, "softmax", "softmax_lines", sizeof *arguments);
    int axis = (int)op_attr_int(run->call.attrs, OP_ATTR_axis);
    const dw_tensor *tensors[] = {run->call.out[0], run->call.in[0]};
    int64_t steps[2];
    cuda_nest_lines(&arguments->nest, axis, 2, tensors, steps);
    arguments->count = tensors[0]->dims[axis];
    arguments->out_step = tensors[0]->strides[axis];
    arguments->x_step = tensors[1]->strides[axis];
    arguments->is_log = run->call.op->id == OP_log_softmax;
    if (arguments->nest.count == 0 || arguments->count == 0) return DW_OK;
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->out);
    cuda_take_array(&launch, run, 0, &arguments->x);
    cuda_grid_items(&launch, arguments->nest.count * CUDA_THREADS);
    return launcher->add(launcher, &launch);
}
