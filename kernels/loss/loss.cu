/* cross_entropy and its gradient: a block of 256 threads for each row, passes in double. A label outside the classes has a loss of NaN, and a row of NaN as its gradient. Resources: 4 KiB of shared
 * memory. Speed: README.md. */
#include "kernels/gpu/plain/device.cuh"
#include "kernels/loss/loss_cuda.h"

BLOCK_MAX(block_max)
BLOCK_SUM(block_sum)

KERNEL(loss_rows, loss_arguments) {
    for (int64_t row = blockIdx.x; row < arguments.nest.count; row += gridDim.x) {
        int64_t at[4];
        double max = -(double)INFINITE, sum = 0, total = 0;
        nest_offsets(&arguments.nest, row, 4, at);
        for (int64_t i = threadIdx.x; i < arguments.count; i += CUDA_THREADS) {
            const double value = load_double(&arguments.logits, at[1] + i * arguments.step);
            max = max != max || max > value ? max : value;
            total += value;
        }
        max = block_max(max);
        for (int64_t i = threadIdx.x; i < arguments.count; i += CUDA_THREADS) sum += exp(load_double(&arguments.logits, at[1] + i * arguments.step) - max);
        sum = block_sum(sum);
        total = block_sum(total);
        if (threadIdx.x == 0) {
            const int64_t label = load_int(&arguments.labels, at[0]);
            const int is_infinite = max == -(double)INFINITE || max == (double)INFINITE;
            const double lse = is_infinite ? max : max + log(sum);
            double loss = 0;
            if (!arguments.has_ignore || label != arguments.ignore) {
                loss = label < 0 || label >= arguments.count ? nan("") : lse - (1 - arguments.smoothing) * load_double(&arguments.logits, at[1] + label * arguments.step);
                if (arguments.smoothing > 0) loss -= arguments.smoothing * (total / (double)arguments.count);
            }
            store_double(&arguments.made, at[2], loss);
            store_double(&arguments.lse, at[3], lse);
        }
    }
}

KERNEL(loss_gradients, loss_arguments) {
    for (int64_t row = blockIdx.x; row < arguments.nest.count; row += gridDim.x) {
        int64_t at[5];
        nest_offsets(&arguments.nest, row, 5, at);
        const int64_t label = load_int(&arguments.labels, at[0]);
        const double lse = load_double(&arguments.lse, at[3]), d = load_double(&arguments.d, at[4]), shared = arguments.smoothing / (double)arguments.count;
        const int counts = !arguments.has_ignore || label != arguments.ignore, is_class = label >= 0 && label < arguments.count;
        for (int64_t i = threadIdx.x; i < arguments.columns; i += CUDA_THREADS) {
            const double away = exp(load_double(&arguments.logits, at[1] + i * arguments.step) - lse) - (i == label ? 1 - arguments.smoothing : 0) - shared;
            store_double(&arguments.made, at[2] + i * arguments.made_step, !counts || i >= arguments.count ? 0 : is_class ? d * away : nan(""));
        }
    }
}
