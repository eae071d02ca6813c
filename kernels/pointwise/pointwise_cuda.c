/* Pointwise ops on a GPU: the host half of pointwise.cu, and of pointwise_vectors.cu where operands lie so. Those that read transposed operands are chains of one step (chain_tiles.c). */
#include "kernels/pointwise/pointwise_cuda.h"

#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"
#include "kernels/pointwise/functions.h"

const char *pointwise_cuda_reject(const kernel_problem *problem, text *why) {
    const char *packed = cuda_reject_packed(problem, why);
    if (packed != NULL) return packed;
    for (int i = 0; i < problem->n_out; i++)
        if (problem->out[i]->format == DW_FORMAT_e8m0) return "the result is e8m0, to which this kernel does not round";
    return NULL;
}

double pointwise_cuda_cost(const kernel_problem *problem) { return cuda_vector_cost(problem); }

size_t pointwise_cuda_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

static const char *entry_of(const kernel_run *run) {
    dw_format format = run->call.in[0]->format;
    if (run->call.op->id == OP_cast) return "pointwise_cast";
    if (run->call.op->id == OP_where) return "pointwise_where";
    if (format == DW_FORMAT_f64) return "pointwise_double";
    return num_info(format)->class == NUM_FLOAT ? "pointwise_float" : "pointwise_integer";
}

static bool is_real(dw_format format) { return format == DW_FORMAT_f32 || format == DW_FORMAT_bf16 || format == DW_FORMAT_f16; }

/* Elements that vectors hold: reals of at most 32 bits, of which predicates make bools; where moves any of 2 or 4 bytes. */
static bool has_vectors(const kernel_run *run) {
    const dw_tensor *const *in = run->call.in, *out = run->call.out[0];
    if (!chip_has(run->chip, CHIP_tma)) return false;
    if (run->call.op->id == OP_where) return dw_format_bits(out->format) == 16 || dw_format_bits(out->format) == 32;
    for (int i = 0; i < run->call.n_in; i++)
        if (!is_real(in[i]->format)) return false;
    return is_real(out->format) || (out->format == DW_FORMAT_bool && run->call.op->id != OP_cast);
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
    arguments->elements = arguments->nest.count;
    if (has_vectors(run) && cuda_nest_vectors(&arguments->nest, 4, tensors, arguments->steps)) {
        launch.image = "pointwise_vectors";
        launch.overlaps = true;
        launch.entry = run->call.op->id == OP_where ? "pointwise_vectors_where" : "pointwise_vectors";
    } else if (arguments->nest.count > 0) {
        kernel_launch tiles;
        if (chain_tiles_launch_op(run, &arguments->nest, &tiles)) return launcher->add(launcher, &tiles);
    }
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->out);
    cuda_take_fault(&launch, &arguments->fault);
    arguments->function = pointwise_function_of(run->call.op->id);
    arguments->is_bool = run->call.in[0]->format == DW_FORMAT_bool;
    if (arguments->nest.count == 0) return DW_OK;
    cuda_grid_items(&launch, arguments->nest.count);
    return launcher->add(launcher, &launch);
}
