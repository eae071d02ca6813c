/* sum_squares on a GPU: the host half of squares.cu. */
#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"
#include "kernels/optimizer/squares.h"

const char *squares_cuda_reject(const kernel_problem *problem, text *why) { return cuda_reject_packed(problem, why); }

/* Operands are read once, side by side: 2.69 TB/s on an H100. */
double squares_cuda_cost(const kernel_problem *problem) { return problem->chip->launch_s + kernel_roofline(problem, DW_FORMAT_f32, 0.1, 0.8); }

static int64_t parts_of(const dw_tensor *x) { return base_ceil_div(op_tensor_count(x), SQUARES_PART); }

static int64_t all_parts(const op_call *call) {
    int64_t parts = 0;
    for (int i = 0; i < call->n_in; i++) parts += parts_of(call->in[i]);
    return parts;
}

size_t squares_cuda_workspace(const kernel_run *run) { return (size_t)all_parts(&run->call) * sizeof(double); }

/* The operands [first, end); *part: how many parts lie before them, and behind it with them. */
static dw_status add_parts(const kernel_run *run, kernel_launcher *launcher, int first, int end, int64_t *part) {
    kernel_launch launch;
    squares_arguments *a = cuda_launch(&launch, "squares", "squares_parts", sizeof *a);
    for (int i = 0; i < SQUARES_OPERANDS; i++) {
        const int operand = first + i;
        if (operand < end) {
            cuda_take_array(&launch, run, operand, &a->x[i]);
            a->counts[i] = op_tensor_count(run->call.in[operand]);
        }
        a->first[i + 1] = a->first[i] + (operand < end ? parts_of(run->call.in[operand]) : 0);
    }
    cuda_slot(&launch, KERNEL_SLOT_WORKSPACE, 0, &a->parts, *part * (int64_t)sizeof(double));
    *part += a->first[SQUARES_OPERANDS];
    if (a->first[SQUARES_OPERANDS] == 0) return DW_OK;
    cuda_grid_items(&launch, a->first[SQUARES_OPERANDS] * CUDA_THREADS);
    return launcher->add(launcher, &launch);
}

dw_status squares_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    const int count = run->call.n_in;
    kernel_launch launch;
    int64_t part = 0;
    for (int first = 0; first < count; first += SQUARES_OPERANDS) TRY(add_parts(run, launcher, first, first + SQUARES_OPERANDS < count ? first + SQUARES_OPERANDS : count, &part));
    squares_arguments *a = cuda_launch(&launch, "squares", "squares_total", sizeof *a);
    a->all = part;
    cuda_take_array(&launch, run, KERNEL_RESULT, &a->out);
    cuda_slot(&launch, KERNEL_SLOT_WORKSPACE, 0, &a->parts, 0);
    cuda_grid_items(&launch, CUDA_THREADS);
    return launcher->add(launcher, &launch);
}
