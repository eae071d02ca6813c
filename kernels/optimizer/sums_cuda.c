/* accumulate on a GPU: the host half of optimizer.cu, and of optimizer_vectors.cu, which takes several sums a launch, where all operands lie side by side, in words of 16 bytes, and in formats that fp32
 * holds. */
#include "kernels/gpu/host/host.h"
#include "kernels/gpu/rows/host.h"
#include "kernels/kernels.h"
#include "kernels/optimizer/optimizer_cuda.h"

enum { RESIDENT = 8 };   /* blocks of optimizer_vectors.cu on a multiprocessor */

const char *sums_cuda_reject(const kernel_problem *problem, text *why) { return cuda_reject_packed(problem, why); }

/* Bandwidth bound, as an H100 takes them: README.md. */
double sums_cuda_cost(const kernel_problem *problem) { return chip_has(problem->chip, CHIP_tma) ? kernel_roofline(problem, DW_FORMAT_f32, 0.1, 0.9) : cuda_cost(problem); }

size_t sums_cuda_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

static bool lies_in_vectors(const cuda_nest *nest, const dw_tensor *const *tensors) {
    if (nest->rank != 1 || nest->count % CUDA_VECTOR != 0) return false;
    for (int i = 0; i < 3; i++)
        if (!row_parts_reads(tensors[i]->format) || !cuda_lies_at_16(tensors[i]->data) || nest->strides[i][0] != 1) return false;
    return true;
}

static dw_status add_plain(const kernel_run *run, kernel_launcher *launcher, int group, const cuda_nest *nest) {
    kernel_launch launch;
    sums_arguments *a = cuda_launch(&launch, "optimizer", "optimizer_accumulate", sizeof *a);
    a->nest = *nest;
    cuda_take_array(&launch, run, KERNEL_RESULT + group, &a->next);
    cuda_take_array(&launch, run, op_update_operand(OP_accumulate, group, SUMS_SUM), &a->sum);
    cuda_take_array(&launch, run, op_update_operand(OP_accumulate, group, SUMS_G), &a->g);
    cuda_take_array(&launch, run, SUMS_FACTOR, &a->factor);
    cuda_grid_items(&launch, nest->count);
    return launcher->add(launcher, &launch);
}

/* A launch of several sums that grows until it is full. */
typedef struct list_launch { kernel_launch launch; sums_list *a; int count; } list_launch;

static void begin_list(const kernel_run *run, list_launch *list) {
    list->a = cuda_launch(&list->launch, "optimizer_vectors", "optimizer_accumulate_vectors", sizeof *list->a);
    list->count = 0;
    list->launch.overlaps = true;
    cuda_take_array(&list->launch, run, SUMS_FACTOR, &list->a->factor);
}

static dw_status end_list(const kernel_run *run, kernel_launcher *launcher, list_launch *list) {
    if (list->count == 0) return DW_OK;
    const int64_t vectors = list->a->first[list->count];
    for (int i = list->count; i < UPDATES_SUMS; i++) list->a->first[i + 1] = vectors;
    cuda_grid_items(&list->launch, vectors);
    if (list->launch.grid[0] > (uint32_t)run->chip->units * RESIDENT) list->launch.grid[0] = (uint32_t)run->chip->units * RESIDENT;
    return launcher->add(launcher, &list->launch);
}

static dw_status add_to_list(const kernel_run *run, kernel_launcher *launcher, list_launch *list, int group, int64_t count) {
    if (list->launch.slot_count + 3 > KERNEL_SLOTS) {
        TRY(end_list(run, launcher, list));
        begin_list(run, list);
    }
    const int k = list->count++;
    cuda_take_array(&list->launch, run, KERNEL_RESULT + group, &list->a->next[k]);
    cuda_take_array(&list->launch, run, op_update_operand(OP_accumulate, group, SUMS_SUM), &list->a->sum[k]);
    cuda_take_array(&list->launch, run, op_update_operand(OP_accumulate, group, SUMS_G), &list->a->g[k]);
    list->a->first[k + 1] = list->a->first[k] + count / CUDA_VECTOR;
    return DW_OK;
}

dw_status sums_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    list_launch list;
    begin_list(run, &list);
    for (int group = 0; group < run->call.n_out; group++) {
        const dw_tensor *tensors[3] = {run->call.out[group], run->call.in[op_update_operand(OP_accumulate, group, SUMS_SUM)], run->call.in[op_update_operand(OP_accumulate, group, SUMS_G)]};
        cuda_nest nest;
        cuda_nest_tensors(&nest, 3, tensors);
        if (nest.count == 0) continue;
        if (chip_has(run->chip, CHIP_tma) && lies_in_vectors(&nest, tensors)) TRY(add_to_list(run, launcher, &list, group, nest.count));
        else TRY(add_plain(run, launcher, group, &nest));
    }
    return end_list(run, launcher, &list);
}
