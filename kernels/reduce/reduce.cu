/* Reductions: a block of 256 threads for each result, or a thread where little goes into one. Real numbers are accumulated in double, integers in int64; the
 * order depends on the shape alone. Resources: up to 4 KiB of shared memory. Speed: bench/results/h200/plain.md. */
#include "kernels/gpu/plain/device.cuh"
#include "kernels/reduce/reduce_cuda.h"

DEVICE double real_start(int function) {
    switch (function) {
    case REDUCE_prod:
    case REDUCE_all: return 1;
    case REDUCE_amax: return -(double)INFINITE;
    case REDUCE_amin: return (double)INFINITE;
    default: return 0;
    }
}

DEVICE double real_step(int function, double sum, double x) {
    switch (function) {
    case REDUCE_prod: return sum * x;
    case REDUCE_amax: return sum != sum || sum > x ? sum : x;
    case REDUCE_amin: return sum != sum || sum < x ? sum : x;
    case REDUCE_any: return sum != 0 || x != 0;
    case REDUCE_all: return sum != 0 && x != 0;
    default: return sum + x;
    }
}

DEVICE int64_t int_start(int function) {
    switch (function) {
    case REDUCE_prod:
    case REDUCE_all: return 1;
    case REDUCE_amax: return INT64_MIN;
    case REDUCE_amin: return INT64_MAX;
    default: return 0;
    }
}

DEVICE int64_t int_step(int function, int64_t sum, int64_t x) {
    switch (function) {
    case REDUCE_prod: return (int64_t)((uint64_t)sum * (uint64_t)x);
    case REDUCE_amax: return sum > x ? sum : x;
    case REDUCE_amin: return sum < x ? sum : x;
    case REDUCE_any: return sum != 0 || x != 0;
    case REDUCE_all: return sum != 0 && x != 0;
    default: return (int64_t)((uint64_t)sum + (uint64_t)x);
    }
}

#define REDUCE_KERNEL(name, type, start, step, load, finish)                                                       \
    KERNEL(name, reduce_arguments) {                                                                               \
        __shared__ type shared[CUDA_THREADS];                                                                      \
        int together = arguments.together, function = arguments.function, thread = (int)threadIdx.x;               \
        int64_t first = together ? blockIdx.x : item_first(), next = together ? gridDim.x : item_step();           \
        for (int64_t i = first; i < arguments.outer.count; i += next) {                                            \
            int64_t at[2], inner[1];                                                                               \
            nest_offsets(&arguments.outer, i, 2, at);                                                              \
            type sum = start(function);                                                                            \
            for (int64_t j = together ? thread : 0; j < arguments.inner.count; j += together ? CUDA_THREADS : 1) { \
                nest_offsets(&arguments.inner, j, 1, inner);                                                       \
                sum = step(function, sum, load(&arguments.x, at[1] + inner[0]));                                   \
            }                                                                                                      \
            if (together) {                                                                                        \
                __syncthreads();                                                                                   \
                shared[thread] = sum;                                                                              \
                __syncthreads();                                                                                   \
                for (int half = CUDA_THREADS / 2; half > 0; half /= 2) {                                           \
                    if (thread < half) shared[thread] = step(function, shared[thread], shared[thread + half]);     \
                    __syncthreads();                                                                               \
                }                                                                                                  \
                sum = shared[0];                                                                                   \
                if (thread > 0) continue;                                                                          \
            }                                                                                                      \
            finish;                                                                                                \
        }                                                                                                          \
    }

REDUCE_KERNEL(reduce_real, double, real_start, real_step, load_double,
              store_real(&arguments.out, at[0], function == REDUCE_mean ? sum / (double)arguments.inner.count : sum))
REDUCE_KERNEL(reduce_integer, int64_t, int_start, int_step, load_int, store_int(&arguments.out, at[0], sum))

/* The first largest (smallest) of elements i and j; NaN counts as the largest of the largest and the smallest of the smallest. */
DEVICE int64_t better(const cuda_array *x, int64_t base, const cuda_nest *inner, int function, int64_t i, int64_t j) {
    if (i < 0 || j < 0) return i < 0 ? j : i;
    int64_t at_i[1], at_j[1];
    int sign;
    nest_offsets(inner, i, 1, at_i);
    nest_offsets(inner, j, 1, at_j);
    if (is_integer(x->format)) {
        int64_t a = load_int(x, base + at_i[0]), b = load_int(x, base + at_j[0]);
        sign = function == REDUCE_argmax ? (a > b) - (a < b) : (a < b) - (a > b);
    } else {
        double a = load_double(x, base + at_i[0]), b = load_double(x, base + at_j[0]);
        if (a != a || b != b) sign = (a != a) - (b != b);
        else sign = function == REDUCE_argmax ? (a > b) - (a < b) : (a < b) - (a > b);
    }
    if (sign == 0) return i < j ? i : j;
    return sign > 0 ? i : j;
}

/* The index of a number; -1 of NaN and +inf, -2 of -inf. */
DEVICE int64_t finite_index(const cuda_array *x, int64_t base, const cuda_nest *inner, int64_t index) {
    int64_t at[1];
    if (is_integer(x->format)) return index;
    nest_offsets(inner, index, 1, at);
    const double value = load_double(x, base + at[0]);
    return value - value == 0 ? index : value < 0 ? -2 : -1;
}

KERNEL(reduce_index, reduce_arguments) {
    __shared__ int64_t shared[CUDA_THREADS];
    int thread = (int)threadIdx.x, function = arguments.function;
    for (int64_t i = blockIdx.x; i < arguments.outer.count; i += gridDim.x) {
        int64_t at[2], found = -1;
        nest_offsets(&arguments.outer, i, 2, at);
        for (int64_t j = thread; j < arguments.inner.count; j += CUDA_THREADS) found = better(&arguments.x, at[1], &arguments.inner, function, found, j);
        __syncthreads();
        shared[thread] = found;
        __syncthreads();
        for (int half = CUDA_THREADS / 2; half > 0; half /= 2) {
            if (thread < half) shared[thread] = better(&arguments.x, at[1], &arguments.inner, function, shared[thread], shared[thread + half]);
            __syncthreads();
        }
        if (thread == 0) store_int(&arguments.out, at[0], arguments.finite ? finite_index(&arguments.x, at[1], &arguments.inner, shared[0]) : shared[0]);
    }
}
