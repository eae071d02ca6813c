/* cross_entropy and its gradient on a GPU: the host half of loss.cu. */
#include "kernels/loss/loss_host.h"

#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"

enum { LOGITS, LABELS, LSE, D };

const char *loss_cuda_reject(const kernel_problem *problem, text *why) { return cuda_reject_packed(problem, why); }

double loss_cuda_cost(const kernel_problem *problem) { return cuda_cost(problem); }

size_t loss_cuda_workspace(const kernel_run *run) { return kernel_no_workspace(run); }

/* x without its last axis: where its rows begin. */
static dw_tensor rows_of(const dw_tensor *x) {
    dw_tensor rows = *x;
    rows.rank--;
    return rows;
}

loss_arguments *loss_launch(const kernel_run *run, const char *image, kernel_launch *launch) {
    const op_call *call = &run->call;
    const bool is_backward = call->op->id == OP_cross_entropy_backward;
    const op_attr *ignore = op_attrs_get(call->attrs, OP_ATTR_ignore), *classes = op_attrs_get(call->attrs, OP_ATTR_classes);
    const dw_tensor *logits = call->in[LOGITS], *out = call->out[0];
    const dw_tensor logit_rows = rows_of(logits), out_rows = rows_of(out);
    const dw_tensor *tensors[] = {call->in[LABELS], &logit_rows, is_backward ? &out_rows : out, is_backward ? call->in[LSE] : call->out[1], is_backward ? call->in[D] : NULL};
    loss_arguments *arguments = cuda_launch(launch, image, NULL, sizeof *arguments);
    cuda_nest_tensors(&arguments->nest, is_backward ? 5 : 4, tensors);
    cuda_take_array(launch, run, LABELS, &arguments->labels);
    cuda_take_array(launch, run, LOGITS, &arguments->logits);
    cuda_take_array(launch, run, KERNEL_RESULT, &arguments->made);
    cuda_take_array(launch, run, is_backward ? (int)LSE : KERNEL_RESULT + 1, &arguments->lse);
    if (is_backward) cuda_take_array(launch, run, D, &arguments->d);
    arguments->columns = logits->dims[logits->rank - 1];
    arguments->count = classes != NULL ? classes->integer : arguments->columns;
    arguments->step = logits->strides[logits->rank - 1];
    arguments->made_step = is_backward ? out->strides[out->rank - 1] : 0;
    arguments->has_ignore = ignore != NULL;
    arguments->ignore = ignore != NULL ? ignore->integer : 0;
    arguments->smoothing = op_attr_real(call->attrs, OP_ATTR_smoothing);
    return arguments;
}

bool loss_is_empty(const kernel_run *run, const loss_arguments *arguments) {
    return arguments->nest.count == 0 || (run->call.op->id == OP_cross_entropy_backward && arguments->columns == 0);
}

dw_status loss_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    const loss_arguments *arguments = loss_launch(run, "loss", &launch);
    launch.entry = run->call.op->id == OP_cross_entropy_backward ? "loss_gradients" : "loss_rows";
    if (loss_is_empty(run, arguments)) return DW_OK;
    cuda_grid_items(&launch, arguments->nest.count * CUDA_THREADS);
    return launcher->add(launcher, &launch);
}
