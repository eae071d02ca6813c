/* adamw and accumulate: a thread for each element, in double, any strides and formats; what is the same for all of adamw is computed by one thread of a block. Resources: 80 bytes of shared memory.
 * Speed: README.md. */
#include "kernels/gpu/plain/device.cuh"
#include "kernels/optimizer/optimizer_cuda.h"
#include "op/optimizer.h"

KERNEL(optimizer_adamw, optimizer_arguments) {
    __shared__ adamw_step shared_step;
    if (threadIdx.x == 0)
        shared_step = adamw_step_of(arguments.beta1, arguments.beta2, arguments.eps, arguments.decay, load_double(&arguments.rate, 0), (double)load_int(&arguments.step, 0),
                                    arguments.has_scale ? load_double(&arguments.scale, 0) : 1.0);
    __syncthreads();
    const adamw_step step = shared_step;
    for (int64_t item = item_first(); item < arguments.nest.count; item += item_step()) {
        int64_t at[7];
        double value[4];
        nest_offsets(&arguments.nest, item, 7, at);
        if (step.stays) {
            for (int i = 0; i < 3; i++) copy_element(&arguments.next[i], at[i], &arguments.before[i], at[3 + i]);
            continue;
        }
        for (int i = 0; i < 4; i++) value[i] = load_double(&arguments.before[i], at[3 + i]);
        ADAMW_ELEMENT(double, sqrt, &step, value[0], value[1], value[2], value[3]);
        for (int i = 0; i < 3; i++) store_double(&arguments.next[i], at[i], value[i]);
    }
}

/* Sums of f64 in double, others in fp32, as the reference has it. */
KERNEL(optimizer_accumulate, sums_arguments) {
    const double factor = load_double(&arguments.factor, 0);
    for (int64_t item = item_first(); item < arguments.nest.count; item += item_step()) {
        int64_t at[3];
        nest_offsets(&arguments.nest, item, 3, at);
        if (factor == 0) {
            copy_element(&arguments.next, at[0], &arguments.sum, at[1]);
            continue;
        }
        const double share = load_double(&arguments.g, at[2]) * factor, before = load_double(&arguments.sum, at[1]);
        store_double(&arguments.next, at[0], arguments.sum.format == CUDA_f64 ? before + share : (double)((float)before + (float)share));
    }
}
