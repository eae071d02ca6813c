/* adamw on a GPU: the host half of optimizer.cu, and of optimizer_vectors.cu, which takes several parameters a launch, where all operands lie side by side, in words of 16 bytes, and in formats that
 * fp32 holds. */
#include "kernels/optimizer/optimizer_cuda.h"

#include "kernels/gpu/host/host.h"
#include "kernels/gpu/rows/host.h"
#include "kernels/kernels.h"

const char *optimizer_cuda_reject(const kernel_problem *problem, text *why) { return cuda_reject_packed(problem, why); }

/* Blocks of optimizer_vectors.cu on a multiprocessor: powers are computed once in each. */
enum { RESIDENT = 4 };

/* As an H100 takes them: README.md. */
double optimizer_cuda_cost(const kernel_problem *problem) { return chip_has(problem->chip, CHIP_tma) ? kernel_roofline(problem, DW_FORMAT_f32, 0.1, 0.85) : cuda_cost(problem); }

size_t optimizer_cuda_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

/* Whole vectors of eight, one behind the other in each operand. */
static bool lies_in_vectors(const cuda_nest *nest, const dw_tensor *const *tensors) {
    if (nest->rank != 1 || nest->count % CUDA_VECTOR != 0) return false;
    for (int i = 0; i < 7; i++)
        if (!row_parts_reads(tensors[i]->format) || !cuda_lies_at_16(tensors[i]->data) || nest->strides[i][0] != 1) return false;
    return true;
}

/* Of a parameter the results, then what they are made of. */
static void tensors_of(const op_call *call, int group, const dw_tensor **tensors) {
    for (int i = 0; i < 3; i++) tensors[i] = call->out[3 * group + i];
    for (int i = 0; i < 4; i++) tensors[3 + i] = call->in[op_update_operand(OP_adamw, group, ADAMW_P + i)];
}

static dw_status add_plain(const kernel_run *run, kernel_launcher *launcher, int group, const cuda_nest *nest) {
    const op_attrs *attrs = run->call.attrs;
    kernel_launch launch;
    optimizer_arguments *a = cuda_launch(&launch, "optimizer", "optimizer_adamw", sizeof *a);
    a->nest = *nest;
    for (int i = 0; i < 3; i++) cuda_take_array(&launch, run, KERNEL_RESULT + 3 * group + i, &a->next[i]);
    for (int i = 0; i < 4; i++) cuda_take_array(&launch, run, op_update_operand(OP_adamw, group, ADAMW_P + i), &a->before[i]);
    cuda_take_array(&launch, run, ADAMW_RATE, &a->rate);
    cuda_take_array(&launch, run, ADAMW_STEP, &a->step);
    a->has_scale = op_operand(&run->call, ADAMW_SCALE) != NULL;
    if (a->has_scale) cuda_take_array(&launch, run, ADAMW_SCALE, &a->scale);
    a->beta1 = op_attr_real(attrs, OP_ATTR_beta1);
    a->beta2 = op_attr_real(attrs, OP_ATTR_beta2);
    a->eps = op_attr_real(attrs, OP_ATTR_eps);
    a->decay = op_attr_real(attrs, OP_ATTR_decay);
    cuda_grid_items(&launch, nest->count);
    return launcher->add(launcher, &launch);
}

/* A launch of several parameters that grows until it is full. */
typedef struct list_launch { kernel_launch launch; optimizer_list *a; int count; } list_launch;

static void begin_list(const kernel_run *run, list_launch *list) {
    const op_attrs *attrs = run->call.attrs;
    optimizer_list *a = list->a = cuda_launch(&list->launch, "optimizer_vectors", "optimizer_adamw_vectors", sizeof *a);
    list->count = 0;
    list->launch.overlaps = true;
    cuda_take_array(&list->launch, run, ADAMW_RATE, &a->rate);
    cuda_take_array(&list->launch, run, ADAMW_STEP, &a->step);
    a->has_scale = op_operand(&run->call, ADAMW_SCALE) != NULL;
    if (a->has_scale) cuda_take_array(&list->launch, run, ADAMW_SCALE, &a->scale);
    a->beta1 = op_attr_real(attrs, OP_ATTR_beta1);
    a->beta2 = op_attr_real(attrs, OP_ATTR_beta2);
    a->eps = op_attr_real(attrs, OP_ATTR_eps);
    a->decay = op_attr_real(attrs, OP_ATTR_decay);
}

static dw_status end_list(const kernel_run *run, kernel_launcher *launcher, list_launch *list) {
    if (list->count == 0) return DW_OK;
    const int64_t vectors = list->a->first[list->count];
    for (int i = list->count; i < UPDATES_ADAMW; i++) list->a->first[i + 1] = vectors;
    cuda_grid_items(&list->launch, vectors);
    if (list->launch.grid[0] > (uint32_t)run->chip->units * RESIDENT) list->launch.grid[0] = (uint32_t)run->chip->units * RESIDENT;
    return launcher->add(launcher, &list->launch);
}

static dw_status add_to_list(const kernel_run *run, kernel_launcher *launcher, list_launch *list, int group, int64_t count) {
    if (list->launch.slot_count + 7 > KERNEL_SLOTS) {
        TRY(end_list(run, launcher, list));
        begin_list(run, list);
    }
    const int k = list->count++;
    for (int i = 0; i < 3; i++) cuda_take_array(&list->launch, run, KERNEL_RESULT + 3 * group + i, &list->a->next[k][i]);
    for (int i = 0; i < 4; i++) cuda_take_array(&list->launch, run, op_update_operand(OP_adamw, group, ADAMW_P + i), &list->a->before[k][i]);
    list->a->first[k + 1] = list->a->first[k] + count / CUDA_VECTOR;
    return DW_OK;
}

dw_status optimizer_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    list_launch list;
    begin_list(run, &list);
    for (int group = 0; group < op_update_groups(OP_adamw, run->call.n_in); group++) {
        const dw_tensor *tensors[7];
        cuda_nest nest;
        tensors_of(&run->call, group, tensors);
        cuda_nest_tensors(&nest, 7, tensors);
        if (nest.count == 0) continue;
        if (chip_has(run->chip, CHIP_tma) && lies_in_vectors(&nest, tensors)) TRY(add_to_list(run, launcher, &list, group, nest.count));
        else TRY(add_plain(run, launcher, group, &nest));
    }
    return end_list(run, launcher, &list);
}
