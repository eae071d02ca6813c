/* adamw on a GPU: the host half of optimizer.cu, and of optimizer_vectors.cu where all operands lie side by side, in words of 16 bytes, and in formats that fp32 holds. */
#include "kernels/optimizer/optimizer_cuda.h"

#include "kernels/gpu/host/host.h"
#include "kernels/gpu/rows/host.h"
#include "kernels/kernels.h"

const char *optimizer_cuda_reject(const kernel_problem *problem, text *why) { return cuda_reject_packed(problem, why); }

/* Blocks of optimizer_vectors.cu on a multiprocessor: powers are computed once in each. */
enum { RESIDENT = 4 };

double optimizer_cuda_cost(const kernel_problem *problem) { return chip_has(problem->chip, CHIP_tma) ? kernel_roofline(problem, DW_FORMAT_f32, 0.1, 0.693) : cuda_cost(problem); }

size_t optimizer_cuda_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

/* Whole vectors of eight, one behind the other in each operand. */
static bool lies_in_vectors(const cuda_nest *nest, const dw_tensor *const *tensors) {
    if (nest->rank != 1 || nest->count % CUDA_VECTOR != 0) return false;
    for (int i = 0; i < 7; i++)
        if (!row_parts_reads(tensors[i]->format) || !cuda_lies_at_16(tensors[i]->data) || nest->strides[i][0] != 1) return false;
    return true;
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
    if (chip_has(run->chip, CHIP_tma) && lies_in_vectors(&arguments->nest, tensors)) {
        launch.image = "optimizer_vectors";
        launch.entry = "optimizer_adamw_vectors";
        launch.overlaps = true;
        arguments->nest.count /= CUDA_VECTOR;
    }
    cuda_grid_items(&launch, arguments->nest.count);
    if (launch.overlaps && launch.grid[0] > (uint32_t)run->chip->units * RESIDENT) launch.grid[0] = (uint32_t)run->chip->units * RESIDENT;
    return launcher->add(launcher, &launch);
}
