/* rotary on a GPU: the host half of rotary.cu, and of rotary_vectors.cu where rows lie so. */
#include "kernels/rotary/rotary_cuda.h"

#include <stdlib.h>

#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"

const char *rotary_cuda_reject(const kernel_problem *problem, text *why) { return cuda_reject_packed(problem, why); }

double rotary_cuda_cost(const kernel_problem *problem) { return cuda_vector_cost(problem); }

size_t rotary_cuda_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

/* Rows of 16- and 32-bit elements side by side, and all that a thread touches at multiples of 16 bytes; tensors and steps: of the nest's operands. */
static bool lies_in_vectors(const kernel_run *run, const rotary_arguments *a, const dw_tensor *const *tensors, const int64_t *steps) {
    if (!chip_has(run->chip, CHIP_tma) || tensors[0]->format != tensors[1]->format) return false;
    if (a->cols % CUDA_VECTOR != 0 || (a->interleaved ? a->width : a->width / 2) % CUDA_VECTOR != 0 || a->cols > INT32_MAX) return false;
    for (int k = 0; k < 4; k++) {
        const dw_format format = tensors[k]->format;
        if ((format != DW_FORMAT_f32 && format != DW_FORMAT_bf16 && format != DW_FORMAT_f16) || steps[k] != 1 || !cuda_lies_at_16(tensors[k]->data)) return false;
        for (int axis = 0; axis < a->nest.rank; axis++)
            if (a->nest.strides[k][axis] % CUDA_VECTOR != 0) return false;
    }
    return true;
}

static int64_t distance(const cuda_nest *nest, int axis) { return llabs(nest->strides[1][axis]); }

/* Axes in the order in which x lies, the nearest rows last: heads of a token that were split from one product are read together, whatever order the result has. */
static void follow_operand(cuda_nest *nest) {
    for (int end = nest->rank; end > 1; end--)
        for (int axis = 0; axis + 1 < end; axis++) {
            if (distance(nest, axis) >= distance(nest, axis + 1)) continue;
            const int64_t size = nest->dims[axis];
            nest->dims[axis] = nest->dims[axis + 1];
            nest->dims[axis + 1] = size;
            for (int k = 0; k < 4; k++) {
                const int64_t stride = nest->strides[k][axis];
                nest->strides[k][axis] = nest->strides[k][axis + 1];
                nest->strides[k][axis + 1] = stride;
            }
        }
}

/* Rows that differ in an axis along which cos and sin repeat, as heads do, become one item, where there are more items than threads. */
static void share_angles(const chip_caps *chip, rotary_arguments *a, int64_t units) {
    enum { SHARED = 4, THREADS = 2048 };   /* of a multiprocessor */
    cuda_nest *nest = &a->nest;
    a->shared = 1;
    for (int axis = 0; axis < nest->rank && a->shared == 1; axis++) {
        if (nest->strides[2][axis] != 0 || nest->strides[3][axis] != 0 || nest->dims[axis] % SHARED != 0 || nest->count / SHARED * units < (int64_t)chip->units * THREADS) continue;
        a->shared = SHARED;
        a->out_shared = nest->strides[0][axis];
        a->x_shared = nest->strides[1][axis];
        nest->dims[axis] /= SHARED;
        nest->count /= SHARED;
        for (int k = 0; k < 4; k++) nest->strides[k][axis] *= SHARED;
    }
}

dw_status rotary_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    rotary_arguments *arguments = cuda_launch(&launch, "rotary", "rotary_rows", sizeof *arguments);
    const dw_tensor *out = run->call.out[0];
    int last = out->rank - 1;
    int64_t steps[4];
    arguments->width = op_attr_int(run->call.attrs, OP_ATTR_width);
    if (arguments->width > out->dims[last])
        return base_fail(run->call.context, DW_MISMATCH, "rotary: width is %lld, the last axis of x is %lld", (long long)arguments->width, (long long)out->dims[last]);
    const dw_tensor *tensors[] = {out, run->call.in[0], run->call.in[1], run->call.in[2]};
    cuda_nest_lines(&arguments->nest, last, 4, tensors, steps);
    arguments->cols = out->dims[last];
    arguments->out_step = steps[0];
    arguments->x_step = steps[1];
    arguments->cosine_step = steps[2];
    arguments->sine_step = steps[3];
    arguments->interleaved = op_attr_bool(run->call.attrs, OP_ATTR_interleaved);
    if (arguments->nest.count == 0) return DW_OK;
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->out);
    cuda_take_array(&launch, run, 0, &arguments->x);
    cuda_take_array(&launch, run, 1, &arguments->cosine);
    cuda_take_array(&launch, run, 2, &arguments->sine);
    int64_t units = arguments->cols - arguments->width / 2;
    if (lies_in_vectors(run, arguments, tensors, steps)) {
        launch.image = launch.entry = "rotary_vectors";
        launch.overlaps = true;
        units = (arguments->interleaved ? arguments->cols : units) / CUDA_VECTOR;
        follow_operand(&arguments->nest);
        share_angles(run->chip, arguments, units);
    }
    cuda_grid_items(&launch, arguments->nest.count * units);
    return launcher->add(launcher, &launch);
}
