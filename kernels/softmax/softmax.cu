/* softmax and log_softmax: a block of 256 threads for each line, three passes in double. In place: a thread reads what it will write, and all have read before
 * any writes. Resources: 4 KiB of shared memory. Speed: bench/results/h200/plain.md. */
#include "kernels/gpu/plain/device.cuh"
#include "kernels/softmax/softmax_cuda.h"

BLOCK_MAX(block_max)
BLOCK_SUM(block_sum)

KERNEL(softmax_lines, softmax_arguments) {
    for (int64_t line = blockIdx.x; line < arguments.nest.count; line += gridDim.x) {
        int64_t at[2];
        double max = -(double)INFINITE, sum = 0;
        nest_offsets(&arguments.nest, line, 2, at);
        for (int64_t i = threadIdx.x; i < arguments.count; i += CUDA_THREADS) {
            double value = load_double(&arguments.x, at[1] + i * arguments.x_step);
            max = max != max || max > value ? max : value;
        }
        max = block_max(max);
        for (int64_t i = threadIdx.x; i < arguments.count; i += CUDA_THREADS) sum += exp(load_double(&arguments.x, at[1] + i * arguments.x_step) - max);
        sum = block_sum(sum);
        for (int64_t i = threadIdx.x; i < arguments.count; i += CUDA_THREADS) {
            double value = load_double(&arguments.x, at[1] + i * arguments.x_step) - max;
            value = arguments.is_log ? value - log(sum) : max == -(double)INFINITE ? 0 : exp(value) / sum;
            store_double(&arguments.out, at[0] + i * arguments.out_step, value);
        }
    }
}
