/* The gradients of attention by wgmma: the entries of backward_tiles.def, and the statistics of rows in front of them. */
#include "kernels/attention/wgmma/backward.cuh"

#define BACKWARD_TILE(name, of_keys, width, value_width, others, stages)                                                                                                        \
    extern "C" __global__ void __launch_bounds__(BACKWARD_THREADS, 1) attention_backward_##name(const __grid_constant__ attention_backward_wgmma_arguments arguments) { \
        const backward_shape shape = {of_keys, width, value_width, others, stages};                                                                                           \
        attention_backward(&arguments, shape);                                                                                                                                  \
    }
#include "kernels/attention/wgmma/backward_tiles.def"

extern "C" __global__ void __launch_bounds__(CUDA_THREADS) attention_backward_statistics(const __grid_constant__ attention_backward_wgmma_arguments arguments) { make_statistics(&arguments); }
