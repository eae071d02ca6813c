/* layer_norm, rms_norm and group_norm: a block of 256 threads for each row or group, statistics in double in two passes. With a residual the sum is rounded to
 * x's format and written first, and what is normalised is read from there by the thread that wrote it. Resources: 4 KiB of shared memory. Speed: bench/results/h200/plain.md. */
#include "kernels/gpu/plain/device.cuh"
#include "kernels/norm/norm_cuda.h"

BLOCK_SUM(block_sum)
BLOCK_SUM(block_squares)

KERNEL(norm_rows, norm_arguments) {
    int64_t cols = arguments.cols;
    for (int64_t row = blockIdx.x; row < arguments.nest.count; row += gridDim.x) {
        int64_t at[4];
        double sum = 0, squares = 0;
        nest_offsets(&arguments.nest, row, 4, at);
        for (int64_t i = threadIdx.x; arguments.has_residual && i < cols; i += CUDA_THREADS)
            store_double(&arguments.sum, at[2] + i * arguments.sum_step,
                         load_double(&arguments.x, at[1] + i * arguments.x_step) + load_double(&arguments.residual, at[3] + i * arguments.residual_step));
        const cuda_array *x = arguments.has_residual ? &arguments.sum : &arguments.x;
        int64_t first = arguments.has_residual ? at[2] : at[1], step = arguments.has_residual ? arguments.sum_step : arguments.x_step;
        for (int64_t i = threadIdx.x; arguments.centred && i < cols; i += CUDA_THREADS) sum += load_double(x, first + i * step);
        double mean = arguments.centred ? block_sum(sum) / (double)cols : 0;
        for (int64_t i = threadIdx.x; i < cols; i += CUDA_THREADS) {
            double away = load_double(x, first + i * step) - mean;
            squares += away * away;
        }
        double scale = 1 / sqrt(block_squares(squares) / (double)cols + arguments.eps);
        for (int64_t i = threadIdx.x; i < cols; i += CUDA_THREADS) {
            double value = (load_double(x, first + i * step) - mean) * scale;
            if (arguments.has_weight) value *= load_double(&arguments.weight, i * arguments.weight_step);
            if (arguments.has_bias) value += load_double(&arguments.bias, i * arguments.bias_step);
            store_double(&arguments.out, at[0] + i * arguments.out_step, value);
        }
    }
}

KERNEL(norm_group, group_norm_arguments) {
    int64_t count = arguments.group.count;
    for (int64_t item = blockIdx.x; item < arguments.batches * arguments.groups; item += gridDim.x) {
        int64_t batch = item / arguments.groups, channel = item % arguments.groups * arguments.channels, at[2];
        int64_t at_out = batch * arguments.out_batch + channel * arguments.out_channel, at_x = batch * arguments.x_batch + channel * arguments.x_channel;
        double sum = 0, squares = 0;
        for (int64_t i = threadIdx.x; i < count; i += CUDA_THREADS) {
            nest_offsets(&arguments.group, i, 2, at);
            sum += load_double(&arguments.x, at_x + at[1]);
        }
        double mean = block_sum(sum) / (double)count;
        for (int64_t i = threadIdx.x; i < count; i += CUDA_THREADS) {
            nest_offsets(&arguments.group, i, 2, at);
            double away = load_double(&arguments.x, at_x + at[1]) - mean;
            squares += away * away;
        }
        double scale = 1 / sqrt(block_squares(squares) / (double)count + arguments.eps);
        for (int64_t i = threadIdx.x; i < count; i += CUDA_THREADS) {
            nest_offsets(&arguments.group, i, 2, at);
            int64_t c = channel + i / arguments.per_channel;
            double value = (load_double(&arguments.x, at_x + at[1]) - mean) * scale;
            if (arguments.has_weight) value *= load_double(&arguments.weight, c * arguments.weight_step);
            if (arguments.has_bias) value += load_double(&arguments.bias, c * arguments.bias_step);
            store_double(&arguments.out, at_out + at[0], value);
        }
    }
}
