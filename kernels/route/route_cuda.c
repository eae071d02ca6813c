/* dispatch and combine on a GPU: the host half of route.cu. */
#include "kernels/route/route_cuda.h"

#include "kernels/common/cuda/host.h"
#include "kernels/kernels.h"

const char *route_cuda_reject(const kernel_problem *problem, text *why) { return cuda_reject_packed(problem, why); }

double route_cuda_cost(const kernel_problem *problem) { return cuda_cost(problem); }

size_t route_cuda_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

dw_status route_dispatch_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    dispatch_arguments *arguments = cuda_launch(&launch, "route", "route_dispatch", sizeof *arguments);
    const dw_tensor *ids = run->call.in[0], *rows = run->call.out[0], *place = run->call.out[1], *offsets = run->call.out[2];
    arguments->tokens = ids->dims[0];
    arguments->choices = ids->dims[1];
    arguments->experts = offsets->dims[0];
    arguments->ids_token = ids->strides[0];
    arguments->ids_choice = ids->strides[1];
    arguments->rows_step = rows->strides[0];
    arguments->place_token = place->strides[0];
    arguments->place_choice = place->strides[1];
    arguments->offsets_step = offsets->strides[0];
    cuda_take_array(&launch, run, 0, &arguments->ids);
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->rows);
    cuda_take_array(&launch, run, KERNEL_RESULT + 1, &arguments->place);
    cuda_take_array(&launch, run, KERNEL_RESULT + 2, &arguments->offsets);
    return launcher->add(launcher, &launch);
}

dw_status route_combine_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    combine_arguments *arguments = cuda_launch(&launch, "route", "route_combine", sizeof *arguments);
    const dw_tensor *y = run->call.in[0], *place = run->call.in[1], *weights = run->call.in[2], *out = run->call.out[0];
    arguments->tokens = out->dims[0];
    arguments->cols = out->dims[1];
    arguments->choices = place->dims[1];
    arguments->y_rows = y->dims[0];
    arguments->out_token = out->strides[0];
    arguments->out_col = out->strides[1];
    arguments->y_row = y->strides[0];
    arguments->y_col = y->strides[1];
    arguments->place_token = place->strides[0];
    arguments->place_choice = place->strides[1];
    arguments->weights_token = weights->strides[0];
    arguments->weights_choice = weights->strides[1];
    if (arguments->tokens == 0 || arguments->cols == 0) return DW_OK;
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->out);
    cuda_take_array(&launch, run, 0, &arguments->y);
    cuda_take_array(&launch, run, 1, &arguments->place);
    cuda_take_array(&launch, run, 2, &arguments->weights);
    cuda_take_fault(&launch, &arguments->fault);
    cuda_grid_items(&launch, arguments->tokens * arguments->cols);
    return launcher->add(launcher, &launch);
}
