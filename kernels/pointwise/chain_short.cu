/* Chains of at most one function and one sum or product, as an activation between two casts, or its slope times a gradient: what chain_vectors.cu would read in six instructions and keep in
 * shared memory is here one step in registers, with all operands on their way from the start.
 *
 *     thread:  x[2][8], y[2][8] gmem -> reg as they are in memory; one vector after the other: round(function(x)) * y or + y, rounded -> gmem
 *
 * The bits are those of the ops one by one. Resources: no shared memory. Speed: README.md. */
#include "kernels/pointwise/chain_short.h"
#include "kernels/pointwise/functions.cuh"

#define EACH_VECTOR(v) _Pragma("unroll") for (int v = 0; v < CHAIN_SHORT_VECTORS; v++)

/* Eight elements as they are in memory; high is there of f32 alone. */
typedef struct raw_vector { uint4 low, high; } raw_vector;

INLINE void load_raw(const cuda_array *array, int64_t vector, raw_vector *raw) {
    const uint4 *from = (const uint4 *)(array->data + (uint64_t)vector * (array->format == CUDA_f32 ? 32 : 16));
    raw->low = from[0];
    if (array->format == CUDA_f32) raw->high = from[1];
}

INLINE void raw_floats(int format, const raw_vector *raw, float *x) {
    if (format == CUDA_f32) {
        const uint32_t bits[PIECE] = {raw->low.x, raw->low.y, raw->low.z, raw->low.w, raw->high.x, raw->high.y, raw->high.z, raw->high.w};
        EACH_OF_PIECE(i) x[i] = __uint_as_float(bits[i]);
    } else if (format == CUDA_bf16) {
        unpack_halves(CUDA_bf16, raw->low, x);
    } else {
        unpack_halves(CUDA_f16, raw->low, x);
    }
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS, 4) chain_short(const __grid_constant__ chain_short_arguments arguments) {
    const chain_short_arguments *a = &arguments;
    grid_release();
    grid_wait();
    for (int64_t first = (int64_t)blockIdx.x * CUDA_THREADS * CHAIN_SHORT_VECTORS + threadIdx.x; first < a->vectors; first += item_step() * CHAIN_SHORT_VECTORS) {
        raw_vector x[CHAIN_SHORT_VECTORS], y[CHAIN_SHORT_VECTORS];
        EACH_VECTOR(v) load_raw(&a->x, min(first + v * CUDA_THREADS, a->vectors - 1), &x[v]);
        if (a->with != CHAIN_SHORT_ALONE) EACH_VECTOR(v) load_raw(&a->y, min(first + v * CUDA_THREADS, a->vectors - 1), &y[v]);
#pragma unroll 1
        for (int64_t vector = first; vector < min(first + CHAIN_SHORT_VECTORS * CUDA_THREADS, a->vectors); vector += CUDA_THREADS) {
            float xs[PIECE], ys[PIECE];
            raw_floats(a->x.format, &x[0], xs);
            evaluate_vector(a->function, xs, xs);
            if (a->rounds == CUDA_bf16) unpack_halves(CUDA_bf16, pack_halves(CUDA_bf16, xs), xs);
            else if (a->rounds == CUDA_f16) unpack_halves(CUDA_f16, pack_halves(CUDA_f16, xs), xs);
            if (a->with != CHAIN_SHORT_ALONE) raw_floats(a->y.format, &y[0], ys);
            if (a->with == CHAIN_SHORT_TIMES) EACH_OF_PIECE(i) xs[i] *= ys[i];
            if (a->with == CHAIN_SHORT_PLUS) EACH_OF_PIECE(i) xs[i] += ys[i];
            store_vector(&a->out, vector * PIECE, xs);
            x[0] = x[1];   /* vectors take turns at number 0, as the function's code is there once */
            y[0] = y[1];
        }
    }
}
static_assert(CHAIN_SHORT_VECTORS == 2, "two take turns");
