/* dropout on a GPU: the host half of dropout.cu. */
#include "kernels/dropout/dropout_cuda.h"

#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"
#include "op/dropping.h"

const char *dropout_cuda_reject(const kernel_problem *problem, text *why) { return cuda_reject_packed(problem, why); }

double dropout_cuda_cost(const kernel_problem *problem) { return cuda_cost(problem); }

size_t dropout_cuda_workspace(const kernel_run *run) { return kernel_no_workspace(run); }

dw_status dropout_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    const op_call *call = &run->call;
    const double probability = op_attr_real(call->attrs, OP_ATTR_probability);
    kernel_launch launch;
    dropout_arguments *arguments = cuda_launch(&launch, "dropout", "dropout_elements", sizeof *arguments);
    cuda_take_array(&launch, run, 0, &arguments->x);
    cuda_take_array(&launch, run, 1, &arguments->draw);
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->out);
    arguments->count = op_tensor_count(call->in[0]);
    arguments->threshold = dropping_threshold(probability);
    arguments->factor = dropping_factor(probability);
    arguments->site = (uint32_t)op_attr_int(call->attrs, OP_ATTR_site);
    arguments->is_double = call->in[0]->format == DW_FORMAT_f64;
    if (arguments->count == 0) return DW_OK;
    cuda_grid_items(&launch, base_ceil_div(arguments->count, DROPPING_GROUP));
    return launcher->add(launcher, &launch);
}
