/* group_norm on a GPU where groups lie side by side: the host half of norm_group.cu. */
#include "kernels/norm/norm_group.h"

#include "kernels/gpu/host/host.h"
#include "kernels/gpu/rows/host.h"
#include "kernels/kernels.h"

const char *norm_group_cuda_reject(const kernel_problem *problem, text *why) {
    for (int i = 0; i < problem->n_in; i++)
        if (problem->in[i] != NULL && !row_parts_reads(problem->in[i]->format)) return kernel_because(why, "operand %d is %s", i, dw_format_name(problem->in[i]->format));
    return NULL;
}

/* Elements of a group, 0: there are none. */
static int64_t length_of(const op_call *call) {
    const int64_t groups = op_attr_int(call->attrs, OP_ATTR_groups), items = call->in[0]->dims[0] * groups;
    return items > 0 ? op_tensor_count(call->in[0]) / items : 0;
}

static int64_t chunks_of(const op_call *call) { return base_ceil_div(length_of(call), GROUP_CHUNK); }

/* What comes in more than one chunk is read twice. The share of the bandwidth is that of norms over rows. */
double norm_group_cuda_cost(const kernel_problem *problem) {
    kernel_typical typical;
    if (!kernel_at_typical(problem, 0, &typical)) return problem->chip->launch_s;
    const double x = op_tensor_bytes(typical.run.call.in[0]), once = kernel_roofline(problem, DW_FORMAT_f32, 0.5, 0.8);
    return chunks_of(&typical.run.call) > 1 ? once + x / (0.8 * chip_bytes_per_s(problem->chip)) + problem->chip->launch_s : once;
}

size_t norm_group_cuda_workspace(const kernel_run *run) {
    const int64_t chunks = chunks_of(&run->call), items = run->call.in[0]->dims[0] * op_attr_int(run->call.attrs, OP_ATTR_groups);
    return chunks > 1 ? (size_t)(items * chunks) * 2 * sizeof(double) : 0;
}

/* weight and bias: vectors. */
static bool take_column(kernel_launch *launch, const kernel_run *run, int operand, cuda_array *array, int64_t *step) {
    const dw_tensor *column = kernel_operand(run, operand);
    if (column == NULL) return false;
    *step = column->strides[0];
    cuda_take_array(launch, run, operand, array);
    return true;
}

dw_status norm_group_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    static const char *const entries[][3] = {{"norm_group_f32", "norm_group_sums_f32", "norm_group_chunks_f32"},
                                             {"norm_group_bf16", "norm_group_sums_bf16", "norm_group_chunks_bf16"},
                                             {"norm_group_f16", "norm_group_sums_f16", "norm_group_chunks_f16"}};
    kernel_launch launch;
    group_rows_arguments *a = cuda_launch(&launch, "norm_group", NULL, sizeof *a);
    const dw_tensor *x = run->call.in[0];
    const int64_t groups = op_attr_int(run->call.attrs, OP_ATTR_groups), length = length_of(&run->call), chunks = chunks_of(&run->call);
    const char *const *entry = entries[x->format == DW_FORMAT_f32 ? 0 : x->format == DW_FORMAT_bf16 ? 1 : 2];
    if (x->dims[1] % groups != 0)
        return base_fail(run->call.context, DW_MISMATCH, "group_norm: x has %lld channels, groups is %lld, which does not divide them", (long long)x->dims[1], (long long)groups);
    if (length == 0) return DW_OK;
    if (length > INT32_MAX / 2) return base_fail(run->call.context, DW_LIMIT, "group_norm: groups of %lld elements are more than are counted; ask for cuda_group_norm", (long long)length);
    a->items = x->dims[0] * groups;
    a->groups = (int32_t)groups;
    a->length = (int32_t)length;
    a->chunks = (int32_t)chunks;
    a->channels = (int32_t)(x->dims[1] / groups);
    a->per_channel = (int32_t)(length / a->channels);
    a->eps = op_attr_real(run->call.attrs, OP_ATTR_eps);
    cuda_take_array(&launch, run, KERNEL_RESULT, &a->out);
    cuda_take_array(&launch, run, 0, &a->x);
    a->has_weight = take_column(&launch, run, 1, &a->weight, &a->weight_step);
    a->has_bias = take_column(&launch, run, 2, &a->bias, &a->bias_step);
    if (chunks > 1) cuda_slot(&launch, KERNEL_SLOT_WORKSPACE, 0, &a->partial, 0);
    launch.overlaps = true;
    cuda_grid(&launch, a->items * chunks, 1, 1);
    launch.entry = chunks > 1 ? entry[1] : entry[0];
    TRY(launcher->add(launcher, &launch));
    launch.entry = entry[2];
    return chunks > 1 ? launcher->add(launcher, &launch) : DW_OK;
}
