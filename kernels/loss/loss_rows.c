/* cross_entropy and its gradient on a GPU in one pass over rows: the host half of loss_rows.cu. */
#include "kernels/loss/loss_rows.h"

#include "kernels/gpu/host/host.h"
#include "kernels/gpu/rows/host.h"
#include "kernels/kernels.h"

enum { LOGITS, LABELS, LSE, D };

const char *loss_rows_cuda_reject(const kernel_problem *problem, text *why) {
    const op_type *logits = problem->in[LOGITS];
    if (!row_parts_reads(logits->format)) {
        text_printf(why, "logits are %s", dw_format_name(logits->format));
        return text_string(why);
    }
    if (problem->op->id == OP_cross_entropy_backward && problem->out[0]->format != logits->format) return "the gradient has another format than the logits";
    return cuda_reject_packed(problem, why);
}

double loss_rows_cuda_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 0.5, 0.6); }

size_t loss_rows_cuda_workspace(const kernel_run *run) { return kernel_no_workspace(run); }

/* x without its last axis: where its rows begin. */
static dw_tensor rows_of(const dw_tensor *x) {
    dw_tensor rows = *x;
    rows.rank--;
    return rows;
}

dw_status loss_rows_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    static const char *const entries[2][3] = {{"loss_rows_f32", "loss_rows_bf16", "loss_rows_f16"}, {"loss_gradients_f32", "loss_gradients_bf16", "loss_gradients_f16"}};
    const op_call *call = &run->call;
    const bool is_backward = call->op->id == OP_cross_entropy_backward;
    const op_attr *ignore = op_attrs_get(call->attrs, OP_ATTR_ignore);
    const dw_tensor *logits = call->in[LOGITS], *out = call->out[0];
    const dw_tensor logit_rows = rows_of(logits), out_rows = rows_of(out);
    const dw_tensor *tensors[] = {call->in[LABELS], &logit_rows, is_backward ? &out_rows : out, is_backward ? call->in[LSE] : call->out[1], is_backward ? call->in[D] : NULL};
    kernel_launch launch;
    loss_rows_arguments *arguments = cuda_launch(&launch, "loss_rows", NULL, sizeof *arguments);
    launch.entry = entries[is_backward][logits->format == DW_FORMAT_f32 ? 0 : logits->format == DW_FORMAT_bf16 ? 1 : 2];
    cuda_nest_tensors(&arguments->nest, is_backward ? 5 : 4, tensors);
    cuda_take_array(&launch, run, LABELS, &arguments->labels);
    cuda_take_array(&launch, run, LOGITS, &arguments->logits);
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->made);
    cuda_take_array(&launch, run, is_backward ? (int)LSE : KERNEL_RESULT + 1, &arguments->lse);
    if (is_backward) cuda_take_array(&launch, run, D, &arguments->d);
    arguments->count = (int32_t)logits->dims[logits->rank - 1];
    arguments->step = logits->strides[logits->rank - 1];
    arguments->made_step = is_backward ? out->strides[out->rank - 1] : 0;
    arguments->has_ignore = ignore != NULL;
    arguments->ignore = ignore != NULL ? ignore->integer : 0;
    arguments->smoothing = op_attr_real(call->attrs, OP_ATTR_smoothing);
    if (arguments->nest.count == 0 || (is_backward && arguments->count == 0)) return DW_OK;
    cuda_grid(&launch, arguments->nest.count, 1, 1);
    launch.block[0] = LOSS_THREADS;
    launch.overlaps = true;
    return launcher->add(launcher, &launch);
}
