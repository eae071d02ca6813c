/* rotary of rows that lie side by side, at multiples of 16 bytes: eight elements and their partners a thread, in fp32, of up to four rows that
 * have the same angles, as heads do. One thread reads all that it writes, so pairs may
 * be turned in place. Resources: no shared memory. Speed: README.md. */
#include "kernels/rotary/rotary_cuda.h"
#include "kernels/rotary/turn.cuh"

/* Elements i and those a half behind them, of all rows that share their angles. */
INLINE void turn_halves(const rotary_arguments *a, const int64_t *at, int64_t i) {
    const int64_t j = i + a->width / 2;
    float low_cosine[PIECE], low_sine[PIECE], high_cosine[PIECE], high_sine[PIECE];
    load_vector(&a->cosine, at[2] + i, 1, low_cosine);
    load_vector(&a->sine, at[3] + i, 1, low_sine);
    load_vector(&a->cosine, at[2] + j, 1, high_cosine);
    load_vector(&a->sine, at[3] + j, 1, high_sine);
#pragma unroll 2
    for (int row = 0; row < a->shared; row++) {
        const int64_t from = at[1] + row * a->x_shared, to = at[0] + row * a->out_shared;
        float x[PIECE], y[PIECE], low[PIECE], high[PIECE];
        load_vector(&a->x, from + i, 1, x);
        load_vector(&a->x, from + j, 1, y);
        turn_pairs(x, y, low_cosine, low_sine, high_cosine, high_sine, low, high);
        store_vector(&a->out, to + i, low);
        store_vector(&a->out, to + j, high);
    }
}

/* Four pairs of neighbours, of the same rows. */
INLINE void turn_neighbours(const rotary_arguments *a, const int64_t *at, int64_t i) {
    float cosine[PIECE], sine[PIECE];
    load_vector(&a->cosine, at[2] + i, 1, cosine);
    load_vector(&a->sine, at[3] + i, 1, sine);
#pragma unroll 2
    for (int row = 0; row < a->shared; row++) {
        float x[PIECE], turned[PIECE];
        load_vector(&a->x, at[1] + row * a->x_shared + i, 1, x);
        turn_four(x, cosine, sine, turned);
        store_vector(&a->out, at[0] + row * a->out_shared + i, turned);
    }
}

/* Eight elements behind the width. */
INLINE void copy_rest(const rotary_arguments *a, const int64_t *at, int64_t i) {
    const int bytes = a->x.element_bytes;
    for (int row = 0; row < a->shared; row++) {
        const int64_t from = at[1] + row * a->x_shared + i, to = at[0] + row * a->out_shared + i;
        store_uint4(&a->out, to, bytes, load_uint4(&a->x, from, bytes));
        if (bytes == 4) store_uint4(&a->out, to + 4, bytes, load_uint4(&a->x, from + 4, bytes));
    }
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
            copy_rest(a, at, a->width + (int64_t)(unit - turned) * CUDA_VECTOR);
        } else if (a->interleaved) {
            turn_neighbours(a, at, (int64_t)unit * CUDA_VECTOR);
        } else {
            turn_halves(a, at, (int64_t)unit * CUDA_VECTOR);
        }
    }
}
