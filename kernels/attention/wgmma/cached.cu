/* Attention by wgmma whose q is bf16 and whose k and v are in blocks, which become bf16 in shared memory: the entries of cached.def, attention_cached_... */
#include "kernels/attention/wgmma/wgmma.cuh"

#define ATTENTION_TILE(name, groups, width, value_width, keys, stages, q_stages, blocks, scores, paged, stays, quantised, cached)                                                        \
    extern "C" __global__ void __launch_bounds__(ATTENTION_CACHED_THREADS(groups), blocks) attention_cached_##name(const __grid_constant__ attention_cached_arguments arguments) { \
        const attention_shape shape = {ELEMENT_BF16, groups, width, value_width, keys, stages, q_stages, blocks, scores, paged, stays, quantised, 0, cached};                         \
        attention_tma(&arguments.call, shape);                                                                                                                                        \
    }
#include "kernels/attention/wgmma/cached.def"
