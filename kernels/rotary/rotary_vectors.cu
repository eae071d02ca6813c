/* rotary of rows that lie side by side, at multiples of 16 bytes: eight elements and their partners a thread, in fp32. One thread reads all that it writes, so pairs may
 * be turned in place. Resources: no shared memory. Speed: README.md. */
#include "kernels/common/cuda/vectors.cuh"
#include "kernels/rotary/rotary_cuda.h"

/* Elements i and those a half behind them. */
INLINE void turn_halves(const rotary_arguments *a, const int64_t *at, int64_t i) {
    int64_t j = i + a->width / 2;
    float x[PIECE], y[PIECE], cosine[PIECE], sine[PIECE], low[PIECE], high[PIECE];
    load_vector(&a->x, at[1] + i, 1, x);
    load_vector(&a->x, at[1] + j, 1, y);
    load_vector(&a->cosine, at[2] + i, 1, cosine);
    load_vector(&a->sine, at[3] + i, 1, sine);
    EACH_OF_PIECE(k) low[k] = x[k] * cosine[k] - y[k] * sine[k];
    load_vector(&a->cosine, at[2] + j, 1, cosine);
    load_vector(&a->sine, at[3] + j, 1, sine);
    EACH_OF_PIECE(k) high[k] = y[k] * cosine[k] + x[k] * sine[k];
    store_vector(&a->out, at[0] + i, low);
    store_vector(&a->out, at[0] + j, high);
}

/* Four pairs of neighbours. */
INLINE void turn_neighbours(const rotary_arguments *a, const int64_t *at, int64_t i) {
    float x[PIECE], cosine[PIECE], sine[PIECE], turned[PIECE];
    load_vector(&a->x, at[1] + i, 1, x);
    load_vector(&a->cosine, at[2] + i, 1, cosine);
    load_vector(&a->sine, at[3] + i, 1, sine);
#pragma unroll
    for (int k = 0; k < PIECE; k += 2) {
        turned[k] = x[k] * cosine[k] - x[k + 1] * sine[k];
        turned[k + 1] = x[k + 1] * cosine[k + 1] + x[k] * sine[k + 1];
    }
    store_vector(&a->out, at[0] + i, turned);
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS) rotary_vectors(const __grid_constant__ rotary_arguments arguments) {
    const rotary_arguments *a = &arguments;
    const uint32_t turned = (uint32_t)(a->interleaved ? a->width : a->width / 2) / CUDA_VECTOR, units = turned + (uint32_t)(a->cols - a->width) / CUDA_VECTOR;
    const int64_t items = a->nest.count * units;
    grid_release();
    grid_wait();
    for (int64_t item = item_first(); item < items; item += item_step()) {
        int64_t at[4], row = items <= UINT32_MAX ? (uint32_t)item / units : item / units;
        uint32_t unit = (uint32_t)(item - row * units);
        nest_offsets(&a->nest, row, 4, at);
        if (unit >= turned) {
            int64_t i = a->width + (int64_t)(unit - turned) * CUDA_VECTOR;
            const int bytes = a->x.element_bytes;
            store_uint4(&a->out, at[0] + i, bytes, load_uint4(&a->x, at[1] + i, bytes));
            if (bytes == 4) store_uint4(&a->out, at[0] + i + 4, bytes, load_uint4(&a->x, at[1] + i + 4, bytes));
        } else if (a->interleaved) {
            turn_neighbours(a, at, (int64_t)unit * CUDA_VECTOR);
        } else {
            turn_halves(a, at, (int64_t)unit * CUDA_VECTOR);
        }
    }
}
