/* rotary: one thread for each pair of the width and for each element behind it, so that a pair may be turned in place. Resources: no shared memory. Speed: not
 * measured. */
#include "kernels/gpu/plain/device.cuh"
#include "kernels/rotary/rotary_cuda.h"

KERNEL(rotary_rows, rotary_arguments) {
    int64_t half = arguments.width / 2, units = arguments.cols - half;
    for (int64_t item = item_first(); item < arguments.nest.count * units; item += item_step()) {
        int64_t at[4], unit = item % units;
        nest_offsets(&arguments.nest, item / units, 4, at);
        if (unit >= half) {
            int64_t i = unit + half;
            copy_element(&arguments.out, at[0] + i * arguments.out_step, &arguments.x, at[1] + i * arguments.x_step);
            continue;
        }
        int64_t i = arguments.interleaved ? 2 * unit : unit, j = arguments.interleaved ? i + 1 : i + half;
        double a = load_double(&arguments.x, at[1] + i * arguments.x_step), b = load_double(&arguments.x, at[1] + j * arguments.x_step);
        double cos_i = load_double(&arguments.cosine, at[2] + i * arguments.cosine_step), cos_j = load_double(&arguments.cosine, at[2] + j * arguments.cosine_step);
        double sin_i = load_double(&arguments.sine, at[3] + i * arguments.sine_step), sin_j = load_double(&arguments.sine, at[3] + j * arguments.sine_step);
        store_double(&arguments.out, at[0] + i * arguments.out_step, a * cos_i - b * sin_i);
        store_double(&arguments.out, at[0] + j * arguments.out_step, b * cos_j + a * sin_j);
    }
}
