/* Pointwise ops on a GPU: the host half of pointwise.cu. */
#include "kernels/pointwise/pointwise_cuda.h"

#include "kernels/common/cuda/host.h"
#include "kernels/kernels.h"

const char *pointwise_cuda_reject(const kernel_problem *problem, text *why) {
    const char *packed = cuda_reject_packed(problem, why);
    if (packed != NULL) return packed;
    for (int i = 0; i < problem->n_out; i++)
        if (problem->out[i]->format == DW_FORMAT_e8m0) return "the result is e8m0, to which this kernel does not round";
    return NULL;
}

double pointwise_cuda_cost(const kernel_problem *problem) { return cuda_cost(problem); }

size_t pointwise_cuda_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

static int function_of(op_id id) {
    switch (id) {
#define CUDA_REAL1(name, expression) case OP_##name: return POINTWISE_##name;
#define CUDA_REAL2(name, expression) case OP_##name: return POINTWISE_##name;
#define CUDA_INTEGER(name) case OP_##name: return POINTWISE_##name;
#include "kernels/pointwise/pointwise_cuda.def"
#undef CUDA_REAL1
#undef CUDA_REAL2
#undef CUDA_INTEGER
    default: return POINTWISE_COUNT;
    }
}

static const char *entry_of(const kernel_run *run) {
    dw_format format = run->call.in[0]->format;
    if (run->call.op->id == OP_cast) return "pointwise_cast";
    if (run->call.op->id == OP_where) return "pointwise_where";
    if (format == DW_FORMAT_f64) return "pointwise_double";
    return num_info(format)->class == NUM_FLOAT ? "pointwise_float" : "pointwise_integer";
}

dw_status pointwise_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    pointwise_arguments *arguments = cuda_launch(&launch, "pointwise", entry_of(run), sizeof *arguments);
    const dw_tensor *tensors[] = {run->call.out[0], run->call.in[0], run->call.in[0], run->call.in[0]};
    for (int i = 0; i < 3; i++) {
        int operand = i < run->call.n_in ? i : 0;
        tensors[1 + i] = run->call.in[operand];
        cuda_take_array(&launch, run, operand, &arguments->in[i]);
    }
    cuda_nest_tensors(&arguments->nest, 4, tensors);
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->out);
    cuda_take_fault(&launch, &arguments->fault);
    arguments->function = function_of(run->call.op->id);
    arguments->is_bool = run->call.in[0]->format == DW_FORMAT_bool;
    if (arguments->nest.count == 0) return DW_OK;
    cuda_grid_items(&launch, arguments->nest.count);
    return launcher->add(launcher, &launch);
}
