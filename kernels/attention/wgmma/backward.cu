/* The gradients of attention by wgmma: the entries of backward_tiles.def, and what comes in front of them: the statistics of rows, and a mask's squares. By the constants of the image's row: ENTRIES: their names
 * are attention_backward_<ENTRIES>_..; ELEMENT: one of scores.cuh. */
#include "kernels/attention/wgmma/backward.cuh"

#define JOIN(entries, name) attention_backward_##entries##_##name
#define NAMED(entries, name) JOIN(entries, name)
#define BACKWARD_TILE(name, of_keys, width, value_width, others, stages, more)                                                                                                        \
    extern "C" __global__ void __launch_bounds__(BACKWARD_THREADS, 1) NAMED(ENTRIES, name)(const __grid_constant__ attention_backward_wgmma_arguments arguments) { \
        const backward_shape shape = {ELEMENT, of_keys, width, value_width, others, stages, more};                                                                                           \
        attention_backward(&arguments, shape);                                                                                                                                  \
    }
#include "kernels/attention/wgmma/backward_tiles.def"

extern "C" __global__ void __launch_bounds__(CUDA_THREADS) NAMED(ENTRIES, statistics)(const __grid_constant__ attention_backward_wgmma_arguments arguments) { make_statistics(&arguments, ELEMENT); }
extern "C" __global__ void __launch_bounds__(CUDA_THREADS) NAMED(ENTRIES, squares)(const __grid_constant__ attention_backward_wgmma_arguments arguments) { make_squares(&arguments); }
