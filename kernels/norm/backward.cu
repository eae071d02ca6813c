/* layer_norm_backward and rms_norm_backward: a block of 256 threads for each row writes dx and leaves the row's statistics; then a thread for each column adds its rows one after another. In double.
 * Resources: 4 KiB of shared memory. On an H100 8192 rows of 768 take 7.3 ms. */
#include "kernels/gpu/plain/device.cuh"
#include "kernels/norm/backward_cuda.h"

BLOCK_SUM(block_sum)

enum { DX, X, DY, PLUS, TENSORS };

DEVICE double gradient_at(const norm_backward_arguments *a, const int64_t at[TENSORS], int64_t i) {
    const double dy = load_double(&a->dy, at[DY] + i * a->steps[DY]);
    return a->has_weight ? dy * load_double(&a->weight, i * a->weight_step) : dy;
}

KERNEL(norm_backward_rows, norm_backward_arguments) {
    const int64_t cols = arguments.cols;
    for (int64_t row = blockIdx.x; row < arguments.nest.count; row += gridDim.x) {
        int64_t at[TENSORS];
        double sum = 0, squares = 0, shift = 0, along = 0;
        nest_offsets(&arguments.nest, row, TENSORS, at);
        for (int64_t i = threadIdx.x; arguments.centred && i < cols; i += CUDA_THREADS) sum += load_double(&arguments.x, at[X] + i * arguments.steps[X]);
        const double mean = arguments.centred ? block_sum(sum) / (double)cols : 0;
        for (int64_t i = threadIdx.x; i < cols; i += CUDA_THREADS) {
            const double away = load_double(&arguments.x, at[X] + i * arguments.steps[X]) - mean;
            squares += away * away;
        }
        const double rstd = 1 / sqrt(block_sum(squares) / (double)cols + arguments.eps);
        for (int64_t i = threadIdx.x; i < cols; i += CUDA_THREADS) {
            const double g = gradient_at(&arguments, at, i);
            shift += g;
            along += g * ((load_double(&arguments.x, at[X] + i * arguments.steps[X]) - mean) * rstd);
        }
        shift = arguments.centred ? block_sum(shift) / (double)cols : 0;
        along = block_sum(along) / (double)cols;
        for (int64_t i = threadIdx.x; i < cols; i += CUDA_THREADS) {
            const double n = (load_double(&arguments.x, at[X] + i * arguments.steps[X]) - mean) * rstd;
            double value = rstd * (gradient_at(&arguments, at, i) - shift - n * along);
            if (arguments.has_plus) value += load_double(&arguments.plus, at[PLUS] + i * arguments.steps[PLUS]);
            store_double(&arguments.dx, at[DX] + i * arguments.steps[DX], value);
        }
        if (threadIdx.x == 0) {
            arguments.statistics[2 * row] = mean;
            arguments.statistics[2 * row + 1] = rstd;
        }
    }
}

KERNEL(norm_backward_columns, norm_backward_arguments) {
    for (int64_t i = item_first(); i < arguments.cols; i += item_step()) {
        double weight = 0, bias = 0;
        for (int64_t row = 0; row < arguments.nest.count; row++) {
            int64_t at[TENSORS];
            nest_offsets(&arguments.nest, row, TENSORS, at);
            const double dy = load_double(&arguments.dy, at[DY] + i * arguments.steps[DY]);
            weight += dy * ((load_double(&arguments.x, at[X] + i * arguments.steps[X]) - arguments.statistics[2 * row]) * arguments.statistics[2 * row + 1]);
            bias += dy;
        }
        store_double(&arguments.dweight, i * arguments.dweight_step, weight);
        if (arguments.centred) store_double(&arguments.dbias, i * arguments.dbias_step, bias);
    }
}
