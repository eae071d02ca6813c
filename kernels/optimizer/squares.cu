/* sum_squares: a block of 256 threads for each part of an operand, and one block that adds up the parts. In double; every sum has one order. Resources: 2 KiB of shared memory. Speed: README.md. */
#include "kernels/gpu/plain/device.cuh"
#include "kernels/optimizer/squares.h"

BLOCK_SUM(block_sum)

/* Of every CUDA_THREADS-th of count elements. */
DEVICE double squares_of_floats(const float *x, int64_t count) {
    double sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += CUDA_THREADS) sum += (double)x[i] * (double)x[i];
    return sum;
}

DEVICE double squares_of(const cuda_array *x, int64_t from, int64_t count) {
    double sum = 0;
    if (x->format == CUDA_f32) return squares_of_floats((const float *)x->data + from, count);
    for (int64_t i = threadIdx.x; i < count; i += CUDA_THREADS) {
        const double value = load_double(x, from + i);
        sum += value * value;
    }
    return sum;
}

KERNEL(squares_parts, squares_arguments) {
    for (int64_t part = blockIdx.x; part < arguments.first[SQUARES_OPERANDS]; part += gridDim.x) {
        int k = 0;
        while (part >= arguments.first[k + 1]) k++;
        const int64_t from = (part - arguments.first[k]) * SQUARES_PART, left = arguments.counts[k] - from;
        const double sum = block_sum(squares_of(&arguments.x[k], from, left < SQUARES_PART ? left : SQUARES_PART));
        if (threadIdx.x == 0) ((double *)arguments.parts)[part] = sum;
    }
}

KERNEL(squares_total, squares_arguments) {
    double sum = 0;
    for (int64_t i = threadIdx.x; i < arguments.all; i += CUDA_THREADS) sum += ((const double *)arguments.parts)[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) store_double(&arguments.out, 0, sum);
}
