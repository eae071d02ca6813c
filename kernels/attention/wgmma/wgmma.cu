/* Attention by wgmma of one format: the entries of tiles.def, by the constants of the image's row: ENTRIES: their names are attention_<ENTRIES>_..; ELEMENT: one of scores.cuh. */
#include "kernels/attention/wgmma/walking.cuh"

#define JOIN(entries, name) attention_##entries##_##name
#define NAMED(entries, name) JOIN(entries, name)
#define ATTENTION_TILE(name, groups, width, value_width, keys, stages, q_stages, blocks, scores, paged, stays, quantised)                                                              \
    extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS(groups, blocks), blocks) NAMED(ENTRIES, name)(const __grid_constant__ attention_wgmma_arguments arguments) { \
        const attention_shape shape = {ELEMENT, groups, width, value_width, keys, stages, q_stages, blocks, scores, paged, stays, quantised, 0, 0};                                    \
        if (stays && paged) attention_walking(&arguments, shape);                                                                                                                \
        else if (stays) attention_persistent(&arguments, shape);                                                                                                                     \
        else attention_tma(&arguments, shape);                                                                                                                                  \
    }
#include "kernels/attention/wgmma/tiles.def"
