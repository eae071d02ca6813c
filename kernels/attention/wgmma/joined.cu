/* The gradients of attention by five products: the entries of joined.def, what comes in front of them, the statistics of rows, and behind them, dq in its format. By the constants of the image's row: ENTRIES: their names are
 * attention_backward_joined_<ENTRIES>_..; ELEMENT: one of scores.cuh. */
#include "kernels/attention/wgmma/joined.cuh"

#define JOIN(entries, name) attention_backward_joined_##entries##_##name
#define NAMED(entries, name) JOIN(entries, name)
#define JOINED_TILE(name, width, others, stages)                                                                                                                              \
    extern "C" __global__ void __launch_bounds__(BACKWARD_THREADS, 1) NAMED(ENTRIES, name)(const __grid_constant__ attention_backward_wgmma_arguments arguments) {          \
        const backward_shape shape = {ELEMENT, 1, width, width, others, stages, BACKWARD_PLAIN};                                                                              \
        joined_backward(&arguments, shape);                                                                                                                                   \
    }                                                                                                                                                                         \
    extern "C" __global__ void __launch_bounds__(CUDA_THREADS) NAMED(ENTRIES, name##_dq)(const __grid_constant__ attention_backward_wgmma_arguments arguments) {            \
        const backward_shape shape = {ELEMENT, 1, width, width, others, stages, BACKWARD_PLAIN};                                                                              \
        joined_store_queries(&arguments, shape);                                                                                                                              \
    }
#include "kernels/attention/wgmma/joined.def"

extern "C" __global__ void __launch_bounds__(CUDA_THREADS) NAMED(ENTRIES, statistics)(const __grid_constant__ attention_backward_wgmma_arguments arguments) { make_statistics(&arguments, ELEMENT); }
