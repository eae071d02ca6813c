/* Attention by wgmma whose q is in fp8_1x128 and k in fp8_128x128, multiplied as codes: the entries of codes.def, attention_e4m3_... */
#include "kernels/attention/wgmma/persistent.cuh"

#define ATTENTION_TILE(name, groups, width, value_width, keys, stages, q_stages, blocks, scores, paged, stays, quantised)                                                              \
    extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS(groups, blocks), blocks) attention_e4m3_##name(const __grid_constant__ attention_codes_arguments arguments) { \
        const attention_shape shape = {ELEMENT_BF16, groups, width, value_width, keys, stages, q_stages, blocks, scores, paged, stays, quantised, 1, 0};                           \
        if (stays) attention_persistent(&arguments.call, shape);                                                                                                                     \
        else attention_tma(&arguments.call, shape);                                                                                                                                  \
    }
#include "kernels/attention/wgmma/codes.def"
