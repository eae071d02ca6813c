/* adamw on a GPU: the host half of optimizer.cu. */
#include "kernels/optimizer/optimizer_cuda.h"

#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"

const char *optimizer_cuda_reject(const kernel_problem *problem, text *why) { return cuda_reject_packed(problem, why); }

double optimizer_cuda_cost(const kernel_problem *problem) { return cuda_cost(problem); }

size_t optimizer_cuda_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

dw_status optimizer_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    const op_call *call = &run->call;
    const op_attrs *attrs = call->attrs;
    kernel_launch launch;
    optimizer_arguments *arguments = cuda_launch(&launch, "optimizer", "optimizer_adamw", sizeof *arguments);
    const dw_tensor *tensors[7];
    for (int i = 0; i < 3; i++) {
        tensors[i] = call->out[i];
        cuda_take_array(&launch, run, KERNEL_RESULT + i, &arguments->next[i]);
    }
    for (int i = 0; i < 4; i++) {
        tensors[3 + i] = call->in[ADAMW_P + i];
        cuda_take_array(&launch, run, ADAMW_P + i, &arguments->before[i]);
    }
    cuda_nest_tensors(&arguments->nest, 7, tensors);
    cuda_take_array(&launch, run, ADAMW_RATE, &arguments->rate);
    cuda_take_array(&launch, run, ADAMW_STEP, &arguments->step);
    arguments->has_scale = op_operand(call, ADAMW_SCALE) != NULL;
    if (arguments->has_scale) cuda_take_array(&launch, run, ADAMW_SCALE, &arguments->scale);
    arguments->beta1 = op_attr_real(attrs, OP_ATTR_beta1);
    arguments->beta2 = op_attr_real(attrs, OP_ATTR_beta2);
    arguments->eps = op_attr_real(attrs, OP_ATTR_eps);
    arguments->decay = op_attr_real(attrs, OP_ATTR_decay);
    if (arguments->nest.count == 0) return DW_OK;
    cuda_grid_items(&launch, arguments->nest.count);
    return launcher->add(launcher, &launch);
}
