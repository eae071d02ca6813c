/* cross_entropy and its gradient on a GPU in one pass over rows: the host half of loss_rows.cu. */
#include "kernels/loss/loss_rows.h"

#include "kernels/gpu/host/host.h"
#include "kernels/gpu/rows/host.h"
#include "kernels/kernels.h"
#include "kernels/loss/loss_host.h"

enum { LOGITS };

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

dw_status loss_rows_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    static const char *const entries[2][3] = {{"loss_rows_f32", "loss_rows_bf16", "loss_rows_f16"}, {"loss_gradients_f32", "loss_gradients_bf16", "loss_gradients_f16"}};
    const dw_format format = run->call.in[LOGITS]->format;
    kernel_launch launch;
    const loss_arguments *arguments = loss_launch(run, "loss_rows", &launch);
    const bool is_backward = run->call.op->id == OP_cross_entropy_backward;
    launch.entry = entries[is_backward][format == DW_FORMAT_f32 ? 0 : format == DW_FORMAT_bf16 ? 1 : 2];
    if (loss_is_empty(run, arguments)) return DW_OK;
    cuda_grid(&launch, arguments->nest.count, 1, 1);
    launch.block[0] = is_backward ? LOSS_THREADS : LOSS_ROW_THREADS;
    launch.overlaps = true;
    return launcher->add(launcher, &launch);
}
