/* dropout on a GPU: the host half of dropout.cu, and of dropout_vectors.cu where elements lie in words of 16 bytes. */
#include "kernels/dropout/dropout_cuda.h"

#include "kernels/gpu/host/host.h"
#include "kernels/gpu/rows/host.h"
#include "kernels/kernels.h"
#include "op/dropping.h"

const char *dropout_cuda_reject(const kernel_problem *problem, text *why) { return cuda_reject_packed(problem, why); }

double dropout_cuda_cost(const kernel_problem *problem) { return chip_has(problem->chip, CHIP_tma) ? kernel_roofline(problem, DW_FORMAT_f32, 0.1, 0.693) : cuda_cost(problem); }

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
    const dw_tensor *x = call->in[0];
    const bool in_vectors = chip_has(run->chip, CHIP_tma) && row_parts_reads(x->format) && arguments->count % CUDA_VECTOR == 0 && cuda_lies_at_16(x->data) && cuda_lies_at_16(call->out[0]->data);
    if (in_vectors) {
        launch.image = "dropout_vectors";
        launch.entry = x->format == DW_FORMAT_f32 ? "dropout_vectors_f32" : x->format == DW_FORMAT_bf16 ? "dropout_vectors_bf16" : "dropout_vectors_f16";
        launch.overlaps = true;
    }
    cuda_grid_items(&launch, base_ceil_div(arguments->count, in_vectors ? (int)CUDA_VECTOR : (int)DROPPING_GROUP));
    return launcher->add(launcher, &launch);
}
