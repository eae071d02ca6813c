/* conv: one thread for each element of the result, sums in double in the order of channels and taps. Resources: no shared memory. Speed: bench/results/h200/plain.md. */
#include "kernels/gpu/plain/device.cuh"
#include "kernels/conv/conv_cuda.h"

DEVICE double window_sum(const conv_arguments *a, int64_t batch, int64_t output, int64_t row, int64_t col) {
    int64_t first = output / a->outputs_per_group * a->channels;
    double sum = 0;
    for (int64_t c = 0; c < a->channels; c++)
        for (int64_t ty = 0; ty < a->taps_y; ty++) {
            int64_t y = row * a->stride_y - a->padding_y + ty * a->dilation_y;
            if (y < 0 || y >= a->height) continue;
            for (int64_t tx = 0; tx < a->taps_x; tx++) {
                int64_t x = col * a->stride_x - a->padding_x + tx * a->dilation_x;
                if (x < 0 || x >= a->width) continue;
                int64_t at = batch * a->x_strides[0] + (first + c) * a->x_strides[1] + y * a->x_strides[2] + x * a->x_strides[3];
                int64_t tap = output * a->weight_strides[0] + c * a->weight_strides[1] + ty * a->weight_strides[2] + tx * a->weight_strides[3];
                sum += load_double(&a->x, at) * load_double(&a->weight, tap);
            }
        }
    return sum;
}

KERNEL(conv_direct, conv_arguments) {
    int64_t area = arguments.rows * arguments.cols, count = arguments.batches * arguments.outputs * area;
    for (int64_t i = item_first(); i < count; i += item_step()) {
        int64_t col = i % arguments.cols, row = i % area / arguments.cols, output = i / area % arguments.outputs, batch = i / area / arguments.outputs;
        double sum = window_sum(&arguments, batch, output, row, col);
        if (arguments.has_bias) sum += load_double(&arguments.bias, output * arguments.bias_step);
        store_double(&arguments.out, batch * arguments.out_strides[0] + output * arguments.out_strides[1] + row * arguments.out_strides[2] + col * arguments.out_strides[3], sum);
    }
}
