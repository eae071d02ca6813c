/* adamw and accumulate on Hopper and later: several tensors a launch; eight elements a thread, side by side in all operands, in fp32; what is the same for all of adamw is computed in double by one
 * thread of a block. Speed: README.md. */
#include "kernels/gpu/rows/vectors.cuh"
#include "kernels/optimizer/optimizer_cuda.h"
#include "op/optimizer.h"

/* The tensor that vector item is of: not before k. */
INLINE int tensor_of(const int64_t *first, int64_t item, int k) {
    while (item >= first[k + 1]) k++;
    return k;
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS) optimizer_adamw_vectors(const __grid_constant__ optimizer_list arguments) {
    __shared__ adamw_step shared_step;
    const int64_t count = arguments.first[UPDATES_ADAMW];
    int k = 0;
    grid_release();
    grid_wait();
    if (threadIdx.x == 0)
        shared_step = adamw_step_of(arguments.beta1, arguments.beta2, arguments.eps, arguments.decay, load_double(&arguments.rate, 0), (double)load_int(&arguments.step, 0),
                                    arguments.has_scale ? load_double(&arguments.scale, 0) : 1.0);
    __syncthreads();
    const adamw_step step = shared_step;
    for (int64_t item = item_first(); item < count; item += item_step()) {
        float x[4][PIECE];
        k = tensor_of(arguments.first, item, k);
        const int64_t at = (item - arguments.first[k]) * PIECE;
#pragma unroll
        for (int i = 0; i < 4; i++) load_vector(&arguments.before[k][i], at, 1, x[i]);
        if (!step.stays) EACH_OF_PIECE(i) ADAMW_ELEMENT(float, sqrtf, &step, x[0][i], x[1][i], x[2][i], x[3][i]);
#pragma unroll
        for (int i = 0; i < 3; i++) store_vector(&arguments.next[k][i], at, x[i]);
    }
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS) optimizer_accumulate_vectors(const __grid_constant__ sums_list arguments) {
    const int64_t count = arguments.first[UPDATES_SUMS];
    int k = 0;
    grid_release();
    grid_wait();
    const float factor = (float)load_double(&arguments.factor, 0);
    for (int64_t item = item_first(); item < count; item += item_step()) {
        float sum[PIECE], g[PIECE];
        k = tensor_of(arguments.first, item, k);
        const int64_t at = (item - arguments.first[k]) * PIECE;
        load_vector(&arguments.sum[k], at, 1, sum);
        load_vector(&arguments.g[k], at, 1, g);
        if (factor != 0) EACH_OF_PIECE(i) sum[i] = __fadd_rn(sum[i], __fmul_rn(g[i], factor));
        store_vector(&arguments.next[k], at, sum);
    }
}
