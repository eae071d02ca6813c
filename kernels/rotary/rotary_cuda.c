/* rotary on a GPU: the host half of rotary.cu. */
#include "kernels/rotary/rotary_cuda.h"

#include "kernels/common/cuda/host.h"
#include "kernels/kernels.h"

const char *rotary_cuda_reject(const kernel_problem *problem, text *why) { return cuda_reject_packed(problem, why); }

double rotary_cuda_cost(const kernel_problem *problem) { return cuda_cost(problem); }

size_t rotary_cuda_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

dw_status rotary_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    rotary_arguments *arguments = cuda_launch(&launch, "rotary", "rotary_rows", sizeof *arguments);
    const dw_tensor *out = run->call.out[0];
    int last = out->rank - 1;
    int64_t steps[4];
    arguments->width = op_attr_int(run->call.attrs, OP_ATTR_width);
    if (arguments->width > out->dims[last])
        return base_fail(run->call.context, DW_MISMATCH, "rotary: width is %lld, the last axis of x is %lld", (long long)arguments->width, (long long)out->dims[last]);
    const dw_tensor *tensors[] = {out, run->call.in[0], run->call.in[1], run->call.in[2]};
    cuda_nest_lines(&arguments->nest, last, 4, tensors, steps);
    arguments->cols = out->dims[last];
    arguments->out_step = steps[0];
    arguments->x_step = steps[1];
    arguments->cosine_step = steps[2];
    arguments->sine_step = steps[3];
    arguments->interleaved = op_attr_bool(run->call.attrs, OP_ATTR_interleaved);
    if (arguments->nest.count == 0) return DW_OK;
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->out);
    cuda_take_array(&launch, run, 0, &arguments->x);
    cuda_take_array(&launch, run, 1, &arguments->cosine);
    cuda_take_array(&launch, run, 2, &arguments->sine);
    cuda_grid_items(&launch, arguments->nest.count * (arguments->cols - arguments->width / 2));
    return launcher->add(launcher, &launch);
}
