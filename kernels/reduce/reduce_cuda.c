/* Reductions on a GPU: the host half of reduce.cu. */
#include "kernels/reduce/reduce_cuda.h"

#include "kernels/common/cuda/host.h"
#include "kernels/kernels.h"

enum { TOGETHER = 64 };   /* from so many elements on, a block makes each result */

const char *reduce_cuda_reject(const kernel_problem *problem, text *why) { return cuda_reject_packed(problem, why); }

double reduce_cuda_cost(const kernel_problem *problem) { return cuda_cost(problem); }

size_t reduce_cuda_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

static bool finds_index(op_id id) { return id == OP_argmax || id == OP_argmin; }

static int function_of(op_id id) {
    switch (id) {
    case OP_mean: return REDUCE_mean;
    case OP_prod: return REDUCE_prod;
    case OP_amax: return REDUCE_amax;
    case OP_amin: return REDUCE_amin;
    case OP_any: return REDUCE_any;
    case OP_all: return REDUCE_all;
    case OP_argmax: return REDUCE_argmax;
    case OP_argmin: return REDUCE_argmin;
    default: return REDUCE_sum;
    }
}

static void build_nests(const op_call *call, reduce_arguments *arguments) {
    const dw_tensor *x = call->in[0], *out = call->out[0];
    const int64_t one = op_attr_int(call->attrs, OP_ATTR_axis), *axes = &one;
    int count = finds_index(call->op->id) ? 1 : op_attr_ints(call->attrs, OP_ATTR_axes, &axes), outer = 0, inner = 0;
    bool keep = op_attr_bool(call->attrs, OP_ATTR_keep);
    int64_t outer_dims[CUDA_RANK], inner_dims[CUDA_RANK], outer_strides[2][CUDA_RANK], inner_strides[1][CUDA_RANK];
    for (int i = 0, next = 0, of_out = 0; i < x->rank; i++) {
        bool reduced = next < count && axes[next] == i;
        next += reduced;
        if (reduced) {
            inner_dims[inner] = x->dims[i];
            inner_strides[0][inner++] = x->strides[i];
            of_out += keep;
            continue;
        }
        outer_dims[outer] = x->dims[i];
        outer_strides[0][outer] = out->strides[of_out++];
        outer_strides[1][outer++] = x->strides[i];
    }
    cuda_nest_build(&arguments->outer, outer, outer_dims, 2, (const int64_t(*)[CUDA_RANK])outer_strides);
    cuda_nest_build(&arguments->inner, inner, inner_dims, 1, (const int64_t(*)[CUDA_RANK])inner_strides);
}

static bool needs_elements(op_id id) { return finds_index(id) || id == OP_amax || id == OP_amin; }

dw_status reduce_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    op_id id = run->call.op->id;
    bool integer = num_info(run->call.in[0]->format)->class != NUM_FLOAT;
    reduce_arguments *arguments = cuda_launch(&launch, "reduce", finds_index(id) ? "reduce_index" : integer ? "reduce_integer" : "reduce_real", sizeof *arguments);
    build_nests(&run->call, arguments);
    if (arguments->outer.count == 0) return DW_OK;
    if (arguments->inner.count == 0 && needs_elements(id))
        return base_fail(run->call.context, DW_INVALID, "%s: the reduced axes have size 0 and so no element to name", run->call.op->name);
    arguments->function = function_of(id);
    arguments->together = finds_index(id) || arguments->inner.count >= TOGETHER;
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->out);
    cuda_take_array(&launch, run, 0, &arguments->x);
    cuda_grid_items(&launch, arguments->together ? arguments->outer.count * CUDA_THREADS : arguments->outer.count);
    return launcher->add(launcher, &launch);
}
