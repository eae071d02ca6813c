/* The gradients of norms on a GPU: the host half of backward.cu. */
#include "kernels/norm/backward_cuda.h"

#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"

enum { X, DY, WEIGHT, PLUS };

const char *norm_backward_cuda_reject(const kernel_problem *problem, text *why) { return cuda_reject_packed(problem, why); }

static int64_t rows_of(const dw_tensor *x) {
    int64_t rows = 1;
    for (int i = 0; i < x->rank - 1; i++) rows *= x->dims[i];
    return rows;
}

/* A thread adds the rows of its column one after another, as measured on an H100: 7.3 ms for 8192 of them. */
double norm_backward_cuda_cost(const kernel_problem *problem) {
    const double row_s = 0.89e-6;
    kernel_typical typical;
    if (!kernel_at_typical(problem, 0, &typical)) return cuda_cost(problem);
    return cuda_cost(problem) + row_s * (double)rows_of(&typical.in[X]);
}

size_t norm_backward_cuda_workspace(const kernel_run *run) { return (size_t)rows_of(run->call.in[X]) * 2 * sizeof(double); }

static norm_backward_arguments *prepare(kernel_launch *launch, const kernel_run *run, const char *entry) {
    const op_call *call = &run->call;
    const dw_tensor *x = call->in[X], *weight = op_operand(call, WEIGHT), *plus = op_operand(call, PLUS);
    const dw_tensor *tensors[] = {call->out[0], x, call->in[DY], plus != NULL ? plus : x};
    norm_backward_arguments *arguments = cuda_launch(launch, "norm_backward", entry, sizeof *arguments);
    cuda_nest_lines(&arguments->nest, x->rank - 1, 4, tensors, arguments->steps);
    arguments->cols = x->dims[x->rank - 1];
    arguments->eps = op_attr_real(call->attrs, OP_ATTR_eps);
    arguments->centred = call->op->id == OP_layer_norm_backward;
    arguments->has_weight = weight != NULL;
    arguments->has_plus = plus != NULL;
    cuda_take_array(launch, run, KERNEL_RESULT, &arguments->dx);
    cuda_take_array(launch, run, KERNEL_RESULT + 1, &arguments->dweight);
    arguments->dweight_step = call->out[1]->strides[0];
    if (arguments->centred) {
        cuda_take_array(launch, run, KERNEL_RESULT + 2, &arguments->dbias);
        arguments->dbias_step = call->out[2]->strides[0];
    }
    cuda_take_array(launch, run, X, &arguments->x);
    cuda_take_array(launch, run, DY, &arguments->dy);
    if (plus != NULL) cuda_take_array(launch, run, PLUS, &arguments->plus);
    if (weight != NULL) {
        cuda_take_array(launch, run, WEIGHT, &arguments->weight);
        arguments->weight_step = weight->strides[0];
    }
    cuda_slot(launch, KERNEL_SLOT_WORKSPACE, 0, &arguments->statistics, 0);
    return arguments;
}

dw_status norm_backward_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch rows, columns;
    const norm_backward_arguments *arguments = prepare(&rows, run, "norm_backward_rows");
    if (arguments->cols == 0) return DW_OK;
    cuda_grid_items(&rows, arguments->nest.count * CUDA_THREADS);
    if (arguments->nest.count > 0) TRY(launcher->add(launcher, &rows));
    prepare(&columns, run, "norm_backward_columns");
    cuda_grid_items(&columns, arguments->cols);
    return launcher->add(launcher, &columns);
}
