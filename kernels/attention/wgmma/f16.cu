/* f16 attention on Hopper: the entries of tiles.def. */
#include "kernels/attention/wgmma/wgmma.cuh"

#define ATTENTION_TILE(name, groups, width, value_width, keys, blocks, scores, quantised) \
    ATTENTION(attention_f16_##name, ELEMENT_F16, groups, width, value_width, keys, blocks, scores, quantised)
#include "kernels/attention/wgmma/tiles.def"
