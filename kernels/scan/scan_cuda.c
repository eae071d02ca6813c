/* cumsum, sort, topk and bincount on a GPU: the host half of scan.cu. */
#include "kernels/scan/scan_cuda.h"

#include "kernels/common/cuda/host.h"
#include "kernels/common/cuda/parts.h"
#include "kernels/kernels.h"

const char *scan_cuda_reject(const kernel_problem *problem, text *why) { return cuda_reject_packed(problem, why); }

double scan_cuda_cost(const kernel_problem *problem) { return cuda_cost(problem); }

size_t scan_cuda_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

static dw_status shape_cumsum(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    cumsum_arguments *arguments = cuda_launch(&launch, "scan", "scan_cumsum", sizeof *arguments);
    int axis = (int)op_attr_int(run->call.attrs, OP_ATTR_axis);
    const dw_tensor *tensors[] = {run->call.out[0], run->call.in[0]};
    int64_t steps[2];
    cuda_nest_lines(&arguments->nest, axis, 2, tensors, steps);
    arguments->count = tensors[0]->dims[axis];
    arguments->out_step = tensors[0]->strides[axis];
    arguments->x_step = tensors[1]->strides[axis];
    arguments->exclusive = op_attr_bool(run->call.attrs, OP_ATTR_exclusive);
    if (arguments->nest.count == 0 || arguments->count == 0) return DW_OK;
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->out);
    cuda_take_array(&launch, run, 0, &arguments->x);
    cuda_grid_items(&launch, arguments->nest.count);
    return launcher->add(launcher, &launch);
}

static dw_status shape_order(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    order_arguments *arguments = cuda_launch(&launch, "scan", "scan_order", sizeof *arguments);
    int axis = (int)op_attr_int(run->call.attrs, OP_ATTR_axis);
    const dw_tensor *values = run->call.out[0], *indices = run->call.out[1];
    dw_tensor x = *run->call.in[0];
    bool is_topk = run->call.op->id == OP_topk;
    arguments->count = x.dims[axis];
    arguments->length = values->dims[axis];
    if (arguments->length > arguments->count)
        return base_fail(run->call.context, DW_INVALID, "%s: length is %lld, the axis has size %lld", run->call.op->name, (long long)arguments->length, (long long)arguments->count);
    x.dims[axis] = values->dims[axis];   /* so that lines compare; the axis itself is left out */
    const dw_tensor *tensors[] = {values, &x, indices};
    int64_t steps[3];
    cuda_nest_lines(&arguments->nest, axis, 3, tensors, steps);
    arguments->values_step = values->strides[axis];
    arguments->x_step = x.strides[axis];
    arguments->indices_step = indices->strides[axis];
    arguments->descending = op_attr_bool(run->call.attrs, is_topk ? OP_ATTR_largest : OP_ATTR_descending);
    if (arguments->nest.count == 0 || arguments->length == 0) return DW_OK;
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->values);
    cuda_take_array(&launch, run, 0, &arguments->x);
    cuda_take_array(&launch, run, KERNEL_RESULT + 1, &arguments->indices);
    cuda_grid_items(&launch, arguments->nest.count * arguments->count);
    return launcher->add(launcher, &launch);
}

static dw_status shape_bincount(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    bincount_arguments *arguments = cuda_launch(&launch, "scan", "scan_bincount", sizeof *arguments);
    const dw_tensor *x = run->call.in[0], *out = run->call.out[0];
    TRY(cuda_fill_with(run, launcher, KERNEL_RESULT, 0));
    cuda_nest_tensors(&arguments->nest, 1, &x);
    arguments->length = out->dims[0];
    arguments->out_step = out->strides[0];
    if (arguments->nest.count == 0) return DW_OK;
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->out);
    cuda_take_array(&launch, run, 0, &arguments->x);
    cuda_grid_items(&launch, arguments->nest.count);
    return launcher->add(launcher, &launch);
}

dw_status scan_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    if (run->call.op->id == OP_cumsum) return shape_cumsum(run, launcher);
    return run->call.op->id == OP_bincount ? shape_bincount(run, launcher) : shape_order(run, launcher);
}
