/* tally on a GPU: the host half of sample_tally in sample.cu. */
#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"
#include "kernels/move/parts.h"
#include "kernels/sample/sample_cuda.h"

const char *tally_cuda_reject(const kernel_problem *problem, text *why) {
    (void)problem;
    (void)why;
    return NULL;
}

double tally_cuda_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 1, 0.3); }

size_t tally_cuda_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

dw_status tally_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    tally_arguments *arguments = cuda_launch(&launch, "sample", "sample_tally", sizeof *arguments);
    const cuda_part to = cuda_whole(run, KERNEL_RESULT), from = cuda_whole(run, TALLY_X);
    if (!cuda_is_in_place(run, TALLY_X)) TRY(cuda_copy_part(run, launcher, &to, &from));
    arguments->rows = run->call.out[0]->dims[0];
    arguments->cols = run->call.out[0]->dims[1];
    arguments->count = run->call.in[TALLY_IDS]->dims[0];
    if (arguments->count == 0) return DW_OK;
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->counts);
    cuda_take_array(&launch, run, TALLY_IDS, &arguments->ids);
    cuda_take_array(&launch, run, TALLY_ROW, &arguments->row);
    cuda_grid_items(&launch, arguments->count);
    return launcher->add(launcher, &launch);
}
