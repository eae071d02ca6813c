/* dispatch and combine on a GPU: the host half of route.cu and route_blocks.cu. */
#include "kernels/route/route_cuda.h"

#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"

const char *route_cuda_reject(const kernel_problem *problem, text *why) { return cuda_reject_packed(problem, why); }

/* ---- dispatch ---- */

/* Chunks of ids that blocks take; 0: experts are counted one by one. */
static int64_t chunks_of(const kernel_run *run) {
    const int64_t ids = op_tensor_count(run->call.in[0]), experts = run->call.out[2]->dims[0];
    if (!chip_has(run->chip, CHIP_tma) || experts > DISPATCH_EXPERTS || ids > INT32_MAX / 2) return 0;
    return ids <= DISPATCH_CHUNK ? 1 : base_ceil_div(ids, DISPATCH_CHUNK);
}

/* In a model's step on an H200 (bench/results/h200/models.md): of each launch its start and a walk over a block's ids. */
static double dispatch_seconds(const kernel_run *run) {
    const int64_t ids = op_tensor_count(run->call.in[0]), chunks = chunks_of(run);
    const double start_s = run->chip->launch_s + 2e-6, id_s = 1.3e-9;
    if (chunks == 0) return start_s + (double)ids * id_s;
    return (chunks > 1 ? 2 : 1) * (start_s + (double)(ids < DISPATCH_CHUNK ? ids : DISPATCH_CHUNK) * id_s);
}

double route_cuda_cost(const kernel_problem *problem) {
    const double start_s = 4e-6;          /* of a combination, measured likewise */
    kernel_typical typical;
    if (problem->op->id == OP_combine) return start_s + kernel_roofline(problem, DW_FORMAT_f32, 0.1, 0.38);
    return kernel_at_typical(problem, 0, &typical) ? dispatch_seconds(&typical.run) : problem->chip->launch_s;
}

size_t route_cuda_workspace(const kernel_run *run) {
    const int64_t chunks = run->call.op->id == OP_dispatch ? chunks_of(run) : 0;
    return chunks > 1 ? (size_t)(chunks * (run->call.out[2]->dims[0] + 1)) * sizeof(uint32_t) : 0;
}

static dw_status launch_chunks(kernel_launcher *launcher, kernel_launch *launch, dispatch_arguments *arguments, int64_t chunks) {
    launch->image = "route_blocks";
    launch->overlaps = true;
    launch->block[0] = DISPATCH_THREADS;
    launch->shared_bytes = (uint32_t)DISPATCH_SHARED_BYTES(arguments->experts);
    cuda_grid(launch, chunks, 1, 1);
    if (chunks > 1) {
        launch->entry = "route_count";
        cuda_slot(launch, KERNEL_SLOT_WORKSPACE, 0, &arguments->counts, 0);
        TRY(launcher->add(launcher, launch));
    }
    launch->entry = "route_place";
    return launcher->add(launcher, launch);
}

dw_status route_dispatch_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    dispatch_arguments *arguments = cuda_launch(&launch, "route", "route_dispatch", sizeof *arguments);
    const dw_tensor *ids = run->call.in[0], *rows = run->call.out[0], *place = run->call.out[1], *offsets = run->call.out[2];
    arguments->tokens = ids->dims[0];
    arguments->choices = ids->dims[1];
    arguments->experts = offsets->dims[0];
    arguments->ids_token = ids->strides[0];
    arguments->ids_choice = ids->strides[1];
    arguments->rows_step = rows->strides[0];
    arguments->place_token = place->strides[0];
    arguments->place_choice = place->strides[1];
    arguments->offsets_step = offsets->strides[0];
    cuda_take_array(&launch, run, 0, &arguments->ids);
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->rows);
    cuda_take_array(&launch, run, KERNEL_RESULT + 1, &arguments->place);
    cuda_take_array(&launch, run, KERNEL_RESULT + 2, &arguments->offsets);
    const int64_t chunks = chunks_of(run);
    return chunks > 0 ? launch_chunks(launcher, &launch, arguments, chunks) : launcher->add(launcher, &launch);
}

/* ---- combine ---- */

/* Do rows of y and of the result lie in vectors of eight elements, in formats that are computed in fp32? */
static bool combines_vectors(const kernel_run *run) {
    const dw_tensor *const tensors[] = {run->call.in[0], run->call.out[0]};
    const dw_format weights = run->call.in[2]->format;
    if (!chip_has(run->chip, CHIP_tma) || weights == DW_FORMAT_f64 || tensors[1]->dims[1] % CUDA_VECTOR != 0) return false;
    for (size_t i = 0; i < COUNT_OF(tensors); i++) {
        const dw_tensor *t = tensors[i];
        if (t->format != DW_FORMAT_f32 && t->format != DW_FORMAT_bf16 && t->format != DW_FORMAT_f16) return false;
        if (!cuda_lies_at_16(t->data) || t->strides[1] != 1 || t->strides[0] % CUDA_VECTOR != 0) return false;
    }
    return true;
}

dw_status route_combine_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    combine_arguments *arguments = cuda_launch(&launch, "route", "route_combine", sizeof *arguments);
    const dw_tensor *y = run->call.in[0], *place = run->call.in[1], *weights = run->call.in[2], *out = run->call.out[0];
    arguments->tokens = out->dims[0];
    arguments->cols = out->dims[1];
    arguments->choices = place->dims[1];
    arguments->y_rows = y->dims[0];
    arguments->out_token = out->strides[0];
    arguments->out_col = out->strides[1];
    arguments->y_row = y->strides[0];
    arguments->y_col = y->strides[1];
    arguments->place_token = place->strides[0];
    arguments->place_choice = place->strides[1];
    arguments->weights_token = weights->strides[0];
    arguments->weights_choice = weights->strides[1];
    if (arguments->tokens == 0 || arguments->cols == 0) return DW_OK;
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->out);
    cuda_take_array(&launch, run, 0, &arguments->y);
    cuda_take_array(&launch, run, 1, &arguments->place);
    cuda_take_array(&launch, run, 2, &arguments->weights);
    cuda_take_fault(&launch, &arguments->fault);
    const bool in_vectors = combines_vectors(run);
    if (in_vectors) {
        launch.image = "route_blocks";
        launch.entry = "route_combine_vectors";
        launch.overlaps = true;
    }
    cuda_grid_items(&launch, arguments->tokens * (in_vectors ? arguments->cols / CUDA_VECTOR : arguments->cols));
    return launcher->add(launcher, &launch);
}
