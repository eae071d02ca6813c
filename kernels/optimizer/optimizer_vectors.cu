/* adamw on Hopper and later: eight elements a thread, side by side in all seven operands, in fp32; what is the same for all is computed in double by one thread of a block. Speed: README.md. */
#include "kernels/gpu/rows/vectors.cuh"
#include "kernels/optimizer/optimizer_cuda.h"
#include "op/optimizer.h"

INLINE void load_state(const optimizer_arguments *a, int64_t item, float x[4][PIECE]) {
#pragma unroll
    for (int k = 0; k < 4; k++) load_vector(&a->before[k], item * PIECE, 1, x[k]);
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS) optimizer_adamw_vectors(const __grid_constant__ optimizer_arguments arguments) {
    __shared__ adamw_step shared_step;
    float x[4][PIECE];
    int64_t item = item_first();
    grid_release();
    grid_wait();
    if (item < arguments.nest.count) load_state(&arguments, item, x);      /* on its way while powers are computed */
    if (threadIdx.x == 0)
        shared_step = adamw_step_of(arguments.beta1, arguments.beta2, arguments.eps, arguments.decay, load_double(&arguments.rate, 0), (double)load_int(&arguments.step, 0),
                                    arguments.has_scale ? load_double(&arguments.scale, 0) : 1.0);
    __syncthreads();
    const adamw_step step = shared_step;
    while (item < arguments.nest.count) {
        const int64_t at = item * PIECE;
        if (!step.stays) EACH_OF_PIECE(i) ADAMW_ELEMENT(float, sqrtf, &step, x[0][i], x[1][i], x[2][i], x[3][i]);
#pragma unroll
        for (int k = 0; k < 3; k++) store_vector(&arguments.next[k], at, x[k]);
        item += item_step();
        if (item < arguments.nest.count) load_state(&arguments, item, x);
    }
}
